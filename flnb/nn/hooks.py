"""Hooks on modules: before and after `forward`, and on the gradients that pass through one call of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb.autograd.bundle import join, split
from flnb.autograd.tree import leaves, rebuild
from flnb.dispatch.state import current
from flnb.ops.movement import permute_dims
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.nn.module import Module

__all__ = ["ModuleHooks", "run_forward", "scope_hooks"]

scope_hooks: list[Callable[[Module, tuple[Any, ...], dict[str, Any]], Any]] = []
"""Called with a module, its inputs and options in place of `forward`, inside its scope: the latest one alone."""


def run_forward(module: Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Run `module.forward`, or the latest of the scope hooks in its place."""
    for hook in scope_hooks[-1:]:  # another thread may take the last one away
        return hook(module, inputs, options)
    return module.forward(*inputs, **options)


class ModuleHooks:
    """The hooks of one module, by kind, in the order in which they were registered."""

    def __init__(self) -> None:
        self.before: dict[int, Any] = {}
        self.after: dict[int, Any] = {}
        self.backward: dict[int, Any] = {}

    def call(self, module: Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call `module.forward` with its hooks."""
        for hook in list(self.before.values()):
            given = hook(module, inputs)
            if given is not None:
                inputs = given if isinstance(given, tuple) else (given,)
        passage = _Passage(module, list(self.backward.values())) if self.backward and current().grad else None
        if passage is not None:
            inputs = passage.enter(inputs)
        output = run_forward(module, inputs, options)
        for hook in list(self.after.values()):
            given = hook(module, inputs, output)
            if given is not None:
                output = given
        return output if passage is None else passage.leave(output)


class _Passage:
    """One call of a module with hooks on its gradients.

    All inputs that need a gradient pass through one place on the tape, and so do all outputs, so that hooks see their
    cotangents together. It stores only their specs (None without a gradient): the tensors would hold the graph, which
    holds this.
    """

    def __init__(self, module: Module, hooks: list[Callable[..., Any]]) -> None:
        self.module, self.hooks = module, hooks
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.grad_output: tuple[Any, ...] = ()

    def enter(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        self.inputs = _specs(inputs)
        return _through(inputs, self.arrive)  # type: ignore[no-any-return]

    def leave(self, output: Any) -> Any:
        self.outputs = _specs(output)
        return _through(output, self.begin)

    def begin(self, g: Any) -> None:
        """Take the cotangents of the outputs."""
        self.grad_output = _spread(g, self.outputs)
        if self.inputs.count(None) == len(self.inputs):
            self.tell(tuple(self.inputs))

    def arrive(self, g: Any) -> Any:
        """Take the cotangents of the inputs; the hooks may replace them."""
        replaced = self.tell(_spread(g, self.inputs))
        return None if replaced is None else join([r for r in replaced if r is not None])

    def tell(self, grad_input: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Call the hooks; returns the replaced cotangents of the inputs, None if no hook replaced any."""
        changed = None
        for hook in self.hooks:
            given = hook(self.module, grad_input, self.grad_output)
            if given is not None:
                grad_input = changed = self._checked(given if isinstance(given, tuple) else (given,), grad_input)
        self.grad_output = ()
        return changed

    def _checked(self, given: tuple[Any, ...], grad_input: tuple[Any, ...]) -> tuple[Any, ...]:
        """Raise unless a hook's replacement has the spec of the value that it replaces."""
        got, expected = ([None if g is None else (g.shape, g.dtype.name) for g in gs] for gs in (given, grad_input))
        if got != expected:
            raise ValueError(
                f"register_full_backward_hook: a hook of {type(self.module).__name__} must give None or gradients "
                f"like those of the inputs, {expected}; it returned {got}"
            )
        return given


def _listens(x: Any) -> bool:
    return isinstance(x, Tensor) and x._node is not None


def _specs(tree: Any) -> list[Any]:
    """The spec of each tensor that needs a gradient; None for the others."""
    return [x._spec if _listens(x) else None for x in leaves(tree) if isinstance(x, Tensor)]


def _through(tree: Any, hook: Callable[[Any], Any]) -> Any:
    """The same tree with every tensor that needs a gradient led through one hooked place."""
    on_tape = [x for x in leaves(tree) if _listens(x)]
    if not on_tape:
        return tree
    place = join(on_tape) if len(on_tape) > 1 else permute_dims(on_tape[0], range(on_tape[0].ndim))
    place.register_hook(hook)
    parts = iter(split(place, on_tape))
    return rebuild(tree, [next(parts) if _listens(x) else x for x in leaves(tree)])


def _spread(g: Any, specs: list[Any]) -> tuple[Any, ...]:
    """One cotangent per tensor, None for those without, from the joined one."""
    parts = iter(split(g, [spec for spec in specs if spec is not None]))
    return tuple(None if spec is None else next(parts) for spec in specs)
