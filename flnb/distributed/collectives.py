"""Collective operations on tensors, with gradients: the gradient of a sum over ranks is again a sum over ranks.

Every rank makes the same calls in the same order, in forward and in backward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb.autograd.custom import CustomOp, custom_op
from flnb.dispatch.communication import run
from flnb.dispatch.groups import current
from flnb.distributed.staging import room, values, write
from flnb.ops.creation import asarray, empty, zeros_like
from flnb.ops.elementwise import copy

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.tensor import ArrayLike, Tensor


def _contiguous(x: Any) -> Any:
    """Return the tensor if it is contiguous, else a contiguous copy."""
    return x if x._is_contiguous() else copy(x)


def communicating(forward: Callable[..., Any]) -> CustomOp:
    """Make a custom op from a function that communicates.

    The op has the name of the function, without the leading underscore.
    """
    op = custom_op(forward)
    op.name, op.family = forward.__name__.lstrip("_"), "communication"
    return op


@communicating
def _all_reduce(x: Any, *, op: str) -> Any:
    y = copy(x)
    memory = values(y)
    run("all_reduce", memory, op)
    write(y, memory)
    return y


@_all_reduce.def_vjp
def _(g: Any, y: Any, x: Any, *, op: str) -> Any:
    if op != "sum":
        raise NotImplementedError(f"all_reduce: the gradient of {op!r} over ranks is not defined; use 'sum'")
    return all_reduce(g)


@communicating
def _all_gather(x: Any, *, size: int) -> Any:  # the result's shape depends on it
    y = empty((size, *x.shape), x.dtype)
    memory = room(y)
    run("all_gather", values(_contiguous(x)), memory)
    write(y, memory)
    return y


@_all_gather.def_vjp
def _(g: Any, y: Any, x: Any, *, size: int) -> Any:
    return reduce_scatter(g)


@communicating
def _reduce_scatter(x: Any, *, op: str) -> Any:
    y = empty(x.shape[1:], x.dtype)
    memory = room(y)
    run("reduce_scatter", values(_contiguous(x)), memory, op)
    write(y, memory)
    return y


@_reduce_scatter.def_vjp
def _(g: Any, y: Any, x: Any, *, op: str) -> Any:
    if op != "sum":
        raise NotImplementedError(f"reduce_scatter: the gradient of {op!r} over ranks is not defined; use 'sum'")
    return all_gather(g)


@communicating
def _broadcast(x: Any, *, root: int) -> Any:
    y = copy(x)
    memory = values(y)
    run("broadcast", memory, root)
    write(y, memory)
    return y


@_broadcast.def_vjp
def _(g: Any, y: Any, x: Any, *, root: int) -> Any:
    total = all_reduce(g)
    return total if current().rank == root else zeros_like(total)


def all_reduce(x: ArrayLike, op: str = "sum") -> Tensor:
    """Return the elementwise sum (or maximum, or minimum) of the ranks' tensors ``x``, on every rank.

    In backward, the gradients with respect to the result are summed over ranks, too; this is the gradient of the
    sum of all ranks' losses. Only a sum has a gradient.

    Args:
        x: this rank's tensor, whose shape and dtype are the same on every rank. Half precision is summed in float32; a
            sum of booleans is true if any of them is true.
        op: ``"sum"``, ``"max"`` or ``"min"``. For a mean, divide the sum by `size`.

    Raises:
        CollectiveError: another rank makes a different call, has ended, or does not make the call before the timeout.

    >>> import flnb
    >>> flnb.distributed.run_threads(2, lambda: flnb.distributed.all_reduce([1.0, 2.0]).tolist())
    [[2.0, 4.0], [2.0, 4.0]]
    """
    return _all_reduce(asarray(x), op=op)


def all_gather(x: ArrayLike) -> Tensor:
    """Return the ranks' tensors ``x`` stacked in rank order: shape ``(size, *x.shape)``.

    Raises:
        CollectiveError: as `all_reduce`.

    >>> import flnb
    >>> flnb.distributed.run_threads(2, lambda: flnb.distributed.all_gather(flnb.distributed.rank()).tolist())
    [[0, 1], [0, 1]]
    """
    return _all_gather(asarray(x), size=current().size)


def reduce_scatter(x: ArrayLike, op: str = "sum") -> Tensor:
    """Sum the ranks' tensors ``x``, which have one row for each rank; return row i of the sum on rank i.

    With ``op`` ``"max"`` or ``"min"``, return a row of the elementwise maximum or minimum instead.

    Raises:
        ValueError: the first extent of x is not the number of ranks.
        CollectiveError: as `all_reduce`.

    >>> import flnb
    >>> flnb.distributed.run_threads(2, lambda: flnb.distributed.reduce_scatter([[1, 2], [3, 4]]).tolist())
    [[2, 4], [6, 8]]
    """
    x = asarray(x)
    if not x.ndim or x.shape[0] != current().size:
        raise ValueError(
            f"reduce_scatter: expected a first extent of {current().size}, one row per rank; got {x.shape}"
        )
    return _reduce_scatter(x, op=op)


def broadcast(x: ArrayLike, root: int = 0) -> Tensor:
    """Return the tensor of the rank ``root`` on every rank; ``x`` has the same shape and dtype on all ranks.

    Raises:
        ValueError: no such rank.
        CollectiveError: as `all_reduce`.

    >>> import flnb
    >>> flnb.distributed.run_threads(2, lambda: flnb.distributed.broadcast(flnb.distributed.rank(), root=1).item())
    [1, 1]
    """
    return _broadcast(asarray(x), root=root)


def send(x: ArrayLike, to: int, tag: int = 0) -> None:
    """Send a tensor to the rank ``to``, which calls `recv` with the same ``tag``; returns once ``x`` may be modified.

    Raises:
        ValueError: no such rank, or this one.
        CollectiveError: the receiver has ended, or does not receive before the timeout.

    >>> import flnb
    >>> def relay():
    ...     if flnb.distributed.rank() == 0:
    ...         flnb.distributed.send([1.0, 2.0], to=1)
    ...     else:
    ...         return flnb.distributed.recv(flnb.zeros(2), source=0).tolist()
    >>> flnb.distributed.run_threads(2, relay)
    [None, [1.0, 2.0]]
    """
    run("send", values(_contiguous(asarray(x)), message=True), to, tag)


def recv(like: ArrayLike, source: int, tag: int = 0) -> Tensor:
    """Return the tensor that the rank ``source`` sends with this ``tag``; its shape and dtype are those of ``like``.

    Raises:
        ValueError: no such rank, or this one.
        CollectiveError: the sender has ended, or does not send before the timeout.

    >>> import flnb
    >>> def exchange():
    ...     if flnb.distributed.rank() == 1:
    ...         return flnb.distributed.send(7.0, to=0)
    ...     return flnb.distributed.recv(0.0, source=1).item()
    >>> flnb.distributed.run_threads(2, exchange)
    [7.0, None]
    """
    like = asarray(like)
    y = empty(like.shape, like.dtype)
    memory = room(y, message=True)
    run("recv", memory, source, tag)
    write(y, memory)
    return y


def barrier() -> None:
    """Wait until every rank has called this function.

    Raises:
        CollectiveError: as `all_reduce`.

    >>> import flnb
    >>> flnb.distributed.barrier()
    """
    run("barrier")
