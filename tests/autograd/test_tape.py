"""The tape: what backward gives, what it frees, and what it refuses."""

import gc
import pickle
import sys
from copy import deepcopy

import numpy as np
import pytest

import flnb
from flnb.autograd.tape import grad_of
from flnb.dispatch.tracing import Traced


def variable(*shape, dtype="float64", seed=0):
    return flnb.Variable(np.random.default_rng(seed).normal(size=shape).astype(dtype))


def test_gradients_add_up_over_backwards_and_zero_grad_forgets():
    x = flnb.Variable([1.0, 2.0])
    for _ in range(2):
        (x * x).sum().backward()
    assert x.grad.tolist() == [4.0, 8.0]
    x.zero_grad()
    assert x.grad is None


def test_a_leaf_used_many_times_gets_the_sum():
    x = flnb.Variable(np.array(3.0))
    y = x
    for _ in range(5):
        y = y + x
    y.backward()
    assert x.grad.item() == 6.0


def test_gradient_of_a_sum_of_two_branches_is_not_written_twice():
    x = flnb.Variable([1.0, 1.0])
    a = x + 1.0
    b = a + 1.0
    (a + b + a).sum().backward()  # the same cotangent tensor reaches several nodes
    assert x.grad.tolist() == [3.0, 3.0]


def test_second_derivative_from_the_theano_paper():
    second = flnb.grad(flnb.grad(lambda x: x * flnb.exp(x)))
    assert second(flnb.asarray(1.0, dtype="float64")).item() == pytest.approx(8.15485, abs=1e-5)


def test_create_graph_gives_gradients_that_can_be_differentiated():
    x = flnb.Variable(np.array(2.0))
    (x * x * x).backward(create_graph=True)
    first = x.grad
    x.grad = None
    first.backward()
    assert (first.item(), x.grad.item()) == (12.0, 12.0)


def test_second_backward_is_an_error_that_names_the_op_and_retain_graph():
    x = flnb.Variable([1.0])
    y = flnb.tanh(x * 2.0).sum()
    y.backward()
    with pytest.raises(RuntimeError, match=r"graph through 'sum' was freed by an earlier backward.*retain_graph=True"):
        y.backward()


def test_retain_graph_allows_a_second_backward():
    x = flnb.Variable([1.0])
    y = flnb.tanh(x).sum()
    y.backward(retain_graph=True)
    once = x.grad.item()
    y.backward()
    assert x.grad.item() == pytest.approx(2 * once)


def test_backward_needs_a_scalar_or_a_cotangent():
    x = flnb.Variable([1.0, 2.0])
    with pytest.raises(RuntimeError, match=r"starts from one number, this Variable has shape \(2,\); reduce it first"):
        (x * 2.0).backward()
    (x * 2.0).backward([1.0, 10.0])
    assert x.grad.tolist() == [2.0, 20.0]
    with pytest.raises(ValueError, match=r"grad must have the Variable's shape \(2,\), got \(3,\)"):
        (x * 2.0).backward([1.0, 1.0, 1.0])


def test_backward_without_a_graph_says_why():
    with pytest.raises(RuntimeError, match="does not require grad"):
        flnb.Variable([1.0], requires_grad=False).sum().backward()
    x = flnb.Variable([1.0])
    with flnb.no_grad():
        y = (x * 2.0).sum()
    assert not y.requires_grad
    with pytest.raises(RuntimeError, match=r"no_grad\(\) or detached"):
        y.backward()


def test_in_place_write_to_a_saved_tensor_is_found():
    x = flnb.Variable([1.0, 2.0])
    y = flnb.tanh(x)
    with flnb.no_grad():
        y += 1.0
    with pytest.raises(RuntimeError, match=r"the output of 'tanh', float32\[2\], was saved .* written in place"):
        y.sum().backward()
    w = flnb.Variable([3.0, 4.0])
    z = (x * w).sum()
    with flnb.no_grad():
        w *= 2.0
    with pytest.raises(RuntimeError, match=r"input 1 of 'multiply', float32\[2\]"):
        z.backward()


def test_in_place_write_through_a_view_is_found():
    x, w = flnb.Variable([1.0, 2.0]), flnb.asarray([3.0, 4.0])
    z = (x * w).sum()
    w[0:1] = 9.0
    with pytest.raises(RuntimeError, match="written in place"):
        z.backward()


def test_new_data_for_a_saved_variable_is_found():
    x = flnb.Variable([1.0, 2.0])
    z = (x * x).sum()
    x.data = flnb.asarray([7.0, 7.0])
    with pytest.raises(RuntimeError, match=r"input 0 of 'multiply', float32\[2\], was saved .* written in place"):
        z.backward()
    (x * x).sum().backward()
    assert x.grad.tolist() == [14.0, 14.0]


def test_in_place_write_to_an_unsaved_tensor_is_fine():
    x = flnb.Variable([1.0, 2.0])
    y = x + 1.0
    with flnb.no_grad():
        y += 1.0
    y.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]


def test_in_place_on_a_leaf_while_recording_is_an_error_with_the_remedy():
    x = flnb.Variable([1.0])
    with pytest.raises(RuntimeError, match=r"wrap the update in `with flnb.no_grad\(\):`"):
        x += 1.0
    with pytest.raises(RuntimeError, match="no_grad"):
        flnb.add(x, 1.0, out=x)
    with pytest.raises(RuntimeError, match="no_grad"):
        x[0] = 2.0


def test_augmented_assignment_to_a_result_rebinds_the_name():
    x = flnb.Variable([1.0, 2.0])
    y = x * 2.0
    kept = y
    y += x
    y.sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]
    assert kept.tolist() == [2.0, 4.0]


def test_a_long_chain_neither_recurses_nor_leaks():
    limit = sys.getrecursionlimit()
    x = flnb.Variable(np.array(1.0))
    y = x
    for _ in range(20 * limit):
        y = y + 1.0
    y.backward()
    assert x.grad.item() == 1.0
    y = x
    for _ in range(20 * limit):
        y = y * 1.0
    del y  # a tape never walked back goes with its Variable, without recursion


def live_variables():
    """Tensors that exist, but for those without values in the traces that plans keep."""
    return sum(isinstance(o, flnb.Tensor) and type(o) is not Traced for o in gc.get_objects())


@pytest.mark.usefixtures("no_collector")
def test_reference_counting_alone_frees_a_tape():
    x, w = variable(8, 8), variable(8, 8, seed=1)
    for _ in range(3):  # signature caches fill
        flnb.relu(flnb.softmax(flnb.tanh(x @ w), 1)).sum().backward()
    before = live_variables()
    for backward in (False, True):
        y = flnb.cross_entropy(flnb.relu(flnb.tanh(x @ w)), flnb.asarray([0] * 8))
        if backward:
            y.backward()
        del y
    x.grad = w.grad = None
    assert live_variables() <= before


@pytest.mark.usefixtures("no_collector")
def test_backward_frees_what_nodes_saved_while_the_result_lives():
    x = variable(64, 64)
    manager = flnb.memory.Caching()
    with flnb.use_memory_manager(manager):
        y = x
        for _ in range(10):
            y = flnb.tanh(y)
        loss = y.sum()
        del y
        held = manager.stats()["allocated"]
        loss.backward()
        assert held >= 10 * x.nbytes
        assert manager.stats()["allocated"] <= x.nbytes + 512  # the gradient


@pytest.mark.usefixtures("no_collector")
def test_ten_thousand_forwards_without_backward_do_not_grow_memory():
    x, w = variable(16, 16), variable(16, 16, seed=1)
    manager = flnb.memory.Caching()
    with flnb.use_memory_manager(manager):
        for _ in range(10):
            flnb.tanh(x @ w).sum()
        objects, allocated = len(gc.get_objects()), manager.stats()["allocated"]
        for _ in range(10_000):
            flnb.tanh(x @ w).sum()
        assert manager.stats()["allocated"] <= allocated
        assert len(gc.get_objects()) - objects < 100


def test_no_grad_leaves_no_tape():
    x = flnb.Variable([1.0, 2.0])
    lengths = []
    for recording in (flnb.enable_grad(), flnb.no_grad()):
        with flnb.record() as run, recording:
            flnb.softmax(flnb.tanh(x) * x).sum()
        lengths.append(len(run.tape.nodes))
    assert lengths == [4, 0]


def test_no_grad_and_enable_grad_nest_and_decorate():
    x = flnb.Variable([1.0])

    @flnb.no_grad()
    def frozen():
        with flnb.enable_grad():
            assert (x * 2.0).requires_grad
        return x * 2.0

    assert not frozen().requires_grad
    assert flnb.is_grad_enabled()
    with pytest.raises(ZeroDivisionError), flnb.no_grad():
        raise ZeroDivisionError
    assert flnb.is_grad_enabled()


def test_ops_without_a_gradient_leave_the_tape():
    x = flnb.Variable([1.0, 2.0])
    assert not (x > 1.0).requires_grad
    assert not flnb.argmax(x).requires_grad


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_no_gradient_flows_through_a_cast_to_integers(dtype):
    x = flnb.Variable([1.5, 2.5])
    rounded = x.astype(getattr(flnb, dtype))
    assert not rounded.requires_grad
    (rounded.astype(flnb.float32) * x).sum().backward()
    assert x.grad.tolist() == rounded.astype(flnb.float32).tolist()
    assert x.astype(flnb.float64).requires_grad


def test_only_floating_point_variables_require_grad():
    with pytest.raises(TypeError, match=r"this one is int64\[2\]; cast it with \.astype"):
        flnb.Variable([1, 2])
    assert not flnb.Variable([1, 2], requires_grad=False).requires_grad


def test_a_new_leaf_does_not_silently_cut_what_it_is_made_from():
    x = flnb.Variable([1.0])
    for data in (x, x * 2.0, [x, x]):
        with pytest.raises(RuntimeError, match=r"Variable: the data requires grad.*Variable\(x\.detach\(\)\)"):
            flnb.Variable(data)
    assert flnb.Variable(x.detach()).requires_grad
    assert not flnb.Variable(x, requires_grad=False).requires_grad


def test_numpy_refuses_to_drop_a_gradient():
    x = flnb.Variable([1.0])
    for convert in (np.asarray, lambda v: v.numpy()):
        with pytest.raises(RuntimeError, match=r"use \.detach\(\)\.numpy\(\)"):
            convert(x)
    assert x.detach().numpy().tolist() == [1.0]
    assert float(x) == 1.0


def test_detach_shares_memory_and_cuts():
    x = flnb.Variable([1.0, 2.0])
    d = x.detach()
    d[0] = 5.0
    assert x.tolist() == [5.0, 2.0]
    assert not (d * 2.0).requires_grad


def test_copies_and_pickles():
    x = flnb.Variable([1.0, 2.0])
    x.name = "w"
    (x * x).sum().backward()
    for twin in (deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert twin.tolist() == [1.0, 2.0]
        assert twin.requires_grad
        assert twin.name == "w"
    assert deepcopy(x).grad.tolist() == [2.0, 4.0]
    with pytest.raises(RuntimeError, match="only leaves can be deep-copied"):
        deepcopy(x * 2.0)


def test_grad_of_leaves_other_gradients_alone():
    x, w = flnb.Variable([2.0]), flnb.Variable([3.0])
    (g,) = grad_of((x * w).sum(), [x])
    assert g.tolist() == [3.0]
    assert x.grad is None
    assert w.grad is None


def test_value_and_grad_of_several_arguments():
    value, (gx, gy) = flnb.value_and_grad(lambda x, y: (x * y).sum(), (0, 1))(flnb.asarray([2.0]), flnb.asarray([3.0]))
    assert (value.item(), gx.tolist(), gy.tolist()) == (6.0, [3.0], [2.0])


def test_interrupted_backward_leaves_everything_usable():
    class Interrupts(flnb.backends.NumpyBackend):
        left = 3

        def multiply(self, a, b, out=None):
            Interrupts.left -= 1
            if Interrupts.left == 0:
                raise KeyboardInterrupt
            return super().multiply(a, b, out)

    x = flnb.Variable([1.0, 2.0])
    with flnb.use_backend(Interrupts), pytest.raises(KeyboardInterrupt):
        y = (x * x * x).sum()
        y.backward()
    assert flnb.is_grad_enabled()
    assert x.grad is None
    (x * x).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]


def test_gradient_statistics_of_a_sampled_backward():
    from flnb.autograd.statistics import measure

    assert measure(np.array([3.0, 4.0])) == (5.0, 0, 2)
    assert measure(np.array([3.0 + 4.0j])) == (5.0, 0, 1)
    large = np.array([1e30, 1e30], np.float32)
    assert measure(large) == (pytest.approx(2**0.5 * 1e30), 0, 2)  # its square overflows float32, it is finite
    norm, bad, size = measure(np.array([1.0, float("nan"), float("inf")]))
    assert np.isnan(norm)
    assert (bad, size) == (2, 3)
    assert measure(np.zeros((0,))) == (0.0, 0, 0)


def test_gradients_that_are_views_are_copied_one_at_a_time():
    with flnb.use_memory_manager("native") as manager:
        weights = [flnb.Variable(flnb.full((64, 64), 0.01)) for _ in range(8)]
        x = flnb.ones((1, 64))
        for w in weights:
            x = x @ w.T  # the gradient of w is a transposed product
        y = x.sum()
        before = manager.stats()["allocated"]
        manager.ledger.peak = before
        y.backward()
        assert manager.stats()["peak_allocated"] - before <= (len(weights) + 2) * weights[0].nbytes


def test_every_leaf_has_a_gradient_of_its_own():
    a, b, w = flnb.Variable([1.0, 2.0]), flnb.Variable([3.0, 4.0]), flnb.Variable(np.ones((2, 2), np.float32))
    cotangent = flnb.asarray([1.0, 1.0])
    (a + b + w.T.sum(axis=0)).backward(cotangent)
    a.grad *= 10.0
    w.grad[0, 0] = 7.0
    assert cotangent.tolist() == [1.0, 1.0]
    assert b.grad.tolist() == [1.0, 1.0]
    assert w.grad.tolist() == [[7.0, 1.0], [1.0, 1.0]]


def test_gradients_of_results_in_the_middle_of_the_tape():
    x = flnb.Variable([2.0])
    middle = x * 3.0
    (g,) = grad_of((middle * middle).sum(), [middle])
    assert g.tolist() == [12.0]
    (itself,) = grad_of(middle, [middle])
    assert itself.tolist() == [1.0]


def test_values_set_to_a_view_of_themselves_leave_the_record_of_writes_without_a_circle():
    y = flnb.Variable([1.0, 2.0]) + 1.0
    y.data = y.data
    z = y * y
    flnb.assign(y.data, 0.0)
    assert y._last_write > 0
    with pytest.raises(RuntimeError, match="written in place"):
        z.sum().backward()
