"""Graph rewriting: replaces recorded values by cheaper ones with the same elements.

One sweep visits the values in order. A value that equals an earlier value is replaced by the earlier one (common
subexpressions). A value that depends only on constants is computed (constant folding). The rule of an op may replace
the op's value. Values without references are not computed.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from flnb.dispatch.plan import spec_of
from flnb.dispatch.quiet import quiet
from flnb.dispatch.table import OPS
from flnb.graph.layouts import Layouts, is_view
from flnb.graph.running import at_once, run
from flnb.graph.values import CONSTANT, Value, reachable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

MOST_FOLDED = 4096
"""The largest size in bytes of values that constant folding computes, and of their operands."""


def _copied(value: Value, inputs: tuple[Value, ...], layouts: Layouts) -> Value | None:
    """Return the input of a copy, to replace the copy, if the input is contiguous; otherwise None."""
    return inputs[0] if layouts.contiguous(inputs[0]) else None


def _product(value: Value, inputs: tuple[Value, ...], layouts: Layouts) -> Value | None:
    """Return the value that replaces a copy of a transposed matrix product: the product of the transposed factors.

    (A B)^T = B^T A^T, and BLAS reads transposed factors directly. Such copies occur in the gradients of the weights of
    linear layers. Other copies are replaced as by `_copied`.
    """
    found = _copied(value, inputs, layouts)
    turned = inputs[0]
    if found is not None or turned.op is not OPS["permute_dims"] or turned.spec.ndim != 2:
        return found
    product = turned.inputs[0]
    if product.op is not OPS["matmul"] or any(x.spec.ndim != 2 for x in product.inputs):
        return None
    a, b = (_transposed(x) for x in product.inputs)
    return like(Value(OPS["matmul"], (b, a), (), value.spec, value.place), product)


def _transposed(x: Value) -> Value:
    """Return the transpose of a matrix value as a view."""
    spec = spec_of(x.spec.shape[::-1], x.spec.dtype, x.spec.kind)
    return like(Value(OPS["permute_dims"], (x,), ((1, 0),), spec, x.place), x)


def like(made: Value, value: Value) -> Value:
    """Set the telemetry context and source line of ``made`` to those of ``value``; returns ``made``."""
    made.context, made.site = value.context, value.site
    return made


def _cast(value: Value, inputs: tuple[Value, ...], layouts: Layouts) -> Value | None:
    """Return the input of a cast, to replace the cast, if the input has the cast's dtype already; otherwise None."""
    return _copied(value, inputs, layouts) if inputs[0].spec.dtype == value.spec.dtype else None


def _viewed(value: Value, inputs: tuple[Value, ...], layouts: Layouts) -> Value | None:
    """Return the input of a view, to replace the view, if both have the same shape and strides; otherwise None."""
    if value.spec is not inputs[0].spec:
        return None
    return inputs[0] if layouts[value][1:] == layouts[inputs[0]][1:] else None


def _folded(value: Value, inputs: tuple[Value, ...], layouts: Layouts) -> Value | None:
    """Compute a small value that depends only on constants, and return it as a constant; otherwise return None."""
    op: Any = value.op
    foldable = op is not None and op.writes_out and op.body is None and OPS.get(op.name) is op
    if not foldable or value.spec.nbytes > MOST_FOLDED or op.family == "memory":
        return None
    try:
        operands = [_constant(x) for x in inputs]
        made = None if None in operands or not operands else _computed(value, operands)
    except Exception:  # the program raises it, in the op that the user called
        return None
    return None if made is None else like(Value(None, (), CONSTANT, value.spec, value.place, made), value)


def _constant(x: Value) -> Any:
    """Return the tensor of a value that is the same in every run, and small; None for other values.

    Such values are recorded constants, results of `flnb.full`, and views of either.
    """
    if x.op is None:
        return x.tensor if x.attributes is CONSTANT and x.spec.nbytes <= MOST_FOLDED else None
    if x.op is OPS["full"]:
        return _computed(x, []) if x.spec.nbytes <= MOST_FOLDED else None
    below = _constant(x.inputs[0]) if is_view(x) else None
    return None if below is None else _computed(x, [below])


@quiet
def _computed(value: Value, operands: list[Any]) -> Any:
    """Return the result of a value's op on tensors, run on the backend that would run it in the program."""
    return at_once(value.place, run, value, tuple(operands), value.place.backend.buffer)


RULES: dict[str, Any] = {
    "astype": _cast,
    "broadcast_to": _viewed,
    "constant": _folded,
    "copy": _product,
    "permute_dims": _viewed,
    "reshape": _viewed,
}
"""A dict from the name of an op to its rule: ``rule(value, inputs, layouts) -> the replacement, or None``.

``inputs`` are the value's inputs after earlier replacements. The rule named "constant" is tried for every op.
"""
EXACT = {**RULES, "copy": _copied}
"""The rules that do not change a bit of any result."""


def rewritten(
    wanted: Iterable[Value], kept_apart: Collection[str] = (), rules: Mapping[str, Any] = MappingProxyType(RULES)
) -> dict[Value, Value]:
    """Rewrite a graph: merge equal values and apply the rewrite rules.

    Args:
        wanted: the values to compute.
        kept_apart: names of ops that must be neither removed nor merged, because methods of the user's class compute
            them.
        rules: the rewrite rules: `RULES`, `EXACT`, or others.

    Returns:
        A dict from every recorded value to the value that replaces it.
    """
    now: dict[Value, Value] = {}
    known: dict[Any, Value] = {}
    layouts = Layouts()
    for value in reachable(wanted):
        inputs = tuple([now.get(x, x) for x in value.inputs])
        found = value if inputs == value.inputs else _with_inputs(value, inputs)
        name = value.op.name if value.op is not None else ""
        if name not in kept_apart and not name.startswith("random_"):
            rule = rules.get(name)
            other = rule(found, inputs, layouts) if rule is not None else None
            found = other if other is not None else _known(found, rules, layouts, known)
        now[value] = found
    return now


def _known(value: Value, rules: Mapping[str, Any], layouts: Layouts, known: dict[Any, Value]) -> Value:
    """Return the value that replaces ``value``: an equal earlier value, a constant, or ``value`` itself.

    ``known`` is a dict from the key (see `_key`) of each earlier value to its replacement; ``value`` is added to it.
    """
    key = _key(value)
    if key not in known:
        folded = rules["constant"](value, value.inputs, layouts) if "constant" in rules else None
        known[key] = value if folded is None else folded
    return known[key]


def _with_inputs(value: Value, inputs: tuple[Value, ...]) -> Value:
    """Return a copy of a value with other inputs."""
    return like(Value(value.op, inputs, value.attributes, value.spec, value.place), value)


def _key(value: Value) -> Any:
    """Return a hashable key that equal values share; a value with unhashable attributes is its own key."""
    if value.op is None or value.op.body is not None:
        return value
    key = value.op, value.inputs, value.attributes, repr(value.attributes), value.spec  # 0.0 == -0.0, and 1 == True
    try:
        hash(key)
    except TypeError:
        return value
    return key


def owned(value: Value, taken: set[Value]) -> Value:
    """Return ``value``, or a copy with separate memory if ``value`` already exists, is a view, or is in ``taken``."""
    if value.op is None or is_view(value) or value in taken:
        value = like(Value(OPS["copy"], (value,), (), value.spec, value.place), value)
    taken.add(value)
    return value
