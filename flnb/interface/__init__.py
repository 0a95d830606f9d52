"""The contracts: what a tensor backend and a memory manager implement. Nothing here computes."""

from flnb.interface.memory import AllocHint, Block, MemoryDevice, MemoryManager, OutOfMemoryError, Segment
from flnb.interface.tensor import TensorBackend

__all__ = ["AllocHint", "Block", "MemoryDevice", "MemoryManager", "OutOfMemoryError", "Segment", "TensorBackend"]
