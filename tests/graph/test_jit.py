"""A captured step computes what the function computes, and does what else it does."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import flnb
from flnb import models, nn, optim
from flnb.backends import NumpyBackend
from tests.recipe_steps import training_step

X = np.arange(12, dtype=np.float32).reshape(3, 4) / 12


def trained(
    name: str, optimizer: Any, jit: bool, steps: int = 4, dtype: Any = np.float32, fuse: bool = True
) -> tuple[list[float], dict[str, Any]]:
    """Losses, and all parameters and buffers, after some steps of a model's recipe."""
    flnb.manual_seed(0)
    recipe = models.get(name)
    model = recipe.build("small").astype(dtype)
    batch = [flnb.asarray(a.astype(dtype) if a.dtype.kind == "f" else a) for a in recipe.batch("small", size=2)]
    made = optimizer(model.parameters())

    step = training_step(recipe, model, made)
    run = flnb.jit(step, fuse=fuse) if jit else step
    losses = [run(*batch).item() for _ in range(steps)]
    if jit:
        assert [len(known) for known in run.captured.values()] == [1]  # type: ignore[attr-defined]
    named = {**{key: item.data for key, item in model.named_parameters()}, **dict(model.named_buffers())}
    return losses, {key: item.numpy().copy() for key, item in named.items()}


RECIPES = sorted(set(models.names()) - {"resnet34", "resnet50", "googlenet", "lstm-lm-600", "lstm-lm-650x2", "vgg16"})


@pytest.mark.parametrize("name", RECIPES)
def test_training_gives_the_bits_of_the_function_if_nothing_is_fused(name: str) -> None:
    expected = trained(name, optim.Adam, jit=False)
    got = trained(name, optim.Adam, jit=True, fuse=False)
    assert got[0] == expected[0]
    for key, value in expected[1].items():
        np.testing.assert_array_equal(got[1][key], value, err_msg=key)


@pytest.mark.parametrize("name", ["mlp", "lenet", "vit", "bert", "asr-transformer", "resnet18"])
def test_fused_training_in_double_precision_is_training(name: str) -> None:
    def sgd(parameters: Any) -> Any:
        return optim.SGD(parameters, lr=1e-3, momentum=0.9)

    expected = trained(name, sgd, jit=False, dtype=np.float64)
    got = trained(name, sgd, jit=True, dtype=np.float64)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-9)
    for key, value in expected[1].items():
        np.testing.assert_allclose(got[1][key], value, rtol=1e-6, atol=1e-9, err_msg=key)


OPTIMIZERS = [
    lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True), lambda p: optim.NAG(p, lr=0.1),
    lambda p: optim.Adam(p, lr=0.1, weight_decay=0.1), lambda p: optim.AdamW(p, lr=0.1), optim.AMSgrad,
    lambda p: optim.RMSProp(p, momentum=0.9, centered=True), optim.Adadelta, lambda p: optim.Adagrad(p, lr_decay=0.5),
    optim.Novograd,
]  # fmt: skip


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("fuse", [False, True])
def test_optimizers_count_and_follow_a_schedule(make: Any, fuse: bool) -> None:
    def run(jit: bool) -> tuple[Any, ...]:
        flnb.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
        optimizer = make(model.parameters())

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = (model(x) ** 2).sum()
            loss.backward()
            optimizer.step()
            return loss

        called = flnb.jit(step, fuse=fuse) if jit else step
        losses = []
        for i in range(6):
            optimizer.lr = 0.1 / (i + 1)
            losses.append(called(flnb.asarray(X + i)).item())
        if jit:
            assert [len(known) for known in called.captured.values()] == [1]  # type: ignore[attr-defined]
        state = optimizer.state_dict()
        tensors = [x.numpy() for x in [*[p.data for p in model.parameters()], *state.pop("state").values()]]
        return losses, tensors, state

    (losses, tensors, state), (expected, known, counted) = run(jit=True), run(jit=False)
    assert state == counted
    np.testing.assert_allclose(losses, expected, rtol=2e-4)
    for a, b in zip(tensors, known, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize("most", [0.01, 1e6])
def test_gradients_are_clipped(p: float, most: float) -> None:
    def run(jit: bool) -> Any:
        flnb.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))

        def step(x: Any) -> Any:
            model.zero_grad()
            (model(x) ** 2).sum().backward()
            return optim.clip_grad_norm(model.parameters(), most, p)

        called: Any = flnb.jit(step) if jit else step
        norms = [float(called(flnb.asarray(X + i * 0.1))) for i in range(5)]
        assert not jit or len(called.programs) == 1
        return [norms, *(x.grad.numpy() for x in model.parameters())]

    for got, expected in zip(run(jit=True), run(jit=False), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-7)


def test_a_norm_that_is_not_finite_makes_all_gradients_nan() -> None:
    weight, other = nn.Parameter(flnb.ones(2)), nn.Parameter(flnb.ones(3))

    @flnb.jit
    def step(x: Any) -> Any:
        weight.zero_grad()
        other.zero_grad()
        ((weight * x).sum() + other.sum()).backward()
        return optim.clip_grad_norm([weight, other], 1.0)

    for _ in range(2):
        step(flnb.ones(2))
    assert step(flnb.asarray([1.0, np.inf])).item() == np.inf
    assert np.isnan(other.grad.numpy()).all()
    assert step(flnb.ones(2)).item() == pytest.approx(5**0.5)
    np.testing.assert_allclose(other.grad.numpy(), 5**-0.5, rtol=1e-5)


def test_a_result_keeps_its_values_in_later_runs() -> None:
    f = flnb.jit(lambda x: {"y": (x * 2.0, 7), "z": flnb.sum(x)})
    results = [f(flnb.asarray(X + i)) for i in range(5)]
    for i, made in enumerate(results):
        np.testing.assert_array_equal(made["y"][0].numpy(), (X + i) * 2)
        assert made["y"][1] == 7
        assert made["z"].item() == pytest.approx((X + i).sum())


def test_views_arguments_and_existing_tensors_may_be_returned() -> None:
    kept = flnb.asarray(X)
    f = flnb.jit(lambda x: (x.T, x, kept, kept[1:], flnb.broadcast_to(x[0], (2, 4)) + 0.0))
    for i in range(4):
        expected = X + i, X + i
        made = f(flnb.asarray(X + i))
        np.testing.assert_array_equal(made[0].numpy(), expected[0].T)
        np.testing.assert_array_equal(made[1].numpy(), X + i)
        np.testing.assert_array_equal(made[2].numpy(), X)
        np.testing.assert_array_equal(made[3].numpy(), X[1:])
        np.testing.assert_array_equal(made[4].numpy(), np.broadcast_to((X + i)[0], (2, 4)))


def test_gradients_accumulate_where_the_function_does_not_clear_them() -> None:
    weight, other, last = (nn.Parameter(flnb.asarray(X)) for _ in range(3))

    @flnb.jit
    def f(x: Any) -> Any:
        (weight * x + other * 2.0 + last).sum().backward()

    for _ in range(2):
        for i in range(1, 5):
            f(flnb.asarray(X))
            for leaf, expected in ((weight, X), (other, 2.0), (last, 1.0)):
                np.testing.assert_allclose(leaf.grad.numpy(), np.full_like(X, i * expected), rtol=1e-6)  # type: ignore[union-attr]
        weight.grad = other.grad = last.grad = None


def test_a_gradient_that_is_held_keeps_its_values() -> None:
    weight = nn.Parameter(flnb.asarray(X))

    @flnb.jit
    def f(x: Any) -> Any:
        weight.grad = None
        (weight * x).sum().backward()

    held = []
    for i in range(5):
        f(flnb.asarray(X + i))
        held.append(weight.grad)
    for i, gradient in enumerate(held):
        np.testing.assert_array_equal(gradient.numpy(), X + i)  # type: ignore[union-attr]


def test_existing_tensors_are_written_in_place_also_through_views() -> None:
    def f(x: Any, total: Any, table: Any) -> None:
        flnb.add(total, x, out=total)
        table[1:, ::2] = x[1:, ::2] * 2.0
        table[0] = table[2]
        x += 1.0

    tensors = [[flnb.asarray(X), flnb.zeros((3, 4)), flnb.ones((3, 4))] for _ in range(2)]
    views = [(total.T, table[1]) for _, total, table in tensors]
    g = flnb.jit(f)
    for _ in range(5):
        f(*tensors[0])
        g(*tensors[1])
        for a, b in zip(*tensors, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
        for a, b in zip(*views, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_two_tensors_that_are_exchanged() -> None:
    a, b = flnb.asarray(X), flnb.asarray(X * 2)

    @flnb.jit
    def f() -> None:
        old = flnb.asarray(a, copy=True)
        flnb.assign(a, b)
        flnb.assign(b, old)

    for i in range(1, 6):
        f()
        np.testing.assert_array_equal(a.numpy(), X * (2 if i % 2 else 1))
        np.testing.assert_array_equal(b.numpy(), X * (1 if i % 2 else 2))


def test_random_numbers_are_those_of_the_function_also_after_seeding() -> None:
    def f(x: Any) -> Any:
        flnb.random.normal((2,))  # nobody reads it, but the generator moves on
        return x + flnb.random.uniform((3, 4))

    g, x = flnb.jit(f), flnb.asarray(X)
    made = []
    for run in (f, g):
        flnb.manual_seed(3)
        made.append([run(x).numpy() for _ in range(4)])
        flnb.manual_seed(4)
        made[-1] += [run(x).numpy() for _ in range(2)]
    np.testing.assert_array_equal(*made)


def test_other_shapes_dtypes_strides_modes_and_backends_are_captured_apart() -> None:
    dropout = nn.Dropout(0.5)
    f = flnb.jit(lambda x: dropout(x) * 1.0)
    cases = [flnb.asarray(X), flnb.asarray(X[:2]), flnb.asarray(X.astype(np.float64)), flnb.asarray(X).T]
    for x in cases * 4:
        dropout.eval()
        np.testing.assert_array_equal(f(x).numpy(), x.numpy())
        dropout.train()
        assert set(np.unique(f(x).numpy() / np.where(x.numpy() == 0, 1, x.numpy())).round(5)) <= {0.0, 2.0}
    assert [len(known) for known in f.captured.values()] == [2] * 4


def test_calls_from_two_threads_and_inside_of_another_program() -> None:
    inner = flnb.jit(lambda x: flnb.exp(x) + 1.0)
    outer = flnb.jit(lambda x: inner(x) * 2.0)
    for _ in range(4):
        np.testing.assert_allclose(outer(flnb.asarray(X)).numpy(), (np.exp(X) + 1) * 2, rtol=1e-5)
    wrong: list[Any] = []

    def work(i: int) -> None:
        for _ in range(50):
            got = inner(flnb.asarray(X + i)).numpy()
            if not np.allclose(got, np.exp(X + i) + 1, rtol=1e-5):
                wrong.append(got)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_parameters_that_move_are_captured_anew() -> None:
    model = nn.Linear(4, 2)
    f = flnb.jit(lambda x: model(x))
    x = flnb.asarray(X)
    for _ in range(3):
        f(x)
    model.weight._adopt(flnb.zeros(model.weight.shape))
    for _ in range(3):
        np.testing.assert_allclose(f(x).detach().numpy(), np.broadcast_to(model.bias.detach().numpy(), (3, 2)))


def test_an_optimizers_step_alone_reads_the_gradients_of_each_call() -> None:
    weight = nn.Parameter(flnb.asarray(X))
    optimizer = optim.SGD([weight], lr=1.0)
    step = flnb.jit(optimizer.step)
    for i in range(5):
        before = weight.data.numpy().copy()
        weight.grad = flnb.asarray(X + i)
        step()
        np.testing.assert_allclose(weight.data.numpy(), before - (X + i), rtol=1e-5)


def test_a_method_that_is_defined_again_is_called() -> None:
    def define(factor: float) -> Any:
        class Scaling(NumpyBackend):
            def negative(self, x: Any, out: Any = None) -> Any:
                return np.multiply(x, factor, out)

        return Scaling

    f, x = flnb.jit(lambda x: -x), flnb.asarray(X)
    with flnb.use_backend(define(2.0)):
        for _ in range(3):
            np.testing.assert_allclose(f(x).numpy(), X * 2)
        define(3.0)
        for _ in range(3):
            np.testing.assert_allclose(f(x).numpy(), X * 3)


def test_one_tensor_given_twice_and_two_tensors_are_told_apart() -> None:
    f = flnb.jit(lambda x, y: x * 2.0 + y)
    a, b = flnb.asarray(X), flnb.asarray(X * 10)
    for x, y in [(a, a), (a, b), (b, a), (b, b)] * 3:
        np.testing.assert_allclose(f(x, y).numpy(), x.numpy() * 2 + y.numpy(), rtol=1e-6)


def test_without_llvmlite_methods_compute_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flnb_backends.tensor.numpy.find_spec", lambda name: None)
    f = flnb.jit(lambda x: flnb.softmax(flnb.exp(x) * 2.0, axis=-1))
    for _ in range(4):
        y = f(flnb.asarray(X))
    np.testing.assert_array_equal(y.numpy(), flnb.softmax(flnb.exp(flnb.asarray(X)) * 2.0, axis=-1).numpy())
    assert [type(step).__name__ for step in f.programs[0].steps] == ["Call", "Call", "WholeCall"]


def test_memory_that_two_tensors_share_is_not_written() -> None:
    whole = flnb.asarray(X)
    part = whole[1:]

    @flnb.jit
    def f() -> Any:
        flnb.add(whole, 1.0, out=whole)
        return part * 1.0

    f()
    with pytest.raises(RuntimeError, match=r"writes to memory shared by float32\[2,4\] and float32\[3,4\]"):
        f()
    g = flnb.jit(lambda: flnb.sum(whole) + flnb.sum(part))  # reading it is no problem
    assert [g().item() for _ in range(3)] == [g().item()] * 3
