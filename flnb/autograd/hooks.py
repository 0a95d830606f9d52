"""Hooks on gradients. A hooked place on the tape costs something, every other place nothing.

A hooked node gets a plan of its own, whose joint pull sends the walk along its slow path; there the walk asks the plan
what to do first. A leaf stores its hooks where other nodes store their parents.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Self

from flnb.dispatch.plan import Plan
from flnb.interface.tape import PARENTS, PLAN, Node
from flnb.tensor import Tensor

__all__ = ["Handle", "Hooks", "Inside", "Intercepted", "run_hooks", "listen"]


_numbers = itertools.count().__next__


class Handle:
    """A registered hook: call `remove`, or use it as a context manager that removes it at its end."""

    def __init__(self, functions: dict[int, Any], function: Any) -> None:
        self._functions = functions
        self._key = _numbers()
        functions[self._key] = function

    def remove(self) -> None:
        """Remove the hook; does nothing if it was removed before."""
        self._functions.pop(self._key, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class Hooks(tuple[()]):
    """The hooks of a leaf, stored where other nodes have their parents, since a leaf has none."""

    functions: dict[int, Any]

    def __new__(cls) -> Self:
        hooks = super().__new__(cls)
        hooks.functions = {}
        return hooks


class Intercepted(Plan):
    """Wraps a node's plan so that a hook runs just before its pull, on the cotangent or on the saved values."""

    __slots__ = ("original",)

    def __init__(self, original: Any) -> None:
        for name in Plan.__slots__:
            setattr(self, name, getattr(original, name))
        self.original = original
        self.joint = _asked_first
        self.compiled = False

    def cotangent(self, g: Any) -> Any:
        """The cotangent with which to go on."""
        return g

    def values(self, saved: list[Any]) -> list[Any]:
        """The values that the node saved."""
        return saved


def _asked_first(*_: Any) -> Any:
    raise RuntimeError("an intercepted plan is pulled by its original")


class Hooked(Intercepted):
    """The plan of a node that has hooks on its gradient."""

    __slots__ = ("functions",)

    def __init__(self, original: Any) -> None:
        super().__init__(original)
        self.functions: dict[int, Any] = {}

    def cotangent(self, g: Any) -> Any:
        return call_in_turn(self.functions, g)


def call_in_turn(functions: dict[int, Any], g: Any) -> Any:
    """Call hooks in the order in which they were registered, each with the result of the one before."""
    if g._node is None and hasattr(g, "data"):
        g = g.data  # a plain Tensor, where the walk is not recorded
    for function in list(functions.values()):
        given = function(g)
        if given is None:
            continue
        if not isinstance(given, Tensor) or (given.shape, given.dtype) != (g.shape, g.dtype):
            got = repr(given._spec) if isinstance(given, Tensor) else type(given).__name__
            code = getattr(function, "__code__", None)
            line = f" (defined at {code.co_filename}:{code.co_firstlineno})" if code else ""
            raise ValueError(
                f"a hook on a gradient must return None or another gradient like it, {g._spec!r}; "
                f"{getattr(function, '__name__', function)!r} returned {got}{line}"
            )
        g = given
    return g


def run_hooks(node: Node, g: Any) -> Any:
    """Run the hooks of a node or leaf on the cotangent that arrived there; returns the cotangent to go on with."""
    plan = node[PLAN]
    if plan is None:
        return call_in_turn(node[PARENTS].functions, g) if type(node[PARENTS]) is Hooks else g
    while isinstance(plan, Intercepted):
        g = plan.cotangent(g)
        plan = plan.original
    return g


class Inside(Plan):
    """The plan of a node that became part of another one: no gradient of its own passes through it any more."""

    __slots__ = ("whole",)

    def __init__(self, plan: Any, whole: str) -> None:
        for name in Plan.__slots__:
            setattr(self, name, getattr(plan, name))
        self.whole = whole


def listen(node: Node | None, function: Callable[[Any], Any]) -> Handle:
    """Call a function with the cotangent that arrives at a node, each time the tape is walked back."""
    if node is None:
        raise RuntimeError("register_hook: this Variable does not require grad, so no gradient will ever arrive here")
    if not callable(function):
        raise TypeError(f"register_hook: expected a function of the gradient, got {type(function).__name__}")
    if node[PLAN] is None:
        if type(node[PARENTS]) is not Hooks:
            node[PARENTS] = Hooks()
        return Handle(node[PARENTS].functions, function)
    if type(node[PLAN]) is Inside:
        raise RuntimeError(
            f"the gradient of this result of {node[PLAN].op.name!r} was fused into that of {node[PLAN].whole!r}, so a "
            f"hook here or retain_grad would miss it; call it before the value is used, or record on another tape: "
            f"with flnb.use_tape('linked'): ..."
        )
    if not isinstance(node[PLAN], Hooked):
        node[PLAN] = Hooked(node[PLAN])
    return Handle(node[PLAN].functions, function)
