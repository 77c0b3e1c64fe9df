"""Time and noise: schedules, grids, processes. Importing the package registers the noise engines of the simplex."""

from tta_diffusion.diffusion import noise, tail

__all__ = ["noise", "tail"]
