"""Composites that a backend takes whole are compared as wholes, and named; so are their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import flnb
from flnb import nn
from flnb.backends import NumpyBackend
from flnb.explore.composites import composite

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="module")
def train() -> Callable[[], Any]:
    flnb.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 5))
    x, y = flnb.random.normal((16, 8)), flnb.asarray([i % 5 for i in range(16)])
    return lambda: flnb.cross_entropy(net(x), y).backward()


def doubled(name: str) -> type[NumpyBackend]:
    """Return a backend whose method for a composite returns twice the result."""

    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        made = getattr(super(Doubled, self), name)(*arguments, **options)
        made[0][...] *= 2
        return made

    Doubled = type("Doubled", (NumpyBackend,), {name: method})
    return Doubled


@pytest.mark.parametrize("name", ["relu", "gelu", "layer_norm", "cross_entropy"])
def test_a_composite_that_a_backend_overrides_wrongly_is_found_and_named(name: str, train: Callable[[], Any]) -> None:
    report = flnb.compare_backends(train, ["numpy", doubled(name)], rounds=1)
    assert [row.op for row in report.failed] == [name]
    assert "largest error" in report[name].reason
    assert "test_composites.py:" in report[name].line
    found = flnb.bisect(train, "numpy", doubled(name))
    assert found is not None
    assert found.op == name
    assert f'compare_op("{name}", ' in found.script
    assert found.smallest


class OffBias(NumpyBackend):
    def conv2d_bias(self, x: Any, w: Any, b: Any, *placing: Any, out: Any = None) -> Any:
        return super().conv2d_bias(x, w, b + 1, *placing, out=out)


def test_a_convolution_and_its_bias_are_compared_as_one_op() -> None:
    conv, x = nn.Conv2d(2, 3, 3), flnb.random.normal((1, 2, 5, 5))

    def step() -> Any:
        return conv(x).sum().backward()

    report = flnb.compare_backends(step, ["numpy", OffBias], rounds=1)
    assert [row.op for row in report.failed] == ["conv2d_bias"]
    assert {"conv2d", "add", "conv2d_weight_grad"} <= {row.op for row in report if row.passed}
    found = flnb.bisect(step, "numpy", OffBias)
    assert found is not None
    assert found.op == "conv2d_bias"
    assert 'compare_op("conv2d_bias", ' in found.script
    assert not flnb.compare_backends(step, ["numpy", "cpu"], rounds=1).failed
    with flnb.use_backend("numpy"):  # a bias that is no tensor runs op by op
        weight = flnb.ones((3, 2, 3, 3))
        assert not flnb.compare_backends(lambda: flnb.conv2d(x, weight, [1.0, 2.0, 3.0]), ["numpy", OffBias]).failed


class Raising(NumpyBackend):
    def relu(self, x: Any, out: Any = None) -> Any:
        raise RuntimeError("boom")


class Flat(NumpyBackend):
    def relu_pull(self, g: Any, x: Any, y: Any, out: Any = None) -> Any:
        return (np.zeros_like(g),)


class Shifted(NumpyBackend):
    def exp(self, x: Any, out: Any = None) -> Any:
        return np.multiply(np.exp(x), 1.01, out)


def test_a_composite_that_raises_is_found() -> None:
    report = flnb.compare_backends(lambda: flnb.relu(flnb.ones(3)), ["numpy", Raising], rounds=1)
    assert report["relu"].reason == "raised RuntimeError: boom"
    found = flnb.bisect(lambda: flnb.relu(flnb.ones(3)), "numpy", Raising)
    assert found is not None
    assert str(found.smallest) == "raised RuntimeError: boom"


def test_a_wrong_gradient_is_found_and_its_script_shows_it(
    train: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    report = flnb.compare_backends(train, ["numpy", Flat], rounds=1)
    assert [row.op for row in report.failed] == ["relu_pull"]
    assert "relu" not in {row.op for row in report if not row.passed}
    found = flnb.bisect(train, "numpy", Flat)
    assert found is not None
    assert found.op == "relu_pull"
    assert len(found.call.inputs) == 2  # the gradient of the result, and the input
    assert found.script.count("\n") <= 10
    exec(found.script, {})
    assert "largest error" in capsys.readouterr().out


def test_without_gradients_a_gradient_is_not_compared(train: Callable[[], Any]) -> None:
    with flnb.no_grad():
        assert flnb.bisect(lambda: flnb.relu(flnb.ones(3)), "numpy", Flat) is None


def test_a_wrong_primitive_is_named_rather_than_the_composite_around_it() -> None:
    found = flnb.bisect(lambda: flnb.softmax(flnb.ones((2, 3))), "numpy", Shifted)
    assert found is not None
    assert found.op == "exp"


def test_fused_composites_of_the_cpu_backend_are_compared_and_agree(train: Callable[[], Any]) -> None:
    pytest.importorskip("llvmlite")
    for pair in (["numpy", "cpu"], ["cpu", "numpy"]):
        report = flnb.compare_backends(train, pair, rounds=1)
        assert report, report
        compared = {row.op for row in report}
        assert {"relu", "relu_pull", "gelu", "layer_norm_pull", "cross_entropy", "exp"} <= compared


def test_the_comparison_of_composites_is_not_recorded_and_leaves_the_program_as_it_is(
    train: Callable[[], Any],
) -> None:
    with flnb.record() as run:
        flnb.compare_backends(train, ["numpy", NumpyBackend], rounds=2)
    with flnb.record() as plain, flnb.dispatch.interpreter.use_interpreter(flnb.dispatch.interpreter.Interpreter()):
        train()
    assert {row.key: row.count for row in run.ops} == {row.key: row.count for row in plain.ops}


def test_composites_and_their_gradients_have_names() -> None:
    for name in ("relu", "relu_pull"):
        op = composite(name)
        assert op is not None
        assert op.name == "relu"
    assert composite("exp") is None


def test_a_backend_that_defers_is_compared_but_is_no_reference(train: Callable[[], Any]) -> None:
    report = flnb.compare_backends(train, ["numpy", "deferred"], rounds=1)
    assert report, report
    assert "gelu_pull" in {row.op for row in report}
    for compare in (flnb.bisect, lambda f, a, b: flnb.compare_backends(f, [a, b])):
        with pytest.raises(ValueError, match=r"the reference 'deferred' records ops .*; name a backend first"):
            compare(train, "deferred", "numpy")


def test_a_report_is_a_sequence_of_its_rows() -> None:
    report = flnb.compare_backends(lambda: flnb.exp(flnb.ones(3)), ["numpy", Shifted], rounds=1)
    assert [row.op for row in report] == ["full", "exp"]
    assert len(report) == 2
    assert not report
