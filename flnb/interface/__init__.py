"""The contracts: what a tensor backend, a memory manager, a memory device and a tape implement. Nothing computes."""

from flnb.interface.memory import AllocHint, Block, MemoryDevice, MemoryManager, OutOfMemoryError, Segment
from flnb.interface.part import Part
from flnb.interface.tape import Tape
from flnb.interface.tensor import TensorBackend

__all__ = [
    "AllocHint", "Block", "MemoryDevice", "MemoryManager", "OutOfMemoryError", "Part", "Segment", "Tape",
    "TensorBackend",
]  # fmt: skip
