"""Controllable text generation with diffusion language models: token timestep allocation."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tta_diffusion.denoiser.model import SimplexDenoiser
    from tta_diffusion.denoiser.token_model import TokenDenoiser
    from tta_diffusion.pipeline import TTAOutput, TTAPipeline

__version__ = "0.1.0"
__all__ = ["SimplexDenoiser", "TTAOutput", "TTAPipeline", "TokenDenoiser", "__version__"]

_LAZY = {
    "SimplexDenoiser": "tta_diffusion.denoiser.model",
    "TokenDenoiser": "tta_diffusion.denoiser.token_model",
    "TTAPipeline": "tta_diffusion.pipeline",
    "TTAOutput": "tta_diffusion.pipeline",
}


def __getattr__(name: str) -> Any:
    """Imports torch only when something that needs it is asked for: `tta --help` should not wait."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'tta_diffusion' has no attribute '{name}'")
