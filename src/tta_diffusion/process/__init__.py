"""The simplex process. Importing the package registers its noise engines."""

from tta_diffusion.process import noise, tail

__all__ = ["noise", "tail"]
