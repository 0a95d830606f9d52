"""Hooks of modules: functions that are called before and after `forward`, and with gradients in backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb.autograd.bundle import join, split
from flnb.autograd.tree import leaves, rebuild
from flnb.dispatch.source_lines import with_own_lines
from flnb.dispatch.state import current
from flnb.ops.movement import permute_dims
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.nn.module import Module

scope_hooks: list[Callable[[Module, tuple[Any, ...], dict[str, Any]], Any]] = []
"""Functions ``hook(module, inputs, options)``; the last one is called in place of ``module.forward``."""


def run_forward(module: Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return the result of `module.forward`, or of the last function in `scope_hooks`, which then replaces the call."""
    for hook in scope_hooks[-1:]:  # a loop, because another thread may remove the last one meanwhile
        return hook(module, inputs, options)
    return module.forward(*inputs, **options)


class ModuleHooks:
    """The hooks of one module (called before and after `forward`, and in backward), in order of registration."""

    def __init__(self) -> None:
        self.before: dict[int, Any] = {}
        self.after: dict[int, Any] = {}
        self.backward: dict[int, Any] = {}

    def call(self, module: Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call `module.forward` with its hooks."""
        for hook in list(self.before.values()):
            given = with_own_lines(hook, module, inputs)
            if given is not None:
                inputs = given if isinstance(given, tuple) else (given,)
        passage = _Passage(module, list(self.backward.values())) if self.backward and current().grad else None
        if passage is not None:
            inputs = passage.enter(inputs)
        output = run_forward(module, inputs, options)
        for hook in list(self.after.values()):
            given = with_own_lines(hook, module, inputs, output)
            if given is not None:
                output = given
        return output if passage is None else passage.leave(output)


class _Passage:
    """Calls the backward hooks of a module with the gradients of one call of the module.

    All inputs that need a gradient are joined by one op and split again, and so are all outputs, so that each of the
    two ops sees all gradients at once. Only shapes and dtypes of inputs and outputs are stored (None for a tensor that
    needs no gradient), because the tensors refer to the graph, which refers to this object.
    """

    def __init__(self, module: Module, hooks: list[Callable[..., Any]]) -> None:
        self.module, self.hooks = module, hooks
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.grad_output: tuple[Any, ...] = ()

    def enter(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the inputs, passed through an identity op whose backward calls `arrive` with their gradients."""
        self.inputs = _specs(inputs)
        return _through(inputs, self.arrive)

    def leave(self, output: Any) -> Any:
        """Return the call's output, passed through an identity op whose backward calls `begin` with its gradients."""
        self.outputs = _specs(output)
        return _through(output, self.begin)

    def begin(self, g: Any) -> None:
        """Store the gradients of the outputs; call the hooks if no input needs a gradient."""
        self.grad_output = _spread(g, self.outputs)
        if self.inputs.count(None) == len(self.inputs):
            self.call_hooks(tuple(self.inputs))

    def arrive(self, g: Any) -> Any:
        """Call the hooks with the gradients of the inputs; return the replacing gradients, joined into one tensor.

        None is returned if no hook replaces the gradients.
        """
        replaced = self.call_hooks(_spread(g, self.inputs))
        return None if replaced is None else join([r for r in replaced if r is not None])

    def call_hooks(self, grad_input: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Call the hooks; return the input gradients that they returned, or None if none did."""
        changed = None
        for hook in self.hooks:
            given = hook(self.module, grad_input, self.grad_output)
            if given is not None:
                grad_input = changed = self._checked(given if isinstance(given, tuple) else (given,), grad_input)
        self.grad_output = ()
        return changed

    def _checked(self, given: tuple[Any, ...], grad_input: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return ``given``, a hook's result; raise an error unless shapes and dtypes are those of ``grad_input``."""
        got, expected = ([None if g is None else (g.shape, g.dtype.name) for g in gs] for gs in (given, grad_input))
        if got != expected:
            raise ValueError(
                f"register_full_backward_hook: a hook of {type(self.module).__name__} must return None or gradients "
                f"like those of the inputs, {expected}; it returned {got}"
            )
        return given


def _listens(x: Any) -> bool:
    """Return whether x is a tensor on the tape, which gets a gradient in backward."""
    return isinstance(x, Tensor) and x._node is not None


def _specs(tree: Any) -> list[Any]:
    """Return the shape and dtype (a Spec) of each tensor in nested containers; None for tensors without a gradient."""
    return [x._spec if _listens(x) else None for x in leaves(tree) if isinstance(x, Tensor)]


def _through(tree: Any, hook: Callable[[Any], Any]) -> Any:
    """Return the same nested containers, with all tensors that need a gradient passed through one op with a hook."""
    on_tape = [x for x in leaves(tree) if _listens(x)]
    if not on_tape:
        return tree
    place = join(on_tape) if len(on_tape) > 1 else permute_dims(on_tape[0], range(on_tape[0].ndim))
    place.register_hook(hook)
    parts = iter(split(place, on_tape))
    return rebuild(tree, [next(parts) if _listens(x) else x for x in leaves(tree)])


def _spread(g: Any, specs: list[Any]) -> tuple[Any, ...]:
    """Split a joined gradient into one per tensor of ``specs``, with None where the spec is None."""
    parts = iter(split(g, [spec for spec in specs if spec is not None]))
    return tuple(None if spec is None else next(parts) for spec in specs)
