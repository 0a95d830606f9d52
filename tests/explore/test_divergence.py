"""Planted faults: the op is found, and a script of at most ten lines shows what it does wrong."""

import linecache
import subprocess
import sys

import numpy as np
import pytest

import flnb
from flnb import nn
from flnb.dispatch import state
from flnb.optim import Adam

GRADIENT = state.CATEGORIES.index("gradient")
FAULTS = {}


def fault(op):
    """Register a backend whose method ``op`` is wrong, under what its docstring says."""

    def register(cls):
        FAULTS[cls.__doc__] = (op, cls)
        return cls

    return register


class Sound(flnb.backends.NumpyBackend):
    pass


def off(result, wrong, out=None, factor=1.01):
    """The result, scaled where something is wrong."""
    result = np.asarray(result * result.dtype.type(factor) if wrong else result)
    if out is None:
        return result
    out[...] = result
    return out


@fault("matmul")
class NonContiguous(Sound):
    """wrong only for non-contiguous inputs"""

    def matmul(self, a, b, out=None):
        return off(np.matmul(a, b), not (a.flags.c_contiguous and b.flags.c_contiguous), out)


@fault("subtract")
class OddSizes(Sound):
    """wrong only for odd sizes"""

    def subtract(self, a, b, out=None):
        result = np.subtract(a, b)
        return off(result, result.ndim and result.shape[-1] % 2, out)


@fault("conv2d_weight_grad")
class GradientOp(Sound):
    """wrong only in a gradient's own op"""

    def conv2d_weight_grad(self, *arguments):
        return off(super().conv2d_weight_grad(*arguments[:-1], None), True, arguments[-1])


@fault("multiply")
class InBackward(Sound):
    """wrong only in backward"""

    def multiply(self, a, b, out=None):
        return off(np.multiply(a, b), state.current().category == GRADIENT, out)


@fault("exp")
class Half(Sound):
    """wrong only for float16"""

    def exp(self, x, out=None):
        return off(np.exp(x), x.dtype == np.float16, out, 1.2)


@fault("sum")
class BeyondSomeSize(Sound):
    """wrong only beyond some size"""

    def sum(self, x, axes, keepdims, out=None):
        return off(np.asarray(np.sum(x, axes, keepdims=keepdims)), x.size > 1000, out)


@fault("tanh")
class SlightlyOff(Sound):
    """a little more than rounding explains"""

    def tanh(self, x, out=None):
        return off(np.tanh(x), True, out, 1.00001)


@fault("exp")
class WrongDtype(Sound):
    """wrong dtype"""

    def exp(self, x, out=None):
        return np.exp(x.astype(np.float64))


@fault("sqrt")
class NegativeZero(Sound):
    """NaN for negative zero"""

    def sqrt(self, x, out=None):
        result = np.where((x == 0) & np.signbit(x), np.nan, np.sqrt(x)).astype(x.dtype)
        return off(result, False, out)


@fault("maximum")
class Corrupting(Sound):
    """writes to its input"""

    def maximum(self, a, b, out=None):
        result = np.maximum(a, b, out)
        if a.flags.writeable and a is not out:
            a[...] = result
        return result


@fault("log")
class Nondeterministic(Sound):
    """nondeterministic"""

    random = np.random.default_rng(5)

    def log(self, x, out=None):
        return off(np.log(x) + np.float32(1), self.random.random() < 0.6, out)


@fault("add")
class Broadcasting(Sound):
    """wrong only when broadcasting"""

    def add(self, a, b, out=None):
        return off(np.add(a, b), a.shape != b.shape and a.ndim and b.ndim, out)


@fault("argmax")
class WrongShape(Sound):
    """wrong shape"""

    def argmax(self, x, axes, keepdims, out=None):
        return np.argmax(x, axes[0], keepdims=True)


@fault("max_pool2d_grad")
class Raising(Sound):
    """raises for some shapes"""

    def max_pool2d_grad(self, g, x, *rest):
        if x.shape[1] > 3:
            raise ValueError("too many channels")
        return super().max_pool2d_grad(g, x, *rest)


@fault("scatter_add")
class Duplicates(Sound):
    """wrong only for duplicate indices"""

    def scatter_add(self, g, *arguments):
        index, shape, _, out = arguments
        result = np.zeros(shape, g.dtype)
        result[index] = g
        return off(result, False, out)


@fault("divide")
class InPlace(Sound):
    """wrong only in place"""

    def divide(self, a, b, out=None):
        return off(np.divide(a, b), out is not None and (a is out or b is out), out)


@fault("conv2d")
class Padded(Sound):
    """wrong only with padding"""

    def conv2d(self, x, w, stride, padding, out=None):
        return off(super().conv2d(x, w, stride, padding, None), padding != (0, 0), out)


@fault("exp")
class LargeValues(Sound):
    """overflows for large values"""

    def exp(self, x, out=None):
        with np.errstate(over="ignore"):
            result = np.where(x > 50, np.inf, np.exp(x)).astype(x.dtype)
        return off(result, False, out)


@fault("negative")
class EveryThird(Sound):
    """wrong at every third call"""

    calls = 0

    def negative(self, x, out=None):
        self.calls += 1
        return off(np.negative(x), self.calls % 3 == 0, out)


@fault("square")
class LowPrecision(Sound):
    """computes float64 in float32"""

    def square(self, x, out=None):
        return off(np.square(x.astype(np.float32)).astype(x.dtype), False, out)


@fault("copy")
class Flipped(Sound):
    """wrong only for negative strides"""

    def copy(self, x, out=None):
        return off(np.array(x), any(s < 0 for s in x.strides), out)


@fault("random_normal")
class Spread(Sound):
    """random numbers of the wrong spread"""

    def random_normal(self, mean, std, source, out):
        out[...] = source.normal(mean, 2 * std, out.shape)
        return out


def program():
    """A training step of a small CNN, and odds and ends."""
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 9)
    )
    optimizer = Adam(net.parameters(), lr=1e-2)
    images = flnb.random.normal((8, 1, 8, 8))
    for _ in range(2):
        optimizer.zero_grad()
        scores = net(images)
        nn.CrossEntropyLoss()(scores, flnb.asarray(np.arange(8))).backward()
        optimizer.step()
    flnb.argmax(scores, axis=1)
    half = flnb.exp(flnb.asarray(np.linspace(0, 1, 30), dtype=flnb.float16))
    flnb.exp(flnb.asarray([1.0, 60.0]))
    flnb.sqrt(flnb.asarray([[1.0, 4.0, -0.0], [9.0, 2.0, 3.0]]))
    table = flnb.Variable(np.ones((5, 3), np.float32))
    flnb.tanh(table[[0, 2, 2, 4]]).sum().backward()
    flnb.square(flnb.asarray(np.linspace(0, 1, 7)))
    flnb.flip(flnb.asarray(np.arange(12.0).reshape(3, 4)), axis=1).copy()
    x = flnb.ones((6, 50)) * 3.0
    x /= 2.0
    for _ in range(6):
        half = -half
    return flnb.log(x + flnb.ones((50,))).sum()


def test_nothing_differs_on_a_sound_backend():
    assert flnb.bisect(program, "numpy", Sound) is None


def test_there_are_twenty_faults_or_more():
    assert len(FAULTS) >= 20


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", FAULTS)
def test_a_planted_fault_is_found_and_shown(what, capsys):
    op, cls = FAULTS[what]
    found = flnb.bisect(program, "numpy", cls)
    assert found is not None
    assert found.op == op
    assert found.place.source
    assert len(found.script.splitlines()) <= 10
    exec(found.script, {})
    assert "no difference" not in (shown := capsys.readouterr().out)
    assert shown.strip()
    exec(found.script.replace(cls.__name__, "Sound"), {})
    assert "no difference" in capsys.readouterr().out


CELL = """
import numpy
import numpy as np
import flnb
from flnb.backends import NumpyBackend

LIMIT, x = 3, object()

def shifted(x):
    return numpy.tanh(x if x.size < LIMIT else x + 1)

class Base(NumpyBackend):
    name = "base"

def make(factor):
    class Faulty(Base):
        def tanh(self, x, out=None):
            return np.multiply(shifted(x), factor, out)
    return Faulty
"""


def test_the_script_of_a_backend_typed_into_a_cell_runs_alone(monkeypatch):
    monkeypatch.setitem(linecache.cache, "<cell>", (len(CELL), None, CELL.splitlines(keepends=True), "<cell>"))
    cell = {"__name__": "__main__"}
    exec(compile(CELL, "<cell>", "exec"), cell)
    found = flnb.bisect(lambda: flnb.tanh(flnb.zeros((4, 4))), "numpy", cell["make"](1.0))
    alone = subprocess.run([sys.executable, "-c", found.script], capture_output=True, text=True, check=True)
    assert alone.stdout.startswith("largest error"), found.script
    assert "x = " not in found.script
