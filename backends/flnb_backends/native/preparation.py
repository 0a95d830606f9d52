"""A decorator for functions that prepare the first call of an op: opening libraries, compiling machine code."""

from __future__ import annotations

from functools import wraps
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from flnb_telemetry import bus, schema

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["prepares"]

P = ParamSpec("P")
T = TypeVar("T")


def prepares(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function with an event `compile` for each of its calls, of one value and no calls of a program.

    The time of such an event is subtracted from that of the op in which it happened. A call that returns None, because
    there is nothing to prepare, emits none.

    >>> import flnb
    >>> compiled = prepares(lambda: "machine code")
    >>> with flnb.record() as run:
    ...     code = compiled()
    >>> run.table("compile")["values"].tolist()
    [1]
    """

    @wraps(function)
    def timed(*arguments: P.args, **keywords: P.kwargs) -> T:
        began = clock()
        made = function(*arguments, **keywords)
        if made is not None:
            bus.emit(schema.COMPILE, began, clock(), 1, 0, 0, 0, bus.threads.here.context())
        return made

    return timed
