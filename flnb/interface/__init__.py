"""The contracts: base classes for tensor backends, memory managers, memory devices and tapes of the user's own."""

from flnb.interface.memory import AllocHint, Block, MemoryDevice, MemoryManager, OutOfMemoryError, Segment
from flnb.interface.part import Part
from flnb.interface.tape import Tape
from flnb.interface.tensor import TensorBackend

__all__ = [
    "AllocHint", "Block", "MemoryDevice", "MemoryManager", "OutOfMemoryError", "Part", "Segment", "Tape",
    "TensorBackend",
]  # fmt: skip
