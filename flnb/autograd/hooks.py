"""Hooks on gradients: functions that backward calls with a Variable's gradient once it is complete.

A node with hooks gets a separate plan (the op, its shapes and gradient rules). That plan has no compiled gradient
rules, so backward takes the slower path for this node and calls the hooks. Nodes without hooks are not slower. A leaf
stores its hooks in place of the parents of other nodes.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any, Self

from flnb.autograd.explain import defined_at
from flnb.dispatch.plan import Plan
from flnb.dispatch.source_lines import with_own_lines
from flnb.interface.tape import PARENTS, PLAN, Node
from flnb.tensor import Tensor

_numbers = itertools.count().__next__
LAST = sys.maxsize
"""The number of the function that is called after all hooks of a node, whenever it was registered."""


class Handle:
    """Removes a registered hook: when `remove` is called, or at the end of the block as a context manager."""

    def __init__(self, functions: dict[int, Any], function: Any, key: int | None = None) -> None:
        self._functions = functions
        self._key = _numbers() if key is None else key
        functions[self._key] = function

    def remove(self) -> None:
        """Remove the hook; does nothing if it was removed before."""
        self._functions.pop(self._key, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class Hooks(tuple[()]):
    """The hooks of a leaf by number, stored in the leaf's node where other nodes store their parents."""

    functions: dict[int, Any]

    def __new__(cls) -> Self:
        hooks = super().__new__(cls)
        hooks.functions = {}
        return hooks


class Intercepted(Plan):
    """Base class of plans that change a node's cotangent or saved values before its gradient rule runs.

    Attributes:
        original: the plan that this plan replaces. Backward calls the gradient rule of ``original`` with the changed
            values.
    """

    __slots__ = ("original",)

    def __init__(self, original: Any) -> None:
        for name in Plan.__slots__:
            setattr(self, name, getattr(original, name))
        self.original = original
        self.joint = _asked_first
        self.compiled = False

    def cotangent(self, g: Any) -> Any:
        """Return the cotangent to use in place of the one that arrived."""
        return g

    def values(self, saved: list[Any]) -> list[Any]:
        """Return the values to pass to the gradient rule, given the stored ones."""
        return saved


def _asked_first(*_: Any) -> Any:
    """Placeholder for an `Intercepted` plan's gradient rule; backward calls that of `Intercepted.original` instead."""
    raise RuntimeError("an Intercepted plan has no gradient rule of its own; call the rule of its `original` plan")


class Hooked(Intercepted):
    """The plan of a node that has hooks on its gradient."""

    __slots__ = ("functions",)

    def __init__(self, original: Any) -> None:
        super().__init__(original)
        self.functions: dict[int, Any] = {}

    def cotangent(self, g: Any) -> Any:
        return call_in_turn(self.functions, g)


def call_in_turn(functions: dict[int, Any], g: Any) -> Any:
    """Call hooks in order of registration, then the one numbered `LAST`; return the gradient after all hooks.

    Each hook is called with the gradient that the previous hooks have left.
    """
    if g._node is None and hasattr(g, "data"):
        g = g.data  # a plain Tensor, where the walk is not recorded
    for _, function in sorted(functions.items()):
        given = with_own_lines(function, g)
        if given is None:
            continue
        if not isinstance(given, Tensor) or (given.shape, given.dtype) != (g.shape, g.dtype):
            got = repr(given._spec) if isinstance(given, Tensor) else type(given).__name__
            raise ValueError(
                f"a hook on a gradient must return None or a gradient of the same shape and dtype, {g._spec!r}; "
                f"{getattr(function, '__name__', function)!r} returned {got} ({defined_at(function)})"
            )
        g = given
    return g


def run_hooks(node: Node, g: Any) -> Any:
    """Run the hooks of a node or leaf on its cotangent; returns the cotangent to continue with."""
    plan = node[PLAN]
    if plan is None:
        return call_in_turn(node[PARENTS].functions, g) if type(node[PARENTS]) is Hooks else g
    while isinstance(plan, Intercepted):
        g = plan.cotangent(g)
        plan = plan.original
    return g


class Inside(Plan):
    """The plan of a node that a tape fused with a later node: backward calls only the later node's gradient rule."""

    __slots__ = ("whole",)

    def __init__(self, plan: Any, whole: str) -> None:
        for name in Plan.__slots__:
            setattr(self, name, getattr(plan, name))
        self.whole = whole


def listen(node: Node | None, function: Callable[[Any], Any], key: int | None = None) -> Handle:
    """Register a function that each backward calls with the gradient that arrives at a node; returns its `Handle`.

    With ``key=LAST`` it is called after all others, and replaces a function registered with this key before.
    """
    if node is None:
        raise RuntimeError("register_hook: this Variable does not require grad, so no gradient will ever arrive here")
    if not callable(function):
        raise TypeError(f"register_hook: expected a function of the gradient, got {type(function).__name__}")
    if node[PLAN] is None:
        if type(node[PARENTS]) is not Hooks:
            node[PARENTS] = Hooks()
        return Handle(node[PARENTS].functions, function, key)
    if type(node[PLAN]) is Inside:
        raise RuntimeError(
            f"the gradient of this result of {node[PLAN].op.name!r} was fused into that of {node[PLAN].whole!r}, so a "
            f"hook here or retain_grad would miss it; call it before the value is used, or record on another tape: "
            f"with flnb.use_tape('linked'): ..."
        )
    if not isinstance(node[PLAN], Hooked):
        node[PLAN] = Hooked(node[PLAN])
    return Handle(node[PLAN].functions, function, key)
