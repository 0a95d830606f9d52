"""Training in mixed precision: levels O0 to O3 with loss scaling, master weights, checkpoints, memory."""

import warnings

import numpy as np
import pytest

import flnb
import flnb.nn as nn
import flnb.optim as optim

HALF, FULL = np.dtype(np.float16), np.dtype(np.float32)


def digits():
    """Noisy pictures of ten prototypes, (N, 1, 8, 8), and which they are of."""
    rng = np.random.default_rng(0)
    prototypes, labels = rng.normal(size=(10, 1, 8, 8)), rng.integers(0, 10, 512)
    pictures = prototypes[labels] + 0.8 * rng.normal(size=(512, 1, 8, 8))
    return flnb.asarray(pictures.astype(np.float32)), flnb.asarray(labels)


def network(level):
    flnb.manual_seed(1)
    block = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm(8), nn.ReLU(), nn.MaxPool2d(2)
    net = nn.Sequential(*block, nn.Flatten(), nn.Linear(128, 10))
    return net.half(keep={"O2": nn.BatchNorm, "O3": ()}[level]) if level in ("O2", "O3") else net


def train(level, steps=40, scale=2.0**16):
    """Percent right, steps skipped, and the scale at the end."""
    net, (x, y) = network(level), digits()
    scaler = optim.LossScaler(optim.Adam(net.parameters(), lr=0.01), scale=scale)
    skipped = 0
    for step in range(steps):
        at = slice(64 * (step % 6), 64 * (step % 6) + 64)
        scaler.optimizer.zero_grad()
        with flnb.autocast(level):
            loss = flnb.cross_entropy(net(x[at]), y[at])
        scaler.scaled(loss).backward()
        skipped += not scaler.step()
    with flnb.no_grad(), flnb.autocast(level):
        right = flnb.argmax(net.eval()(x[384:]), axis=1).numpy() == y[384:].numpy()
    return 100.0 * right.mean(), skipped, scaler.scale


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_levels_train_as_well_as_float32(level):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy tells of the overflows that the scaler is there for
        reached, skipped, scale = train(level)
    exact, *_ = train("O0")
    assert exact > 90.0
    assert reached >= exact - 3.0
    assert (skipped > 0) == (scale < 2.0**16)
    assert skipped <= 4


def test_an_overflow_skips_the_step_and_halves_the_scale():
    w = nn.Parameter(flnb.ones((2, 2)))
    optimizer = optim.SGD([w], lr=0.1)
    scaler = optim.LossScaler(optimizer, scale=2.0**20)
    taken = []
    for _ in range(2):
        optimizer.zero_grad()
        with flnb.autocast("O1"):
            loss = (w @ w).sum()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            scaler.scaled(loss).backward()
        taken.append(scaler.step())
        assert w.data.tolist() == [[1.0, 1.0]] * 2
    assert (taken, scaler.scale, optimizer.steps) == ([False, False], 2.0**18, 0)


def test_a_loss_in_half_precision_is_scaled_in_float32():
    scaler = optim.LossScaler(optim.SGD([nn.Parameter(flnb.ones(1))], lr=0.1))
    scaled = scaler.scaled(flnb.asarray(2.0, dtype=HALF))
    assert (scaled.dtype, scaled.item()) == (FULL, 2.0**17)
    with flnb.autocast("O3"):
        assert scaler.scaled(flnb.asarray(2.0)).item() == 2.0**17


def test_gradients_in_half_precision_become_float32_when_they_are_unscaled():
    w = nn.Parameter(flnb.ones(2, dtype=HALF))
    scaler = optim.LossScaler(optim.SGD([w], lr=1.0), scale=2.0**15)
    w.grad = flnb.asarray(np.float16([2.0**-9, 1.0]))
    assert scaler.unscale()
    assert (w.grad.dtype, w.grad.tolist()) == (FULL, [2.0**-24, 2.0**-15])


@pytest.mark.parametrize(
    "algorithm",
    [optim.SGD, optim.Adam, optim.AdamW, optim.RMSProp, optim.Adadelta, optim.Adagrad, optim.AMSgrad, optim.Novograd],
)
def test_master_weights_move_as_float32_parameters_do(algorithm):
    start = np.float16([0.5, -1.5, 3.0])
    half, full = nn.Parameter(flnb.asarray(start)), nn.Parameter(flnb.asarray(start.astype(np.float32)))
    ours, exact = (algorithm([item], lr=1e-4) for item in (half, full))
    rng = np.random.default_rng(0)
    for _ in range(20):
        gradient = rng.normal(size=3).astype(np.float16)
        half.grad, full.grad = flnb.asarray(gradient), flnb.asarray(gradient.astype(np.float32))
        ours.step()
        exact.step()
    np.testing.assert_array_equal(ours.state_dict()["state"]["0.master"].numpy(), full.data.numpy())
    np.testing.assert_array_equal(half.data.numpy(), full.data.numpy().astype(np.float16))
    assert half.dtype == HALF


def test_steps_too_small_for_half_precision_add_up():
    w = nn.Parameter(flnb.ones(1, dtype=HALF))
    optimizer = optim.SGD([w], lr=1e-4)
    for _ in range(20):
        w.grad = flnb.ones(1, dtype=HALF)
        optimizer.step()
    assert w.data.item() == pytest.approx(1 - 20e-4, abs=5e-4)


def test_a_parameter_that_was_written_is_taken_over():
    w = nn.Parameter(flnb.ones(1, dtype=HALF))
    optimizer = optim.SGD([w], lr=0.5)
    for start, expected in ((1.0, 0.5), (8.0, 7.5)):
        flnb.assign(w.data, flnb.full((1,), start))
        w.grad = flnb.ones(1, dtype=HALF)
        optimizer.step()
        assert w.data.item() == expected


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    def parts():
        net = network("O2")
        optimizer = optim.Adam(net.parameters(), lr=0.01)
        return net, optimizer, optim.LossScaler(optimizer, scale=2.0**10, every=3)

    def go(net, scaler, steps):
        x, y = digits()
        for _ in range(steps):
            scaler.optimizer.zero_grad()
            with flnb.autocast("O2"):
                loss = flnb.cross_entropy(net(x[:32]), y[:32])
            scaler.scaled(loss).backward()
            assert scaler.step()

    net, optimizer, scaler = parts()
    go(net, scaler, 4)
    nn.save_checkpoint(tmp_path / "last", scaler=scaler, optimizer=optimizer, net=net)
    go(net, scaler, 3)
    other, its_optimizer, its_scaler = parts()
    nn.load_checkpoint(tmp_path / "last", optimizer=its_optimizer, scaler=its_scaler, net=other)
    assert (its_scaler.scale, its_scaler.good) == (2.0**11, 1)
    go(other, its_scaler, 3)
    for name, item in net.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[name].numpy(), item.numpy())
    assert its_optimizer.state_dict()["state"].keys() == optimizer.state_dict()["state"].keys()


def test_a_model_that_is_cast_after_the_first_step_is_an_error():
    layer = nn.Linear(2, 1)
    optimizer = optim.Adam(layer.parameters())
    layer(flnb.ones((1, 2))).sum().backward()
    optimizer.step()
    layer.half()(flnb.ones((1, 2), dtype=HALF)).sum().backward()
    with pytest.raises(RuntimeError, match=r"parameter 0 is float16\[1,2\] now, its state was made for float32; cast"):
        optimizer.step()


def test_a_state_without_master_weights_does_not_fit():
    full, half = (optim.SGD([nn.Parameter(flnb.ones(2, dtype=dtype))], lr=0.1) for dtype in (FULL, HALF))
    full.parameters[0].grad = flnb.ones(2)
    full.step()
    with pytest.raises(ValueError, match=r"missing: 0\.master"):
        half.load_state_dict(full.state_dict())


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_what_forward_keeps_is_about_half(level):
    def kept(level):
        flnb.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Tanh(), nn.Flatten())
        net = net.half() if level == "O2" else net
        x = flnb.ones((32, 1, 12, 12))
        before = flnb.memory.stats()["allocated"]
        with flnb.autocast(level):
            y = net(x)
        assert y.dtype == (FULL if level == "O0" else HALF)
        return flnb.memory.stats()["allocated"] - before

    assert 0.4 * kept("O0") < kept(level) < 0.6 * kept("O0")
