"""Discrete Fourier transforms by the rules of the array API standard 2024.12, with gradients (`flnb.fft`).

There are four ops: the complex transform and its inverse, and the transform of real numbers to half a spectrum and its
inverse. Each op is linear, and its gradient is another of the four with the dual normalisation: the adjoint of an
unnormalised transform of n elements is n times its inverse. The gradient of the loss L with respect to a complex z is
dL/dRe z + i dL/dIm z.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch import crossing as dispatch
from flnb.dispatch.arguments import axes_of, axis_of
from flnb.dispatch.brief import brief
from flnb.dispatch.dtypes import default_dtype, is_float, real_dtype
from flnb.dispatch.table import Op, Pull, shaped
from flnb.ops import elementwise as e
from flnb.ops.arranging import roll
from flnb.ops.creation import arange, asarray
from flnb.ops.movement import concat, pad

if TYPE_CHECKING:
    from flnb.tensor import ArrayLike, DTypeLike, Tensor

__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft",
    "rfftfreq", "rfftn",
]  # fmt: skip

_DUAL = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def _with_extent(shape: tuple[int, ...], axis: int, extent: int) -> tuple[int, ...]:
    """Return a shape with ``extent`` in place of its extent along ``axis``."""
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _half(z: Any, axis: int, size: int, weight: float) -> Any:
    """Multiply by ``weight`` those frequencies of a half-spectrum z that occur twice in the whole spectrum.

    These are all frequencies but 0 and, if the signal's number of elements, ``size``, is even, the frequency size / 2.
    """
    weights = np.full(size // 2 + 1, weight)
    weights[0] = 1.0
    if size % 2 == 0:
        weights[-1] = 1.0
    rest = (1,) * (z.ndim - axis - 1)
    return z * asarray(weights.reshape(-1, *rest), dtype=real_dtype(z.dtype))


def _pull_rfftn(g: Any, plan: Any, x: Any, y: Any) -> Any:
    """Gradient of rfftn: the inverse transform of the weighted half-spectrum."""
    axes, norm = plan.attributes
    size = plan.specs[0].shape[axes[-1]]
    return dispatch.call(_irfftn, (_half(g, axes[-1], size, 0.5),), (axes, size, _DUAL[norm]))


def _pull_irfftn(g: Any, plan: Any, x: Any, y: Any) -> Any:
    """Gradient of irfftn: the weighted half-spectrum of the real transform."""
    axes, size, norm = plan.attributes
    return _half(dispatch.call(_rfftn, (g,), (axes, _DUAL[norm])), axes[-1], size, 2.0)


def _dual(inverse: Callable[[], Op]) -> list[Pull]:
    """Return a list with the gradient function of a complex transform, which applies the inverse transform.

    ``inverse`` is a function that returns the op of the inverse transform. The gradient has the norm "forward" if the
    transform has the norm "backward", and vice versa; for "ortho" both have this norm.
    """
    return [Pull((), lambda g, plan, x, y: dispatch.call(
        inverse(), (g,), (plan.attributes[0], _DUAL[plan.attributes[1]])))]  # fmt: skip


_fftn: Op = Op("fftn", "matmul", shaped(), _dual(lambda: _ifftn), holomorphic=False)
_ifftn: Op = Op("ifftn", "matmul", shaped(), _dual(lambda: _fftn), holomorphic=False)
_rfftn = Op(
    "rfftn", "matmul",
    lambda op, specs, attributes: (
        _with_extent(specs[0].shape, attributes[0][-1], specs[0].shape[attributes[0][-1]] // 2 + 1),
        np.result_type(specs[0].dtype, np.complex64),
    ),
    [Pull((), _pull_rfftn)], accepts="float", holomorphic=False,
)  # fmt: skip
_irfftn = Op(
    "irfftn", "matmul",
    lambda op, specs, attributes: (
        _with_extent(specs[0].shape, attributes[0][-1], attributes[1]), real_dtype(specs[0].dtype)
    ),
    [Pull((), _pull_irfftn)], holomorphic=False,
)  # fmt: skip


def _complex(x: Any) -> Any:
    """Convert values to a complex tensor."""
    x = asarray(x)
    return e.astype(x, np.result_type(x.dtype if is_float(x.dtype) else default_dtype(), np.complex64), copy=False)


def _axes(name: str, x: Any, s: Any, axes: Any) -> tuple[int, ...]:
    """Return the axes of a transform as ints >= 0.

    If ``axes`` is None, these are the last ``len(s)`` axes, or all axes if ``s`` is None, too.
    """
    if axes is None:
        return tuple(range(x.ndim - (x.ndim if s is None else len(s)), x.ndim))
    chosen = tuple(axis_of(a, x.ndim, name) for a in axes)
    if s is not None and len(s) != len(chosen):
        raise ValueError(f"{name}: expected as many sizes as axes, got {len(s)} sizes for {len(chosen)} axes")
    return chosen


def _prepared(name: str, x: Any, s: Any, axes: Any, norm: str) -> tuple[Any, tuple[int, ...]]:
    """Check a transform's arguments, and return x, cut or padded to the sizes ``s``, and the axes as ints >= 0."""
    if norm not in _DUAL:
        raise ValueError(f"{name}: norm must be 'backward', 'ortho' or 'forward', got {brief(norm)}")
    chosen = _axes(name, x, s, axes)
    for a, n in zip(chosen, s or (), strict=False):
        if n is not None and n < 1:
            raise ValueError(f"{name}: a size must be at least 1, got {n}")
        if n is not None and n < x.shape[a]:
            x = x[(*(slice(None),) * a, slice(n))]
        elif n is not None and n > x.shape[a]:
            x = pad(x, [(0, n - x.shape[a] if i == a else 0) for i in range(x.ndim)])
    if not chosen or 0 in [x.shape[a] for a in chosen]:
        raise ValueError(f"{name}: expected one element or more along each of the axes {chosen}, got {x._spec!r}")
    return x, chosen


def fftn(
    x: ArrayLike, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:  # fmt: skip
    """Discrete Fourier transform over ``axes`` (None: all); complex.

    x is first cut, or padded with zeros, to the sizes ``s`` along the axes. ``norm`` says which transform is divided by
    the number n of elements: the inverse for "backward", this one for "forward"; for "ortho" both are divided by the
    square root of n.

    Raises:
        ValueError: the axes or sizes do not fit x, or an axis has no elements.

    >>> import flnb
    >>> flnb.fft.fftn([[1.0, 2.0], [3.0, 4.0]]).tolist()
    [[(10+0j), (-2+0j)], [(-4+0j), 0j]]
    """
    x, chosen = _prepared("fftn", _complex(x), s, axes, norm)
    return dispatch.call(_fftn, (x,), (chosen, norm))


def ifftn(
    x: ArrayLike, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:  # fmt: skip
    """Inverse of `fftn`, with the same arguments; complex.

    Raises:
        AxisError: an axis is out of range (`numpy.exceptions.AxisError`, a ValueError and IndexError).
        ValueError: an axis has no elements, ``s`` and ``axes`` differ in length, or ``norm`` is unknown.

    >>> import flnb
    >>> flnb.fft.ifftn([[10.0, -2.0], [-4.0, 0.0]]).tolist()
    [[(1+0j), (2+0j)], [(3+0j), (4+0j)]]
    """
    x, chosen = _prepared("ifftn", _complex(x), s, axes, norm)
    return dispatch.call(_ifftn, (x,), (chosen, norm))


def rfftn(
    x: ArrayLike, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:  # fmt: skip
    """Discrete Fourier transform of a real tensor, with the arguments of `fftn`.

    Along the last axis the result has the frequencies 0 to n // 2 only; the others are their complex conjugates.

    Raises:
        AxisError: an axis is out of range (`numpy.exceptions.AxisError`, a ValueError and IndexError).
        TypeError: x is complex.
        ValueError: an axis has no elements, ``s`` and ``axes`` differ in length, or ``norm`` is unknown.

    >>> import flnb
    >>> flnb.fft.rfftn(flnb.ones((2, 4))).shape
    (2, 3)
    """
    x = asarray(x)
    if x.dtype.kind == "c":
        raise TypeError(f"rfftn: expected real numbers, got {x._spec!r}; use fftn")
    x, chosen = _prepared("rfftn", x, s, axes, norm)
    return dispatch.call(_rfftn, (x,), (chosen, norm))


def irfftn(
    x: ArrayLike, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:  # fmt: skip
    """Inverse of `rfftn`; real.

    The last axis of the result has ``s[-1]`` elements, or ``2 (n - 1)`` if ``s`` is None and x has n frequencies.

    Raises:
        AxisError: an axis is out of range (`numpy.exceptions.AxisError`, a ValueError and IndexError).
        ValueError: there is no axis, an axis has no elements, ``s`` and ``axes`` differ in length, or ``norm`` is
            unknown.

    >>> import flnb
    >>> flnb.fft.irfftn(flnb.fft.rfftn([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    x = _complex(x)
    chosen = _axes("irfftn", x, s, axes)
    if not chosen:
        raise ValueError(f"irfftn: expected one axis or more, got {x._spec!r}")
    size = 2 * (x.shape[chosen[-1]] - 1) if s is None or s[-1] is None else operator.index(s[-1])
    if size < 1:
        raise ValueError(f"irfftn: the last axis would have {size} elements; give the size of the result, s=(...,)")
    x, chosen = _prepared("irfftn", x, [*([*s] if s else [None] * len(chosen))[:-1], size // 2 + 1], chosen, norm)
    return dispatch.call(_irfftn, (x,), (chosen, size, norm))


def fft(x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Discrete Fourier transform along one axis; complex.

    x is first cut, or padded with zeros, to ``n`` elements along the axis. ``norm`` is the same as in `fftn`.

    Raises:
        AxisError: the axis is out of range (`numpy.exceptions.AxisError`, a ValueError and IndexError).
        ValueError: the axis has no elements, or ``norm`` is unknown.

    >>> import flnb
    >>> flnb.fft.fft([1.0, 2.0]).tolist()
    [(3+0j), (-1+0j)]
    """
    return fftn(x, s=n if n is None else (n,), axes=(axis,), norm=norm)


def ifft(x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Inverse of `fft`, with the same arguments; complex.

    Raises:
        AxisError: the axis is out of range (`numpy.exceptions.AxisError`, a ValueError and IndexError).
        ValueError: the axis has no elements, or ``norm`` is unknown.

    >>> import flnb
    >>> flnb.fft.ifft([3.0, -1.0]).tolist()
    [(1+0j), (2+0j)]
    """
    return ifftn(x, s=n if n is None else (n,), axes=(axis,), norm=norm)


def rfft(x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Discrete Fourier transform of a real tensor along one axis, with the arguments of `fft`.

    The result has the frequencies 0 to n // 2 only; the others are their complex conjugates.

    Raises:
        TypeError: x is complex.
        AxisError: the axis is out of range (`numpy.exceptions.AxisError`, a ValueError and IndexError).
        ValueError: the axis has no elements, or ``norm`` is unknown.

    >>> import flnb
    >>> flnb.fft.rfft([1.0, 2.0, 3.0, 4.0]).tolist()
    [(10+0j), (-2+2j), (-2+0j)]
    """
    return rfftn(x, s=n if n is None else (n,), axes=(axis,), norm=norm)


def irfft(x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Inverse of `rfft`; real, with ``n`` elements, or ``2 (m - 1)`` if n is None and x has m frequencies.

    Raises:
        AxisError: the axis is out of range (`numpy.exceptions.AxisError`, a ValueError and IndexError).
        ValueError: the axis has no elements, or ``norm`` is unknown.

    >>> import flnb
    >>> flnb.fft.irfft([10.0, -2 + 2j, -2.0]).tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    return irfftn(x, s=n if n is None else (n,), axes=(axis,), norm=norm)


def hfft(x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Real spectrum, with ``n`` elements, of a signal with Hermitian symmetry whose first half is ``x``.

    Raises:
        AxisError: the axis is out of range (`numpy.exceptions.AxisError`, a ValueError and IndexError).
        ValueError: the axis has no elements, or ``norm`` is unknown.

    >>> import flnb
    >>> flnb.fft.hfft([2.5, -0.5 + 0.5j, -0.5]).tolist()
    [1.0, 4.0, 3.0, 2.0]
    """
    return irfft(e.conj(_complex(x)), n=n, axis=axis, norm=_DUAL.get(norm, norm))


def ihfft(x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Inverse of `hfft`: the first half (complex numbers) of the signal with the real spectrum ``x``.

    Raises:
        AxisError: the axis is out of range (`numpy.exceptions.AxisError`, a ValueError and IndexError).
        ValueError: the axis has no elements, or ``norm`` is unknown.

    >>> import flnb
    >>> flnb.fft.ihfft([1.0, 2.0, 3.0, 4.0]).tolist()
    [(2.5-0j), (-0.5-0.5j), (-0.5-0j)]
    """
    return e.conj(rfft(x, n=n, axis=axis, norm=_DUAL.get(norm, norm)))


def fftfreq(n: int, /, *, d: float = 1.0, dtype: DTypeLike = None, device: str | None = None) -> Tensor:
    """Frequencies of the elements of `fft`, for n samples at distance ``d``: ``[0, 1, ..., -2, -1] / (d n)``.

    >>> import flnb
    >>> flnb.fft.fftfreq(4, d=0.5)
    Tensor([ 0. ,  0.5, -1. , -0.5], float32[4], numpy)
    """
    chosen = default_dtype() if dtype is None else dtype
    places = concat([arange(0, (n + 1) // 2, 1, chosen, device), arange(-(n // 2), 0, 1, chosen, device)])
    return e.divide(places, d * n)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: DTypeLike = None, device: str | None = None) -> Tensor:
    """Frequencies of the elements of `rfft`, for n samples at distance ``d``: ``[0, 1, ..., n // 2] / (d n)``.

    >>> import flnb
    >>> flnb.fft.rfftfreq(4, d=0.5)
    Tensor([0. , 0.5, 1. ], float32[3], numpy)
    """
    return e.divide(arange(0, n // 2 + 1, 1, default_dtype() if dtype is None else dtype, device), d * n)


def fftshift(x: ArrayLike, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """Move frequency 0 to the middle of each of ``axes`` (an int, several, or None for all).

    Raises:
        AxisError: an axis is out of range (`numpy.exceptions.AxisError`, a ValueError and IndexError).

    >>> import flnb
    >>> flnb.fft.fftshift([0, 1, -2, -1])
    Tensor([-2, -1,  0,  1], int64[4], numpy)
    """
    return _shifted(x, axes, 1)


def ifftshift(x: ArrayLike, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """Move frequency 0 from the middle of each of ``axes`` to their beginning: the inverse of `fftshift`.

    Raises:
        AxisError: an axis is out of range (`numpy.exceptions.AxisError`, a ValueError and IndexError).

    >>> import flnb
    >>> flnb.fft.ifftshift([-2, -1, 0, 1])
    Tensor([ 0,  1, -2, -1], int64[4], numpy)
    """
    return _shifted(x, axes, -1)


def _shifted(x: Any, axes: Any, sign: int) -> Any:
    """Roll a tensor along each of ``axes`` by half of its extent: forwards for ``sign`` 1, backwards for -1."""
    x = asarray(x)
    chosen = axes_of(axes, x.ndim, "fftshift" if sign > 0 else "ifftshift")
    return roll(x, tuple(sign * (x.shape[a] // 2) for a in chosen), axis=chosen)
