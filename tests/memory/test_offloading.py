"""Saved tensors that are elsewhere while they are idle: the schedule, what stays, beside other parts."""

import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flnb
from flnb.memory import Caching, HostDevice, Native, OutOfMemoryError, SimulatedDevice, offload

pytestmark = pytest.mark.usefixtures("nothing_held")

N = 512  # float32[N, N] is 1 MiB
MIB = 1 << 20


def tower(x, layers=6):
    for _ in range(layers):
        x = flnb.tanh(x)
    return x.sum()


def start(value=0.5):
    return flnb.Variable(flnb.full((N, N), value, dtype="float32"))


def live(manager):
    gc.collect()
    return manager.stats()["allocated"]


def test_what_is_idle_moves_and_comes_back_once(manager):
    x = start()
    with offload(keep_last=0) as moves:
        y = tower(x)
        assert (moves.away, moves.back) == (5, 0)  # but for the last: nothing large was computed after it
        assert live(moves.manager) == 5 * MIB
        assert live(manager) == 2 * MIB  # x, and the last
        assert {block.category for block in moves.manager.ledger.live.values()} == {3}  # activations
    assert moves.away == 6  # the block ended
    y.backward()
    assert (moves.away, moves.back, moves.away_bytes, moves.back_bytes) == (6, 6, 6 * MIB, 6 * MIB)
    del y
    assert live(moves.manager) == 0
    assert x.grad.numpy().tobytes() == flnb.grad(tower)(x.data).numpy().tobytes()


def test_what_two_ops_save_moves_once(manager):
    x = start()
    with offload(keep_last=0) as moves:
        y = tower(flnb.exp(flnb.tanh(x)))  # exp's result is the input of tanh; tanh saves its own, exp its own
        z = flnb.exp(flnb.tanh(x) * flnb.exp(x))  # both factors are saved by two ops
        del x
        (y + z.sum()).backward()
    assert moves.away == moves.back
    assert moves.away <= 2 + 6 + 3


def test_what_a_name_or_a_view_still_holds_stays(manager):
    x = start()
    with offload(keep_last=0):
        a = flnb.tanh(x)
        row = flnb.tanh(a).data[0]
        array = flnb.tanh(a).detach().numpy()
        held = {flnb.memory.block_of(h).id for h in (a._data, row._data, array)}
        with flnb.record() as run:
            y = tower(a)
        moved = run.table("transfer")["alloc_id"].tolist()
        assert len(moved) == 5
        assert held.isdisjoint(moved)
        assert row.tolist() == array[0].tolist()
    y.backward()


def test_it_goes_when_the_last_other_reference_goes(manager):
    x = start()
    with offload(keep_last=0) as moves:
        y = flnb.tanh(x)
        holders = [y.data[1:], y.data.T, np.asarray(y.detach()), memoryview(np.asarray(y.detach()))]
        y = flnb.tanh(y)
        while holders:
            y = flnb.tanh(y)
            assert moves.away == 4 - len(holders)  # of the results in between
            holders.pop()
        y = tower(y, 1)
        assert moves.away == 3 + 2  # one more of these, and what was held
    y.backward()


def test_a_locked_block_stays(manager):
    x = start()
    with offload(keep_last=0) as moves:
        y = flnb.tanh(x)
        block = flnb.memory.block_of(y._data)
        manager.user_lock(block)
        y = tower(y, 1)
        assert moves.away == 0
        manager.user_unlock(block)
    assert moves.away == 2


def test_saved_views_come_back_with_their_strides(manager):
    def function(x):
        y = flnb.exp(x)
        return (flnb.tanh(y.T)[::2, 1:] * flnb.reshape(y, (N * 2, N // 2))[:256, :1] * y[:256, ::-1][:, 1:]).sum()

    x = start()
    with offload(keep_last=0) as moves:
        y = function(x)
    y.backward()
    assert moves.back >= 2
    assert x.grad.numpy().tobytes() == flnb.grad(function)(x.data).numpy().tobytes()


@pytest.mark.parametrize(("keep_last", "away"), [(0, 6), (2, 4), (6, 0)])
def test_the_last_saved_stay(manager, keep_last, away):
    with offload(keep_last=keep_last, min_bytes="4KiB") as moves:
        y = tower(start())
    assert moves.away == away
    y.backward()
    assert moves.back == away


def test_small_ones_and_those_not_selected_stay(manager):
    with offload(min_bytes=MIB + 1, keep_last=0) as moves:
        tower(start())
    assert moves.away == 0
    asked = []

    def select(saved):
        asked.append(saved)
        return saved.op == "exp"

    with offload(keep_last=0, select=select) as moves, flnb.scope("block"):
        y = tower(flnb.exp(start()), 2)
    assert moves.away == 1
    assert {(a.op, a.scope, a.shape, a.dtype.name, a.nbytes, a.category) for a in asked} == {
        (op, "block", (N, N), "float32", MIB, "activation") for op in ("exp", "tanh")
    }
    y.backward()


def test_parameters_stay(manager):
    layer = flnb.nn.Linear(N, N)
    with offload(keep_last=0) as moves:
        y = layer(start()).sum()
        del layer
    assert moves.away == 1  # the input
    y.backward()


OPS = {
    "exp": lambda a, b: flnb.exp(a * -0.5),
    "times": lambda a, b: a * b,
    "turned": lambda a, b: flnb.tanh(a.T),
    "halves": lambda a, b: flnb.tanh(flnb.concat([a[:32], b[32:]])),
    "relu": lambda a, b: flnb.relu(a - 0.5),
    "reshaped": lambda a, b: flnb.reshape(flnb.square(flnb.reshape(a, (128, 32))), (64, 64)) + b,
    "block": flnb.checkpoint(lambda a, b: flnb.tanh(a * b) + a),
}


@settings(max_examples=25, deadline=None)
@given(
    program=st.lists(st.tuples(st.sampled_from(sorted(OPS)), *[st.integers(0, 7)] * 2, st.booleans()), max_size=12),
    keep_last=st.integers(0, 3),
    retain=st.booleans(),
)
def test_gradients_of_any_program_are_the_same_and_nothing_is_left(program, keep_last, retain):
    def run(x):
        made = [x]
        for name, i, j, forget in program:
            made.append(OPS[name](made[i % len(made)], made[j % len(made)]))
            if forget:
                made.pop(i % len(made))
        return sum(flnb.mean(m) for m in made)

    with flnb.use_memory_manager(Native(HostDevice("1GiB"))) as manager:
        x = flnb.Variable(flnb.linspace(0.0, 1.0, 64 * 64, dtype="float32").reshape((64, 64)))
        expected = flnb.grad(run)(x.data).numpy().tobytes() if program else None
        before = live(manager)
        with offload(keep_last=keep_last, min_bytes="4KiB") as moves:
            y = run(x)
        for _ in range(1 + retain):
            x.zero_grad()
            y.backward(retain_graph=retain)
            assert expected is None or x.grad.numpy().tobytes() == expected
        del y
        x.zero_grad()
        assert (live(manager), live(moves.manager)) == (before, 0)


def test_tensors_without_memory_stay():
    with flnb.use_backend("meta"), flnb.use_memory_manager(Caching(SimulatedDevice("1GiB"))):
        x = flnb.Variable(flnb.ones((N, N)))
        with offload(keep_last=0) as moves:
            y = tower(x)
        y.backward(flnb.ones(()))
    assert moves.away == 0


# Beside other parts ---------------------------------------------------------------------------------------------------


def test_a_graph_that_is_retained_is_walked_again(manager):
    x = start()
    with offload(keep_last=0) as moves:
        y = tower(x)
    y.backward(retain_graph=True)
    first = x.grad.numpy().copy()
    assert live(manager) <= 4 * MIB  # what came back went again: x, its gradient, the last that came back
    x.zero_grad()
    y.backward()
    assert x.grad.numpy().tobytes() == first.tobytes()
    assert (moves.away, moves.back) == (6, 12)


@pytest.mark.parametrize("tape", ["linked", "arena", "pruning"])
def test_second_derivatives_on_every_tape(manager, tape):
    x = flnb.full((N, N), 0.5, dtype="float32")
    expected = flnb.hvp(tower, x, x)
    with flnb.use_tape(tape), offload(keep_last=0) as moves:
        got = flnb.hvp(tower, x, x)
    assert got.numpy().tobytes() == expected.numpy().tobytes()
    assert moves.away > 6
    assert moves.back > 6


def test_checkpoints_inside(manager):
    x = start()
    with offload(keep_last=0) as moves:
        y = flnb.tanh(flnb.checkpoint(tower)(flnb.tanh(x)) * flnb.tanh(x)).sum()
        y.backward()
    expected = flnb.grad(lambda x: flnb.tanh(tower(flnb.tanh(x)) * flnb.tanh(x)).sum())(x.data)
    assert moves.back >= 1
    assert x.grad.numpy().tobytes() == expected.numpy().tobytes()


def test_the_innermost_block_holds(manager):
    packed = []
    with offload(keep_last=0) as outer:
        with flnb.saved_tensors_hooks(lambda t: packed.append(t.shape) or t, lambda t: t):
            y = flnb.tanh(start())
        with offload(keep_last=0) as inner:
            y = tower(y, 2)
    assert packed == [(N, N)]
    assert (outer.away, inner.away) == (0, 2)
    y.backward()


def test_nothing_is_kept_without_gradients(manager):
    with offload(keep_last=0) as moves, flnb.no_grad():
        tower(start())
    assert moves.away == 0


def test_an_exception_leaves_nothing_behind(manager):
    before = live(manager)
    with pytest.raises(RuntimeError, match="in between"), offload(keep_last=0) as moves:
        tower(start())
        y = tower(start())
        assert moves.away
        raise RuntimeError("in between")
    del y
    assert (live(manager), live(moves.manager)) == (before, 0)


def test_memory_that_runs_out_on_the_way_leaves_the_graph_as_it_was():
    x = flnb.Variable(flnb.full((N, N), 0.5, dtype="float32"))
    with flnb.use_memory_manager(Native(HostDevice("8MiB"))) as manager, offload(keep_last=0) as moves:
        y = tower(x, 12)
        hog = [flnb.ones((N, N)) for _ in range(6)]
        with pytest.raises(OutOfMemoryError) as caught:
            y.backward(retain_graph=True)
        caught.value.__traceback__ = None
        del hog, caught
        y.backward()
    assert x.grad.numpy().tobytes() == flnb.grad(lambda x: tower(x, 12))(x.data).numpy().tobytes()
    x.zero_grad()
    del y
    assert (live(manager), live(moves.manager)) == (0, 0)


def test_a_full_host_says_so(manager):
    with (
        pytest.raises(OutOfMemoryError, match=r"native on host: out of memory: asked for 1\.00 MiB"),
        offload(Native(HostDevice("2MiB")), keep_last=0),
    ):
        tower(start())


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("hooks", ["offload", "as they are"])
def test_what_was_written_in_place_still_raises(manager, hooks, late):
    block = offload(keep_last=0) if hooks == "offload" else flnb.saved_tensors_hooks(lambda t: t, lambda t: t)
    x = start()
    with block:
        h = flnb.exp(x)
        view = h.data[0]
        y = tower(h)
        view += 1.0
        if late:
            del h, view  # it moves after it was written
            y = y + tower(x)
    with pytest.raises(
        RuntimeError, match=r"(input 0|output) of '(exp|tanh)'.* was saved for the gradient and then wri"
    ):
        y.backward()


def test_a_write_through_a_view_that_is_older_than_the_saving_is_found_after_both_are_gone(manager):
    x = start()
    with offload(keep_last=0):
        h = x * 2.0
        view = h.data[0]
        y = flnb.tanh(flnb.square(h))
        view += 1.0
        del h, view
        y = y.sum() + tower(x)
    with pytest.raises(RuntimeError, match=r"input 0 of 'square'.* was saved for the gradient and then written"):
        y.backward()


def test_writing_to_what_moved_is_not_possible_and_to_others_allowed(manager):
    x = start()
    with offload(keep_last=0):
        y = tower(x)
    flnb.add(flnb.ones((4,)), 1.0, out=flnb.zeros((4,)))  # a later write makes every node check
    y.backward()
    assert x.grad is not None


def test_managers_to_move_to(manager):
    target = Native(HostDevice("64MiB"))
    with offload(target, keep_last=0) as moves:
        y = tower(start())
    assert moves.manager is target
    assert live(target) == 6 * MIB
    with offload(HostDevice("64MiB"), keep_last=0) as moves:
        del y
    assert moves.manager.device.capacity == 64 * MIB
    with pytest.raises(ValueError, match=r"offload: .* is on the device that tensors are on"), offload(manager):
        pass
    with (
        pytest.raises(ValueError, match=r"keep_last, the number of idle blocks to keep, must be 0 or more, got -1"),
        offload(keep_last=-1),
    ):
        pass
