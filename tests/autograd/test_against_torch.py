"""The transforms beside torch.func, where torch is there."""

import numpy as np
import pytest

import flnb

torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # its own use of torch.jit
rng = np.random.default_rng(1)
W, B, X = rng.normal(size=(4, 3)), rng.normal(size=4), rng.normal(size=(5, 3))
V = rng.normal(size=(4, 3))


def network(lib):
    softplus = (lambda x: lib.log(1.0 + lib.exp(x))) if lib is flnb else torch.nn.functional.softplus
    return lambda w, b, x: softplus(lib.tanh(x @ w.T + b)).sum() + (w * w).sum() * 0.1


def tensors(lib, *arrays):
    return [flnb.asarray(a) if lib is flnb else torch.tensor(a) for a in arrays]


def values(tree):
    if isinstance(tree, (tuple, list)):
        return [v for t in tree for v in values(t)]
    return [np.asarray(tree.numpy() if isinstance(tree, flnb.Tensor) else tree.detach().numpy())]


def grads(lib):
    w, b, x = tensors(lib, W, B, X)
    f = network(lib)
    if lib is flnb:
        return flnb.value_and_grad(f, (0, 1))(w, b, x)[::-1]
    return torch.func.grad_and_value(f, (0, 1))(w, b, x)


def vjps(lib):
    w, b, x = tensors(lib, W, B, X)
    value, pull = (flnb if lib is flnb else torch.func).vjp(lambda w, b: lib.tanh(x @ w.T + b), w, b)
    return value, pull(lib.ones_like(value))


def jvps(lib):
    w, b, x, v = tensors(lib, W, B, X, V)
    module = flnb if lib is flnb else torch.func
    return module.jvp(lambda w, b: network(lib)(w, b, x), (w, b), (v, b))


def jacobians(lib):
    w, b, x = tensors(lib, W, B, X)
    jacobian = flnb.jacobian if lib is flnb else torch.func.jacrev
    return jacobian(lambda w, b: lib.tanh(x @ w.T + b), (0, 1))(w, b)


def hessians(lib):
    w, b, x = tensors(lib, W, B, X)
    module = flnb if lib is flnb else torch.func
    return module.hessian(lambda w, b: network(lib)(w, b, x), (0, 1))(w, b)


def hvps(lib):
    w, b, x, v = tensors(lib, W, B, X, V)
    f = lambda w: network(lib)(w, b, x)  # noqa: E731
    return flnb.hvp(f, w, v) if lib is flnb else torch.func.jvp(torch.func.grad(f), (w,), (v,))[1]


def per_sample(lib):
    w, b, x = tensors(lib, W, B, X)
    module = flnb if lib is flnb else torch.func
    return module.vmap(module.grad(network(lib), (0, 1)), (None, None, 0))(w, b, x)


def nested(lib):
    (x,) = tensors(lib, X)
    module = flnb if lib is flnb else torch.func
    return module.vmap(module.vmap(module.grad(module.grad(lambda a: lib.sin(a) * a * a))))(x)


def axes(lib):
    w, _, x = tensors(lib, W, B, X)
    module = flnb if lib is flnb else torch.func
    return module.vmap(lambda w, x: (x @ w, w * 2.0), (0, None), (1, 0))(w, x)


@pytest.mark.parametrize(
    "case", [grads, vjps, jvps, jacobians, hessians, hvps, per_sample, nested, axes], ids=lambda f: f.__name__
)
def test_transforms_agree_with_torch(case):
    ours, theirs = values(case(flnb)), values(case(torch))
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)
