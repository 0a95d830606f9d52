"""Modules that save nothing for backward and run again there: which ones, here and now (`flnb.memory.lean`).

Nothing is noted in the modules themselves, so that copies, files and calls in another context are unaffected.
"""

from __future__ import annotations

import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from flnb_telemetry import bus
from flnb_telemetry.withblock import WithBlock

from flnb.autograd.checkpoint import checkpoint
from flnb.dispatch.plan import families
from flnb.nn.hooks import scope_hooks
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from flnb.nn.module import Module

__all__ = ["running_again", "scopes"]


class _Marks:
    """Modules that run again where they are called in certain scopes. They are known by identity, and not held."""

    def __init__(self, modules: Iterable[Module], where: Callable[[str], bool]) -> None:
        self.modules = {id(module): weakref.ref(module) for module in modules}
        self.where = where

    def has(self, module: Module, path: str) -> bool:
        known = self.modules.get(id(module))
        return known is not None and known() is module and self.where(path)

    def __call__(self, module: Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call `module.forward`, inside its scope; checkpointed where any marks of this context say so."""
        path = bus.threads.here.path
        if any(marks.has(module, path) for marks in _marks.get()):
            return checkpoint(_Twice(module))(*inputs, **options)
        return module.forward(*inputs, **options)


_marks: ContextVar[tuple[_Marks, ...]] = ContextVar("marks", default=())


class running_again(WithBlock[None]):
    """Inside, calls of these modules are checkpointed where the path of scopes that they are called in says so."""

    def __init__(self, modules: Iterable[Module], where: Callable[[str], bool]) -> None:
        self._mine = _Marks(modules, where)

    def begin(self) -> None:
        scope_hooks.append(self._mine)
        _marks.set((*_marks.get(), self._mine))

    def end(self, error: BaseException | None) -> None:
        # not what was there before: what began inside may end later
        _marks.set(tuple(other for other in _marks.get() if other is not self._mine))
        scope_hooks[:] = [other for other in scope_hooks if other is not self._mine]


class _Twice:
    """One call of a module, which is made once more in backward: in the modes of the first time, and without moving
    again what it writes to buffers.

    Attributes:
        reads: tensors that must not be written in between, for `checkpoint`.
    """

    def __init__(self, module: Module) -> None:
        self.module, self.__name__ = module, type(module).__name__
        self.modes: list[tuple[Module, bool]] = []
        self.reads: list[Any] = []

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        if self.modes:
            return self._again(inputs, options)
        for _, member in self.module._named_members():
            if isinstance(member, Tensor):
                self.reads.append(member)
            else:
                self.modes.append((member, member.training))
        return self.module.forward(*inputs, **options)

    def _again(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        others = [(part, part.training) for part, mode in self.modes if part.training is not mode]
        values = [(x, x._values().copy()) for _, x in self.module.named_buffers() if families[x._spec.kind].reads_host]
        try:
            for part, mode in others:
                part.training = not mode
            return self.module.forward(*inputs, **options)
        finally:
            for part, mode in others:
                part.training = mode
            for buffer, before in values:
                buffer._values()[...] = before


def scopes(module: Module, around: str = "", above: tuple[Module, ...] = ()) -> Iterator[tuple[str, Module]]:
    """The scopes of a module and of all in it, as they are named now; one that several modules share has several."""
    scope = f"{around}.{module._name}" if around else module._name
    yield scope, module
    inner = around if module._path("") else scope  # of what is in a list, whose own scope nobody enters
    for _, child in module._own():
        if not isinstance(child, Tensor) and all(child is not other for other in (*above, module)):
            yield from scopes(child, inner, (*above, module))
