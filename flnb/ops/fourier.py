"""Discrete Fourier transforms by the rules of the array API standard, over one axis or several.

Four rows of the table: complex to complex forwards and back, real to half-spectrum and back. Each is linear, and the
pull of each is another of them with the dual normalisation: with F unnormalised, the adjoint of F is n times its
inverse. A cotangent of complex z stands for dL/dRe z + i dL/dIm z.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch import crossing as dispatch
from flnb.dispatch.brief import brief
from flnb.dispatch.dtypes import default_dtype, is_float, real_dtype
from flnb.dispatch.table import Op, Pull, shaped
from flnb.ops import elementwise as e
from flnb.ops.arranging import roll
from flnb.ops.creation import arange, asarray
from flnb.ops.movement import concat, pad

if TYPE_CHECKING:
    from flnb.tensor import ArrayLike, DTypeLike, Tensor

DUAL = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def complex_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The complex dtype of a floating dtype's precision, at least complex64."""
    return np.result_type(dtype, np.complex64)


def _infer_rfftn(op: Op, specs: tuple[Any, ...], attributes: tuple[Any, ...]) -> tuple[tuple[int, ...], Any]:
    axes, _ = attributes
    shape = list(specs[0].shape)
    shape[axes[-1]] = shape[axes[-1]] // 2 + 1
    return tuple(shape), complex_dtype(specs[0].dtype)


def _infer_irfftn(op: Op, specs: tuple[Any, ...], attributes: tuple[Any, ...]) -> tuple[tuple[int, ...], Any]:
    axes, size, _ = attributes
    shape = list(specs[0].shape)
    shape[axes[-1]] = size
    return tuple(shape), real_dtype(specs[0].dtype)


def _half(z: Any, axis: int, size: int, weight: float) -> Any:
    """A half-spectrum with a weight on frequencies that stand for two: all but 0 and, if the size is even, size / 2."""
    weights = np.full(size // 2 + 1, weight)
    weights[0] = 1.0
    if size % 2 == 0:
        weights[-1] = 1.0
    rest = (1,) * (z.ndim - axis - 1)
    return e.multiply(z, asarray(weights.reshape(-1, *rest), dtype=real_dtype(z.dtype)))


def _pull_rfftn(g: Any, plan: Any, x: Any, y: Any) -> Any:
    axes, norm = plan.attributes
    size = plan.specs[0].shape[axes[-1]]
    return dispatch.call(_irfftn, (_half(g, axes[-1], size, 0.5),), (axes, size, DUAL[norm]))


def _pull_irfftn(g: Any, plan: Any, x: Any, y: Any) -> Any:
    axes, size, norm = plan.attributes
    return _half(dispatch.call(_rfftn, (g,), (axes, DUAL[norm])), axes[-1], size, 2.0)


def _dual(inverse: Callable[[], Op]) -> list[Pull]:
    def pull(g: Any, plan: Any, x: Any, y: Any) -> Any:
        axes, norm = plan.attributes
        return dispatch.call(inverse(), (g,), (axes, DUAL[norm]))

    return [Pull((), pull)]


_fftn: Op = Op("fftn", "matmul", shaped(), _dual(lambda: _ifftn), holomorphic=False)
_ifftn: Op = Op("ifftn", "matmul", shaped(), _dual(lambda: _fftn), holomorphic=False)
_rfftn = Op("rfftn", "matmul", _infer_rfftn, [Pull((), _pull_rfftn)], accepts="float", holomorphic=False)
_irfftn = Op("irfftn", "matmul", _infer_irfftn, [Pull((), _pull_irfftn)], holomorphic=False)


def _complex(x: Any) -> Any:
    x = asarray(x)
    return x if x.dtype.kind == "c" else e.astype(x, complex_dtype(x.dtype if is_float(x.dtype) else default_dtype()))


def _axes(name: str, x: Any, s: Any, axes: Any) -> tuple[int, ...]:
    """The axes of a transform, non-negative: those given, else as many of the last as there are sizes, else all."""
    if axes is None:
        chosen = tuple(range(x.ndim - (x.ndim if s is None else len(s)), x.ndim))
    else:
        chosen = tuple(operator.index(a) for a in axes)
        if s is not None and len(s) != len(chosen):
            raise ValueError(f"{name}: {len(s)} sizes for {len(chosen)} axes")
        if any(not -x.ndim <= a < x.ndim for a in chosen):
            raise ValueError(f"{name}: axes {chosen} are out of range for shape {x.shape}")
    return tuple(a % x.ndim for a in chosen)


def _sized(name: str, x: Any, axes: tuple[int, ...], sizes: Any) -> Any:
    """Cut or pad with zeros at the end of axes, so that they have the sizes; None leaves an axis."""
    widths = [(0, 0)] * x.ndim
    cut = [slice(None)] * x.ndim
    for a, n in zip(axes, sizes or (), strict=False):
        if n is None or n == x.shape[a]:
            continue
        if n < 1:
            raise ValueError(f"{name}: a size must be at least 1, got {n}")
        widths[a], cut[a] = (0, max(0, n - x.shape[a])), slice(n)
    if cut != [slice(None)] * x.ndim:
        x = x[tuple(cut)]
    return pad(x, widths) if any(added for _, added in widths) else x


def _checked(name: str, x: Any, s: Any, axes: Any, norm: str) -> tuple[Any, tuple[int, ...]]:
    if norm not in DUAL:
        raise ValueError(f"{name}: norm must be 'backward', 'ortho' or 'forward', got {brief(norm)}")
    chosen = _axes(name, x, s, axes)
    x = _sized(name, x, chosen, s)
    if not chosen or 0 in [x.shape[a] for a in chosen]:
        raise ValueError(f"{name}: expected one element or more along each of the axes {chosen}, got {x._spec!r}")
    return x, chosen


def fftn(
    x: ArrayLike, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:  # fmt: skip
    """Discrete Fourier transform over ``axes`` (None: all), cut or padded with zeros to the sizes ``s``; complex.

    ``norm`` names the direction that is divided by the number of elements: "backward" (the inverse), "forward", or
    "ortho" (each by the square root).

    >>> import flnb
    >>> flnb.fft.fftn([[1.0, 2.0], [3.0, 4.0]]).tolist()
    [[(10+0j), (-2+0j)], [(-4+0j), 0j]]
    """
    x, chosen = _checked("fftn", _complex(x), s, axes, norm)
    return dispatch.call(_fftn, (x,), (chosen, norm))


def ifftn(
    x: ArrayLike, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:  # fmt: skip
    """Inverse of `fftn`; complex.

    >>> import flnb
    >>> flnb.fft.ifftn([[10.0, -2.0], [-4.0, 0.0]]).tolist()
    [[(1+0j), (2+0j)], [(3+0j), (4+0j)]]
    """
    x, chosen = _checked("ifftn", _complex(x), s, axes, norm)
    return dispatch.call(_ifftn, (x,), (chosen, norm))


def rfftn(
    x: ArrayLike, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:  # fmt: skip
    """`fftn` of a real tensor; of the last axis only frequencies 0 to n // 2, the others are their conjugates.

    >>> import flnb
    >>> flnb.fft.rfftn(flnb.ones((2, 4))).shape
    (2, 3)
    """
    x = asarray(x)
    if x.dtype.kind == "c":
        raise TypeError(f"rfftn: expected real numbers, got {x._spec!r}; use fftn")
    x, chosen = _checked("rfftn", x, s, axes, norm)
    return dispatch.call(_rfftn, (x,), (chosen, norm))


def irfftn(
    x: ArrayLike, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:  # fmt: skip
    """Inverse of `rfftn`: real; the last axis gets ``s[-1]`` elements, ``2 (n - 1)`` for n frequencies unless given.

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
        raise ValueError(f"irfftn: the last axis would have {size} elements; give its size")
    x, chosen = _checked("irfftn", x, [*([*s] if s else [None] * len(chosen))[:-1], size // 2 + 1], chosen, norm)
    return dispatch.call(_irfftn, (x,), (chosen, size, norm))


def fft(x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Discrete Fourier transform along one axis, cut or padded with zeros to ``n`` elements; complex, see `fftn`.

    >>> import flnb
    >>> flnb.fft.fft([1.0, 2.0]).tolist()
    [(3+0j), (-1+0j)]
    """
    return fftn(x, s=n if n is None else (n,), axes=(axis,), norm=norm)


def ifft(x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Inverse of `fft`; complex.

    >>> import flnb
    >>> flnb.fft.ifft([3.0, -1.0]).tolist()
    [(1+0j), (2+0j)]
    """
    return ifftn(x, s=n if n is None else (n,), axes=(axis,), norm=norm)


def rfft(x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """`fft` of a real tensor, with only the frequencies 0 to n // 2; the others are their conjugates.

    >>> import flnb
    >>> flnb.fft.rfft([1.0, 2.0, 3.0, 4.0]).tolist()
    [(10+0j), (-2+2j), (-2+0j)]
    """
    return rfftn(x, s=n if n is None else (n,), axes=(axis,), norm=norm)


def irfft(x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Inverse of `rfft`: real, with ``n`` elements, ``2 (m - 1)`` for m frequencies unless given.

    >>> import flnb
    >>> flnb.fft.irfft([10.0, -2 + 2j, -2.0]).tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    return irfftn(x, s=n if n is None else (n,), axes=(axis,), norm=norm)


def hfft(x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Real spectrum, ``n`` elements, of a signal with Hermitian symmetry of which ``x`` is the first half.

    >>> import flnb
    >>> flnb.fft.hfft([2.5, -0.5 + 0.5j, -0.5]).tolist()
    [1.0, 4.0, 3.0, 2.0]
    """
    return irfft(e.conj(_complex(x)), n=n, axis=axis, norm=DUAL.get(norm, norm))


def ihfft(x: ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Inverse of `hfft`: the first half, complex, of the signal that has a real spectrum.

    >>> import flnb
    >>> flnb.fft.ihfft([1.0, 2.0, 3.0, 4.0]).tolist()
    [(2.5-0j), (-0.5-0.5j), (-0.5-0j)]
    """
    return e.conj(rfft(x, n=n, axis=axis, norm=DUAL.get(norm, norm)))


def fftfreq(n: int, /, *, d: float = 1.0, dtype: DTypeLike = None, device: str | None = None) -> Tensor:
    """Frequencies of `fft` for n samples at distance ``d``: ``[0, 1, ..., -2, -1] / (d n)``.

    >>> import flnb
    >>> flnb.fft.fftfreq(4, d=0.5)
    Tensor([ 0. ,  0.5, -1. , -0.5], float32[4], numpy)
    """
    chosen = default_dtype() if dtype is None else dtype
    places = concat([arange(0, (n + 1) // 2, dtype=chosen), arange(-(n // 2), 0, dtype=chosen)])
    return e.divide(places, d * n)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: DTypeLike = None, device: str | None = None) -> Tensor:
    """Frequencies of `rfft` for n samples at distance ``d``: ``[0, 1, ..., n // 2] / (d n)``.

    >>> import flnb
    >>> flnb.fft.rfftfreq(4, d=0.5)
    Tensor([0. , 0.5, 1. ], float32[3], numpy)
    """
    return e.divide(arange(0, n // 2 + 1, dtype=default_dtype() if dtype is None else dtype), d * n)


def fftshift(x: ArrayLike, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """Move frequency 0 to the middle of each of the axes (None: all).

    >>> import flnb
    >>> flnb.fft.fftshift([0, 1, -2, -1])
    Tensor([-2, -1,  0,  1], int64[4], numpy)
    """
    return _shifted(x, axes, 1)


def ifftshift(x: ArrayLike, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """Inverse of `fftshift`.

    >>> import flnb
    >>> flnb.fft.ifftshift([-2, -1, 0, 1])
    Tensor([ 0,  1, -2, -1], int64[4], numpy)
    """
    return _shifted(x, axes, -1)


def _shifted(x: Any, axes: Any, sign: int) -> Any:
    x = asarray(x)
    chosen = tuple(range(x.ndim)) if axes is None else (axes,) if hasattr(axes, "__index__") else tuple(axes)
    return roll(x, tuple(sign * (x.shape[a] // 2) for a in chosen), axis=chosen)
