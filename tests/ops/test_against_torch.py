"""Values and gradients of the array API's functions beside torch's, where torch is there."""

import numpy as np
import pytest

import flnb

torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")

INDEX = np.array([[2, 0], [1, 1], [0, 2]])
ONE = {
    "tan": (flnb.tan, torch.tan), "sinh": (flnb.sinh, torch.sinh), "cosh": (flnb.cosh, torch.cosh),
    "asin": (flnb.asin, torch.asin), "acos": (flnb.acos, torch.acos), "atan": (flnb.atan, torch.atan),
    "asinh": (flnb.asinh, torch.asinh), "atanh": (flnb.atanh, torch.atanh),
    "acosh": (lambda x: flnb.acosh(x + 2.0), lambda x: torch.acosh(x + 2.0)),
    "log2": (lambda x: flnb.log2(x + 2.0), lambda x: torch.log2(x + 2.0)),
    "log10": (lambda x: flnb.log10(x + 2.0), lambda x: torch.log10(x + 2.0)),
    "reciprocal": (flnb.reciprocal, torch.reciprocal), "trunc": (flnb.trunc, torch.trunc),
    "cumulative_prod": (lambda x: flnb.cumulative_prod(x, axis=1), lambda x: torch.cumprod(x, 1)),
    "sort": (lambda x: flnb.sort(x, axis=0, descending=True), lambda x: torch.sort(x, 0, descending=True)[0]),
    "take": (lambda x: flnb.take(x, [1, 1, 0], axis=1), lambda x: x[:, [1, 1, 0]]),
    "take_along_axis": (
        lambda x: flnb.take_along_axis(x, INDEX, axis=1),
        lambda x: torch.take_along_dim(x, torch.tensor(INDEX), 1),
    ),
    "roll": (lambda x: flnb.roll(x, (1, -1), axis=(0, 1)), lambda x: torch.roll(x, (1, -1), (0, 1))),
    "repeat": (
        lambda x: flnb.repeat(x, [0, 2, 1], axis=0),
        lambda x: torch.repeat_interleave(x, torch.tensor([0, 2, 1]), 0),
    ),
    "tile": (lambda x: flnb.tile(x, (2, 1, 2)), lambda x: torch.tile(x, (2, 1, 2))),
    "tril": (lambda x: flnb.tril(x, k=-1), lambda x: torch.tril(x, -1)),
    "moveaxis": (lambda x: flnb.moveaxis(x, 0, 1), lambda x: torch.moveaxis(x, 0, 1)),
    "unstack": (lambda x: flnb.unstack(x, axis=1)[1], lambda x: torch.unbind(x, 1)[1]),
    "diff": (lambda x: flnb.diff(x, n=2), lambda x: torch.diff(x, 2)),
    "clip": (lambda x: flnb.clip(x, -0.2, 0.3), lambda x: torch.clip(x, -0.2, 0.3)),
    "std": (lambda x: flnb.std(x, axis=1, correction=1), lambda x: torch.std(x, 1)),
    "mask": (lambda x: x[x > 0.0], lambda x: x[x > 0.0]),
}  # fmt: skip
TWO = {
    "atan2": (flnb.atan2, torch.atan2), "hypot": (flnb.hypot, torch.hypot), "copysign": (flnb.copysign, torch.copysign),
    "logaddexp": (flnb.logaddexp, torch.logaddexp), "remainder": (flnb.remainder, torch.remainder),
    "meshgrid": (
        lambda a, b: flnb.stack(flnb.meshgrid(a[0], b[0])),
        lambda a, b: torch.stack(torch.meshgrid(a[0], b[0], indexing="xy")),
    ),
    "where": (lambda a, b: flnb.where(a > b, a, b), lambda a, b: torch.where(a > b, a, b)),
}  # fmt: skip


@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_values_and_gradients(name):
    rng = np.random.default_rng(3)
    ours, theirs = (ONE | TWO)[name]
    arrays = [rng.uniform(-0.9, 0.9, (3, 4)) for _ in range(1 if name in ONE else 2)]
    variables = [flnb.Variable(a) for a in arrays]
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    y, t = ours(*variables), theirs(*tensors)
    np.testing.assert_allclose(y.data.numpy(), t.detach().numpy(), rtol=1e-12, atol=1e-12)
    weight = rng.normal(size=y.shape)
    (y * flnb.asarray(weight)).sum().backward()
    (t * torch.tensor(weight)).sum().backward()
    for v, s in zip(variables, tensors, strict=True):
        np.testing.assert_allclose(v.grad.numpy(), s.grad.numpy(), rtol=1e-11, atol=1e-12)
