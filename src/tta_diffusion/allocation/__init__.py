from tta_diffusion.allocation.allocator import Allocation, parse_allocation
from tta_diffusion.allocation.policies import POLICIES

__all__ = ["POLICIES", "Allocation", "parse_allocation"]
