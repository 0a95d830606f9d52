"""The contracts that a tensor backend, a memory manager and a tape implement. Nothing here computes."""

from flnb.interface.memory import AllocHint, Block, MemoryDevice, MemoryManager, OutOfMemoryError, Segment
from flnb.interface.tape import Tape
from flnb.interface.tensor import TensorBackend

__all__ = [
    "AllocHint", "Block", "MemoryDevice", "MemoryManager", "OutOfMemoryError", "Segment", "Tape", "TensorBackend",
]  # fmt: skip
