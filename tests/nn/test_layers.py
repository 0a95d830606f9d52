"""Layers and losses against NumPy written out by hand (float64) and, where torch is installed, against torch."""

import math

import numpy as np
import pytest

import flnb
import flnb.nn as nn


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def set_values(module: nn.Module) -> dict[str, np.ndarray]:
    values = {}
    for index, (name, parameter) in enumerate(module.named_parameters()):
        values[name] = numbers(*parameter.shape, seed=index + 10)
        flnb.assign(parameter.data, flnb.asarray(values[name]))
    return values


def close(got, expected, tolerance: float = 1e-5) -> None:
    values = got.detach() if isinstance(got, flnb.Variable) else got
    np.testing.assert_allclose(values.numpy(), expected, rtol=tolerance, atol=tolerance)


def conv_by_hand(x, w, b, stride, padding):
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    kh, kw = w.shape[2:]
    rows = range(0, x.shape[2] - kh + 1, stride[0])
    columns = range(0, x.shape[3] - kw + 1, stride[1])
    out = [[np.einsum("nchw,ochw->no", x[:, :, i : i + kh, j : j + kw], w) for j in columns] for i in rows]
    return np.moveaxis(np.array(out), (0, 1), (2, 3)) + b[:, None, None]


def test_linear():
    layer = nn.Linear(3, 2)
    values = set_values(layer)
    x = numbers(5, 3)
    close(layer(flnb.asarray(x)), x @ values["weight"].T + values["bias"])
    bare = nn.Linear(3, 2, bias=False)
    values = set_values(bare)
    close(bare(flnb.asarray(x)), x @ values["weight"].T)
    assert [name for name, _ in bare.named_parameters()] == ["weight"]


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(3, 1, 1), (3, 2, 0), ((1, 3), (2, 1), (0, 2)), (5, 3, 2), (1, 1, 0)]
)
def test_conv2d(kernel, stride, padding):
    layer = nn.Conv2d(3, 4, kernel, stride=stride, padding=padding)
    values = set_values(layer)
    x = numbers(2, 3, 8, 7)

    def pair(v):
        return v if isinstance(v, tuple) else (v, v)

    close(layer(flnb.asarray(x)), conv_by_hand(x, values["weight"], values["bias"], pair(stride), pair(padding)), 1e-4)


def test_max_pool():
    x = numbers(2, 3, 6, 6)
    close(nn.MaxPool2d(2)(flnb.asarray(x)), x.reshape(2, 3, 3, 2, 3, 2).max(axis=(3, 5)))
    overlapping = [[x[:, :, i : i + 3, j : j + 3].max(axis=(2, 3)) for j in range(4)] for i in range(4)]
    close(nn.MaxPool2d(3, stride=1)(flnb.asarray(x)), np.moveaxis(np.array(overlapping), (0, 1), (2, 3)))


@pytest.mark.parametrize("shape", [(16, 3), (4, 3, 5, 2)])
def test_batch_norm_trains_on_the_batch_and_evaluates_on_what_it_gathered(shape):
    layer = nn.BatchNorm(3, eps=1e-3, momentum=0.3)
    values = set_values(layer)
    axes = (0, *range(2, len(shape)))
    wide = (1, 3, *(1,) * (len(shape) - 2))
    weight, bias = values["weight"].reshape(wide), values["bias"].reshape(wide)
    mean, variance = np.zeros(3), np.ones(3)
    for seed in range(3):
        x = 2.0 * numbers(*shape, seed=seed) + 1.0
        exact = x.astype(np.float64)
        m, v, count = exact.mean(axes), exact.var(axes), exact.size // 3
        normal = (exact - m.reshape(wide)) / np.sqrt(v.reshape(wide) + 1e-3)
        close(layer(flnb.asarray(x)), normal * weight + bias, 1e-4)
        mean, variance = 0.7 * mean + 0.3 * m, 0.7 * variance + 0.3 * v * count / (count - 1)
    np.testing.assert_allclose(layer.running_mean.numpy(), mean, rtol=1e-5)
    np.testing.assert_allclose(layer.running_var.numpy(), variance, rtol=1e-5)
    normal = (exact - mean.reshape(wide)) / np.sqrt(variance.reshape(wide) + 1e-3)
    close(layer.eval()(flnb.asarray(x)), normal * weight + bias, 1e-4)
    np.testing.assert_allclose(layer.running_mean.numpy(), mean, rtol=1e-5)


class OpByOp(flnb.backends.NumpyBackend):
    move_averages = None


class Counting(flnb.backends.NumpyBackend):
    added = 0

    def add(self, x1, x2, out=None):
        Counting.added += 1
        return super().add(x1, x2, out)


@pytest.mark.parametrize("shape", [(16, 3), (4, 3, 5, 2)])
def test_both_running_averages_of_a_batch_norm_are_moved_by_one_op_to_the_same_bits(shape):
    moved, names = [], []
    for backend in (flnb.backends.NumpyBackend(), OpByOp(), Counting()):
        with flnb.use_backend(backend):
            layer = nn.BatchNorm(3, momentum=0.3)
            for seed in range(2):
                x = flnb.asarray(numbers(*shape, seed=seed))
                with flnb.record() as run:
                    layer(x)
            moved.append((layer.running_mean.numpy(), layer.running_var.numpy()))
            names.append([key for key, *_ in (row.key for row in run.ops)])
    np.testing.assert_array_equal(moved[0], moved[1])
    np.testing.assert_allclose(moved[0], moved[2], rtol=1e-6)  # the whole batch norm runs op by op
    assert sorted(names[0]) == ["batch_norm", "move_averages"]
    assert "move_averages" not in names[1] + names[2]
    assert Counting.added >= 2 * 2  # an overridden add sees the additions of both averages in each step


def test_relu_flatten_and_log_softmax():
    x = numbers(4, 3, 2)
    close(nn.ReLU()(flnb.asarray(x)), np.maximum(x, 0))
    close(nn.Flatten()(flnb.Variable(flnb.asarray(x))), x.reshape(4, 6))
    for axis in (-1, 1):
        close(nn.LogSoftmax(axis)(flnb.asarray(x)), x - np.log(np.exp(x).sum(axis, keepdims=True)))


def test_dropout_keeps_the_mean_is_reproducible_and_off_in_eval():
    x = flnb.ones((200, 200))
    layer = nn.Dropout(0.25)
    flnb.manual_seed(3)
    y = layer(x).numpy()
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((y == 0).mean() - 0.25) < 0.01
    assert (y != layer(x).numpy()).any()
    flnb.manual_seed(3)
    np.testing.assert_array_equal(layer(x).numpy(), y)
    assert layer.eval()(x) is x
    assert nn.Dropout(0.0)(x) is x
    for p in (-0.1, 1.0, 50):
        with pytest.raises(ValueError, match="at least 0 and below 1"):
            nn.Dropout(p)


def test_sequential_calls_in_order_by_index_or_name():
    net = nn.Sequential(nn.Flatten(), out=nn.Linear(6, 2))
    assert [name for name, _ in net.named_parameters()] == ["out.weight", "out.bias"]
    assert [type(module).__name__ for module in net] == ["Flatten", "Linear"]
    assert net[-1] is net.out
    assert net(flnb.ones((5, 2, 3))).shape == (5, 2)
    with pytest.raises(TypeError, match="takes modules, got function as '1'"):
        nn.Sequential(nn.ReLU(), flnb.relu)
    with pytest.raises(ValueError, match="'forward' is a method of Sequential"):
        nn.Sequential(forward=nn.ReLU())


def test_cross_entropy():
    logits, targets = numbers(6, 4), np.array([0, 3, 1, 1, 2, 0])
    logp = logits - np.log(np.exp(logits.astype(np.float64)).sum(1, keepdims=True))
    each = -logp[np.arange(6), targets]
    for reduction, expected in (("mean", each.mean()), ("sum", each.sum()), ("none", each)):
        close(nn.CrossEntropyLoss(reduction)(flnb.asarray(logits), flnb.asarray(targets)), expected)
        close(flnb.nll_loss(nn.LogSoftmax()(flnb.asarray(logits)), flnb.asarray(targets), reduction), expected)
    with pytest.raises(ValueError, match="reduction must be 'mean', 'sum' or 'none', got 'average'"):
        nn.CrossEntropyLoss("average")(flnb.asarray(logits), flnb.asarray(targets))


def test_cross_entropy_is_finite_for_huge_logits_and_its_gradient_is_softmax_minus_one_hot():
    logits = flnb.Variable(flnb.asarray([[1e4, -1e4], [0.0, 0.0]]))
    loss = nn.CrossEntropyLoss("sum")(logits, flnb.asarray([1, 0]))
    loss.backward()
    assert math.isclose(loss.item(), 2e4 + math.log(2), rel_tol=1e-6)
    np.testing.assert_allclose(logits.grad.numpy(), [[1, -1], [-0.5, 0.5]], atol=1e-6)


def test_initial_values_have_the_promised_ranges_and_seeds():
    flnb.manual_seed(5)
    first = nn.Conv2d(3, 32, 3)
    flnb.manual_seed(5)
    second = nn.Conv2d(3, 32, 3)
    np.testing.assert_array_equal(first.weight.detach().numpy(), second.weight.detach().numpy())
    bound = 1 / math.sqrt(27)
    for parameter in first.parameters():
        assert 0.8 * bound < abs(parameter.detach().numpy()).max() <= bound


def build(library):
    return library.Sequential(
        library.Conv2d(2, 4, 3, padding=1),
        library.BatchNorm2d(4) if library is not nn else nn.BatchNorm(4),
        library.ReLU(),
        library.MaxPool2d(2),
        library.Flatten(),
        library.Linear(36, 5),
        library.ReLU(),
        library.Linear(5, 3),
    )


def test_a_net_and_its_gradients_agree_with_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed: the comparison by hand runs above")
    theirs, ours = build(torch.nn), build(nn)
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items() if not k.endswith("tracked")})
    x, targets = numbers(8, 2, 6, 6), np.arange(8) % 3
    loss = nn.CrossEntropyLoss()(ours(flnb.asarray(x)), flnb.asarray(targets))
    loss.backward()
    expected = torch.nn.CrossEntropyLoss()(theirs(torch.from_numpy(x)), torch.from_numpy(targets))
    expected.backward()
    assert math.isclose(loss.item(), expected.item(), rel_tol=1e-5)
    gradients = {name: parameter.grad.numpy() for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        np.testing.assert_allclose(parameter.grad.numpy(), gradients[name], rtol=1e-3, atol=1e-5, err_msg=name)
    for name, buffer in ours.named_buffers():
        np.testing.assert_allclose(buffer.numpy(), theirs.state_dict()[name].numpy(), rtol=1e-4, err_msg=name)
