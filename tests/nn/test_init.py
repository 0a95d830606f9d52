"""Initial values: moments and bounds by the papers' formulas, seeds, dtypes, and shapes that are refused."""

import math

import numpy as np
import pytest

import flnb
from flnb import nn
from flnb.nn import init

SHAPE = (60, 40, 3, 3)
INPUTS, OUTPUTS = 360, 540
MANY = math.prod(SHAPE)
GLOROT, HE = math.sqrt(2 / (INPUTS + OUTPUTS)), math.sqrt(2 / INPUTS)
NORMAL = {
    "normal": (lambda **k: init.normal(SHAPE, 1.0, 0.5, **k), 1.0, 0.5),
    "glorot_normal": (lambda **k: init.glorot_normal(SHAPE, **k), 0.0, GLOROT),
    "glorot_normal gain": (lambda **k: init.glorot_normal(SHAPE, 3.0, **k), 0.0, 3.0 * GLOROT),
    "kaiming_normal": (lambda **k: init.kaiming_normal(SHAPE, **k), 0.0, HE),
    "kaiming_normal out": (lambda **k: init.kaiming_normal(SHAPE, "out", **k), 0.0, math.sqrt(2 / OUTPUTS)),
    "kaiming_normal leaky": (lambda **k: init.kaiming_normal(SHAPE, slope=0.5, **k), 0.0, HE / math.sqrt(1.25)),
}
UNIFORM = {
    "uniform": (lambda **k: init.uniform(SHAPE, -1.0, 3.0, **k), -1.0, 3.0),
    "glorot_uniform": (lambda **k: init.glorot_uniform(SHAPE, **k), -math.sqrt(3) * GLOROT, math.sqrt(3) * GLOROT),
    "kaiming_uniform": (lambda **k: init.kaiming_uniform(SHAPE, **k), -math.sqrt(3) * HE, math.sqrt(3) * HE),
}
DRAWN = {
    **{n: f for n, (f, *_) in (NORMAL | UNIFORM).items()},
    "truncated": lambda **k: init.truncated_normal(SHAPE, **k),
}


def seeded():
    return flnb.random.Generator(11)


@pytest.mark.parametrize("name", NORMAL)
def test_normal_moments(name):
    draw, mean, std = NORMAL[name]
    x = (draw(generator=seeded()).numpy() - mean) / std
    assert abs(x.mean()) < 5 / math.sqrt(MANY)
    assert abs(x.std() - 1) < 5 / math.sqrt(2 * MANY)
    assert abs((np.abs(x) < 1).mean() - 0.6827) < 0.02  # it is normal, not only of that variance


@pytest.mark.parametrize("name", UNIFORM)
def test_uniform_bounds(name):
    draw, low, high = UNIFORM[name]
    x = (draw(generator=seeded()).numpy() - low) / (high - low)
    assert -1e-6 <= x.min() < 0.001
    assert 0.999 < x.max() <= 1 + 1e-6
    assert abs(np.histogram(x, 4, (0, 1))[0] / MANY - 0.25).max() < 0.02


def test_the_truncated_normal_is_the_normal_within_the_cuts():
    x = init.truncated_normal((100_000,), 1.0, 2.0, low=-1.0, high=2.0, generator=seeded()).numpy()
    assert -1 <= x.min() < -0.99
    assert 1.99 < x.max() <= 2
    below = [math.erf((cut - 1.0) / (2.0 * math.sqrt(2))) for cut in (-1.0, 0.5, 2.0)]
    assert abs((x < 0.5).mean() - (below[1] - below[0]) / (below[2] - below[0])) < 0.01
    with pytest.raises(ValueError, match=r"0\.13% of the normal .* lies in \[3\.0, 9\.0\], expected 1% or more"):
        init.truncated_normal((3,), low=3.0, high=9.0)


@pytest.mark.parametrize("name", DRAWN)
def test_the_generator_and_the_dtype_are_used(name):
    draw = DRAWN[name]
    first, again = draw(generator=seeded(), dtype="float64"), draw(generator=seeded(), dtype="float64")
    assert first.dtype == flnb.float64
    np.testing.assert_array_equal(first.numpy(), again.numpy())
    assert draw().dtype == flnb.float32
    assert (draw().numpy() != draw().numpy()).any()


def test_constant_and_identity():
    assert init.constant((2, 3), 0.5).tolist() == [[0.5] * 3] * 2
    assert init.identity((2, 3), dtype="float64").tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    with pytest.raises(ValueError, match=r"expected the shape of a matrix \(out, in\), got \(2,\)"):
        init.identity((2,))


def test_what_has_no_inputs_and_outputs_is_refused():
    assert init.fans((7, 5)) == (5, 7)
    with pytest.raises(ValueError, match=r"expected a weight \(out, in, \*kernel\), got the shape \(4,\)"):
        init.glorot_normal((4,))
    with pytest.raises(ValueError, match="mode must be 'in' or 'out', got 'fan_in'"):
        init.kaiming_normal(SHAPE, "fan_in")


@pytest.mark.parametrize("name", ["kaiming_uniform", "kaiming_normal", "glorot_uniform", "glorot_normal", "uniform"])
def test_extents_of_zero_are_empty_and_negative_ones_refused(name):
    make = getattr(init, name)
    for shape in ((3, 0), (0, 3), (0, 0)):
        assert make(shape).shape == shape
    for shape in ((2, -3), (-2, 3)):
        with pytest.raises(ValueError, match=rf"a shape with extents >= 0, got \({shape[0]}, {shape[1]}\)"):
            make(shape)


def test_layers_without_inputs_have_parameters_and_negative_ones_are_refused():
    assert nn.Linear(0, 3)(flnb.zeros((2, 0))).shape == (2, 3)
    with pytest.raises(ValueError, match=r"a shape with extents >= 0, got \(3, -1\)"):
        nn.Linear(-1, 3)
