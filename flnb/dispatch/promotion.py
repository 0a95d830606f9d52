"""The first call of an op with new dtypes, shapes or attributes: converts and checks the operands and makes the plan.

Promotion follows the array API 2024.12, and torch where that leaves a choice, see `flnb.dispatch.dtypes`. Inputs of
another dtype than the common one are cast by `astype` ops, which recordings show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch.dtypes import common_dtype, default_dtype, is_float
from flnb.dispatch.effects import effects
from flnb.dispatch.plan import Plan, spec_of
from flnb.tensor import Tensor, alias, detached

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.dispatch.state import State
    from flnb.dispatch.table import Op


def plan_for(
    op: Op, arguments: tuple[Any, ...], attributes: tuple[Any, ...], here: State
) -> tuple[Plan, tuple[Any, ...]]:
    """Return the plan of a call, and the operands converted to tensors of one dtype.

    If the op broadcasts, one operand may stay a Python number. ``here`` is the active state.
    """
    if op.body is not None:
        arguments = adopted(op, arguments, here)
        return plan_of_composite(op, tuple([x._spec for x in arguments]), attributes), arguments
    scalars = {i: type(x) for i, x in enumerate(arguments) if type(x) in (float, int, bool, complex)}
    kept = scalars if op.broadcasts and list(scalars.values()) in ([float], [int]) else {}
    kept = {} if any(i in op.unpromoted for i in kept) else kept
    weak = [i for i in scalars if i not in op.unpromoted]
    tensors = [x if isinstance(x, Tensor) or i in weak else _converted(op, x) for i, x in enumerate(arguments)]
    tensors = _promoted(op, list(adopted(op, tensors, here)), scalars, kept)
    specs = tuple(x._spec if isinstance(x, Tensor) else type(x) for x in tensors)
    return find_plan(op, specs, attributes, here), tuple(tensors)


def find_plan(op: Op, specs: tuple[Any, ...], attributes: tuple[Any, ...], here: State) -> Plan:
    """Return the plan of an op for these specs and attributes; make a plan if there is none yet.

    ``here`` is the active state.
    """
    key = op.key(specs, attributes)
    plan = op.plans.get(key)
    if plan is None:
        shape, dtype = op.infer(op, specs, attributes)
        if not here.backend.supports(dtype):
            raise TypeError(f"{op.name}: backend {here.backend.name!r} does not support {np.dtype(dtype).name}")
        plan = op.plans.setdefault(key, Plan(op, specs, attributes, spec_of(shape, np.dtype(dtype), here.kind)))
    return plan


def plan_of_composite(op: Op, specs: tuple[Any, ...], attributes: tuple[Any, ...]) -> Plan:
    """Return the plan of a composite for which the backend has a method, made by tracing the composite's ops."""
    key = op.key(specs, attributes)
    plan = op.plans.get(key)
    return op.plans.setdefault(key, op.outline(specs, attributes)) if plan is None else plan


def adopted(op: Op, operands: Sequence[Any], here: State) -> tuple[Any, ...]:
    """Return the operands of an op, with tensors of other backends converted to the active backend.

    ``here`` is the active state, which has the backend.

    Raises:
        TypeError: the active backend does not convert them (`TensorBackend.adopt`), or one of them requires a gradient.
    """
    made = []
    for x in operands:
        if isinstance(x, Tensor) and x._spec.kind is not here.kind:
            aliases = here.backend.aliases
            data = here.backend.adopt(x._data, x._spec.kind) if x._node is None or aliases else None
            if data is None:
                raise foreign(op, operands, here)
            spec = spec_of(x._spec.shape, x._spec.dtype, here.kind)
            if aliases and (captured := effects.get()) is not None:
                captured.reads(x)
            x = alias(x, data, spec) if aliases else detached(data, spec)
        made.append(x)
    return tuple(made)


def foreign(op: Op, tensors: Sequence[Any], here: State) -> TypeError:
    """Return the error for an op on tensors whose buffers belong to another backend."""
    kind = next((x._spec.kind for x in tensors if isinstance(x, Tensor) and x._spec.kind is not here.kind), here.kind)
    return TypeError(
        f"{op.name}: the tensors have {kind!r} buffers but the active backend {here.backend.name!r} computes on "
        f"{here.kind!r} buffers; convert them with .to({here.backend.name!r}), or use their backend"
    )


def _converted(op: Op, value: Any, dtype: np.dtype[Any] | None = None) -> Tensor:
    """Convert an operand to a tensor, of dtype ``dtype`` if it is given; return a tensor unchanged."""
    if value is None or isinstance(value, (str, bytes, dict, set)):
        raise TypeError(f"{op.name}: expected tensors, arrays or numbers, got {type(value).__name__} ({value!r:.40})")
    return Tensor._of(value, dtype)


def _promoted(op: Op, tensors: list[Any], scalars: dict[int, type], kept: dict[int, type]) -> list[Any]:
    """Cast tensors, except index and condition arguments, to the dtype in which the op computes.

    ``scalars`` has the types of the Python numbers among the operands, by position. The numbers that are also in
    ``kept`` are not converted to tensors.
    """
    promoted = [i for i in range(len(tensors)) if i not in op.unpromoted]
    if not promoted:
        return tensors
    strong = [tensors[i]._spec.dtype for i in promoted if i not in scalars]
    target = common_dtype(strong, tuple(scalars.values()))
    if op.accepts == "float" and not is_float(target):
        target = default_dtype()
    if op.accepts in ("integer", "bits") and target.kind not in ("iu" if op.accepts == "integer" else "iub"):
        expected = "integer" if op.accepts == "integer" else "integer or bool"
        raise TypeError(f"{op.name}: expected {expected} tensors, got {target.name}; cast with .astype first")
    if op.real and target.kind == "c":
        raise TypeError(f"{op.name}: complex numbers have no {op.name}; take flnb.real, flnb.imag or flnb.abs first")
    if op.accepts == "numeric" and target.kind == "b":
        raise TypeError(f"{op.name}: bool tensors have no {op.name}; cast with .astype(flnb.int64) first")
    if op.accepts == "bool":
        target = np.dtype(bool)
    return [
        x if i in kept or i not in promoted
        else _converted(op, x, target) if i in scalars  # at once, as 0.1 in float64 is not 0.1 in float32
        else x if x._spec.dtype == target
        else x.astype(target)
        for i, x in enumerate(tensors)
    ]  # fmt: skip
