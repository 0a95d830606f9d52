"""vmap: every op of the table equals a Python loop; nesting, gradients, random numbers, and what it refuses."""

from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flnb
from flnb import nn
from flnb.testing.samples import samples
from tests.autograd.test_transforms import differentiable

EXAMPLES = 3
SAMPLES = [s for s in samples() if s.inputs]
Pair = namedtuple("Pair", "left right")


def batch_of(array, factor=0.03):
    """Examples that differ where an op's domain allows it: floats by a little, ints and bools by their order."""
    array = np.asarray(array)
    if array.dtype.kind == "f":
        return np.stack([array * (1 + factor * i) for i in range(EXAMPLES)])
    return np.stack([np.roll(array, i) for i in range(EXAMPLES)])


def loop(function, inputs, mapped):
    count = next(len(x) for x, m in zip(inputs, mapped, strict=True) if m)
    examples = [
        function(*[flnb.asarray(x[i] if m else x) for x, m in zip(inputs, mapped, strict=True)]) for i in range(count)
    ]
    return np.stack([y.numpy() for y in examples])


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_every_op_equals_a_loop(sample):
    batches = [batch_of(a) for a in sample.inputs]
    everything = [True] * len(batches)
    choices = [everything] + [[i == j for i in range(len(batches))] for j in range(len(batches))]
    for mapped in choices[: 1 if len(batches) == 1 else None]:
        inputs = [flnb.asarray(b if m else a) for a, b, m in zip(sample.inputs, batches, mapped, strict=True)]
        if sample.op == "nonzero":
            with pytest.raises(TypeError, match=r"the value of a batched tensor .* was read"):
                flnb.vmap(sample.function)(*inputs)
            continue
        if sample.op == "put" and not mapped[0]:
            with pytest.raises(TypeError, match="cannot be written into one tensor that all examples share"):
                flnb.vmap(sample.function, tuple(0 if m else None for m in mapped))(*inputs)
            continue
        got = flnb.vmap(sample.function, tuple(0 if m else None for m in mapped))(*inputs)
        expected = loop(sample.function, inputs, mapped)
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12, atol=1e-12)
        assert got.dtype == expected.dtype


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.op != "put" and differentiable(s)], ids=str)
def test_gradients_of_every_op_through_vmap_equal_a_loop(sample):
    wanted = tuple(i for i, a in enumerate(sample.inputs) if a.dtype == np.float64)
    batches = [batch_of(a) for a in sample.inputs]
    gradient = flnb.grad(lambda *x: (sample.function(*x) * sample.function(*x)).sum(), wanted)
    per_example = flnb.vmap(gradient)(*batches)
    of_the_sum = flnb.grad(lambda *x: (flnb.vmap(sample.function)(*x) ** 2).sum(), wanted)(
        *[flnb.asarray(b) for b in batches]
    )
    for j in range(len(wanted)):
        expected = loop(lambda *x, j=j: gradient(*x)[j], batches, [True] * len(batches))
        np.testing.assert_allclose(per_example[j].numpy(), expected, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(of_the_sum[j].numpy(), expected, rtol=1e-9, atol=1e-9)


@st.composite
def keys(draw):
    """An index expression for shape (3, 4, 5), and which of its index tensors have an entry per example."""
    parts, tensors = [], []
    shape = draw(st.sampled_from([(), (2,), (2, 3)]))
    for extent in (3, 4, 5):
        kind = draw(st.sampled_from(["int", "slice", "tensor", "none+slice"]))
        if kind == "int":
            parts.append(draw(st.integers(-extent, extent - 1)))
        elif kind == "tensor":
            full = (EXAMPLES, *shape[draw(st.integers(0, len(shape))) :])
            seed = draw(st.integers(0, 99))
            tensors.append(np.random.default_rng(seed).integers(-extent, extent, full))
            parts.append(len(tensors) - 1 + 0.5)  # stands for the tensor
        else:
            parts += [None] * (kind != "slice")
            parts.append(slice(*draw(st.sampled_from([(None, None, 2), (1, None, None), (None, None, -1)]))))
    return parts, tensors, draw(st.lists(st.booleans(), min_size=len(tensors) + 1, max_size=len(tensors) + 1))


@settings(max_examples=200, deadline=None)
@given(keys())
def test_any_key_of_batched_and_shared_tensors_equals_a_loop(key):
    parts, tensors, mapped = key
    mapped = mapped if any(mapped) else [True] * len(mapped)
    x = np.random.default_rng(0).normal(size=(EXAMPLES, 3, 4, 5))
    inputs = [a if m else a[0] for a, m in zip([x, *tensors], mapped, strict=True)]

    def pick(x, *tensors):
        return x[tuple(tensors[int(p)] if isinstance(p, float) else p for p in parts)]

    axes = tuple(0 if m else None for m in mapped)
    gradient = flnb.grad(lambda x, *tensors: (pick(x, *tensors) ** 3).sum())
    for function in (pick, gradient):
        got = flnb.vmap(function, axes)(*[flnb.asarray(a) for a in inputs])
        np.testing.assert_allclose(got.numpy(), loop(function, inputs, mapped), rtol=1e-12)


def test_axes_in_and_out_and_containers():
    x = np.arange(24.0).reshape(2, 3, 4)
    y = flnb.vmap(lambda a: {"sum": a.sum(axis=0), "pair": Pair(a, [a * 2.0])}, in_axes=1, out_axes=-1)(x)
    assert y["sum"].shape == (4, 3)
    np.testing.assert_array_equal(y["pair"].left.numpy(), np.moveaxis(x, 1, -1))
    tree = {"w": np.ones((4, 5)), "b": np.arange(5.0)}
    out = flnb.vmap(lambda p, x: x @ p["w"] + p["b"], in_axes=({"w": None, "b": 0}, None))(
        {"w": np.ones((4, 2)), "b": np.arange(5.0)}, np.ones(4)
    )
    assert out.tolist() == [[4.0 + i] * 2 for i in range(5)]
    shared, own = flnb.vmap(lambda p, x: (p["b"], x), in_axes=(None, 0), out_axes=(None, 0))(tree, np.ones(3))
    assert shared is tree["b"]
    assert own.shape == (3,)


def test_a_result_that_no_example_changes_is_repeated():
    assert flnb.vmap(lambda x: flnb.asarray([1.0, 2.0]))(np.zeros(3)).tolist() == [[1.0, 2.0]] * 3
    assert flnb.vmap(lambda x: 7.0)(np.zeros(2)).tolist() == [7.0, 7.0]


def test_no_example_at_all():
    y = flnb.vmap(lambda x: flnb.softmax(x) @ flnb.ones((4, 2)))(np.zeros((0, 4), np.float32))
    assert y.shape == (0, 2)


def test_nested_vmaps_make_an_outer_product_in_any_order():
    a, b, c = np.arange(2.0), np.arange(3.0), np.arange(4.0)
    nested = flnb.vmap(lambda x: flnb.vmap(lambda y: flnb.vmap(lambda z: x + y * z * x)(c))(b))(a)
    x, y, z = np.ix_(a, b, c)
    np.testing.assert_allclose(nested.numpy(), x + y * z * x)
    inner_only = flnb.vmap(lambda x: flnb.vmap(lambda y: flnb.concat([x, y, x]), out_axes=1)(b[:, None]))(a[:, None])
    assert inner_only.shape == (2, 3, 3)


def test_python_control_flow_on_what_is_not_batched():
    def power(x, n):
        y = x
        while n > 1:
            y, n = y * x, n - 1
        return y if flnb.asarray(n) > 0 else -y

    assert flnb.vmap(power, in_axes=(0, None))(np.array([1.0, 2.0]), flnb.asarray(3)).tolist() == [1.0, 8.0]


@pytest.mark.parametrize(
    "ask", [bool, float, int, lambda x: x.item(), lambda x: x.numpy(), lambda x: x.tolist(), lambda x: [0][x]]
)
def test_the_value_of_a_batched_tensor_is_an_error_that_says_so(ask):
    with pytest.raises(TypeError, match=r"batched tensor \(int64\[\], each of 2 examples\).*flnb\.where\(condition"):
        flnb.vmap(ask)(np.array([1, 0]))


def test_a_mask_per_example_is_an_error():
    with pytest.raises(IndexError, match=r"a mask that differs between examples.*flnb\.where"):
        flnb.vmap(lambda x: x[x > 0.0])(np.ones((2, 3)))


@pytest.mark.parametrize(
    ("arguments", "axes", "error", "text"),
    [
        ((np.ones(3), np.ones(4)), 0, ValueError, r"equal lengths, got \[3, 4\] for leaves \[0, 1\]"),
        ((np.ones(3), 2.0), 0, TypeError, r"leaf 1 of the arguments has shape \(\) and no axis 0.*None in in_axes"),
        ((np.ones(3), np.ones(3)), None, ValueError, "nothing to map over"),
        ((np.ones(3), np.ones(3)), (0,), ValueError, r"in_axes: got 1 entries \(0,\) for 2 values; give one"),
        ((np.ones((3, 2)), np.ones(3)), (2, 0), TypeError, "no axis 2"),
    ],
)
def test_what_cannot_be_mapped(arguments, axes, error, text):
    with pytest.raises(error, match=text):
        flnb.vmap(lambda a, b: a + b, in_axes=axes)(*arguments)


def test_out_axes_none_is_only_for_shared_results():
    with pytest.raises(ValueError, match="out_axes is None for a result that differs"):
        flnb.vmap(lambda a: a, out_axes=None)(np.ones(3))
    with pytest.raises(ValueError, match="out_axes: axis 3 is out of range"):
        flnb.vmap(lambda a: a, out_axes=3)(np.ones(3))


def test_a_variable_made_inside_says_what_to_do():
    with pytest.raises(AttributeError, match=r"use ops of flnb, and flnb\.grad in place of flnb\.Variable"):
        flnb.vmap(lambda a: flnb.Variable(a))(np.ones(3))


def test_each_example_draws_its_own_numbers_like_a_loop():
    rows = np.ones((3, 1000), np.float32)
    flnb.manual_seed(5)
    batched = flnb.vmap(lambda x: flnb.dropout(x, 0.5))(rows)
    flnb.manual_seed(5)
    looped = np.stack([flnb.dropout(flnb.asarray(r), 0.5).numpy() for r in rows])
    np.testing.assert_array_equal(batched.numpy(), looped)
    assert len({tuple(r) for r in looped}) == 3
    nested = flnb.vmap(lambda x: flnb.vmap(lambda y: y + flnb.random.normal((2,)))(np.zeros(4)))(np.zeros(3))
    assert nested.shape == (3, 4, 2)
    assert len(np.unique(nested.numpy())) == 24


def test_writing_in_place_stays_within_each_example():
    def accumulate(x):
        y = flnb.zeros_like(x) + 0.0 * x
        y[0] = x.sum()
        y[1:] += x[1:]
        y *= 2.0
        return y

    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(flnb.vmap(accumulate)(x).numpy(), loop(accumulate, [x], [True]))


def test_per_sample_gradients_of_a_network_equal_a_loop():
    flnb.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 4))
    weights = {name: p.data for name, p in net.named_parameters()}
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(5, 1, 8, 8)).astype(np.float32), np.array([0, 3, 1, 2, 2])

    def loss(w, image, label):
        x = flnb.conv2d(image[None], w["0.weight"], w["0.bias"])
        x = flnb.flatten(flnb.max_pool2d(flnb.relu(x), 2), 1)
        return flnb.cross_entropy(flnb.linear(x, w["4.weight"], w["4.bias"]), label[None])

    got = flnb.vmap(flnb.grad(loss), in_axes=(None, 0, 0))(weights, images, labels)
    for i in range(5):
        net.zero_grad()
        flnb.cross_entropy(net(flnb.asarray(images[i : i + 1])), labels[i : i + 1]).backward()
        for name, p in net.named_parameters():
            np.testing.assert_allclose(got[name].numpy()[i], p.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_a_module_can_be_mapped_and_lends_nothing_to_the_function():
    layer = nn.Linear(3, 2)
    x = np.ones((4, 3), np.float32)
    mapped = flnb.vmap(layer)
    np.testing.assert_allclose(mapped(x).detach().numpy(), layer(flnb.asarray(x)).detach().numpy(), rtol=1e-6)
    assert not hasattr(mapped, "weight")


def test_backward_inside_adds_up_over_the_examples():
    w = flnb.Variable([2.0, 3.0])
    flnb.vmap(lambda x: (w * x).sum().backward() or x)(np.ones((4, 2), np.float32))
    assert w.grad.tolist() == [4.0, 4.0]


def test_a_batched_tensor_looks_like_one_example():
    def look(x):
        assert (x.shape, x.ndim, x.size, len(x), x.dtype) == ((2, 3), 2, 6, 2, np.float32)
        assert repr(x) == "Batched(float32[2,3], each of 4 examples)"
        return [row.sum() for row in x]

    assert [y.shape for y in flnb.vmap(look)(np.ones((4, 2, 3), np.float32))] == [(4,), (4,)]


def test_as_many_ops_for_many_examples_as_for_two():
    def calls(count):
        with flnb.record() as run:
            per_example = flnb.grad(lambda x: flnb.log_softmax(flnb.tanh(x) @ flnb.ones((4, 2)))[0, 0])
            flnb.vmap(per_example)(np.ones((count, 3, 4), np.float32))
        return sum(row.count for row in run.ops)

    assert calls(100) == calls(2)
