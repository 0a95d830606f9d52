"""Tensor parallel linear layers: the weight is divided among ranks (Shoeybi et al., 2019, "Megatron-LM", section 3).

Outside of these layers all ranks compute the same activations and the same loss. Gradients are those of training in one
process, and each rank's optimizer updates the rank's part of the weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb import ops
from flnb.dispatch.groups import current
from flnb.distributed.collectives import all_gather, all_reduce, broadcast, communicating
from flnb.nn.layers import Linear
from flnb.nn.module import Module, Parameter

if TYPE_CHECKING:
    from flnb.tensor import Tensor


@communicating
def _enter_divided(x: Any) -> Any:
    """Return x; in backward, sum the gradients that the ranks compute with their parts of a layer."""
    return ops.copy(x)


@_enter_divided.def_vjp
def _(g: Any, y: Any, x: Any) -> Any:
    return all_reduce(g)


@communicating
def _leave_divided(x: Any) -> Any:
    """Return the sum of the ranks' partial results; in backward, pass the gradient on unchanged on every rank."""
    return all_reduce(x)


@_leave_divided.def_vjp
def _(g: Any, y: Any, x: Any) -> Any:
    return g


@communicating
def _join_divided(x: Any) -> Any:
    """Return the ranks' partial results, concatenated along the last axis."""
    parts = all_gather(x)
    return ops.concat([parts[rank] for rank in range(parts.shape[0])], axis=-1)


@_join_divided.def_vjp
def _(g: Any, y: Any, x: Any) -> Any:
    begin = current().rank * x.shape[-1]
    return ops.copy(g[..., begin : begin + x.shape[-1]])


class _Divided(Module):
    """Base of `ColumnLinear` and `RowLinear`: makes the same whole weight on all ranks, and stores this rank's part."""

    axis = 0
    _differs = True  # between ranks: `DataParallel` refuses it

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        self.in_features, self.out_features = in_features, out_features
        whole = Linear(in_features, out_features, bias)
        self.weight = Parameter(self._mine(broadcast(whole.weight.data), self.axis))
        self.bias = None if whole.bias is None else Parameter(self._bias(broadcast(whole.bias.data)))

    def load_whole(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Set this rank's part from a whole weight (out_features, in_features) and bias (out_features,)."""
        ops.assign(self.weight.data, self._mine(weight, self.axis))
        if self.bias is not None and bias is not None:
            ops.assign(self.bias.data, self._bias(bias))

    def _bias(self, whole: Tensor) -> Tensor:
        """Return this rank's part of the bias."""
        return whole

    def _mine(self, whole: Tensor, axis: int) -> Tensor:
        """Return this rank's part of a tensor along an axis."""
        here, extent = current(), whole.shape[axis]
        if extent % here.size:
            raise ValueError(
                f"{type(self).__name__}: {extent} {'inputs' if axis else 'outputs'} cannot be divided among "
                f"{here.size} ranks; choose a multiple of the number of ranks"
            )
        part = slice(here.rank * (extent // here.size), (here.rank + 1) * (extent // here.size))
        return whole[:, part] if axis else whole[part]


class ColumnLinear(_Divided):
    """A linear layer whose outputs are divided among the ranks: x (..., in_features) -> (..., out_features / ranks).

    x is the same on all ranks. Each rank gets a part of the outputs, which can be the input of a `RowLinear`. With
    ``join``, each rank gets all outputs: (..., out_features).

    Args:
        in_features: the number of features of x.
        out_features: the number of outputs of all ranks together.
        bias: whether to add a bias.
        join: whether every rank gets all outputs.

    Raises:
        ValueError: the number of ranks does not divide ``out_features``.

    >>> import flnb
    >>> x = flnb.ones((5, 4))
    >>> flnb.distributed.run_threads(2, lambda: flnb.distributed.ColumnLinear(4, 6)(x).shape)
    [(5, 3), (5, 3)]
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, join: bool = False) -> None:
        self.join = join
        super().__init__(in_features, out_features, bias)

    def _bias(self, whole: Tensor) -> Tensor:
        """Return this rank's part of the bias."""
        return self._mine(whole, 0)

    def forward(self, x: Any) -> Any:
        y = ops.linear(_enter_divided(x), self.weight, self.bias)
        return _join_divided(y) if self.join else y


class RowLinear(_Divided):
    """A linear layer whose inputs are divided among the ranks: x (..., in_features / ranks) -> (..., out_features).

    Each rank passes its part of the inputs, as a `ColumnLinear` returns it. All ranks get the same outputs.

    Args:
        in_features: the number of inputs of all ranks together.
        out_features: the number of outputs.
        bias: whether to add a bias, which is the same on all ranks.

    Raises:
        ValueError: the number of ranks does not divide ``in_features``.

    >>> import flnb, flnb.nn as nn
    >>> def compute():
    ...     up, down = flnb.distributed.ColumnLinear(4, 6), flnb.distributed.RowLinear(6, 4)
    ...     return down(flnb.tanh(up(flnb.ones((5, 4))))).shape
    >>> flnb.distributed.run_threads(2, compute)
    [(5, 4), (5, 4)]
    """

    axis = 1

    def forward(self, x: Any) -> Any:
        y = _leave_divided(ops.linear(x, self.weight))
        return y if self.bias is None else y + self.bias
