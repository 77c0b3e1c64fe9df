"""Plain sampling: the base model goes on as it likes, whatever is asked for.

p(x_t | x_<t) from logits z_t by temperature, top-k and top-p; the lowest line that a control must beat.
"""

from __future__ import annotations

from tta_diffusion.baselines.causal import Reader
from tta_diffusion.baselines.decode import CausalWriter, Decoding
from tta_diffusion.baselines.registry import Setup, Writer, register


@register("sampling", Decoding)
def sampling(setup: Setup, options: Decoding) -> Writer:
    return CausalWriter(setup.base, lambda label: Reader(setup.base.model), options)
