"""Descriptions of collective calls, which ranks compare to detect that they make different calls."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import intern, schema

from flnb.dispatch.board import TEXT
from flnb.interface.communicator import REDUCTIONS

if TYPE_CHECKING:
    from flnb.interface.communicator import Communicator

COLLECTIVES = ("all_reduce", "all_reduce_multiple", "all_gather", "reduce_scatter", "broadcast", "barrier")
REDUCING = ("all_reduce", "all_reduce_multiple", "reduce_scatter")
MEETING = frozenset(COLLECTIVES) - {"broadcast"}
"""Operations that no rank finishes before all ranks have started them."""


class Call:
    """The description of a collective call: its text and key on the board, and the codes of its events.

    Ranks that make the same call have equal texts and keys.
    """

    __slots__ = ("begins", "ends", "key", "meets", "name", "numbered", "text", "waits", "words")

    def __init__(self, name: str, arrays: tuple[Any, ...], details: str) -> None:
        first = arrays[0] if arrays else np.empty(0, np.uint8)
        size, nbytes = sum(a.size for a in arrays), sum(a.nbytes for a in arrays)
        self.name = name
        where = "" if type(first) is np.ndarray else " on devices"  # NCCL would wait for ranks that give the host's
        self.words = f"{name} {first.dtype.name}[{size}]{where}{details}" if arrays else name
        self.text = self.words.encode()[:TEXT]
        self.key = int.from_bytes(blake2b(self.words.encode(), digest_size=7).digest(), "little")
        self.numbered, self.meets = name in COLLECTIVES, name in MEETING
        plan = intern.Plan(name, "communication", (size,), first.dtype.name, nbytes)
        code = intern.plans.id_of(plan) << schema.PLAN_SHIFT
        kinds = schema.COLLECTIVE_BEGIN, schema.COLLECTIVE, schema.WAIT
        self.begins, self.ends, self.waits = (code | kind for kind in kinds)  # of its events


def described(known: dict[Any, Call], communicator: Communicator, name: str, arguments: tuple[Any, ...]) -> Call:
    """Return the `Call` that describes a communicator's operation; check the arguments if the operation is new.

    The dict ``known`` caches the descriptions. New ones are added to it.
    """
    if len(arguments) == 2 and type(first := arguments[0]) is np.ndarray is not type(arguments[1]):
        key: Any = (name, first.dtype, first.size, first.flags.c_contiguous, arguments[1])
    else:
        key = (name, *[(type(a), a.dtype, a.size, a.flags.c_contiguous) if _buffer(a) else a for a in arguments])
    call = known.get(key)
    if call is None:
        arrays = [a for a in arguments if _buffer(a)]
        _check(communicator, name, arguments, arrays)
        details = "".join(f", {a}" for a in arguments if not _buffer(a))
        call = Call(name, tuple(arrays if name == "all_reduce_multiple" else arrays[:1]), details)
        if len(known) < 4096:
            known[key] = call
    return call


def _buffer(argument: Any) -> bool:
    """Return whether an argument is an array (on the host or a device) rather than a number or a name."""
    return hasattr(argument, "flags")


def _check(communicator: Communicator, name: str, arguments: tuple[Any, ...], arrays: list[Any]) -> None:
    """Raise ValueError for arguments that are wrong on every rank, such as a buffer that is not contiguous."""
    for array in arrays:
        if not array.flags.c_contiguous:
            raise ValueError(f"{name}: the buffer of shape {array.shape} is not contiguous; give a copy of it")
    if name in REDUCING and arguments[-1] not in REDUCTIONS:
        raise ValueError(f"{name}: got the reduction {arguments[-1]!r}, expected one of {', '.join(REDUCTIONS)}")
    size = communicator.size
    peers = {"broadcast": "root", "send": "to", "recv": "source"}
    if name in peers and not (isinstance(arguments[1], int) and 0 <= arguments[1] < size):
        raise ValueError(f"{name}: got {peers[name]}={arguments[1]!r}, expected a rank from 0 to {size - 1}")
    if name in ("send", "recv") and arguments[1] == communicator.rank:
        raise ValueError(f"{name}: rank {communicator.rank} cannot exchange with itself")
    if name in ("all_gather", "reduce_scatter"):
        part, whole = (arrays[0], arrays[1]) if name == "all_gather" else (arrays[1], arrays[0])
        if whole.size != part.size * size or whole.dtype != part.dtype:
            raise ValueError(
                f"{name}: on {size} ranks the large buffer must have {size} times the elements of the small one, and "
                f"the same dtype; got {whole.dtype.name}[{whole.size}] and {part.dtype.name}[{part.size}]"
            )
