"""What the backend `deferred` records again is computed by a program: with the results of ops that run at once."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

import flnb
from flnb import models, nn, optim
from flnb.backends import DeferredBackend, NumpyBackend
from flnb.dispatch import state
from flnb.graph import repetition, running
from tests.counting import counting

X = np.arange(12, dtype=np.float32).reshape(3, 4) / 12


def known() -> Any:
    """What is known of traces on the active memory manager."""
    return repetition.known_traces(state.current().manager)


def loop(x: Any) -> Any:
    y = flnb.softmax(flnb.exp(x * 0.1) + 2.0, 0)
    return flnb.tanh(y * 3.0 + x) - flnb.sum(y, axis=1, keepdims=True)


class Steps:
    """A model of a recipe with an optimizer, whose step is an unmodified training loop's."""

    def __init__(self, name: str, optimizer: Any, dtype: Any = np.float32) -> None:
        flnb.manual_seed(0)
        self.recipe = models.get(name)
        self.model = self.recipe.build("small").astype(dtype)
        arrays = self.recipe.batch("small", size=2)
        self.batch = [flnb.asarray(a.astype(dtype) if a.dtype.kind == "f" else a) for a in arrays]
        self.optimizer = optimizer(self.model.parameters())

    def __call__(self) -> Any:
        self.optimizer.zero_grad()
        loss = self.recipe.loss(self.model, *self.batch)
        loss.backward()
        self.optimizer.step()
        return loss

    def values(self) -> dict[str, Any]:
        named = {key: item.data for key, item in self.model.named_parameters()} | dict(self.model.named_buffers())
        return {key: item.numpy().copy() for key, item in named.items()}


@pytest.mark.parametrize("name", ["bert", "resnet18"])
def test_overridden_primitives_are_called_as_often_as_on_numpy(name: str) -> None:
    counts = []
    for deferred in (False, True):
        backend = counting(NumpyBackend, "add", "multiply", "exp", "matmul")()
        with flnb.use_backend(DeferredBackend(backend) if deferred else backend), flnb.record() as run:
            step = Steps(name, optim.Adam)
            for _ in range(4):
                step()
            backend.calls.clear()
            step()
            counts.append(dict(backend.calls))
    assert counts[0] == counts[1]
    assert set(counts[0]) == {"add", "multiply", "exp", "matmul"}
    assert len(run.table("compile")["t0"]) > 0


@pytest.mark.parametrize("name", ["mlp", "lenet", "vit", "bert", "asr-transformer", "resnet18"])
def test_a_fused_step_in_double_precision_is_a_step(name: str) -> None:
    def sgd(parameters: Any) -> Any:
        return optim.SGD(parameters, lr=1e-3, momentum=0.9)

    found = []
    for backend in ("numpy", DeferredBackend("numpy")):
        with flnb.use_backend(backend):
            step = Steps(name, sgd, np.float64)
            found.append(([step().item() for _ in range(6)], step.values()))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-9)
    for key, value in found[0][1].items():
        np.testing.assert_allclose(found[1][1][key], value, rtol=1e-6, atol=1e-9, err_msg=key)


def test_a_loop_that_reads_the_loss_before_the_backward_pass() -> None:
    found = []
    for backend in ("numpy", DeferredBackend("numpy", fuse=False)):
        known().clear()
        with flnb.use_backend(backend):
            step, losses = Steps("lenet", optim.Adam), []
            for _ in range(6):
                step.optimizer.zero_grad()
                loss = step.recipe.loss(step.model, *step.batch)
                losses.append(loss.item())
                loss.backward()
                step.optimizer.step()
            found.append((losses, step.values()))
    assert found[0][0] == found[1][0]
    for key, value in found[0][1].items():
        np.testing.assert_array_equal(found[1][1][key], value, err_msg=key)
    programs = [each.program for each in known().values() if each.program is not None]
    assert len(programs) == 2  # the forward pass, and the rest


def test_threads_that_share_inputs_run_one_program_after_the_other() -> None:
    with flnb.use_backend("deferred"):
        shared = flnb.exp(flnb.asarray(X)) + 0.5
    wrong: list[Any] = []

    def work(i: int) -> None:
        with flnb.use_backend("deferred"):
            for j in range(20):
                got = loop(shared * float(i) + float(j)).numpy()
                known = (np.exp(X) + 0.5) * i + j
                if not np.allclose(got, loop(flnb.asarray(known)).numpy(), atol=1e-5):
                    wrong.append((i, j))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def changing_loop(kind: str, backend: Any, count: Counter[int]) -> tuple[list[float], list[Any]]:
    """Train a small model by a loop whose steps differ; count the ops that each step computes one by one."""
    losses: list[float] = []
    with flnb.use_backend(backend):
        flnb.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = optim.Adam(net.parameters(), lr=0.01)
        batches = [(flnb.asarray(np.tile(X, (n, 1))), flnb.asarray(np.arange(3 * n) % 3)) for n in (1, 2)]
        total: Any = 0.0
        for i in range(16):
            count[-1] = i
            x, y = batches[i % 2 if kind == "two batch sizes" else 0]
            loss = flnb.cross_entropy(net(x), y)
            if kind == "reads the loss" and i % 4 == 3:
                losses.append(loss.item())
            loss.backward()
            total = total + loss.detach()
            if kind != "accumulates gradients" or i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
            if kind == "evaluates" and i % 4 == 3:
                with flnb.no_grad():
                    losses.append(net(batches[1][0]).sum().item())
            if i % 4 == 3:
                losses.append(total.item())
                total = 0.0
        return losses, [p.data.numpy().copy() for p in net.parameters()]


@pytest.mark.parametrize("kind", ["reads the loss", "evaluates", "accumulates gradients", "two batch sizes"])
def test_steps_that_differ_now_and_then_are_computed_by_programs(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    count: Counter[int] = Counter()
    compute_one = running._compute

    def counted(value: Any) -> None:
        count[count[-1]] += 1
        compute_one(value)

    losses, values = changing_loop(kind, "numpy", Counter())
    monkeypatch.setattr(running, "_compute", counted)
    got, others = changing_loop(kind, DeferredBackend("numpy", fuse=False), count)
    assert got == losses
    for a, b in zip(values, others, strict=True):
        np.testing.assert_array_equal(a, b)
    del count[-1]
    assert sum(count[i] for i in range(8)) > 50  # each kind of step occurred at most twice
    assert sum(count[i] for i in range(8, 16)) == 0, count


def test_a_number_in_place_of_a_tensor_makes_another_trace() -> None:
    with flnb.use_backend("deferred"):
        for i in range(4):
            for x in (2.0, flnb.sum(flnb.ones(2))):
                flnb.sync()
                np.testing.assert_allclose(((x + flnb.asarray(X)) * 3.0 + i).numpy(), (2.0 + X) * 3 + i, rtol=1e-6)


@pytest.mark.parametrize("shared", [False, True])
def test_data_parallel_training_is_that_of_ops_that_run_at_once(shared: bool) -> None:
    one = DeferredBackend("numpy", fuse=False)

    def train(backend: Any) -> Any:
        def run() -> Any:
            with flnb.use_backend(backend()):
                flnb.manual_seed(0)
                net = flnb.distributed.DataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
                optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
                x, losses = flnb.asarray(X + flnb.distributed.rank()), []
                for _ in range(6):
                    optimizer.zero_grad()
                    loss = (net(x) ** 2).mean()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                return losses, [p.data.numpy().copy() for p in net.parameters()]

        return flnb.distributed.run_threads(2, run)

    expected = train(lambda: "numpy")
    got = train((lambda: one) if shared else (lambda: DeferredBackend("numpy", fuse=False)))
    for (losses, values), (known, others) in zip(got, expected, strict=True):
        assert losses == known
        for a, b in zip(values, others, strict=True):
            np.testing.assert_array_equal(a, b)


def test_observed_ops_run_one_by_one_with_values() -> None:
    with flnb.use_backend("deferred"):
        x = flnb.asarray(X - 0.5)
        for _ in range(4):
            y = flnb.sum(flnb.tanh(x) * 2.0 + flnb.log(x + 1.0))
            assert np.isfinite(y.item())
        with flnb.detect_anomaly(), pytest.raises(flnb.autograd.anomaly.AnomalyError, match="'log' gave 6 NaN"):
            flnb.sum(flnb.tanh(x) * 2.0 + flnb.log(x))


@pytest.mark.parametrize("fuse", [False, True])
def test_a_recording_of_a_program_tells_of_every_op(fuse: bool) -> None:
    def recorded(backend: Any) -> flnb.Recording:
        with flnb.use_backend(backend), flnb.record(grad_interval=None):
            step = Steps("lenet", lambda p: optim.SGD(p, lr=0.1))
            for _ in range(5):
                step()
            with flnb.record(grad_interval=None) as run:
                step()
        return run

    class OpByOp(flnb.backends.NumpyBackend):
        sgd_update = conv2d_bias = linear = None  # none of them is one call in programs

    eager, program = recorded(OpByOp()), recorded(DeferredBackend("numpy", fuse=fuse))
    views = ("reshape", "permute_dims", "slice", "broadcast_to")
    counts = [
        Counter({row.key[0]: row.count for row in run.ops if row.key[0] not in views}) for run in (eager, program)
    ]
    left_out = counts[0] - counts[1]
    assert len(program.table("compile")["t0"]) == 0
    assert {row.key[0] for row in program.ops.by("phase")} >= {"backward", "optimizer"}
    if fuse:
        kernels, ops = program.table("kernel"), program.table("op")
        estimated = ops["estimated"] == 1
        assert kernels["ops"].sum() == estimated.sum() > len(kernels["t0"]) > 5
    else:
        assert set(left_out) <= {"copy", "full"}
        assert set(counts[1] - counts[0]) <= {"copy"}  # of a result that is a view, or is one of two that are equal
        assert not program.table("kernel")["t0"].size


def test_equal_zeros_of_other_signs_are_told_apart() -> None:
    def f(zero: float) -> list[float]:
        x = flnb.ones(3)
        for _ in range(10):
            x = x * 1.5
        return (x / flnb.full((), zero)).tolist()

    with flnb.use_backend("deferred"), np.errstate(divide="ignore"):
        for _ in range(4):
            assert f(0.0) == [np.inf] * 3
            assert f(-0.0) == [-np.inf] * 3


def test_a_recording_sees_the_program_of_the_steps_before_in_its_scopes() -> None:
    with flnb.use_backend("deferred"):
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
        optimizer = optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            (model(flnb.ones((3, 4))) ** 2).sum().backward()
            optimizer.step()

        for _ in range(4):
            step()
        for _ in range(2):
            with flnb.record() as run:
                for _ in range(8):
                    step()
            kernels, ops = run.table("kernel"), run.table("op")
            assert len(kernels["t0"])
            fused = ops["context"][ops["estimated"] == 1]
            places = {run.catalog.contexts.items[number].scope for number in fused.tolist()}
            assert {"sequential.0", "sequential.1", "sequential.2"} <= places
            for _ in range(4):  # without contexts
                step()


def test_a_program_computes_on_its_backend_after_the_session_has_had_another() -> None:
    before, deferred = state.session.backend, DeferredBackend("numpy")
    try:
        for backend in (deferred, before) * 5:
            flnb.set_backend(backend)
            np.testing.assert_allclose(loop(flnb.asarray(X)).numpy(), loop(flnb.asarray(X)).numpy(), rtol=1e-6)
    finally:
        flnb.set_backend(before)


@pytest.mark.parametrize("fuse", [False, True])
def test_gradients_are_clipped_to_their_norm_in_each_repeated_step(fuse: bool) -> None:
    def trained() -> list[float]:
        flnb.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer, norms = optim.SGD(model.parameters(), lr=0.01), []
        for _ in range(6):
            optimizer.zero_grad()
            flnb.mean(model(flnb.asarray(X)) ** 2.0).backward()
            norms.append(float(optim.clip_grad_norm(model.parameters(), 0.01)))
            optimizer.step()
        return norms

    with flnb.use_backend("numpy"):
        expected = trained()
    with flnb.use_backend(DeferredBackend("numpy", fuse=fuse)):
        np.testing.assert_allclose(trained(), expected, 1e-5)
