"""Checkpoints: the same gradients to any order, the same random numbers, and less memory."""

import gc
import re

import numpy as np
import pytest

import flnb
from flnb import nn

X = np.random.default_rng(0).normal(size=(4, 3))
W = np.random.default_rng(1).normal(size=(3, 3))


def block(x, w):
    h = flnb.tanh(x @ w)
    return flnb.softmax(h) * h + x


def chain(x, w, wrap):
    for _ in range(3):
        x = wrap(block)(x, w)
    return (x * x).sum()


def plainly(f):
    return f


def nested(f):
    return flnb.checkpoint(lambda *a: flnb.checkpoint(f)(*a) * 1.0)


@pytest.mark.parametrize("wrap", [flnb.checkpoint, nested], ids=["flat", "nested"])
@pytest.mark.parametrize(
    "transform",
    [
        lambda f: flnb.grad(f, (0, 1))(flnb.asarray(X), flnb.asarray(W)),
        lambda f: flnb.hvp(f, (flnb.asarray(X), flnb.asarray(W)), (flnb.asarray(X), flnb.asarray(W))),
        lambda f: flnb.jvp(f, (flnb.asarray(X), flnb.asarray(W)), (flnb.asarray(X), flnb.asarray(W))),
        lambda f: flnb.vmap(flnb.grad(f, (0, 1)), (0, None))(flnb.asarray(X[:, None]), flnb.asarray(W)),
        lambda f: [flnb.hessian(f, 1)(flnb.asarray(X), flnb.asarray(W))],
    ],
    ids=["grad", "hvp", "jvp", "vmap", "hessian"],
)
def test_transforms_of_a_checkpointed_function(transform, wrap):
    got = transform(lambda x, w: chain(x, w, wrap))
    expected = transform(lambda x, w: chain(x, w, plainly))
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(g.numpy(), e.numpy(), rtol=1e-10, atol=1e-12)


def test_closed_over_parameters_and_values_on_the_tape_get_their_gradients():
    def gradients(wrap):
        flnb.manual_seed(0)
        layer, scale = nn.Linear(3, 3), flnb.Variable(np.ones(3, np.float32))
        outside = flnb.exp(scale)
        y = wrap(lambda x: flnb.relu(layer(x)) * outside)(flnb.asarray(X.astype(np.float32)))
        (y * y).sum().backward()
        return [layer.weight.grad, layer.bias.grad, scale.grad]

    for g, e in zip(gradients(flnb.checkpoint), gradients(plainly), strict=True):
        np.testing.assert_array_equal(g.numpy(), e.numpy())


def test_results_in_containers_of_different_dtypes():
    def both(x, w):
        return {"a": flnb.exp(x), "b": [x @ w, (x * 2.0).astype("float32"), x.shape, x > 0.0]}

    def loss(x, w, wrap):
        out = wrap(both)(x, w)
        assert out["b"][2] == (4, 3)
        assert out["b"][1].dtype == flnb.float32
        return (out["a"] * out["b"][0]).sum() + out["b"][1].sum() + flnb.where(out["b"][3], x, 0.0).sum()

    args = flnb.asarray(X), flnb.asarray(W)
    for g, e in zip(
        *(flnb.grad(lambda x, w, k=k: loss(x, w, k), (0, 1))(*args) for k in (flnb.checkpoint, plainly)), strict=True
    ):
        np.testing.assert_allclose(g.numpy(), e.numpy(), rtol=1e-12)


def test_dropout_draws_the_same_numbers_again_and_the_stream_goes_on():
    def run(wrap):
        flnb.manual_seed(3)
        own = flnb.random.Generator(4)
        x = flnb.Variable(np.ones((50, 4)))
        y = wrap(lambda x, g: flnb.dropout(x, 0.5) + flnb.dropout(x, 0.5, generator=g))(x, own)
        z = flnb.dropout(x, 0.5)
        (y + z).sum().backward()
        return y.numpy() if not y.requires_grad else y.detach().numpy(), x.grad.numpy(), flnb.random.uniform(3).numpy()

    for a, b in zip(run(flnb.checkpoint), run(plainly), strict=True):
        np.testing.assert_array_equal(a, b)


def test_hooks_inside_fire_once_and_packed_tensors_go_through():
    calls = []

    def function(x):
        y = x * x
        y.register_hook(lambda g: calls.append(1) or g * 2.0)
        return flnb.exp(y)

    x = flnb.Variable(X)
    with flnb.saved_tensors_hooks(lambda t: t.numpy().copy(), flnb.asarray):
        y = flnb.checkpoint(function)(x)
    y.sum().backward()
    assert calls == [1]
    np.testing.assert_allclose(x.grad.numpy(), 4.0 * X * np.exp(X * X), rtol=1e-12)


def test_the_backend_and_manager_of_the_forward_pass_hold_when_it_runs_again():
    class Loud(flnb.backends.NumpyBackend):
        calls = 0

        def tanh(self, x, out=None):
            Loud.calls += 1
            return super().tanh(x, out)

    x = flnb.Variable(X)
    with flnb.use_backend(Loud):
        y = flnb.checkpoint(flnb.tanh)(x)
    y.sum().backward()
    assert Loud.calls == 2


def peak_of(wrap, layers=12, width=256):
    """Bytes over what was there, at the highest, of a forward and backward pass through layers of several ops."""

    def layer(x):
        for _ in range(4):
            x = flnb.tanh(x * 1.01)
        return x

    x = flnb.Variable(np.ones((width, width), np.float32))
    with flnb.use_memory_manager("native") as manager:
        y = x
        for _ in range(layers):
            y = wrap(layer)(y)
        y.sum().backward()
        return manager.stats()["peak_allocated"]


def test_memory_at_the_peak_is_what_one_layer_needs_and_an_input_of_each():
    plain, checkpointed = (peak_of(wrap) / (256 * 256 * 4) for wrap in (plainly, flnb.checkpoint))
    assert plain > 12 * 4  # every tanh keeps its result
    assert checkpointed < 12 + 4 + 4


def test_a_checkpoint_leaves_nothing_behind_without_the_collector():
    gc.collect()
    gc.disable()
    try:
        with flnb.use_memory_manager("native") as manager:
            x = flnb.Variable(np.ones((64, 64), np.float32))
            before = manager.stats()["live"]
            y = flnb.checkpoint(lambda x: flnb.exp(flnb.reshape(x, (4096,))))(x).sum()
            y.backward()
            del y
            x.zero_grad()
            assert manager.stats()["live"] == before
    finally:
        gc.enable()


def test_without_gradients_it_is_the_function_itself():
    calls = []
    f = flnb.checkpoint(lambda x: calls.append(1) or x * 2.0)
    assert type(f(flnb.asarray(X))) is flnb.Tensor
    with flnb.no_grad():
        assert not f(flnb.Variable(X)).requires_grad
    assert len(calls) == 2


def test_a_function_that_does_not_repeat_itself_is_an_error():
    shapes = iter([(3, 4), (12,)])
    y = flnb.checkpoint(lambda x: flnb.reshape(x * 2.0, next(shapes)))(flnb.Variable(X))
    with pytest.raises(
        RuntimeError, match=r"returned \[float64\[12\]\] when backward ran it again, but \[float64\[3,4\]\] the first"
    ):
        y.sum().backward()


def test_an_input_written_in_place_is_found():
    x = flnb.Variable(X)
    h = x * 2.0
    y = flnb.checkpoint(lambda x: x * x)(h)
    with flnb.no_grad():
        flnb.assign(h.data, 0.0)
    with pytest.raises(RuntimeError, match=r"input 0 of 'checkpoint'.*written in place"):
        y.sum().backward()


def test_a_freed_graph_is_named():
    y = flnb.checkpoint(flnb.exp)(flnb.Variable(X)).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="was freed by an earlier backward"):
        y.backward()


@pytest.mark.parametrize("closed_over", [False, True])
def test_what_the_function_reads_must_not_be_written_before_backward(closed_over):
    x, w = flnb.Variable([1.0, 2.0]), flnb.Variable([3.0, 4.0])
    y = flnb.checkpoint(lambda a: a * w)(x) if closed_over else flnb.checkpoint(lambda a, b: a * b)(x, w)
    with flnb.no_grad():
        w *= 2.0
    saved, read = "of 'checkpoint', float32[2], was saved", "float32[2], was read by the checkpointed <lambda>"
    told = re.escape(read if closed_over else saved)
    with pytest.raises(RuntimeError, match=f"{told} .* written in place"):
        y.sum().backward()


SCALE = flnb.Variable(np.full(3, 2.0))


@pytest.mark.parametrize("kind", ["closed over", "a view inside", "not saved", "global", "module", "method"])
def test_nothing_that_is_read_inside_may_be_written_before_backward(kind):
    layer, w, shift = nn.Linear(3, 3).astype(np.float64), flnb.Variable(W), flnb.Variable(np.ones(3))
    function, written = {
        "closed over": (lambda x: flnb.tanh(x @ w), w),
        "a view inside": (lambda x: flnb.tanh(x * 2.0) @ w.mT, w),
        "not saved": (lambda x: flnb.tanh(x + shift), shift),
        "global": (lambda x: flnb.tanh(x + SCALE), SCALE),
        "module": (layer, layer.bias),
        "method": (layer.forward, layer.bias),
    }[kind]
    y = flnb.exp(flnb.checkpoint(function)(flnb.asarray(X)))
    with flnb.no_grad():
        flnb.assign(written, 0.5)
    with pytest.raises(RuntimeError, match="written in place"):
        y.sum().backward()


def test_what_it_does_not_read_may_be_written():
    first, second = nn.Linear(3, 3).astype(np.float64), nn.Linear(3, 3).astype(np.float64)
    net = nn.Sequential(first, second)
    y = flnb.checkpoint(lambda x: flnb.tanh(net[0](x)))(flnb.asarray(X))
    with flnb.no_grad():
        flnb.assign(second.weight, 0.0)
    y.sum().backward()
    assert first.weight.grad is not None
