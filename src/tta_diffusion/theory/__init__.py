"""The paper's appendix as code: discrete duality, the fluctuation bound, the noise-budget program.

Everything here is a pure function of numbers or tensors of any shape, computes in float64 and returns
float64.
"""

from tta_diffusion.theory.budget import affine_allocation, allocation_cost, linear_program_allocation
from tta_diffusion.theory.duality import (
    alpha_bar_for_keep,
    argmax_keep_probability,
    diffusion_transformation,
    gaussian_correlation,
    simplex_to_uniform,
)
from tta_diffusion.theory.fluctuation import (
    cross_entropy_certificate,
    excess_fluctuation,
    expected_fluctuation_rate,
    fluctuation_rate,
    kl_divergence,
    kl_lower_bound,
    perplexity_certificate,
    total_variation,
    tv_lower_bound,
)

__all__ = [
    "affine_allocation",
    "allocation_cost",
    "alpha_bar_for_keep",
    "argmax_keep_probability",
    "cross_entropy_certificate",
    "diffusion_transformation",
    "excess_fluctuation",
    "expected_fluctuation_rate",
    "fluctuation_rate",
    "gaussian_correlation",
    "kl_divergence",
    "kl_lower_bound",
    "linear_program_allocation",
    "perplexity_certificate",
    "simplex_to_uniform",
    "total_variation",
    "tv_lower_bound",
]
