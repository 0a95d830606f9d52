"""Context managers that always clean up, even if Ctrl-C arrives inside `__exit__`.

If Ctrl-C arrives while ``__exit__`` is being called, KeyboardInterrupt is raised at the first line of ``__exit__``, so
that method would not clean up. But a ``with`` statement fetches the bound method ``__exit__`` before it enters the
block, and always drops this object when the block is left. A `WithBlock` watches the bound method with a weak
reference; if the bound method is dropped before it has cleaned up, the callback of the weak reference cleans up.
"""

from __future__ import annotations

import weakref
from contextlib import ContextDecorator
from copy import copy
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextvars import ContextVar, Token
    from typing import ParamSpec

    P = ParamSpec("P")

T = TypeVar("T")


def _leave(block: WithBlock[Any], _: object = None, error: BaseException | None = None, __: object = None) -> None:
    """End a `WithBlock`, then stop watching its bound ``__exit__``: the implementation of ``WithBlock.__exit__``."""
    block.end(error)
    block._watch = None


class _Watch(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to the bound method ``__exit__`` of a `WithBlock`, to notice when the method is dropped."""

    __slots__ = ("block",)
    block: WithBlock[Any]


def _left(watch: _Watch) -> None:
    """End a `WithBlock` whose bound ``__exit__`` was dropped before `_leave` finished."""
    block: WithBlock[Any] | None = getattr(watch, "block", None)  # None: the block was not entered
    if block is not None and block._watch is watch:
        block._watch = None
        block.end(KeyboardInterrupt())


class _Exit:
    """The descriptor ``__exit__``: returns `_leave` bound to a `WithBlock`.

    A `_Watch` of the returned object notices when that object is dropped.
    """

    def __get__(self, block: WithBlock[Any] | None, owner: type) -> Callable[..., None]:
        if block is None:  # `ExitStack` asks the class
            return _leave
        bound = partial(_leave, block)  # not a method: calls take those apart
        watch = _Watch(bound, _left)
        watch.block = block
        block._watch = watch
        return bound


class WithBlock(ContextDecorator, Generic[T]):
    """Base class of context managers that are also decorators: subclasses implement `begin` and `end`.

    If Ctrl-C interrupts `begin` or `end`, `end` is called after that. So `end` must undo everything that is left to
    undo, and nothing twice.
    """

    _watch: _Watch | None = None

    def begin(self) -> T:
        """Set up the block, and return the value for ``as``."""
        raise NotImplementedError

    def end(self, error: BaseException | None) -> None:
        """Undo the effects of `begin`; `error` is the exception that ended the block, or None."""
        raise NotImplementedError

    def __enter__(self) -> T:
        return self.begin()

    __exit__ = _Exit()

    def _recreate_cm(self) -> Self:
        """Return the block to enter for one call of a decorated function: a copy, because calls may be nested."""
        return copy(self)


class holding(WithBlock[T]):
    """Context manager that sets a context variable until the block ends; it may be entered again in its own block."""

    def __init__(self, variable: ContextVar[Any], value: Any) -> None:
        self._variable = variable
        self._value: T = value
        self._tokens: list[Token[Any]] = []

    def begin(self) -> T:
        self._tokens.extend(map(self._variable.set, (self._value,)))  # one call: no Ctrl-C before the token is kept
        return self._value

    def end(self, error: BaseException | None) -> None:
        if self._tokens:
            try:
                self._variable.reset(self._tokens[-1])
            except RuntimeError:  # it had been reset when Ctrl-C arrived
                pass
            self._tokens.pop()

    def _recreate_cm(self) -> Self:
        made = object.__new__(type(self))  # `copy.copy` takes five times as long
        made.__dict__ |= self.__dict__ | {"_tokens": []}
        return made


class _Generated(WithBlock[T]):
    """A `WithBlock` made from a generator function that yields once."""

    def __init__(self, make: Callable[[], Iterator[T]]) -> None:
        self._make = make
        self._generator: Any = None

    def begin(self) -> T:
        self._generator = self._make()
        return next(self._generator)

    def end(self, error: BaseException | None) -> None:
        generator = self._generator
        if generator is None:
            return
        if error is None:
            for _ in generator:
                raise RuntimeError(f"{self._make} yielded twice, expected a single yield, at which the block runs")
            return
        trace = error.__traceback__
        try:
            generator.throw(error)
        except BaseException as raised:  # `with` raises the error itself again
            if raised is not error and raised.__cause__ is not error and not isinstance(raised, StopIteration):
                raise
        finally:
            error.__traceback__ = trace  # without the frames of the generator


def with_block(function: Callable[P, Iterator[T]]) -> Callable[P, WithBlock[T]]:
    """Turn a generator function into a function that returns a `WithBlock`, as `contextlib.contextmanager` does.

    Code after the function's ``yield`` runs even if Ctrl-C arrives there, provided that it is in a ``finally`` or in a
    `WithBlock`. An error in the block is raised at the ``yield``, and then in the caller.
    """

    @wraps(function)
    def made(*arguments: P.args, **options: P.kwargs) -> WithBlock[T]:
        return _Generated(partial(function, *arguments, **options))

    return made
