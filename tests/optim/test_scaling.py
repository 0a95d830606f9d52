"""Loss scaling: exact where nothing overflows, skipped steps, an adaptive scale, float16."""

import numpy as np
import pytest

import flnb
import flnb.nn as nn
import flnb.optim as optim


def weight(value=3.0, dtype=np.float32):
    return nn.Parameter(flnb.asarray(np.asarray([value], dtype)))


def test_powers_of_two_change_no_bit():
    def train(scale):
        item = weight()
        optimizer = optim.Adam([item], lr=0.1)
        scaler = optim.LossScaler(optimizer, scale=scale)
        for _ in range(10):
            optimizer.zero_grad()
            scaler.scaled(flnb.sum(flnb.square(item))).backward()
            assert scaler.step()
        return item.data.numpy()

    np.testing.assert_array_equal(train(1.0), train(2.0**10))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_step_without_finite_gradients_is_skipped_and_the_scale_adapts(bad):
    one, other = weight(), weight()
    optimizer = optim.SGD([one, other], lr=0.5)
    scaler = optim.LossScaler(optimizer, scale=8.0, growth=4.0, backoff=0.25, every=2)
    taken, scales = [], []
    for value in (1.0, bad, 1.0, 1.0, 1.0):
        one.grad, other.grad = flnb.asarray(np.float32([8.0])), flnb.asarray(np.float32([value]))
        taken.append(scaler.step())
        scales.append(scaler.scale)
    assert taken == [True, False, True, True, True]
    assert scales == [8.0, 2.0, 2.0, 8.0, 8.0]
    assert optimizer.steps == 4
    assert float(one.data[0]) == 3.0 - 0.5 * (8 / 8 + 8 / 2 + 8 / 2 + 8 / 8)


def test_gradients_are_unscaled_once_before_clipping():
    item = weight()
    scaler = optim.LossScaler(optim.SGD([item], lr=1.0), scale=16.0)
    scaler.scaled(flnb.sum(flnb.square(item))).backward()
    assert scaler.unscale()
    assert scaler.unscale()
    assert optim.clip_grad_norm([item], 2.0) == 6.0
    scaler.step()
    assert float(item.data[0]) == pytest.approx(1.0, rel=1e-6)


def test_a_gradient_too_small_for_float16_arrives_with_scaling_only():
    def gradient(scale):
        master = weight(1.0)  # float32; the product is computed in float16
        scaler = optim.LossScaler(optim.SGD([master], lr=1.0), scale=scale)
        half = master.astype(flnb.float16) * np.float16(1e-4)
        scaler.scaled(flnb.sum((half * np.float16(1e-4)).astype(flnb.float32))).backward()
        scaler.unscale()
        return float(master.grad[0])

    assert gradient(1.0) == 0.0
    assert gradient(1024.0) == pytest.approx(1e-8, rel=0.01)


def test_a_loss_that_is_nan_is_an_error_in_the_end():
    item = weight()
    scaler = optim.LossScaler(optim.SGD([item], lr=1.0), scale=4.0, minimum=1.0)
    item.grad = flnb.asarray(np.float32([np.nan]))
    assert [scaler.step(), scaler.step()] == [False, False]
    with pytest.raises(
        FloatingPointError, match=r"not finite even at a scale of 1; the loss itself is NaN .*lower the"
    ):
        scaler.step()
    assert float(item.data[0]) == 3.0


def test_state_and_errors():
    scaler = optim.LossScaler(optim.SGD([weight()], lr=1.0))
    scaler.load_state_dict({"scale": 32.0, "good": 5})
    assert scaler.state_dict() == {"scale": 32.0, "good": 5}
    with pytest.raises(ValueError, match="does not fit LossScaler; nothing was loaded\n  missing: good"):
        scaler.load_state_dict({"scale": 1.0})
    with pytest.raises(ValueError, match=r"0 < backoff < 1 and every >= 1, got scale=1\.0, .*, backoff=1\.0"):
        optim.LossScaler(optim.SGD([weight()], lr=1.0), scale=1.0, backoff=1.0)
