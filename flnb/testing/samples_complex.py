"""Sample calls with complex numbers: functions of real arrays that use complex numbers internally."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb import fft, linalg, ops
from flnb.testing.sample import Array, Sample
from flnb.testing.samples_linalg import completing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np


def _complex(x: Any) -> Any:
    """Return the complex tensor with real part ``x[0]`` and imaginary part ``x[1]``."""
    return ops.add(x[0], ops.multiply(x[1], 1j))


def _real(z: Any) -> Any:
    """Return a real tensor that depends on both the real and the imaginary part of ``z``."""
    return ops.subtract(ops.multiply(ops.real(z), 1.3), ops.multiply(ops.imag(z), 0.7))


def _gram(z: Any) -> Any:
    """Return the Hermitian positive definite matrix ``z @ z^H``."""
    return ops.matmul(z, ops.conj(z).mT)


def _eigh(z: Any) -> Any:
    """Return ``v @ diag(exp(w)) @ v^H`` with eigenvalues w and eigenvectors v of ``z @ z^H``; phases of v cancel."""
    w, v = linalg.eigh(_gram(z))
    return ops.matmul(ops.multiply(v, ops.expand_dims(ops.exp(w), axis=-2)), ops.conj(v).mT)


def _svd(z: Any) -> Any:
    """Return ``u @ diag(exp(s)) @ vh``, which does not depend on the phases of the singular vectors."""
    u, s, vh = linalg.svd(z, full_matrices=False)
    return ops.matmul(ops.multiply(u, ops.expand_dims(ops.exp(s), axis=-2)), vh)


ONE: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "exp": ("exp", ops.exp),
    "magnitude": ("abs", lambda z: ops.square(ops.abs(z))),
    "phase": ("sign", ops.sign),
    "conjugate": ("conj", lambda z: ops.multiply(ops.conj(z), ops.square(z))),
    "sums": ("sum", lambda z: ops.square(ops.sum(z, axis=0))),
    "root": ("sqrt", ops.sqrt),
    "determinant": ("det", lambda z: linalg.det(z[..., :2])),
    "variance": ("sum", ops.var),
    "deviation": ("sum", lambda z: ops.std(z, axis=0, correction=1)),
    "sigmoid": ("sigmoid", ops.sigmoid),
    "swish": ("swish", lambda z: ops.swish(z, 0.7)),
    "gelu by tanh": ("gelu_tanh", lambda z: ops.gelu(z, approximate="tanh")),
    "layer norm": ("layer_norm", lambda z: ops.layer_norm(z, 3)),
    "running product": ("cumulative_prod", lambda z: ops.cumulative_prod(z, axis=0)),
    "product": ("prod", ops.prod),
    "sign of determinant": ("slogdet", lambda z: linalg.slogdet(z[..., :2]).sign),
    "power of a number": ("pow", lambda z: ops.pow(-1.3, z)),
    "logarithm of determinant": ("slogdet", lambda z: linalg.slogdet(z[..., :2]).logabsdet),
    "inverse": ("inv", lambda z: linalg.inv(z[..., :2])),
    "cholesky": ("cholesky", lambda z: linalg.cholesky(_gram(z))),
    "qr": ("qr", lambda z: linalg.qr(z.mT).R),
    "pinv": ("pinv", linalg.pinv),
    "eigh": ("eigh", _eigh),
    "eigvalsh": ("eigvalsh", lambda z: linalg.eigvalsh(_gram(z))),
    "svd": ("svd", _svd),
    "full svd": ("svd", lambda z: completing(ops.conj(linalg.svd(z).Vh).mT, 2)),
    "complete qr": ("qr", lambda z: completing(linalg.qr(z.mT, mode="complete").Q, 2)),
    "svdvals": ("svdvals", linalg.svdvals),
    "norm": ("abs", linalg.matrix_norm),
    "fft": ("fftn", fft.fft),
    "fft cut": ("fftn", lambda z: fft.fft(z, n=2, norm="ortho")),
    "fftn": ("fftn", lambda z: fft.fftn(z, s=(3, 4), norm="forward")),
    "ifft": ("ifftn", lambda z: fft.ifft(z, axis=0, n=3)),
    "ifftn": ("ifftn", lambda z: fft.ifftn(z, axes=(0,))),
    "irfft": ("irfftn", fft.irfft),
    "irfft odd": ("irfftn", lambda z: fft.irfft(z, n=5, norm="ortho")),
    "irfftn": ("irfftn", lambda z: fft.irfftn(z, s=(4, 3), axes=(1, 0))),
    "hfft": ("irfftn", fft.hfft),
}
REAL: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "real": ("fftn", fft.fft),
    "rfft": ("rfftn", fft.rfft),
    "rfft odd": ("rfftn", lambda x: fft.rfft(x, n=5, norm="ortho")),
    "rfftn": ("rfftn", lambda x: fft.rfftn(x, axes=(1, 0), norm="forward")),
    "ihfft": ("rfftn", lambda x: fft.ihfft(x, n=2)),
    "fftshift": ("concat", lambda x: fft.ifftshift(fft.fftshift(x, axes=0))),
}


def complex_samples(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of complex elementwise ops, linear algebra and Fourier transforms."""

    def normal(*shape: int) -> Array:
        return rng.normal(size=shape)

    for note, (op, function) in ONE.items():
        yield Sample(op, lambda x, f=function: _real(f(_complex(x))), (normal(2, 2, 3),), f"complex {note}")
    for note, (op, function) in REAL.items():
        yield Sample(op, lambda x, f=function: _real(f(x)), (normal(2, 3),), f"complex {note}")
        yield Sample(op, lambda x, f=function: _real(f(x[::2].mT)), (normal(4, 3),), f"complex {note} strided")
    for name in ("add", "subtract", "multiply", "divide", "pow"):
        binary = getattr(ops, name)
        inputs = normal(2, 2, 3), 1.0 + normal(2, 3)
        yield Sample(name, lambda x, y, f=binary: _real(f(_complex(x), _complex(y))), inputs, "complex")
    both = normal(2, 2, 3), normal(2, 3, 2)
    yield Sample("matmul", lambda x, y: _real(ops.matmul(_complex(x), _complex(y))), both, "complex")
    solved = normal(2, 2, 2), normal(2, 2, 1)
    yield Sample("solve", lambda x, y: _real(linalg.solve(_complex(x), _complex(y))), solved, "complex")
    filtered = normal(2, 6), normal(6)
    yield Sample("irfftn", lambda x, y: fft.irfft(fft.rfft(x) * fft.rfft(y)), filtered, "circular convolution")
    yield Sample("fftn", lambda x: _real(fft.fft(_complex(x))), (normal(2, 0, 3),), "complex empty batch")
