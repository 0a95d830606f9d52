"""Observers of ops, which are called before and after every primitive op that runs in this thread and context.

An interpreter (`flnb.dispatch.interpreter`) calls the observers, so programs without observers are not slower. Ops of
another backend that is chosen inside the block, or of a backend class that is defined again, are observed, too.
"""

from __future__ import annotations

from contextvars import ContextVar
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flnb_telemetry import bus
from flnb_telemetry.withblock import holding, with_block

from flnb.dispatch import state
from flnb.dispatch.interpreter import Interpreter
from flnb.dispatch.quiet import unnamed
from flnb.dispatch.state import operators

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flnb.dispatch.table import Op


class Observer:
    """Base class of observers: override the methods for the events of interest.

    ``arguments`` are those of the backend's method: the raw buffers, the attributes, and for some ops the buffer to
    write to (`call_of` separates them). Observers must not write to the buffers, and must copy values that they store.
    Ops that an observer runs are not observed. An error that an observer raises ends the op and is raised to the user.
    """

    def before(self, op: Op, arguments: tuple[Any, ...]) -> None:
        """Called before the op runs."""

    def after(self, op: Op, arguments: tuple[Any, ...], result: Any) -> None:
        """Called after the op has run; ``result`` is the buffer that the backend's method returned."""

    def failed(self, op: Op, arguments: tuple[Any, ...], error: BaseException) -> None:
        """Called after the op's method of the backend raised ``error``, which is then raised to the user."""


@with_block
def observe(*observers: Observer) -> Iterator[None]:
    """Call these observers for every op that runs inside the block, in this thread and context.

    If blocks are nested, `before` of the innermost block is called first, and its `after` is called last.

    >>> import flnb
    >>> from flnb.dispatch.observe import Observer, observe
    >>> class Names(Observer):
    ...     def before(self, op, arguments):
    ...         print(op.name)
    >>> with observe(Names()):
    ...     y = flnb.ones((2,)) + 1.0
    full
    add
    """
    with state.use(interpreters=(*map(_Observing, observers), *state.current().interpreters)):
        yield


class _Observing(Interpreter):
    """Calls one observer for the ops that run on the backend, after other interpreters have replaced or batched ops."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer

    def outside(self) -> Any:
        here = state.current()
        if "without_innermost" not in here.variants:
            around = here.without_innermost()
            around.table = [
                m and _observed(self.observer, op, m) for op, m in zip(operators, around.table, strict=True)
            ]
        return super().outside()


_telling: ContextVar[bool] = ContextVar("flnb_telling", default=False)
"""Whether an observer is being called; ops that the observer runs are not observed."""


def _observed(observer: Observer, op: Op, method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a backend's method so that an observer is called before and after it."""

    @unnamed
    def run(*arguments: Any) -> Any:
        if _telling.get():
            return method(*arguments)
        called = clock()
        _tell(observer.before, op, arguments)
        began = clock()
        try:
            result = method(*arguments)
        except BaseException as error:
            _tell(observer.failed, op, arguments, error)
            raise
        ended = clock()
        _tell(observer.after, op, arguments, result)
        bus.exclude(began - called, clock() - ended)  # the op's own time is recorded
        return result

    return run


def _tell(hook: Callable[..., None], *what: Any) -> None:
    """Call a method of an observer; ops that the method runs are not observed."""
    with holding(_telling, True):
        hook(*what)


class MethodCall(NamedTuple):
    """A backend method's arguments by role: input buffers, attributes, and the output buffer or None."""

    inputs: tuple[Any, ...]
    attributes: tuple[Any, ...]
    out: Any


def call_of(op: Op, arguments: tuple[Any, ...]) -> MethodCall:
    """Separate the arguments of a backend's method for an op by their roles.

    >>> import flnb, numpy as np
    >>> call_of(flnb.dispatch.table.OPS["sum"], (np.ones(3), (0,), False, None))
    MethodCall(inputs=(array([1., 1., 1.]),), attributes=((0,), False), out=None)
    """
    out = None
    if op.writes_out and (not op.arity or len(arguments) > op.arity):
        *arguments, out = arguments  # type: ignore[assignment]
    count = op.arity or next((i for i, x in enumerate(arguments) if not _is_buffer(x)), len(arguments))
    return MethodCall(tuple(arguments[:count]), tuple(arguments[count:]), out)


def _is_buffer(value: Any) -> bool:
    """Return whether an argument is a buffer rather than an attribute (number, tuple, dtype)."""
    return hasattr(value, "shape") and not isinstance(value, (np.dtype, np.generic))
