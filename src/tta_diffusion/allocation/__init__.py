"""Policies: a time for each token."""

from tta_diffusion.allocation.allocator import Allocation, parse_allocation
from tta_diffusion.allocation.policies import POLICIES
from tta_diffusion.allocation.signals import SIGNALS, Moment

__all__ = ["POLICIES", "SIGNALS", "Allocation", "Moment", "parse_allocation"]
