"""Composites such as softmax, and their gradients, run as backends run them: whole where a backend has a method for it.

A backend may implement a composite by one method, such as ``relu``, and its gradient by another, such as ``relu_pull``.
Observers see only the ops of the composite's body, so these methods must be called to be compared.
"""

from __future__ import annotations

import copy
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.autograd.tape import Linked, grad_of
from flnb.autograd.variable import Variable
from flnb.dispatch import state
from flnb.dispatch.crossing import by_body
from flnb.dispatch.dtypes import is_float
from flnb.dispatch.failure import Untraceable
from flnb.dispatch.interpreter import Interpreter
from flnb.dispatch.promotion import find_plan, plan_of_composite
from flnb.dispatch.table import OPS, Combined
from flnb.explore.calls import OpCall, Outcome, tensor
from flnb.explore.layout import keep

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from flnb.dispatch.table import Op
    from flnb.interface import TensorBackend

GRADIENT = "_pull"


def composite(name: str) -> Op | None:
    """Return the composite or combined op that is called ``name`` or whose gradient is; None if there is none.

    >>> from flnb.explore.composites import composite
    >>> composite("relu"), composite("relu_pull"), composite("exp")
    (<op relu>, <op relu>, None)
    """
    op = OPS.get(name) or OPS.get(name.removesuffix(GRADIENT))
    return op if op is not None and (op.body is not None or (op.separately is not None and op.pulls)) else None


@dataclass(frozen=True)
class CompositeCall(OpCall):
    """One call of a composite or combined op, or, if ``op`` ends with ``_pull``, of the gradient of one.

    The first input of a gradient is the gradient of the composite's result. The outcome of a gradient has a tuple as
    its value: the gradients of the floating-point inputs.
    """

    def on(self, backend: TensorBackend) -> Outcome:
        """Run the call on a backend as programs run it there; an exception becomes part of the outcome."""
        op: Any = composite(self.op)
        arrays = [kept.array() for kept in self.inputs]
        t0 = time.perf_counter()
        try:
            with _on(backend, self.op != op.name, self.category), np.errstate(all="ignore"):
                tensors: list[Any] = [tensor(x) for x in arrays]
                run = _gradients if self.op != op.name else _result
                value, seconds = run(op, tensors, copy.deepcopy(self.attributes), backend)
        except Exception as error:
            return Outcome(error=error, seconds=time.perf_counter() - t0)
        return Outcome(value, None, seconds, self.written(arrays))

    def taken(self, backend: TensorBackend) -> bool:
        """Return whether a backend runs the call, or at least a part of it, by a method of its own."""
        op: Any = composite(self.op)
        of_gradient = self.op != op.name
        numbers = [op.index, op.gradient.index] if of_gradient else [op.index]
        if not self.offered(backend):
            return False
        with _on(backend, False, self.category):
            specs = tuple(tensor(kept.array())._spec for kept in self.inputs[of_gradient:])
            try:
                find = plan_of_composite if op.body is not None else partial(find_plan, here=state.current())
                plan = find(op, specs, self.attributes)
            except Untraceable:
                return False
            return any(state.current().whole(plan, number) is not None for number in numbers)

    def offered(self, backend: TensorBackend) -> bool:
        """Return whether a backend has a method for the composite, even if calls do not use it (see `State.whole`)."""
        op: Any = composite(self.op)
        return any(backend.method(one.name) for one in (op, op.gradient) if one is not None)

    def gradient(self, result: np.ndarray[Any, Any]) -> CompositeCall:
        """Return a call of the composite's gradient, with random numbers as the cotangent of the composite's result."""
        g = np.asarray(np.random.default_rng(0).standard_normal(result.shape)).astype(result.dtype)
        return replace(self, op=self.op + GRADIENT, inputs=(keep(g), *self.inputs))

    def precise(self) -> CompositeCall:
        """Return the same call in float64 or complex128, to find out how much of a difference is rounding."""
        wide = [
            keep(k.array().astype(np.complex128 if k.dtype.kind == "c" else np.float64)) if is_float(k.dtype) else k
            for k in self.inputs
        ]
        return replace(self, inputs=tuple(wide))


def _on(backend: TensorBackend, grad: bool, category: int) -> AbstractContextManager[Any]:
    """Return a context in which ops run on a backend without interpreters and, if possible, without a memory manager.

    ``grad`` says whether gradients are recorded, ``category`` is the memory category of results.
    """
    return state.use(
        backend=backend, interpreters=(), grad=grad, category=category, tape=Linked(),
        **({"min_block": sys.maxsize} if backend.shares_memory else {}),
    )  # fmt: skip


def _result(op: Op, tensors: list[Any], attributes: tuple[Any, ...], backend: TensorBackend) -> tuple[Any, float]:
    """Run a composite; return its result and the time it took in seconds."""
    t0 = time.perf_counter()
    made = op.entries[len(tensors), ""](*tensors, attributes)
    backend.sync()
    seconds = time.perf_counter() - t0
    return np.array((made if op.body is None else made[0])._values()), seconds


def _gradients(op: Op, tensors: list[Any], attributes: tuple[Any, ...], backend: TensorBackend) -> tuple[Any, float]:
    """Run a composite and its backward; return the gradients and the time of the backward in seconds."""
    g, *inputs = (Variable(x) if i and is_float(x.dtype) else x for i, x in enumerate(tensors))
    result, _ = op.entries[len(inputs), ""](*inputs, attributes)
    wanted = [x for x in inputs if isinstance(x, Variable)]
    t0 = time.perf_counter()
    found = grad_of(result, wanted, g)
    backend.sync()
    seconds = time.perf_counter() - t0
    return tuple(np.zeros(()) if x is None else np.array(x._values()) for x in found), seconds


class Wholes(Interpreter):
    """Calls ``compare`` with each composite or combined op, after the ops that it consists of have run one by one.

    Observers see these ops first, so a difference in one of these ops is found before a difference in the composite or
    combined op. ``compare`` returns whether the results agree; if so, and if gradients are recorded, it is also called
    with the call of the gradient.
    """

    combines = True

    def __init__(self, compare: Callable[[CompositeCall], bool]) -> None:
        self.compare = compare

    def takes(self, op: Op) -> bool:
        return op.index >= 0 and op is composite(op.name)

    def apply(self, op: Op, operands: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
        if isinstance(op, Combined) and not op.combines(operands, attributes):
            return op.separately(*operands, *attributes)  # type: ignore[misc]
        if op.body is None and op.separately is None:
            return self.run(op, operands, attributes)
        here = state.current()
        inputs = tuple(keep(np.asarray(x._values())) for x in operands)
        call = CompositeCall(op.name, inputs, copy.deepcopy(attributes), category=here.category)
        if op.separately is not None:  # its gradients run ops, which observers see
            made = op.separately(*operands, *attributes)
            self.compare(call)
            return made
        made = by_body(op, attributes, operands, here)
        if self.compare(call) and here.grad and any(x._node is not None for x in operands):
            self.compare(call.gradient(np.asarray(made[0]._values())))
        return made
