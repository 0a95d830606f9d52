"""A decorator for functions that prepare the first call of an op: opening libraries, compiling machine code."""

from __future__ import annotations

from functools import wraps
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from flnb_telemetry import bus, schema

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


def prepares(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function so that each of its calls is recorded by an event `compile`.

    The duration of the event is subtracted from the time of the op during which the function was called. If the
    function returns None, because there is nothing to prepare, no event is emitted.

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
