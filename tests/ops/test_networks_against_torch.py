"""Values and gradients of linear algebra and of networks' ops beside torch's, where torch is there."""

import numpy as np
import pytest

import flnb
from flnb import fft, linalg

torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
F = torch.nn.functional

RNG = np.random.default_rng(21)


def definite(x):
    return x @ x.mT + (torch.eye(x.shape[-1]).double() if isinstance(x, torch.Tensor) else np.eye(x.shape[-1]))


def signed(v):
    """Columns times the sign of their first element."""
    return v * (torch if isinstance(v, torch.Tensor) else flnb).sign(v[..., :1, :])


def squares(z):
    """A real number of each complex one."""
    of = torch if isinstance(z, torch.Tensor) else flnb
    return of.real(z) * 2.0 + of.imag(z) ** 2


def eigenvectors(x):
    of = torch.linalg if isinstance(x, torch.Tensor) else linalg
    return signed(of.eigh(x + x.mT)[1])


def singular_vectors(x, right, full=False):
    """The left or the right singular vectors as columns; of full matrices those that have a singular value."""
    of = torch.linalg if isinstance(x, torch.Tensor) else linalg
    u, _, vh = of.svd(x, full_matrices=full)
    return signed((vh.mT if right else u)[..., : min(x.shape[-2:])])


SQUARE, TALL, VECTORS = (2, 3, 3), (2, 4, 3), (3, 4)
LINALG = {
    "cholesky": (SQUARE, lambda x: linalg.cholesky(definite(x)), lambda x: torch.linalg.cholesky(definite(x))),
    "eigvalsh": (SQUARE, lambda x: linalg.eigvalsh(x + x.mT), lambda x: torch.linalg.eigvalsh(x + x.mT)),
    "eigenvectors": (SQUARE, eigenvectors, eigenvectors),
    "inv": (SQUARE, linalg.inv, torch.linalg.inv),
    "det": (SQUARE, linalg.det, torch.linalg.det),
    "slogdet": (SQUARE, lambda x: linalg.slogdet(x)[1], lambda x: torch.linalg.slogdet(x)[1]),
    "pinv": (TALL, linalg.pinv, torch.linalg.pinv),
    "Q": (TALL, lambda x: linalg.qr(x).Q, lambda x: torch.linalg.qr(x).Q),
    "R wide": ((3, 5), lambda x: linalg.qr(x).R, lambda x: torch.linalg.qr(x).R),
    "U": (TALL, *[lambda x: singular_vectors(x, right=False)] * 2),
    "V": (TALL, *[lambda x: singular_vectors(x, right=True)] * 2),
    "S of full": (TALL, lambda x: linalg.svd(x).S, lambda x: torch.linalg.svd(x)[1]),
    "V of full": ((3, 5), *[lambda x: singular_vectors(x, right=True, full=True)] * 2),
    "Q of complete": (SQUARE, lambda x: linalg.qr(x, mode="complete").Q, lambda x: torch.linalg.qr(x, "complete").Q),
    "svdvals": (TALL, linalg.svdvals, torch.linalg.svdvals),
    "matrix_power": (SQUARE, lambda x: linalg.matrix_power(x, -3), lambda x: torch.linalg.matrix_power(x, -3)),
    "vector_norm": (TALL, lambda x: linalg.vector_norm(x, axis=1, ord=3), lambda x: torch.linalg.vector_norm(x, 3, 1)),
    "trace": (SQUARE, linalg.trace, lambda x: torch.diagonal(x, 0, -2, -1).sum(-1)),
    **{
        f"matrix_norm {p}": (
            TALL, lambda x, p=p: linalg.matrix_norm(x, ord=p), lambda x, p=p: torch.linalg.matrix_norm(x, p)
        )
        for p in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)
    },
    "fft": (VECTORS, lambda x: squares(fft.fft(x)), lambda x: squares(torch.fft.fft(x))),
    "rfft": (VECTORS, lambda x: squares(fft.rfft(x, n=7)), lambda x: squares(torch.fft.rfft(x, n=7))),
    "irfft": (VECTORS, lambda x: fft.irfft(fft.fft(x)[..., 1:]), lambda x: torch.fft.irfft(torch.fft.fft(x)[..., 1:])),
    "power spectrum": (VECTORS, lambda x: flnb.abs(fft.rfft(x)) ** 2, lambda x: torch.abs(torch.fft.rfft(x)) ** 2),
}  # fmt: skip
NETWORK = {
    "gelu": (VECTORS, flnb.gelu, F.gelu),
    "gelu tanh": (VECTORS, lambda x: flnb.gelu(x, approximate="tanh"), lambda x: F.gelu(x, approximate="tanh")),
    "swish": (VECTORS, flnb.swish, F.silu),
    "glu": (VECTORS, flnb.glu, F.glu),
    "softmax": (VECTORS, lambda x: flnb.softmax(x, 0), lambda x: F.softmax(x, 0)),
    "topk": (VECTORS, lambda x: flnb.topk(x, 2).values, lambda x: torch.topk(x, 2).values),
    "median": ((3, 5), lambda x: flnb.median(x, axis=1), lambda x: torch.median(x, 1).values),
    "max_with_indices": (VECTORS, lambda x: flnb.max_with_indices(x, 1).values, lambda x: torch.max(x, 1).values),
    "pad edge": (
        (1, 2, 3, 4), lambda x: flnb.pad(x, ((0, 0), (0, 0), (1, 2), (0, 3)), mode="edge"),
        lambda x: F.pad(x, (0, 3, 1, 2), mode="replicate"),
    ),
    "pad reflect": (
        (1, 2, 3, 4), lambda x: flnb.pad(x, ((0, 0), (0, 0), (1, 2), (0, 3)), mode="reflect"),
        lambda x: F.pad(x, (0, 3, 1, 2), mode="reflect"),
    ),
    **{
        f"{kind}_pool{n}d": (
            (2, 3, *(7, 6, 5)[:n]),
            lambda x, f=f"{kind}_pool{n}d": getattr(flnb, f)(x, 3, 2, 1),
            lambda x, f=f"{kind}_pool{n}d": getattr(F, f)(x, 3, 2, 1),
        )
        for n in (1, 2, 3) for kind in ("max", "avg")
    },
}  # fmt: skip


def compare(ours, theirs, arrays):
    """Values, first and second derivatives by random projections."""
    variables = [flnb.Variable(a) if a.dtype == np.float64 else flnb.asarray(a) for a in arrays]
    tensors = [torch.tensor(a, requires_grad=a.dtype == np.float64) for a in arrays]
    y, t = ours(*variables), theirs(*tensors)
    np.testing.assert_allclose(y.data.numpy(), t.detach().numpy(), rtol=1e-10, atol=1e-10)
    weight = RNG.normal(size=y.shape)
    of = [i for i, a in enumerate(arrays) if a.dtype == np.float64]
    total, theirs_total = (y * flnb.asarray(weight)).sum(), (t * torch.tensor(weight)).sum()
    total.backward(create_graph=True)
    found = torch.autograd.grad(theirs_total, [tensors[i] for i in of], create_graph=True)
    for i, g in zip(of, found, strict=True):
        np.testing.assert_allclose(variables[i].grad._values(), g.numpy(force=True), rtol=1e-9, atol=1e-9)
    bend = sum((g * g).sum() for g in found)
    if not bend.requires_grad:
        return
    sources = [variables[i] for i in of]
    again = sum((v.grad * v.grad).sum() for v in sources)
    for v in sources:
        v.zero_grad()
    if getattr(again, "requires_grad", False):
        again.backward()
    twice = torch.autograd.grad(bend, [tensors[i] for i in of], allow_unused=True)
    for v, g in zip(sources, twice, strict=True):
        ours_twice = np.zeros(v.shape) if v.grad is None else v.grad.numpy()
        theirs_twice = np.zeros(v.shape) if g is None else g.numpy(force=True)
        np.testing.assert_allclose(ours_twice, theirs_twice, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", [*LINALG, *NETWORK])
def test_functions_of_one_tensor(name):
    shape, ours, theirs = (LINALG | NETWORK)[name]
    compare(ours, theirs, [RNG.normal(size=shape)])


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(("stride", "padding", "dilation", "groups"), [(1, 0, 1, 1), (2, 1, 1, 2), (1, 2, 2, 4)])
def test_convolution(rank, stride, padding, dilation, groups):
    arrays = RNG.normal(size=(2, 4, *(7, 6, 5)[:rank])), RNG.normal(size=(8, 4 // groups, *(3, 2, 3)[:rank]))
    placing = (stride, padding, dilation, groups)
    ours, theirs = getattr(flnb, f"conv{rank}d"), getattr(F, f"conv{rank}d")
    compare(lambda *a: ours(*a, *placing), lambda *a: theirs(*a, *placing), [*arrays, RNG.normal(size=8)])


def test_solve_and_products():
    a, b = RNG.normal(size=(2, 3, 3)), RNG.normal(size=(2, 3, 4))
    compare(linalg.solve, torch.linalg.solve, [a, b])
    compare(linalg.cross, torch.linalg.cross, [a, RNG.normal(size=(1, 3, 3))])
    axes = ((0, 2), (0, 1))
    compare(lambda x, y: flnb.tensordot(x, y, axes=axes), lambda x, y: torch.tensordot(x, y, axes), [a, b])
    compare(flnb.vecdot, torch.linalg.vecdot, [a, a[0].copy()])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_weighted_cross_entropy(reduction):
    logits, targets, weight = RNG.normal(size=(5, 3)), np.array([0, 2, 1, 1, 0]), np.array([0.2, 1.0, 3.0])
    compare(
        lambda x: flnb.cross_entropy(x, targets, reduction, weight),
        lambda x: F.cross_entropy(x, torch.tensor(targets), torch.tensor(weight), reduction=reduction),
        [logits],
    )


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal):
    arrays = [RNG.normal(size=(2, *shape)) for shape in ((4, 3), (4, 3), (4, 5))]
    ours = lambda q, k, v: flnb.scaled_dot_product_attention(q, k, v, is_causal=causal)  # noqa: E731
    theirs = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)  # noqa: E731
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        compare(ours, theirs, arrays)
    mask = RNG.normal(size=(4, 4))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        compare(
            lambda q, k, v, m: flnb.scaled_dot_product_attention(q, k, v, m, scale=0.4),
            lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, scale=0.4),
            [*arrays, mask],
        )


def test_embedding():
    compare(flnb.embedding, F.embedding, [np.array([[2, 0], [2, 2]]), RNG.normal(size=(3, 2))])
