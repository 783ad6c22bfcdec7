"""``torch_xla.experimental.distributed_checkpoint``: planners, which are PyTorch's own.

``torch.distributed.checkpoint`` takes tensors over devices in parts (docs/training-at-size.md).
"""

from torch.distributed.checkpoint import DefaultLoadPlanner as SPMDLoadPlanner
from torch.distributed.checkpoint import DefaultSavePlanner as SPMDSavePlanner

__all__ = ["SPMDLoadPlanner", "SPMDSavePlanner"]
