"""Side effects of a captured training step besides tensor computation, such as counting steps.

The Python code of a step that is captured as a program (`flnb.jit`) runs only once. The step's side effects besides
tensor computation must be repeated in each run of the program.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch.plan import families, spec_of
from flnb.interface.tape import GRADIENT
from flnb.tensor import detached

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flnb.interface import TensorBackend
    from flnb.tensor import Tensor


class Effects:
    """The side effects of a step that is being captured by `flnb.jit`, and the objects it depends on.

    Attributes:
        backend: the backend that will compute the step.
        calls: functions to call before each run, in order.
        last: functions to call after each run.
        cleared: the leaves whose gradient the step sets to None.
        ungiven: ids of the nodes of leaves that had no gradient when the step asked for it; leaves whose gradient the
            step itself had cleared are left out.
        used: leaves that the step reads, by the id of their nodes.
        others: other tensors that the step reads, such as Variables that require no grad now, by the tensors' ids.
        grown: pairs of a leaf and the gradient that it had before the step, if the step reads that gradient.
        drawn: copies of the random tensors that the step has drawn, in order.
        next_draw: position in ``drawn`` of the next random tensor. While backward runs a checkpointed function again,
            these are the positions of the tensors that the function's first run has drawn.
        generators: a dict from the id of a NumPy generator to the object that refers to it; `manual_seed` replaces the
            generator in that object.
        node: the node of the tape whose gradient is being computed; None outside of a backward pass.
        watched: pairs of a holder and a name on which the step depends, see `flnb.dispatch.guards`.
    """

    def __init__(self, backend: TensorBackend) -> None:
        self.backend = backend
        self.calls: list[Callable[[], object]] = []
        self.last: list[Callable[[], object]] = []
        self.cleared: dict[int, Any] = {}
        self.ungiven: set[int] = set()
        self.drawn: list[Tensor] = []
        self.next_draw = 0
        self.used: dict[int, Any] = {}
        self.others: dict[int, Any] = {}
        self.grown: list[tuple[Any, Any]] = []
        self.generators: dict[int, Any] = {}
        self.node: Any = None
        self.watched: list[tuple[Any, str]] = []
        self._numbers: dict[Any, tuple[Tensor, ...]] = {}

    def uses(self, leaf: Any) -> None:
        """Store that the step reads a tensor ``leaf``, unless the step itself has computed it."""
        if leaf._node is not None:
            self.used.setdefault(id(leaf._node), leaf)
        elif families[leaf._spec.kind].programs:
            self.others[id(leaf)] = leaf

    def asks(self, leaf: Any) -> None:
        """Store that the step asks for the gradient of a leaf, and whether the leaf has none."""
        self.uses(leaf)
        if leaf._node is not None and leaf._node[GRADIENT] is None:
            self.lacks(leaf._node)

    def lacks(self, node: Any) -> None:
        """Store that the step uses the gradient of a leaf's node, and that there is none."""
        if id(node) not in self.cleared:
            self.ungiven.add(id(node))

    def reads(self, x: Tensor) -> None:
        """Store that the step reads a tensor that existed before the step."""
        given = [leaf for leaf in self.used.values() if leaf._node[GRADIENT] is x]
        known = {id(leaf) for leaf, _ in self.grown}
        self.grown += [(leaf, x) for leaf in given if id(leaf) not in known]
        if not given:
            self.uses(x)

    def forget_tensors(self) -> None:
        """Drop the references to leaves, gradients and other tensors."""
        self.used, self.others, self.grown, self.cleared = {}, {}, [], {}

    def gradients_of_used(self) -> list[Tensor]:
        """Return the gradients of the leaves that the step reads."""
        return [gradient for x in self.used.values() if (gradient := x._node[GRADIENT]) is not None]

    def watch(self, holder: Any, names: Iterable[str]) -> None:
        """Store that the step depends on the items or attributes ``names`` of ``holder``, a dict or another object."""
        self.watched += [(holder, name) for name in names]

    def watch_module(self, module: Any) -> None:
        """Store that the step calls a module, and so depends on the module's attributes and its class's `forward`."""
        self.watch(vars(module), [*vars(module), "training", "forward", "_hooks"])
        self.watch(type(module), ["forward"])
        if module._hooks is not None:
            self.watch(module._hooks, vars(module._hooks))

    def asked(self, source: Any) -> bool:
        """Return whether the step has called `numbers` for the object ``source``."""
        return any(key[0] is source for key in self._numbers)

    def draw(self, make: Callable[[], Tensor]) -> Tensor:
        """Return the next random tensor: that of ``make()``, or that of a checkpointed function's first run."""
        at, self.next_draw = self.next_draw, self.next_draw + 1
        if at < len(self.drawn):
            return self.drawn[at].copy()
        tensor = make()
        self.drawn.append(tensor.copy())
        return tensor

    def pulling(self, pull: Callable[[Any], None]) -> Callable[[Any], None]:
        """Wrap ``pull(node)``, which a backward pass calls, so that `Effects.node` is this node during the call."""

        def pull_noted(node: Any) -> None:
            before, self.node = self.node, node
            try:
                pull(node)
            finally:
                self.node = before

        return pull_noted

    def numbers(self, source: Any, key: Any, dtype: np.dtype[Any]) -> tuple[Tensor, ...]:
        """Return 0-d tensors of a dtype, which are set to ``source.coefficients()`` before each run.

        `coefficients` is called once in each run for each ``key``, such as the number of a step within the run.
        """
        found = self._numbers.get((source, key, dtype))
        if found is None:
            backend = self.backend
            values = np.array(source.coefficients(), dtype)
            buffer, spec = backend.from_numpy(values), spec_of((), dtype, backend.buffer)

            def refresh() -> None:
                values[:] = source.coefficients()
                backend.from_numpy(values, buffer)

            self.calls.append(refresh)
            numbers = [detached(buffer[i : i + 1].reshape(()), spec) for i in range(len(values))]
            found = self._numbers[source, key, dtype] = tuple(numbers)
        return found


effects: ContextVar[Effects | None] = ContextVar("flnb_effects", default=None)
"""The effects of the step that is being captured in this thread and context; None if none is being captured."""


def repeated(function: Callable[[], object], last: bool = False) -> None:
    """Call a function now, and again before each later run of the step being captured; with ``last`` after each run."""
    function()
    if (captured := effects.get()) is not None:
        (captured.last if last else captured.calls).append(function)
