"""Context managers whose end is certain: a Ctrl-C that arrives in `__exit__` itself skips nothing.

A signal that comes while ``__exit__`` is called is raised at its first line, so what it should undo would stay as it
is. But a ``with`` statement looks ``__exit__`` up before it enters, and drops what it found when the block is left, in
whichever way. That this went before it did its work is how a `WithBlock` learns of it, at once.
"""

from __future__ import annotations

import weakref
from contextlib import ContextDecorator
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextvars import ContextVar, Token
    from typing import ParamSpec

    P = ParamSpec("P")

__all__ = ["WithBlock", "holding", "with_block"]

T = TypeVar("T")


def _leave(block: WithBlock[Any], _: object = None, error: BaseException | None = None, __: object = None) -> None:
    """`WithBlock.__exit__`."""
    block.end(error)
    block._watch = None


class _Watch(weakref.ref):  # type: ignore[type-arg]
    """Sees the bound ``__exit__`` of a block go."""

    __slots__ = ("block",)
    block: WithBlock[Any]


def _left(watch: _Watch) -> None:
    """The block was left, and `_leave` has not come to its end."""
    block: WithBlock[Any] | None = getattr(watch, "block", None)  # None: it was not entered
    if block is not None and block._watch is watch:
        block._watch = None
        block.end(KeyboardInterrupt())


class _Exit:
    """Binds `_leave` to a block, and watches what it returned."""

    def __get__(self, block: WithBlock[Any] | None, owner: type) -> Callable[..., None]:
        if block is None:  # `ExitStack` asks the class
            return _leave
        bound = partial(_leave, block)  # not a method: calls take those apart
        watch = _Watch(bound, _left)
        watch.block = block
        block._watch = watch
        return bound


class WithBlock(ContextDecorator, Generic[T]):
    """Base of context managers and decorators: implement `begin` and `end`.

    `end` is called once more where Ctrl-C arrived in it, or before it, or in `begin`: it must undo what there is to
    undo, in an order that allows for that.
    """

    _watch: _Watch | None = None

    def begin(self) -> T:
        """Enter the block; returns the value for ``as``."""
        raise NotImplementedError

    def end(self, error: BaseException | None) -> None:
        """Leave the block, by an error or not."""
        raise NotImplementedError

    def __enter__(self) -> T:
        return self.begin()

    __exit__ = _Exit()


class holding(WithBlock[T]):
    """Hold a value in a context variable until the block ends; one object may be entered again while it is."""

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
            except RuntimeError:  # it was reset, and then Ctrl-C came
                pass
            self._tokens.pop()


class _Generated(WithBlock[T]):
    """The block of a generator function, which yields once."""

    def __init__(self, make: Callable[[], Iterator[T]]) -> None:
        self._make = make
        self._generator: Any = None

    def begin(self) -> T:
        self._generator = self._make()
        value: T = next(self._generator)
        return value

    def end(self, error: BaseException | None) -> None:
        generator = self._generator
        if generator is None:
            return
        if error is None:
            for _ in generator:
                raise RuntimeError(f"{self._make} yielded twice; expected one value, for the block")
            return
        try:
            generator.throw(error)
        except BaseException as raised:  # `with` raises the error itself again
            if raised is not error and raised.__cause__ is not error and not isinstance(raised, StopIteration):
                raise

    def _recreate_cm(self) -> _Generated[T]:
        return _Generated(self._make)


def with_block(function: Callable[P, Iterator[T]]) -> Callable[P, WithBlock[T]]:
    """Turn a generator function into a function that returns a `WithBlock`, as `contextlib.contextmanager` does.

    The blocks that are open at its ``yield`` end even if Ctrl-C arrives there. Errors are raised at the ``yield``, and
    go on to the caller.
    """

    @wraps(function)
    def made(*arguments: P.args, **options: P.kwargs) -> WithBlock[T]:
        return _Generated(partial(function, *arguments, **options))

    return made
