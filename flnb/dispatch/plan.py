"""Specs and plans: the facts about a tensor, and about an op on tensors of certain specs, that do not depend on values.

An op finds its plan by its attributes and the specs (shape, dtype, buffer family) of its inputs. The plan has the spec
of the result, the facts for the gradient, and the op's number in telemetry. So shape rules run once for each
combination of specs and attributes, not at each call.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import encoding, intern, schema

from flnb.dispatch.quiet import quiet

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.dispatch.table import Op
    from flnb.interface import TensorBackend

OF_AN_OP = schema.OP
"""The code for memory that a method allocates while an op runs: the event gets the op's line, but names no op."""


class Spec:
    """Shape and dtype of a tensor, and the family of its buffer (``kind``). Equal specs are the same object."""

    __slots__ = ("dtype", "kind", "nbytes", "ndim", "shape", "size")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], kind: str) -> None:
        self.shape = shape
        self.dtype = dtype
        self.kind = kind
        self.ndim = len(shape)
        self.size = size_of(shape)
        self.nbytes = self.size * dtype.itemsize

    def __repr__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return spec_of, (self.shape, self.dtype, self.kind)


def size_of(shape: tuple[int, ...]) -> int:
    """Return the number of elements of a tensor of this shape."""
    return math.prod(shape)


_specs: dict[tuple[tuple[int, ...], np.dtype[Any], str], Spec] = {}


def spec_of(shape: tuple[int, ...], dtype: np.dtype[Any], kind: str = "ndarray") -> Spec:
    """Return the one `Spec` object for a shape (a tuple of ints), a dtype and a buffer family."""
    key = (shape, dtype, kind)
    spec = _specs.get(key)
    if spec is None:
        spec = _specs.setdefault(key, Spec(shape, dtype, kind))
    return spec


_array = quiet(np.asarray)


class Plan:
    """An op on inputs of certain specs (shapes, dtypes and buffer families), with certain attributes.

    Attributes:
        spec, specs: the spec of the result, and the specs of the inputs.
        weight: the bytes of the result, or of the largest value that a composite saves; -1 for a view. The op's results
            get blocks of memory if this is at least the manager's ``min_block``.
        blank: the dtype of a 0-d result for which NumPy would return a scalar instead of an array; the backend's method
            then gets an array to write to. None for other results.
        saves: a dict from a set of inputs that need a gradient (an int whose bit i stands for input i) to the values
            that a node saves: a bool for each input, and a last bool for the output.
        kept: the specs of the values that a composite saves for its gradient besides inputs and output, if the backend
            has a method for the composite.
        primitives: the names of the ops that such a composite and its gradient consist of; None until they are known.
        pulls: the gradient function of each input; ``joint`` is the function for all inputs of a composite.
        shrinks: for each input the shape to which its gradient must be summed, because the input was broadcast; else
            None.
        compiled: the compiled gradient functions (`flnb.autograd.compiled_pulls`); None until they are needed, False if
            they cannot be compiled.
    """

    __slots__ = (
        "attributes", "blank", "code", "compiled", "constants", "differentiable", "joint", "kept", "kind", "op",
        "primitives", "pull", "pulls", "saves", "shrinks", "spec", "specs", "weight",
    )  # fmt: skip

    compiled: Any
    kept: tuple[Spec, ...]
    primitives: frozenset[str] | None
    pull: Plan | None

    def __init__(self, op: Op, specs: tuple[Any, ...], attributes: tuple[Any, ...], spec: Spec) -> None:
        self.op = op
        self.specs = specs
        self.attributes = attributes
        self.spec = spec
        self.kind = spec.kind
        self.differentiable = op.differentiable and spec.dtype.kind not in "biu"
        self.joint = op.joint_for(specs)
        self.blank = spec.dtype if op.writes_out and spec.ndim == 0 and families[spec.kind].scalar_results else None
        self.weight = spec.nbytes if op.writes_out else -1
        self.compiled = self.primitives = self.pull = None
        self.kept = ()
        self.constants: dict[Any, Any] = {}
        self.pulls: tuple[Callable[..., Any] | None, ...] = op.pulls_for(specs)
        # An input's shape where broadcasting enlarged it, so that its gradient must be summed back.
        enlarged = [op.broadcasts and isinstance(s, Spec) and s.shape != spec.shape for s in specs]
        self.shrinks = tuple(s.shape if grew else None for s, grew in zip(specs, enlarged, strict=True))
        count = len(specs)
        self.saves: Any = [op.saved(m, count) for m in range(1 << count)] if count < 3 else Saves(op, count)
        shapes = tuple(s.shape if isinstance(s, Spec) else () for s in specs)
        saved = sum(
            s.nbytes for s, kept in zip((*specs, spec), self.saves[-1], strict=True) if kept and type(s) is Spec
        )
        about = (op.name, op.family, spec.shape, spec.dtype.name, spec.nbytes, op.flops(self), shapes, saved)
        described = intern.Plan(*about)
        kind = schema.RECORD if getattr(families.get(self.kind), "defers", False) else schema.OP
        self.code = kind | encoding.FLOAT_TIMES | intern.plans.id_of(described) << schema.PLAN_SHIFT

    def constant(self, value: float, backend: Any) -> Any:
        """Return a Python number as a 0-d buffer of the backend; the buffer is cached.

        The buffers of 0.0 and -0.0 are not cached, because the two numbers are equal as keys of a dict.
        """
        if value in self.constants:
            return self.constants[value]
        promoted = [s for i, s in enumerate(self.specs) if i not in self.op.unpromoted]
        dtype = next(s.dtype for s in promoted if isinstance(s, Spec))
        try:
            buffer = backend.from_numpy(_array(value, dtype))
        except OverflowError:
            raise OverflowError(
                f"{self.op.name}: the number {value} does not fit {dtype.name}, the tensor's dtype, and a "
                f"Python number does not change a tensor's dtype; cast the tensor with .astype first"
            ) from None
        if value and len(self.constants) < 64:
            self.constants[value] = backend.settled(buffer)
        return buffer


class Saves(dict[int, tuple[bool, ...]]):
    """A dict from sets of operands that need a gradient to the values that a node saves, computed at first use.

    A key is an int whose bit i stands for operand i. A value has a bool for each input, and a last bool for the output.
    """

    def __init__(self, op: Op, count: int) -> None:
        self.op, self.count = op, count

    def __missing__(self, mask: int) -> tuple[bool, ...]:
        found = self[mask] = self.op.saved(mask, self.count)
        return found


residents: dict[str, TensorBackend] = {}
"""A dict from a buffer family on a device to a backend that reads such buffers while another backend is active."""
families: dict[str, type[TensorBackend]] = {}
"""A dict from a buffer family to its first active backend class, whose class attributes apply to the family."""
