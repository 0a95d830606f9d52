"""Running one op apart from its program."""

import numpy as np
import pytest

import flnb
from flnb.dispatch import registry
from flnb.explore import compare_op, run_op, tensor
from flnb.explore.calls import NEW, OpCall, digest
from flnb.explore.layout import keep

NUMPY = registry.make("backend", "numpy")


def test_a_tensor_shares_the_array_and_its_strides():
    array = np.arange(6.0).reshape(2, 3).T
    assert tensor(array).numpy() is array


def test_what_is_no_array_or_no_op_is_said():
    with pytest.raises(TypeError, match=r"explore\.tensor: expected a NumPy array, got int; use flnb\.asarray"):
        tensor(3)
    with pytest.raises(KeyError, match=r"compare_op: there is no op 'wrong'; the ops are .*add, "):
        compare_op("wrong", [np.ones(2)])


@pytest.mark.parametrize(
    ("name", "inputs", "options", "expected"),
    [
        ("add", [np.ones(2), np.ones(2)], {}, [2.0, 2.0]),
        ("sum", [np.ones((2, 3))], {"attributes": ((1,), False)}, [3.0, 3.0]),
        ("full", [], {"attributes": (2.5,), "result": ((2,), "float32")}, [2.5, 2.5]),
        ("concat", [np.ones(1), np.zeros(1)], {"attributes": (0,)}, [1.0, 0.0]),
    ],
)
def test_any_op_of_the_table_runs_by_name(name, inputs, options, expected):
    assert run_op(name, *inputs, **options).tolist() == expected


def test_an_unknown_op_is_named_with_those_there_are():
    with pytest.raises(KeyError, match="there is no op 'summ'; the ops are abs, "):
        run_op("summ", np.ones(2))


def test_random_ops_draw_the_recorded_numbers():
    source = np.random.default_rng(4)
    call = OpCall("random_normal", (), (0.0, 1.0, source), NEW, ((3,), np.dtype("float64")))
    first, second = call.on(NUMPY), call.on(NUMPY)
    assert first.value.tolist() == second.value.tolist() == np.random.default_rng(4).normal(size=3).tolist()


def test_an_input_written_in_place_is_no_corruption_and_another_one_is():
    class Writing(flnb.backends.NumpyBackend):
        def add(self, a, b, out=None):
            b += 1
            return np.add(a, b, out)

    kept = keep(np.ones(3)), keep(np.ones(3))
    assert OpCall("add", kept, (), 0).on(NUMPY).written == -1
    assert OpCall("add", kept, (), 0).on(Writing()).written == 1


def test_digests_tell_bits_shapes_and_dtypes_apart():
    values = [np.zeros(2), -np.zeros(2), np.zeros((2, 1)), np.zeros(2, np.float32), np.array([0.0, 5e-324])]
    assert len({digest(v) for v in values}) == len(values)
    assert digest(flnb.zeros((2,))) == digest(np.zeros(2, np.float32))


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (lambda x: x + 0.1, "largest error 1.00e-01"),
        (lambda x: np.where(x > 1, np.nan, x), "NaN or infinity differs in 1 of 2 values; at [1] nan"),
        (lambda x: x[:1], r"returned float64[1], expected float64[2]"),
        (lambda x: x.astype(np.float32), "returned float32[2], expected float64[2]"),
        (lambda x: x * (1 + 1e-15), "no difference"),
    ],
)
def test_differences_say_what_is_wrong(result, text):
    class Other(flnb.backends.NumpyBackend):
        def copy(self, x, out=None):
            return result(x)

    assert text in str(compare_op("copy", [np.array([1.0, 2.0])], backends=["numpy", Other]))


def test_a_sum_that_cancels_may_be_rounded_otherwise():
    class Reversed(flnb.backends.NumpyBackend):
        def sum(self, x, axes, keepdims, out=None):
            return np.asarray(sum(x[::-1].tolist()))

    values = np.array([1.0, 1e-9, 3.0, -4.0])
    assert not compare_op("sum", [values], ((0,), False), ["numpy", Reversed])
