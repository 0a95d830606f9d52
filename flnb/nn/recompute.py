"""Recomputation of modules in backward, so that their forward calls need not save values for it (`flnb.memory.lean`).

Which modules are recomputed is stored in the context rather than in the modules, so that copies, files and calls
elsewhere are unaffected.
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


class _Marks:
    """A set of modules to recompute in backward, held by weak references, and a condition on the path of a call."""

    def __init__(self, modules: Iterable[Module], where: Callable[[str], bool]) -> None:
        self.modules = {id(module): weakref.ref(module) for module in modules}
        self.where = where

    def has(self, module: Module, path: str) -> bool:
        """Return whether a call of ``module`` under this path is recomputed in backward."""
        known = self.modules.get(id(module))
        return known is not None and known() is module and self.where(path)

    def __call__(self, module: Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call `module.forward`, checkpointed if any active set contains the module."""
        path = bus.threads.here.path
        if any(marks.has(module, path) for marks in _marks.get()):
            return checkpoint(_Twice(module))(*inputs, **options)
        return module.forward(*inputs, **options)


_marks: ContextVar[tuple[_Marks, ...]] = ContextVar("marks", default=())


class running_again(WithBlock[None]):
    """Context manager in which calls of some modules are recomputed in backward.

    Args:
        modules: the modules.
        where: a function of the dotted path under which a module is called; true if that call is checkpointed.
    """

    def __init__(self, modules: Iterable[Module], where: Callable[[str], bool]) -> None:
        self._mine = _Marks(modules, where)

    def begin(self) -> None:
        scope_hooks.append(self._mine)
        _marks.set((*_marks.get(), self._mine))

    def end(self, error: BaseException | None) -> None:
        # Only these marks are removed, rather than the older tuple restored: blocks may end in any order.
        _marks.set(tuple(other for other in _marks.get() if other is not self._mine))
        scope_hooks[:] = [other for other in scope_hooks if other is not self._mine]


class _Twice:
    """A module call that is repeated in backward, in the training modes of the first call.

    The repetition does not change the module's buffers.

    Attributes:
        module: the module.
        modes: pairs of each module inside ``module`` and its training mode in the first call.
        reads: the parameters and buffers of ``module``, which must not be written before the second call; `checkpoint`
            checks that.
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
        """Repeat the call in its original training modes; modes and buffers are restored afterwards."""
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
    """Yield pairs (path, module) for a module and all modules inside it; ops are recorded under these paths.

    A module that is contained in several others has several paths.

    Args:
        module: the module.
        around: the path of the module that contains ``module``.
        above: the modules that contain ``module``, directly or not; they are left out if a module contains itself.
    """
    scope = f"{around}.{module._name}" if around else module._name
    yield scope, module
    inner = around if module._path("") else scope  # a ModuleList is never called: its members' names contain its own
    for _, child in module._own():
        if not isinstance(child, Tensor) and all(child is not other for other in (*above, module)):
            yield from scopes(child, inner, (*above, module))
