"""What a captured function depends on: arguments, settings, and what it refers to; where gradients of a program go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flnb
from flnb import nn, optim

X = np.arange(12, dtype=np.float32).reshape(3, 4) / 12

APART: list[tuple[Any, Any, Any]] = [
    (lambda d: d["a"] - d["b"], lambda x: ({"a": x, "b": x * 2.0},), lambda x: ({"b": x, "a": x * 2.0},)),
    (lambda a, b: x * 2.0 if (x := a) is not None else b * 3.0, lambda x: (x, None), lambda x: (None, x)),
    (lambda a, b: a[0] - a[-1] * 2.0 + len(b), lambda x: ([x], [x, x]), lambda x: ([x, x], [x])),
    (lambda x, n: x * (3.0 if type(n) is int else 5.0), lambda x: (x, 2), lambda x: (x, 2.0)),
    (lambda x, n: x * (3.0 if n is True else 5.0), lambda x: (x, True), lambda x: (x, 1)),
    (lambda x, n: flnb.divide(x, flnb.full((), n)), lambda x: (x + 1.0, 0.0), lambda x: (x + 1.0, -0.0)),
    (lambda x, n: x + n, lambda x: (x, float("nan")), lambda x: (x, 1.0)),
]


@pytest.mark.parametrize(("function", "one", "other"), APART)
def test_arguments_that_differ_in_anything_are_captured_apart(function: Any, one: Any, other: Any) -> None:
    f, x = flnb.jit(function), flnb.asarray(X)
    with np.errstate(divide="ignore"):
        for given in [one(x), other(x)] * 4:
            np.testing.assert_array_equal(f(*given).numpy(), function(*given).numpy())
    assert len(f.captured) == 2


@pytest.mark.parametrize("wrong", [X, {1}, bytearray(b"x")])
def test_an_argument_that_cannot_be_looked_up_is_an_error(wrong: Any) -> None:
    f = flnb.jit(lambda x, y: x * 2.0)
    with pytest.raises(TypeError, match=rf"hashable|got {type(wrong).__name__}: pass arrays as tensors"):
        f(flnb.asarray(X), wrong)


def test_equal_zeros_of_other_signs_are_not_one_value() -> None:
    f = flnb.jit(lambda x: (x / flnb.full((), 0.0), x / flnb.full((), -0.0)))
    with np.errstate(divide="ignore"):
        for _ in range(3):
            a, b = f(flnb.ones(2))
    assert a.tolist() == [np.inf, np.inf]
    assert b.tolist() == [-np.inf, -np.inf]


def test_gradients_of_arguments_go_to_the_arguments_of_each_call() -> None:
    @flnb.jit
    def f(x: Any, y: Any) -> None:
        (x * x * y).sum().backward()

    for i in range(5):
        x, y = flnb.Variable(flnb.asarray(X + i)), flnb.Variable(flnb.asarray(X * i))
        f(x, y)
        np.testing.assert_allclose(x.grad.numpy(), 2 * (X + i) * X * i, rtol=1e-5)
        np.testing.assert_allclose(y.grad.numpy(), (X + i) ** 2, rtol=1e-5)
        f(x, y)  # a gradient is there: it is added to
        np.testing.assert_allclose(x.grad.numpy(), 4 * (X + i) * X * i, rtol=1e-5)
    assert [len(known) for known in f.captured.values()] == [2]
    for _ in range(4):  # one leaf given twice
        f(x, x)
    np.testing.assert_allclose(x.grad.numpy(), 4 * (X + i) * X * i + 4 * 3 * (X + i) ** 2, rtol=1e-4)


def test_a_leaf_that_the_function_makes_ends_with_each_call() -> None:
    weight = nn.Parameter(flnb.asarray(X))

    @flnb.jit
    def f(x: Any) -> Any:
        weight.zero_grad()
        leaf = flnb.Variable(x)
        (leaf * leaf * weight).sum().backward()
        gradient = leaf.grad
        leaf.zero_grad()
        return gradient

    for i in range(6):
        np.testing.assert_allclose(f(flnb.asarray(X + i)).numpy(), 2 * (X + i) * X, rtol=1e-5)
        np.testing.assert_allclose(weight.grad.numpy(), (X + i) ** 2, rtol=1e-5)
    assert len(f.programs) == 1


def test_programs_with_and_without_fusing_have_gradients_of_their_own() -> None:
    def ops(size: int, fuse: bool) -> set[str]:
        model = nn.LayerNorm(size)
        f = flnb.jit(lambda x: (model(x) ** 2).sum().backward(), fuse=fuse)
        for _ in range(2):
            model.zero_grad()
            f(flnb.ones((7, size)))
        return {x.op.name for group in f.programs[0].groups for x in group.members if x.op is not None}

    for size, order in ((5, (False, True, False)), (6, (True, False, True))):
        for fuse in order:
            assert ("layer_norm_pull" in ops(size, fuse)) == (not fuse)


def test_backward_does_not_go_through_a_program() -> None:
    weight = nn.Parameter(flnb.asarray(X))
    f = flnb.jit(lambda x: (weight * x).sum())
    for _ in range(3):
        y = f(flnb.asarray(X))
    assert y.requires_grad
    with pytest.raises(RuntimeError, match=r"computed by a program of flnb\.jit.*call backward inside"):
        (y * 2.0 + (weight * 2.0).sum()).backward()
    with pytest.raises(RuntimeError, match=r"is the result of 'multiply' and requires grad.*pass x\.detach\(\)"):
        f(weight * 2.0)
    with flnb.no_grad():
        assert [f(weight * 2.0).requires_grad for _ in range(3)] == [False] * 3
    np.testing.assert_allclose(f((weight * 2.0).detach()).item(), (X * X * 2).sum(), rtol=1e-5)


scale = 2.0


def scaled(x: Any) -> Any:
    return x * scale


def test_what_a_function_refers_to_may_change() -> None:
    global scale, scaled
    before, shift = (scale, scaled), 1.0
    f = flnb.jit(lambda x: scaled(x) + shift)
    try:
        for _ in range(3):
            np.testing.assert_allclose(f(flnb.asarray(X)).numpy(), X * 2 + 1)
        scale = 3.0
        for _ in range(3):
            np.testing.assert_allclose(f(flnb.asarray(X)).numpy(), X * 3 + 1, rtol=1e-6)
        shift = 5.0
        for _ in range(3):
            np.testing.assert_allclose(f(flnb.asarray(X)).numpy(), X * 3 + 5, rtol=1e-6)

        def scaled(x: Any) -> Any:
            return -x

        for _ in range(3):
            np.testing.assert_allclose(f(flnb.asarray(X)).numpy(), 5 - X, rtol=1e-6)
        assert len(f.programs) == 4
    finally:
        scale, scaled = before


def test_settings_of_modules_and_optimizers_may_change() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 4)
            self.power, self.parts = 2, [nn.Tanh()]

        def forward(self, x: Any) -> Any:
            for part in self.parts:
                x = part(x)
            return self.head(self.layer(x)) ** self.power

    def run(jit: bool) -> list[Any]:
        flnb.manual_seed(0)
        net = {"net": Net()}  # found when it is called, wherever it is
        optimizer = optim.Adam(net["net"].layer.parameters(), lr=0.1)

        def step(x: Any) -> Any:
            net["net"].zero_grad()
            loss = net["net"](x).sum()
            loss.backward()
            optimizer.step()
            return loss

        f, losses = flnb.jit(step) if jit else step, []
        changes = [
            lambda: None, lambda: setattr(net["net"], "power", 3), lambda: setattr(optimizer, "beta1", 0.5),
            lambda: net["net"].parts.append(nn.ReLU()), lambda: net["net"].eval(),
            lambda: setattr(net["net"], "head", nn.Linear(4, 4)),
            lambda: setattr(net["net"], "forward", lambda x: net["net"].layer(x) * 2.0),
        ]  # fmt: skip
        for change in changes:
            change()
            losses += [f(flnb.asarray(X)).item() for _ in range(4)]
        if jit:
            assert [len(known) for known in f.captured.values()] == [len(changes)]  # type: ignore[attr-defined]
        return losses

    np.testing.assert_allclose(run(jit=True), run(jit=False), rtol=2e-4)


def test_a_method_is_captured_for_each_object_and_its_attributes() -> None:
    class Scaled:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        @flnb.jit
        def __call__(self, x: Any) -> Any:
            return x * self.factor

    one, two = Scaled(2.0), Scaled(3.0)
    for factor in (2.0, 5.0):
        one.factor = factor
        for _ in range(3):
            np.testing.assert_allclose(one(flnb.asarray(X)).numpy(), X * factor)
            np.testing.assert_allclose(two(flnb.asarray(X)).numpy(), X * 3)
    assert len(Scaled.__call__.programs) == 3


def test_what_was_captured_for_many_different_arguments_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flnb.jitted.MOST_KEYS", 4)
    f = flnb.jit(lambda x, i: x * float(i))
    for i in range(20):
        for _ in range(1 + i % 3):
            np.testing.assert_allclose(f(flnb.asarray(X), i).numpy(), X * i, rtol=1e-6)
    assert len(f.captured) == 4
    assert len(f._called) <= 4


def test_an_optimizer_that_is_replaced_begins_anew() -> None:
    weight = nn.Parameter(flnb.asarray(X))
    optimizer = optim.Adam([weight], lr=0.1)

    @flnb.jit
    def step() -> None:
        optimizer.zero_grad()
        (weight**2).sum().backward()
        optimizer.step()

    for _ in range(3):
        step()
    optimizer = optim.Adam([weight], lr=0.5)
    before = weight.data.numpy().copy()
    step()
    np.testing.assert_allclose(before - weight.data.numpy(), np.sign(before) * 0.5, rtol=1e-3)
    step()
    step()
    assert optimizer.steps == 3
    assert len(step.programs) == 2


def test_an_optimizer_that_reads_its_rate_itself_follows_a_schedule() -> None:
    class Descent(optim.Optimizer):
        def update(self, data: Any, gradient: Any, state: Any, scratch: Any) -> None:
            flnb.subtract(data, gradient * self.lr, out=data)

    weight = nn.Parameter(flnb.zeros(2))
    optimizer = Descent([weight], lr=1.0)

    @flnb.jit
    def step() -> None:
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()

    for lr in (1.0, 1.0, 1.0, 0.5, 0.5, 0.25):
        optimizer.lr = lr
        step()
    assert weight.data.tolist() == [-4.25, -4.25]


def test_a_variant_that_does_not_fit_leaves_gradients_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5))

    @flnb.jit
    def f(x: Any) -> Any:
        if model.training:
            model.zero_grad()
            model(x).sum().backward()
        return model(x)

    for _ in range(3):
        f(flnb.asarray(X))
    model.eval()
    for _ in range(3):
        f(flnb.asarray(X))
        assert model[0].weight.grad is not None


def test_a_backward_pass_that_needs_values_which_a_program_has_overwritten_raises_an_error() -> None:
    weight, state = flnb.Variable(np.ones(4, np.float32)), flnb.zeros(4)

    @flnb.jit
    def step(x: Any, buffer: Any) -> None:
        flnb.assign(weight.data, weight.data * 2.0)
        flnb.assign(state, state + x)
        flnb.assign(buffer, x)

    x, buffer = flnb.ones(4), flnb.zeros(4)
    for _ in range(3):
        step(x, buffer)
    for written in (weight, state, buffer):
        y = flnb.sum(flnb.Variable(np.ones(4, np.float32)) * written)
        step(x, buffer)
        with pytest.raises(RuntimeError, match="was saved for the gradient and then written in place"):
            y.backward()
    assert weight.data.tolist() == [64.0] * 4


def test_a_captured_step_in_half_precision_continues_from_weights_that_were_loaded() -> None:
    def trained(compiled: bool) -> list[Any]:
        flnb.manual_seed(0)
        model = nn.Linear(4, 2).astype(flnb.float16)
        optimizer = optim.SGD(model.parameters(), lr=0.1)

        def step(x: Any) -> None:
            optimizer.zero_grad()
            flnb.mean(model(x) ** 2.0).backward()
            optimizer.step()

        f = flnb.jit(step) if compiled else step
        for rows in (3, 3, 3, 2, 2, 2):  # the second program is captured after the first has run
            f(flnb.asarray(X[:rows].astype(np.float16)))
        model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})
        f(flnb.asarray(X[:2].astype(np.float16)))
        return [p.tolist() for p in model.state_dict().values()]

    np.testing.assert_allclose(
        np.hstack([*map(np.ravel, trained(True))]), np.hstack([*map(np.ravel, trained(False))]), rtol=2e-3
    )


def test_an_argument_that_the_function_also_reaches_by_a_name_is_told_from_others() -> None:
    reference, state = flnb.asarray(np.arange(4, dtype=np.float32)), flnb.zeros(4)

    def difference(x: Any) -> Any:
        return x - reference

    def counted(x: Any) -> Any:
        flnb.add(state, 1.0, out=state)
        return x * 2.0

    other = flnb.asarray(np.full(4, 10, np.float32))
    for first, second in ((reference, other), (other, reference)):
        f = flnb.jit(difference)
        for x in (first,) * 4 + (second, first) * 2:
            assert f(x).tolist() == difference(x).tolist()
    g = flnb.jit(counted)
    for i, x in enumerate((state,) * 3 + (other,) * 3 + (state,) * 3, 1):
        assert g(x).tolist() == ([20.0] * 4 if x is other else [2.0 * i] * 4)
    assert other.tolist() == [10.0] * 4
