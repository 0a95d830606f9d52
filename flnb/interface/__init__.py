"""Base classes (contracts) for user-defined backends, memory managers, memory devices, tapes and communicators."""

from flnb.interface.communicator import CollectiveError, Communicator, Rendezvous, Work
from flnb.interface.memory import AllocHint, Block, MemoryDevice, MemoryManager, OutOfMemoryError, Segment
from flnb.interface.part import Part
from flnb.interface.tape import Tape
from flnb.interface.tensor import TensorBackend

__all__ = [
    "AllocHint", "Block", "CollectiveError", "Communicator", "MemoryDevice", "MemoryManager", "OutOfMemoryError",
    "Part", "Rendezvous", "Segment", "Tape", "TensorBackend", "Work",
]  # fmt: skip
