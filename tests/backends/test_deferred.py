"""The deferred backend runs each recorded op later, at most once, with results equal to the last bit."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flnb
from flnb import models, nn, optim
from flnb.testing import check_backend

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def events(run: flnb.Recording, kind: str) -> list[str]:
    """Names of the ops of a kind of events, in order."""
    return [run.catalog.plans.items[plan].op for plan in run.table(kind)["plan"].tolist()]


def test_the_conformance_kit_passes() -> None:
    report = check_backend("deferred")
    assert report, report
    assert len(report.results) > 150


def test_nothing_is_computed_or_allocated_before_a_value_is_asked_for() -> None:
    with flnb.use_backend("deferred"), flnb.record() as run:
        x = flnb.asarray(X)
        begun = len(run.table("alloc")["t"]), events(run, "op")
        y = flnb.sum(flnb.exp(x) * 2.0, axis=0)
        assert (len(run.table("alloc")["t"]), events(run, "op")) == begun
        assert events(run, "record")[-3:] == ["exp", "multiply", "sum"]
        np.testing.assert_allclose(y.numpy(), (np.exp(X) * 2).sum(0), rtol=1e-6)
        assert events(run, "op")[-3:] == ["exp", "multiply", "sum"]
        assert run.table("materialize")["count"].tolist()[-1:] == [3]


def test_what_is_not_needed_is_not_computed_and_nothing_is_computed_twice() -> None:
    with flnb.use_backend("deferred"), flnb.record() as run:
        x = flnb.exp(flnb.asarray(X))
        flnb.tanh(x)
        for y in (x + 1.0, x + 2.0):
            y.numpy()
    assert "tanh" in events(run, "record")
    assert [op for op in events(run, "op") if op in ("exp", "tanh", "add")] == ["exp", "add", "add"]


def test_ops_run_in_the_scope_and_phase_in_which_they_were_recorded() -> None:
    with flnb.use_backend("deferred"), flnb.record() as run:
        layer = nn.Linear(4, 2)
        loss = (layer(flnb.asarray(X)) ** 2).sum()
        loss.backward()
        optim.SGD(layer.parameters(), lr=0.1).step()
    ran = {row.key for row in run.ops.by("scope", "phase")}
    assert {phase for _, phase in ran} >= {"backward", "optimizer"}
    assert ("linear", "other") in ran  # that an op is of a forward pass is known by its node, which `record` tells


def loop(x: Any) -> Any:
    y = flnb.softmax(flnb.exp(x * 0.1) + 2.0, 0)
    return flnb.tanh(y * 3.0 + x) - flnb.sum(y, axis=1, keepdims=True)


@pytest.mark.parametrize("fuse", [False, True])
def test_what_is_recorded_again_is_computed_by_a_program(fuse: bool) -> None:
    with flnb.use_backend(flnb.backends.DeferredBackend("numpy", fuse=fuse)), flnb.record() as run:
        got = [loop(flnb.asarray(X + i)).numpy() for i in range(5)]
    assert len(run.table("compile")["t0"]) == 1
    assert len(run.table("materialize")["t0"]) == 5
    assert len(run.table("kernel")["t0"]) == (12 if fuse else 0)
    for i, y in enumerate(got):
        np.testing.assert_allclose(y, loop(flnb.asarray(X + i)).numpy(), rtol=2e-6, atol=1e-6)


def test_numbers_that_change_are_read_in_each_run() -> None:
    with flnb.use_backend("deferred"), flnb.record() as run:
        x = flnb.asarray(X)
        for i in range(12):
            lr = [0.5, 0.5, 0.5, 0.25, -0.0, 0.0][i % 6]
            y = flnb.exp(x * 0.5) * 2.0 + 1.0 / (flnb.tanh(x) * 0.0 + lr + 1.0) + x * lr
            np.testing.assert_allclose(y.numpy(), np.exp(X * 0.5) * 2 + 1 / (lr + 1) + X * lr, rtol=1e-5)
    assert 2 <= len(run.table("compile")["t0"]) <= 3


def test_batches_that_are_slices_are_computed_by_one_program() -> None:
    data = np.arange(240, dtype=np.float32).reshape(60, 4) / 240
    with flnb.use_backend("deferred"), flnb.record() as run:
        x = flnb.asarray(data)
        for i in range(0, 60, 6):
            np.testing.assert_allclose(
                loop(x[i : i + 6]).numpy(), loop(flnb.asarray(data[i : i + 6])).numpy(), rtol=1e-6
            )
    assert len(run.table("compile")["t0"]) == 1


def test_what_is_still_referred_to_is_computed_too_and_only_what_is_asked_for() -> None:
    with flnb.use_backend("deferred"):
        for i in range(5):
            x = flnb.asarray(X + i)
            y = flnb.softmax(x, 1) + 1.0
            z, other = flnb.tanh(y) * y + x, flnb.exp(y)
            dead = z * 2.0
            view = dead.T
            del dead
            z.numpy()
            assert y._data.value.tensor is not None
            assert other._data.value.tensor is None
            np.testing.assert_allclose(other.numpy(), np.exp(y.numpy()), rtol=1e-6)
            np.testing.assert_allclose(view.numpy(), 2 * z.numpy().T)


VIEWS = (
    lambda x: x[1:], lambda x: x[:, ::2], lambda x: x.T, lambda x: flnb.flip(x), lambda x: x[0],
    lambda x: x.reshape((-1,)), lambda x: flnb.broadcast_to(x, (2, *x.shape)),
)  # fmt: skip
WRITES = ("add", "assign", "part", "exp")


def write(x: Any, how: str, number: float) -> None:
    if how == "add":
        x += number
    elif how == "assign":
        flnb.assign(x, number)
    elif how == "part" and x.ndim:
        x[..., 0] = number
    else:
        flnb.multiply(x, number, out=x)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.sampled_from(["view", "op", "read", *WRITES]), st.integers(0, 6)), max_size=14
    )
)
def test_views_and_writes_in_any_order_give_the_same_as_at_once(steps: list[tuple[int, str, int]]) -> None:
    def run() -> list[Any]:
        made, shared = [flnb.asarray(X)], {0: False}  # whether elements may share memory: such are not written
        rows = {0: True}  # whether elements lie row by row in every mode; else a reshape may be a view or a copy
        for which, what, number in steps:
            at = which % len(made)
            x = made[at]
            possible = x.ndim > 0 and x.size and (number not in (1, 2) or x.ndim == 2) and (number != 5 or rows[at])
            if what == "view" and possible and x.shape[0] > 1:
                rows[len(made)] = number == 5
                shared[len(made)] = shared[at] or number == len(VIEWS) - 1
                made.append(VIEWS[number](x))
            elif what == "op":
                shared[len(made)], rows[len(made)] = False, rows[at]
                made.append(x * 2.0 + number)
            elif what == "read":
                x.numpy()
            elif what in WRITES and not shared[at]:
                write(x, what, float(number))
        return [x.numpy().copy() for x in made]

    expected = run()
    with flnb.use_backend("deferred"):
        got = run()
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_array_equal(a, b)


def trained(backend: Any, name: str, steps: int = 3) -> list[Any]:
    flnb.manual_seed(0)
    recipe = models.get(name)
    with flnb.use_backend(backend):
        model = recipe.build("small")
        batch = [flnb.asarray(array) for array in recipe.batch("small", size=2)]
        optimizer = optim.Adam(model.parameters())
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = recipe.loss(model, *batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [x.numpy().copy() for x in (*losses, *[p.data for p in model.parameters()])]


@pytest.mark.parametrize("name", models.names())
def test_training_gives_the_bits_of_the_backend_below(name: str) -> None:
    deferred = flnb.backends.DeferredBackend("numpy", fuse=False)
    for a, b in zip(trained("numpy", name, 4), trained(deferred, name, 4), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("op", ["add", "multiply", "exp", "matmul"])
def test_an_overridden_op_is_called_as_often_as_without_deferring(op: str) -> None:
    calls: list[str] = []
    numpy = flnb.backends.NumpyBackend()

    def counted(self: Any, *arguments: Any) -> Any:
        calls.append(op)
        return getattr(numpy, op)(*arguments)

    Counting = type("Counting", (flnb.backends.NumpyBackend,), {op: counted})
    expected = trained(Counting, "vit", 2)
    eager, calls[:] = len(calls), []
    got = trained(flnb.backends.DeferredBackend(Counting), "vit", 2)
    assert len(calls) == eager > 0
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_array_equal(a, b)


def test_memory_lives_as_long_as_without_deferring() -> None:
    def peak(backend: str) -> int:
        with flnb.use_backend(backend), flnb.use_memory_manager(flnb.memory.Caching()) as manager:
            x = flnb.ones((1 << 16,))
            for _ in range(20):
                x = flnb.sin(x)
            x.numpy()
            found: int = manager.stats()["peak_allocated"]
        return found

    assert peak("deferred") == peak("numpy")


def test_a_branch_on_a_value_computes_it() -> None:
    with flnb.use_backend("deferred"):
        x = flnb.asarray([1.0, -2.0])
        assert bool((flnb.sum(x) < 0).item())
        assert x[x < 0].tolist() == [-2.0]


def test_threads_share_what_was_recorded() -> None:
    with flnb.use_backend("deferred"):
        x = flnb.exp(flnb.asarray(X))
        found: list[Any] = []

    def read(number: float) -> None:
        with flnb.use_backend("deferred"):
            found.append((number, (x + number).numpy()))

    threads = [threading.Thread(target=read, args=(float(i),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    for number, y in found:
        np.testing.assert_allclose(y, np.exp(X) + number, rtol=1e-6)


def test_a_loop_that_reads_nothing_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    from flnb_backends.tensor import deferred

    monkeypatch.setattr(deferred, "LONGEST", 50)
    with flnb.use_backend("deferred") as backend:
        x, kept = flnb.zeros(3), []
        for i in range(500):
            x = flnb.relu(x + 1.0)
            kept += [x] if i % 5 == 0 else []
        assert sum(map(len, backend.waiting.values())) <= 51
        assert kept[0]._data.value.tensor is not None
        assert x.tolist() == [500.0] * 3


def test_gradients_can_be_differentiated_again() -> None:
    with flnb.use_backend("deferred"):
        assert flnb.grad(flnb.grad(lambda x: flnb.exp(2.0 * x)))(flnb.asarray(0.0)).item() == pytest.approx(4.0)


def test_the_tape_shows_recorded_ops() -> None:
    with flnb.use_backend("deferred"), flnb.record(grad_interval=0.0) as run:
        x = flnb.Variable(flnb.asarray(X))
        flnb.sum(flnb.tanh(x) * x).backward()
        x.grad.numpy()
    assert [node.op for node in run.tape.nodes] == ["tanh", "multiply", "sum"]


def test_what_is_recorded_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with flnb.use_backend("deferred"):
        x = flnb.asarray(X)
        y = flnb.softmax(x, 1)
        y[0] = 2.0
        flnb.graph.dprint(y)
        y.numpy()
        flnb.graph.dprint(y)
    assert capsys.readouterr().out.splitlines() == [
        "%1 = float32[3,4], computed",
        "%2 = softmax(%1, 1)  # float32[3,4]",
        "%3 = %2[0]  # float32[3,4]",
        "%4 = 2.0",
        "%5 = broadcast_to(%4, (4,))  # float32[4]",
        "%6 = copy(%5)  # float32[4]",
        "%7 = put(%3, %6, slice((0, ('slice', None, None, None))))  # float32[3,4]",
        "%1 = float32[3,4], computed",
    ]
    with pytest.raises(TypeError, match="dprint: expected a tensor of the backend 'deferred', got float32"):
        flnb.graph.dprint(flnb.ones(2))


def test_ops_of_a_backend_called_without_a_buffer_to_write_to() -> None:
    report = flnb.compare_backends(
        lambda: flnb.asarray(X) * 2.0 + flnb.softmax(flnb.asarray(X), 1), ("numpy", "deferred")
    )
    assert report, report


def test_memory_comes_from_the_manager_that_was_active_when_the_op_was_recorded() -> None:
    with flnb.use_backend("deferred"):
        with flnb.use_memory_manager(flnb.memory.Caching()) as manager:
            y = flnb.ones((1 << 16,)) + 1.0
        assert y[0].item() == 2.0
        assert manager.stats()["peak_allocated"] >= 1 << 18


def test_a_view_that_was_read_does_not_keep_what_was_overwritten() -> None:
    with flnb.use_backend("deferred"), flnb.use_memory_manager(flnb.memory.Caching()) as manager:
        x = flnb.ones((1 << 18,))
        view = x[1:]
        view.numpy()
        flnb.assign(x, 2.0)
        x.numpy()
        assert view[0].item() == 2.0
        assert manager.stats()["allocated"] == 1 << 20


def test_a_whole_update_of_the_backend_below_is_not_asked_for() -> None:
    class Whole(flnb.backends.NumpyBackend):
        def sgd_update(self, *arguments: Any) -> None:
            raise AssertionError("called with buffers of another backend")

    with flnb.use_backend(flnb.backends.DeferredBackend(Whole)):
        layer = nn.Linear(4, 2)
        layer(flnb.asarray(X)).sum().backward()
        optim.SGD(layer.parameters(), lr=0.1).step()


def test_a_view_of_a_thousand_views() -> None:
    with flnb.use_backend("deferred"):
        x = flnb.asarray(X)
        for _ in range(2000):
            x = x.T
        np.testing.assert_array_equal(x.numpy(), X)


@pytest.mark.parametrize("tape", ["arena", "pruning", "prefused"])
def test_other_tapes(tape: str) -> None:
    with flnb.use_backend("deferred"), flnb.use_tape(tape):
        x = flnb.Variable(X)
        flnb.sum(flnb.tanh(x) * 2.0).backward()
        np.testing.assert_allclose(x.grad.numpy(), 2 * (1 - np.tanh(X) ** 2), rtol=1e-5)


def test_a_loop_goes_on_with_data_and_a_network_that_were_made_before() -> None:
    def trained(move: bool) -> list[float]:
        flnb.manual_seed(0)
        net = flnb.nn.Sequential(flnb.nn.Linear(4, 8), flnb.nn.ReLU(), flnb.nn.Linear(8, 3))
        x, labels = flnb.random.normal((16, 4)), flnb.asarray(np.arange(16) % 3)
        if move:
            net.to("deferred")
        optimizer = flnb.optim.Adam(net.parameters(), lr=0.05)
        with flnb.use_backend("deferred" if move else "numpy"):
            losses = []
            for _ in range(6):
                optimizer.zero_grad()
                loss = flnb.cross_entropy(net(x), labels)
                loss.backward()
                optimizer.step()
                losses.append(float(loss))
            np.testing.assert_array_equal(labels.numpy(), np.arange(16) % 3)
        return losses

    with flnb.use_backend("numpy"):
        np.testing.assert_allclose(trained(True), trained(False), rtol=1e-5)
