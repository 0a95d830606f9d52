"""Context managers whose end is certain: a Ctrl-C that arrives in `__exit__` itself skips nothing.

A signal that comes while ``__exit__`` is called is raised at its first line, so what it should undo would stay as it
is. But a ``with`` statement looks ``__exit__`` up before it enters, and drops what it found when the block is left, in
whichever way. That this went before it did its work is how a `WithBlock` learns of it, at once.
"""

from __future__ import annotations

import weakref
from contextlib import ContextDecorator, contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import ParamSpec

    P = ParamSpec("P")

__all__ = ["WithBlock", "with_block"]

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
        """Enter the block; returns what ``as`` names."""
        raise NotImplementedError

    def end(self, error: BaseException | None) -> None:
        """Leave the block, by an error or not."""
        raise NotImplementedError

    def __enter__(self) -> T:
        return self.begin()

    __exit__ = _Exit()


class _Generated(WithBlock[T]):
    """The block of a generator function."""

    def __init__(self, make: Callable[[], AbstractContextManager[T]]) -> None:
        self._make = make
        self._made: AbstractContextManager[T] | None = None

    def begin(self) -> T:
        self._made = self._make()
        return self._made.__enter__()

    def end(self, error: BaseException | None) -> None:
        if self._made is not None:
            about = (None,) * 3 if error is None else (type(error), error, error.__traceback__)
            self._made.__exit__(*about)

    def _recreate_cm(self) -> _Generated[T]:
        return _Generated(self._make)


def with_block(function: Callable[P, Iterator[T]]) -> Callable[P, WithBlock[T]]:
    """`contextlib.contextmanager` that makes a `WithBlock`: as certain as the blocks inside the generator function."""
    manager = contextmanager(function)

    @wraps(function)
    def made(*arguments: P.args, **options: P.kwargs) -> WithBlock[T]:
        return _Generated(partial(manager, *arguments, **options))

    return made
