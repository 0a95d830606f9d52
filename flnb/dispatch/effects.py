"""Side effects of a captured training step besides tensor computation, such as counting steps.

A step that is captured as a program (`flnb.jit`) runs as Python once; what else it does must be done again each time.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch.plan import spec_of
from flnb.tensor import detached

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flnb.interface import TensorBackend
    from flnb.tensor import Tensor

__all__ = ["Effects", "effects", "repeated"]


class Effects:
    """The side effects of a step that is being captured by `flnb.jit`, and the objects it depends on.

    Attributes:
        backend: what will compute.
        calls: functions to call before each run, in order.
        last: functions to call after each run.
        cleared: the leaves whose gradient the step sets to None.
        used: leaves that the step reads, by the id of their nodes.
        grown: leaves whose gradient of before the step is read, and that gradient.
        generators: by the id of a NumPy generator, the object that has it, whose generator `manual_seed` replaces.
        node: the node of the tape whose gradient is being computed; None outside of a backward pass.
        watched: holders and names on which the step depends, see `flnb.dispatch.guards`.
    """

    def __init__(self, backend: TensorBackend) -> None:
        self.backend = backend
        self.calls: list[Callable[[], object]] = []
        self.last: list[Callable[[], object]] = []
        self.cleared: dict[int, Any] = {}
        self.used: dict[int, Any] = {}
        self.grown: list[tuple[Any, Any]] = []
        self.generators: dict[int, Any] = {}
        self.node: Any = None
        self.watched: list[tuple[Any, str]] = []
        self._numbers: dict[Any, tuple[Tensor, ...]] = {}

    def uses(self, leaf: Any) -> None:
        """Note that the step reads a leaf."""
        self.used.setdefault(id(leaf._node), leaf)

    def reads(self, x: Tensor) -> None:
        """Note that the step reads an already existing tensor: a leaf, or the gradient of one."""
        if x._node is not None:
            self.uses(x)
        else:
            known = {id(leaf) for leaf, _ in self.grown}
            self.grown += [(leaf, x) for leaf in self.used.values() if leaf.grad is x and id(leaf) not in known]

    def watch(self, holder: Any, names: Iterable[str]) -> None:
        """Note that the step depends on the objects that names in a namespace, or attributes, refer to."""
        self.watched += [(holder, name) for name in names]

    def watch_module(self, module: Any) -> None:
        """Note that the step calls a module, and so depends on its attributes and its class's `forward`."""
        self.watch(vars(module), [*vars(module), "training", "forward", "_hooks"])
        self.watch(type(module), ["forward"])

    def asked(self, source: Any) -> bool:
        """Return whether the step gets numbers of an object by `numbers`."""
        return any(key[0] is source for key in self._numbers)

    def pulling(self, pull: Callable[[Any], None]) -> Callable[[Any], None]:
        """Wrap a backward step ``pull(node)`` so that `node` is the current node during the call."""

        def pull_noted(node: Any) -> None:
            before, self.node = self.node, node
            try:
                pull(node)
            finally:
                self.node = before

        return pull_noted

    def numbers(self, source: Any, key: Any, dtype: np.dtype[Any]) -> tuple[Tensor, ...]:
        """Return 0-d tensors that are set to ``source.coefficients()`` before each run.

        The function is called once in each run for each ``key``, such as the number of the step.
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
"""The effects of the step that is captured in this thread and context; None if none is."""


def repeated(function: Callable[[], object], last: bool = False) -> None:
    """Call a function now, and again before (or after) each later run of the step being captured."""
    function()
    if (captured := effects.get()) is not None:
        (captured.last if last else captured.calls).append(function)
