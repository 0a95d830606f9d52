"""`vmap`: run a function that is written for one example on all examples at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from flnb_telemetry.withblock import holding

from flnb.autograd.batched import Batched, Vmap, unbatch
from flnb.autograd.tree import leaves, rebuild, spread
from flnb.dispatch.arguments import axes_of
from flnb.dispatch.interpreter import use_interpreter
from flnb.dispatch.state import vmaps
from flnb.ops.creation import asarray
from flnb.ops.movement import moveaxis
from flnb.tensor import Tensor


def vmap(function: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
    """Make a function that runs ``function`` on all slices of its arguments along an axis, and stacks the results.

    Each slice is an example. An op that has a batching rule runs once for all examples, any other op once per example.
    Each example draws its own random numbers. `vmap` and other transforms may be nested in any order.

    Args:
        function: takes and returns tensors, or dicts, lists and tuples of them. Python control flow may depend on
            unbatched values and on shapes.
        in_axes: the axis of the examples in each positional argument: one int for all arguments, or a tuple with an
            entry per argument; None for an argument that all examples share. For an argument that is a dict, list or
            tuple, the entry may be a container of axes with the same structure. All examples share keyword arguments.
        out_axes: the axis of the results along which the examples are stacked; None for a result that is the same for
            all examples. It may be a container of axes with the structure of the results.

    >>> import flnb
    >>> rows, w = flnb.asarray([[1.0, 2.0], [3.0, 4.0]]), flnb.asarray([1.0, 10.0])
    >>> flnb.vmap(lambda x, w: (x * w).sum(), in_axes=(0, None))(rows, w).tolist()
    [21.0, 43.0]
    >>> flnb.vmap(flnb.grad(lambda x: (x * x).sum()))(rows).tolist()  # a gradient for every example
    [[2.0, 4.0], [6.0, 8.0]]

    Raises:
        ValueError: no argument to map, axes of different lengths, or axes that do not match the arguments.
        TypeError: an argument without the axis, or a branch on a value that differs between examples.
    """

    @wraps(function, updated=())
    def mapped(*arguments: Any, **keywords: Any) -> Any:
        axes = spread(tuple(in_axes) if isinstance(in_axes, list) else in_axes, arguments, "vmap: in_axes")
        flat = leaves(arguments)
        fronted = [_fronted(i, x, axis) for i, (x, axis) in enumerate(zip(flat, axes, strict=True))]
        outer = vmaps.get()
        level = Vmap(_size(fronted, axes), len(outer) + 1)
        inputs = [x if axis is None else Batched(x, level) for x, axis in zip(fronted, axes, strict=True)]
        with holding(vmaps, (*outer, level)), use_interpreter(level):
            result = function(*rebuild(arguments, inputs), **keywords)
        places = spread(out_axes, result, "vmap: out_axes")
        return rebuild(result, [_out(y, level, axis) for y, axis in zip(leaves(result), places, strict=True)])

    return mapped


def _fronted(position: int, x: Any, axis: int | None) -> Any:
    """Return x with the axis of the examples first; an error names the tensor by its ``position`` in the arguments."""
    if axis is None:
        return x
    x = asarray(x)
    if not -x.ndim <= axis < x.ndim:
        raise TypeError(
            f"vmap: leaf {position} of the arguments has shape {x.shape} and no axis {axis} to map over; pass None in "
            f"in_axes for arguments that all examples share"
        )
    return moveaxis(x, axis, 0) if axis % x.ndim else x


def _size(inputs: list[Any], axes: list[int | None]) -> int:
    """Return the number of examples: the common length of the mapped axes of all inputs."""
    sizes = {i: x.shape[0] for i, (x, axis) in enumerate(zip(inputs, axes, strict=True)) if axis is not None}
    if not sizes:
        raise ValueError("vmap: nothing to map over: every entry of in_axes is None, or there are no arguments")
    if len(set(sizes.values())) > 1:
        raise ValueError(
            f"vmap: the mapped axes must have equal lengths, got {list(sizes.values())} for leaves {list(sizes)} of "
            f"the arguments"
        )
    return int(next(iter(sizes.values())))


def _out(y: Any, level: Vmap, axis: int | None) -> Any:
    """Return a result with the examples of ``level`` along ``axis``.

    If ``axis`` is None, return the result itself, or raise an error if the result differs between examples.
    """
    if not isinstance(y, Tensor):
        if axis is None:
            return y
        y = asarray(y)
    if axis is None:
        if y._level is level:
            raise ValueError(f"vmap: out_axes is None for a result that differs between examples, {y!r}; use 0")
        return y
    whole = unbatch(y, level)
    (target,) = axes_of(axis, whole.ndim, "vmap: out_axes") or (0,)
    return moveaxis(whole, 0, target) if target else whole
