"""Norms of vectors and matrices, the rank of matrices, and layers that normalise activations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from operator import index
from typing import Any

import numpy as np

from flnb.dispatch import crossing, state
from flnb.dispatch.arguments import axes_of
from flnb.dispatch.brief import brief
from flnb.dispatch.table import Update
from flnb.ops import elementwise as e
from flnb.ops import reduction as r
from flnb.ops.composite import Body, Composite, in_one_dtype
from flnb.ops.creation import asarray
from flnb.ops.decomposition import svdvals
from flnb.ops.inverse import relative_tolerance
from flnb.ops.movement import expand_dims, matrices, reshape
from flnb.tensor import ArrayLike, Tensor

INFINITY = math.inf


def vector_norm(
    x: ArrayLike, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, ord: float = 2
) -> Tensor:
    """Vector norm over ``axis`` (an int, a tuple of ints, or None for all): ``sum(abs(x) ** ord) ** (1 / ord)``.

    ``ord`` may also be infinity (the largest absolute value), -infinity (the smallest) or 0 (the number of elements
    that are not zero). The gradient of the norm of zeros is 0. Half precision is computed in float32.

    Raises:
        numpy.exceptions.AxisError: an axis is out of range.
        ValueError: ``ord`` is no number.

    >>> import flnb
    >>> flnb.linalg.vector_norm([3.0, -4.0])
    Tensor(5., float32[], numpy)
    """
    x = r.floating(x)
    if isinstance(ord, str):
        raise ValueError(f"vector_norm: ord must be a number, got {brief(ord)}; matrix_norm has norms with names")
    if x.dtype.itemsize == 2:
        return r.in_float32(vector_norm, x, axis=axis, keepdims=keepdims, ord=ord)
    x = e.abs(x) if x.dtype.kind == "c" else x
    over = axes_of(axis, x.ndim, "vector_norm"), keepdims
    if ord == 2:
        return r.root(r.sum(e.square(x), *over))
    size = e.abs(x)
    if ord in (INFINITY, -INFINITY):
        return (r.max if ord > 0 else r.min)(size, *over)
    if ord == 0:
        return r.sum(e.astype(e.not_equal(size, 0.0), size.dtype), *over)
    if ord == 1:
        return r.sum(size, *over)
    return _power(r.sum(_power(size, float(ord)), *over), 1.0 / ord)


def _power(x: Any, exponent: float) -> Any:
    """Return x ** exponent for x >= 0; where x is 0 the gradient is 0, even if the slope there is infinite."""
    if x._node is None:
        return x**exponent
    zero = e.equal(x, 0.0)
    return e.where(zero, 0.0 if exponent > 0.0 else INFINITY, e.where(zero, 1.0, x) ** exponent)


def matrix_norm(x: ArrayLike, /, *, keepdims: bool = False, ord: float | str = "fro") -> Tensor:
    """Norms (...) of matrices x (..., M, N).

    ``ord`` is "fro" for the root of the sum of squares, or "nuc" for the sum of singular values. 2 is the largest
    singular value, -2 the smallest; 1 the largest sum of a column's absolute values, -1 the smallest; infinity the
    largest sum of a row's absolute values, -infinity the smallest.

    Raises:
        ValueError: x has fewer than two dimensions, or ``ord`` is unknown.

    >>> import flnb
    >>> flnb.linalg.matrix_norm([[3.0, 0.0], [0.0, 4.0]])
    Tensor(5., float32[], numpy)
    """
    x = r.floating(x)
    matrices("matrix_norm", x._spec)
    if ord == "fro":
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord in (1, -1, INFINITY, -INFINITY):
        sums = r.sum(e.abs(x), axis=-2 if ord in (1, -1) else -1)
    elif ord in (2, -2, "nuc"):
        sums = svdvals(x)
    else:
        raise ValueError(f"matrix_norm: ord must be 'fro', 'nuc', 1, -1, 2, -2, inf or -inf, got {brief(ord)}")
    reduce = r.sum if ord == "nuc" else r.max if ord in (1, 2, INFINITY) else r.min
    y = reduce(sums, axis=-1)
    return expand_dims(expand_dims(y, axis=-1), axis=-1) if keepdims else y


def matrix_rank(x: ArrayLike, /, *, rtol: ArrayLike | None = None) -> Tensor:
    """Rank (...) of matrices x (..., M, N), int64: how many singular values exceed ``rtol`` times the largest.

    ``rtol`` is ``max(M, N) * eps`` unless given, with the machine epsilon ``eps`` of the dtype.

    Raises:
        ValueError: x has fewer than two dimensions.

    >>> import flnb
    >>> flnb.linalg.matrix_rank([[1.0, 2.0], [2.0, 4.0]])
    Tensor(1, int64[], numpy)
    """
    x = r.floating(x)
    matrices("matrix_rank", x._spec)
    values = svdvals(x)  # in descending order
    least = values[..., :1] * expand_dims(relative_tolerance(x, rtol), axis=-1)
    return r.sum(values > least, axis=-1)


def norm(x: ArrayLike, /, p: float = 2, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
    """Vector p-norm over ``axis`` (an int, a tuple of ints, or None for all).

    It is `flnb.linalg.vector_norm` with the argument names of torch.

    Raises:
        numpy.exceptions.AxisError: an axis is out of range.
        ValueError: ``p`` is no number.

    >>> import flnb
    >>> flnb.norm([3.0, -4.0])
    Tensor(5., float32[], numpy)
    """
    return vector_norm(asarray(x), axis=axis, keepdims=keepdims, ord=p)


def _layer_norm(x: Any, *more: Any) -> Body:
    """Normalise x over its last axes; ``more`` holds weight and bias, if there are any, then the attributes."""
    *affine, count, eps = more
    over: Any = {"axis": tuple(range(-count, 0)), "keepdims": True}
    wide = _in_float32(x)  # squares of float16 overflow above 256
    mean = r.mean(wide, **over)
    centred = wide - mean
    inverse = 1.0 / e.sqrt(r.mean(e.square(centred), **over) + eps)
    y = normal = centred * inverse
    for combine, parameter in zip((e.multiply, e.add), affine, strict=False):
        y = combine(y, parameter)
    return _cast_like(y, x), (_cast_like(normal, x), inverse, mean)


def _pull_layer_norm(g: Any, plan: Any, x: Any, *more: Any) -> tuple[Any, ...]:
    """Gradients of x and, if present, of weight and bias (Ba et al. 2016)."""
    *affine, normal, inverse, _, _ = more
    count, _ = plan.attributes
    axes, examples = tuple(range(-count, 0)), tuple(range(g.ndim - count))
    g, normal = _in_float32(g), _in_float32(normal)
    along = g * affine[0] if affine else g
    projected = normal * r.mean(along * normal, axis=axes, keepdims=True)
    of_x = (along - r.mean(along, axis=axes, keepdims=True) - projected) * inverse
    of_affine = [r.sum(g * normal, axis=examples), r.sum(g, axis=examples)] if affine else []
    return tuple(map(_cast_like, (of_x, *of_affine[: len(affine)]), plan.specs))


def _remake_layer_norm(plan: Any, *saved: Any) -> Any:
    """Recompute x from its normalised values, the inverse of its standard deviations, and its means."""
    *_, normal, inverse, mean, _ = saved
    return _cast_like(_in_float32(normal) / inverse + mean, plan.specs[0])


_layer_norm_op = Composite("layer_norm", "norm", _layer_norm, _pull_layer_norm, {1, 2}, _remake_layer_norm)


def _extents(shape: Any) -> tuple[int, ...]:
    """Convert the argument ``shape`` of layer norm, one int or several, to a tuple of ints."""
    if type(shape) is int:
        return (shape,)
    try:
        return tuple(map(index, shape)) if isinstance(shape, (tuple, list)) else (index(shape),)
    except (TypeError, ValueError):
        raise TypeError(
            f"layer_norm: shape must be the extents of the last axes, one int or several, got {brief(shape)}; call "
            f"layer_norm(x, shape, weight, bias), for example with shape=weight.shape"
        ) from None


def layer_norm(
    x: ArrayLike, shape: int | Sequence[int], weight: ArrayLike | None = None, bias: ArrayLike | None = None,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Layer norm over the last axes of x: ``(x - mean) / sqrt(variance + eps) * weight + bias`` (Ba et al. 2016).

    ``shape`` holds the extents of these axes, and is the shape of ``weight`` and ``bias``. Half precision is computed
    in float32, and the result cast back.

    >>> import flnb
    >>> flnb.layer_norm([1.0, 2.0, 3.0], 3)
    Tensor([-1.2247,  0.    ,  1.2247], float32[3], numpy)

    Raises:
        TypeError: ``shape`` is not one int or several, for example because it is the weight.
        ValueError: the shapes of the arguments do not fit, or there is a bias without a weight.
    """
    x = r.floating(x)
    extents = _extents(shape)
    affine = [p if isinstance(p, Tensor) else asarray(p) for p in (weight, bias) if p is not None]
    unfit = [p for p in affine if p.shape != extents]
    if not extents or x.shape[-len(extents) :] != extents or unfit:
        names = [name for name, p in (("weight", weight), ("bias", bias)) if p is not None]
        got = "".join(f", {name} {p.shape}" for name, p in zip(names, affine, strict=True))
        last = ", ".join(map(str, extents))
        raise ValueError(f"layer_norm: expected x (..., {last}) and weight and bias {extents}, got x {x.shape}{got}")
    if weight is None and bias is not None:
        raise ValueError("layer_norm: got a bias without a weight; give both, a weight alone, or neither")
    return _layer_norm_op(*in_one_dtype(x, *affine), attributes=(len(extents), float(eps)))[0]


def group_norm(
    x: ArrayLike, groups: int, weight: ArrayLike | None = None, bias: ArrayLike | None = None, eps: float = 1e-5
) -> Tensor:
    """Group norm: normalise groups of neighbouring channels of x (N, C, ...), then scale and shift each channel.

    The C channels are divided into ``groups`` equal groups (Wu and He 2018). One group is layer norm over all axes but
    the first; C groups are instance norm. ``weight`` and ``bias`` are (C,).

    Raises:
        ValueError: C is not divisible by ``groups``, or weight or bias has another shape.

    >>> import flnb
    >>> flnb.group_norm([[1.0, 3.0, 5.0, 9.0]], 2)
    Tensor([[-1.,  1., -1.,  1.]], float32[1,4], numpy)
    """
    x = r.floating(x)
    affine = [p if isinstance(p, Tensor) else asarray(p) for p in (weight, bias) if p is not None]
    if not isinstance(groups, Integral):
        raise TypeError(f"group_norm: groups must be one int, got {brief(groups)}")
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups or any(p.shape != (x.shape[1],) for p in affine):
        raise ValueError(
            f"group_norm: expected x (N, C, ...) with C divisible by {groups} groups and weight and bias (C,), got x "
            f"{x.shape}{''.join(f' and {p.shape}' for p in affine)}"
        )
    size = math.prod(x.shape[1:]) // groups
    y = reshape(layer_norm(reshape(x, (x.shape[0], groups, size)), size, eps=eps), x.shape)
    wide = (x.shape[1], *(1,) * (x.ndim - 2))
    y = y if weight is None else y * reshape(weight, wide)
    return y if bias is None else y + reshape(bias, wide)


def normalize(x: ArrayLike, /, p: float = 2.0, axis: int | tuple[int, ...] = -1, eps: float = 1e-12) -> Tensor:
    """Divide x by its p-norm along ``axis``, or by ``eps`` where the norm is smaller; half precision in float32.

    Raises:
        numpy.exceptions.AxisError: an axis is out of range.

    >>> import flnb
    >>> flnb.normalize([1.0, 3.0], p=1)
    Tensor([0.25, 0.75], float32[2], numpy)
    """
    x = r.floating(x)
    if x.dtype.itemsize == 2:
        return r.in_float32(normalize, x, p=p, axis=axis, eps=eps)
    return x / e.maximum(vector_norm(x, axis=axis, keepdims=True, ord=p), eps)


def _channels(x: Any, values: Any) -> Any:
    """Reshape one value per channel, (C,), so that it broadcasts against x (N, C, ...)."""
    return reshape(values, (1, values.shape[0], *(1,) * (x.ndim - 2)))


def _in_float32(x: Any) -> Any:
    """Cast half precision to float32; leave other dtypes as they are."""
    return e.astype(x, np.float32) if x.dtype.itemsize == 2 else x


def _cast_like(x: Any, spec: Any) -> Any:
    """Cast x to the dtype of ``spec``, which is another tensor or its spec (shape and dtype)."""
    return e.astype(x, spec.dtype, copy=False)


def _batch_norm(x: Any, weight: Any, bias: Any, eps: float) -> Body:
    """Batch norm of x (N, C, ...); half precision is computed in float32, and the results of x's size are cast back."""
    axes, wide = (0, *range(2, x.ndim)), _in_float32(x)
    mean = r.mean(wide, axes, keepdims=True)
    centred = wide - mean
    variance = r.mean(e.square(centred), axes, keepdims=True)
    inverse = 1.0 / e.sqrt(variance + eps)
    normal = centred * inverse
    y = normal * _channels(x, weight) + _channels(x, bias)
    return _cast_like(y, x), (_cast_like(normal, x), inverse, mean, variance)


def _pull_batch_norm(
    g: Any, plan: Any, x: Any, weight: Any, bias: Any, normal: Any, inverse: Any, mean: Any, variance: Any, y: Any
) -> tuple[Any, ...]:
    """Gradients of x, weight and bias (Ioffe and Szegedy 2015, section 3); that of x is computed from the others.

    The forward pass saved ``normal``, the normalised x, and ``inverse``, the inverse of its standard deviations.
    """
    axes, g, normal = (0, *range(2, g.ndim)), _in_float32(g), _in_float32(normal)
    g_bias = r.sum(g, axes)
    g_weight = r.sum(g * normal, axes)
    share = 1.0 / (g.size // g.shape[1])
    means = _channels(g, g_bias * share) + normal * _channels(g, g_weight * share)
    g_x = (g - means) * (inverse * _channels(g, weight))
    return tuple(map(_cast_like, (g_x, g_weight, g_bias), plan.specs))


_batch_norm_op = Composite(
    "batch_norm", "norm", _batch_norm, _pull_batch_norm, {1, 2},
    remake=lambda plan, x, weight, bias, normal, inverse, mean, *_: _cast_like(
        _in_float32(normal) / inverse + mean, plan.specs[0]),
)  # fmt: skip


def move_averages(
    mean: Tensor, variance: Tensor, running_mean: Tensor, running_var: Tensor, keep: float, *shares: float
) -> None:
    """Move running averages towards a batch's: set each to ``keep`` times itself, plus a share of the batch's average.

    ``shares`` are two numbers: the factors of the batch's ``mean`` and of its ``variance``.
    """
    for running, batch, share in zip((running_mean, running_var), (mean, variance), shares, strict=True):
        e.multiply(running, keep, out=running)
        e.add(running, _cast_like(reshape(batch, running.shape), running) * share, out=running)


MOVING = Update(
    "move_averages", "norm", body=move_averages, primitives=frozenset({"add", "multiply", "reshape"}), reshapes=True
)
"""The op that moves both running averages of a batch norm."""


def batch_norm(
    x: ArrayLike, weight: ArrayLike, bias: ArrayLike, running_mean: Tensor | None = None,
    running_var: Tensor | None = None, training: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Normalise each channel (axis 1) over all other axes, then scale by weight and shift by bias.

    In training, the batch's own mean and variance are used, and the running mean and variance are moved towards them in
    place (with the unbiased variance, as in torch). Half precision is computed in float32, and the result cast back.

    Args:
        x: (N, C, ...).
        weight: (C,).
        bias: (C,).
        running_mean: (C,), updated in training, and used in place of the batch's mean otherwise.
        running_var: (C,), updated in training, and used in place of the batch's variance otherwise.
        training: whether to use the batch's statistics.
        momentum: the weight of the batch's statistics in the running ones, 0 to 1.
        eps: added to the variance: more than 0 in training, otherwise 0 or more, as in torch.

    Raises:
        ValueError: there is only one value per channel in training, the shapes do not fit, or eps is too small.

    >>> import flnb
    >>> flnb.batch_norm(flnb.asarray([[1.0], [3.0]]), flnb.ones(1), flnb.zeros(1))
    Tensor([[-1.],
            [ 1.]], float32[2,1], numpy)
    """
    x, weight, bias = [a if isinstance(a, Tensor) else asarray(a) for a in (x, weight, bias)]
    if x.ndim < 2 or weight.shape != (x.shape[1],):
        raise ValueError(
            f"batch_norm: expected x of shape (N, C, ...) and weight of shape (C,), "
            f"got x {x.shape} and weight {weight.shape}"
        )
    if not training:
        if eps < 0:
            raise ValueError(f"batch_norm: expected eps >= 0, got {eps}")
        weight, bias, mean, variance = map(_in_float32, map(asarray, (weight, bias, running_mean, running_var)))
        scale = weight * (1.0 / e.sqrt(e.add(variance, eps)))
        y = x * _channels(x, scale) + _channels(x, bias - e.multiply(mean, scale))
        return _cast_like(y, x) if x.dtype.itemsize == 2 else y
    if eps <= 0:
        raise ValueError(f"batch_norm: training needs eps > 0, got {eps}: equal values have variance 0")
    n = x.size // x.shape[1]
    if n < 2:
        raise ValueError(f"batch_norm: training needs more than one value per channel, got shape {x.shape}")
    inputs = [x, weight, bias] if x.dtype.itemsize == 2 else in_one_dtype(x, weight, bias)
    y, (_, _, mean, variance) = _batch_norm_op(*inputs, attributes=(float(eps),))
    if running_mean is not None and running_var is not None:
        shares = momentum, momentum * n / (n - 1)

        def move() -> None:
            tensors = mean, variance, running_mean, running_var
            if not crossing.update(MOVING, tensors, (1.0 - momentum, *shares), sources=2):
                move_averages(*tensors, 1.0 - momentum, *shares)

        key = "running", n, repr(momentum)
        state.current().backend.repeated(key, move, (running_mean, running_var, mean, variance), 2)
    return y
