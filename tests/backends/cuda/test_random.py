"""Random numbers by own kernels: the generator against published numbers, distributions by their moments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_backends.tensor.cuda import launcher
from flnb_backends.tensor.cuda.random import RandomNumbers

from tests.backends.cuda.buffers import Buffers

if TYPE_CHECKING:
    from flnb.testing.cuda import EmulatedDevice

PUBLISHED = [  # kat_vectors of Random123, the authors' own code: counter, key, words
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
WORDS = (
    'extern "C" __global__ void words(unsigned *y, Words counter, unsigned low, unsigned high) {'
    " counter = philox(counter, low, high); for (int i = 0; i < 4; i++) y[i] = counter.of[i]; }"
)


class OnDevice(Buffers, RandomNumbers):
    """The methods, over arrays of the tests."""


@pytest.fixture
def backend(device: EmulatedDevice) -> OnDevice:
    return OnDevice(device)


def drawn(backend: OnDevice, name: str, shape: Any, one: float, other: float, seed: int, dtype: Any = "float32") -> Any:
    out = backend.new(shape if isinstance(shape, tuple) else (shape,), np.dtype(dtype))
    assert getattr(backend, name)(one, other, np.random.default_rng(seed), out) is out
    return out.numpy()


@pytest.mark.parametrize(("counter", "key", "words"), PUBLISHED)
def test_philox_gives_the_published_words(counter: str, key: str, words: str, backend: OnDevice) -> None:
    driver = backend.device.driver
    text = launcher.kernel_text("random", (("T", "float32"), ("F", "float32"))) + WORDS
    numbers = [[np.uint32(int(word, 16)) for word in each.split()] for each in (counter, key, words)]
    given = np.array([tuple(numbers[0])], [(f"w{i}", np.uint32) for i in range(4)])[0]
    y = backend.new((4,), np.dtype(np.uint32))
    driver.launch(driver.kernel(driver.load(driver.build(text)), "words"), (1,), (1,), [y.data.ptr, given, *numbers[1]])
    assert y.numpy().tolist() == numbers[2]


def philox(counter: list[int], key: list[int]) -> list[int]:
    """The generator once more, with Python's ints."""
    for i in range(10):
        one, other = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        low, high = (key[0] + i * 0x9E3779B9) % 2**32, (key[1] + i * 0xBB67AE85) % 2**32
        counter = [other >> 32 ^ counter[1] ^ low, other % 2**32, one >> 32 ^ counter[3] ^ high, one % 2**32]
    return counter


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_are_made_of_the_words_of_blocks(dtype: str, backend: OnDevice) -> None:
    for counter, key, words in PUBLISHED:
        assert philox(*([int(word, 16) for word in each.split()] for each in (counter, key))) == [
            int(word, 16) for word in words.split()
        ]
    n, seed = 150, 11
    bits = int(np.random.default_rng(seed).integers(1 << 64, dtype=np.uint64))
    blocks = np.array([philox([i, 0, 0, 0], [bits % 2**32, bits >> 32]) for i in range(n)], np.uint64)
    unit = (blocks >> np.uint64(8)) / 2**24
    if dtype == "float64":
        unit = (blocks[:, ::2] << np.uint64(32) | blocks[:, 1::2]) >> np.uint64(11)
        unit = unit / 2**53
    each = unit.shape[1]
    unit = unit[: -(-n // each)]
    wanted = unit.T.reshape(-1)[:n]
    np.testing.assert_array_equal(drawn(backend, "random_uniform", n, 0, 1, seed, dtype), wanted.astype(dtype))
    distance, angle = np.sqrt(-2 * np.log(1 - unit[:, ::2])), 2 * np.pi * unit[:, 1::2]
    pairs = np.stack([distance * np.cos(angle), distance * np.sin(angle)], -1).reshape(len(unit), each)
    wanted = 2 + 3 * pairs.T.reshape(-1)[:n]
    tolerance = 1e-5 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(drawn(backend, "random_normal", n, 2, 3, seed, dtype), wanted, tolerance, tolerance)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_uniform_numbers_have_the_moments_of_the_distribution(dtype: str, backend: OnDevice) -> None:
    n = 20_001
    x = drawn(backend, "random_uniform", n, -3.0, 5.0, 7, dtype)
    assert x.dtype == dtype
    assert ((x >= -3) & (x < 5)).all()
    assert len(np.unique(x)) > (0.99 * n if dtype != "float16" else 2000)
    unit = (x.astype(np.float64) + 3) / 8
    for power in (1, 2, 3, 4):  # the mean of u^p is 1 / (p + 1), its variance 1 / (2 p + 1) - 1 / (p + 1)^2
        error = (1 / (2 * power + 1) - 1 / (power + 1) ** 2) ** 0.5 / n**0.5
        assert np.mean(unit**power) == pytest.approx(1 / (power + 1), abs=4 * error)
    correlation = np.corrcoef(unit[:-1], unit[1:])[0, 1]
    assert abs(correlation) < 4 / n**0.5


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_normal_numbers_have_the_moments_of_the_distribution(dtype: str, backend: OnDevice) -> None:
    n = 20_001
    x = (drawn(backend, "random_normal", n, 2.0, 3.0, 8, dtype).astype(np.float64) - 2) / 3
    wanted = {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96), 6: (15, 10170)}  # mean and variance of z^p
    for power, (mean, variance) in wanted.items():
        assert np.mean(x**power) == pytest.approx(mean, abs=4 * (variance / n) ** 0.5)
    quarter = -(-n // 4)
    for distance in (1, quarter, 2 * quarter, 3 * quarter, -(-n // 2)):  # numbers of one block are that far apart
        assert abs(np.corrcoef(x[:-distance], x[distance:])[0, 1]) < 4 / (n - distance) ** 0.5


@pytest.mark.parametrize("name", ["random_uniform", "random_normal"])
def test_equal_seeds_give_equal_tensors(name: str, backend: OnDevice, device: EmulatedDevice) -> None:
    first = drawn(backend, name, (7, 43), 0, 1, 3)
    device.begin("random", 5)
    np.testing.assert_array_equal(drawn(backend, name, (7, 43), 0, 1, 3), first)
    assert not np.isclose(drawn(backend, name, (7, 43), 0, 1, 4), first, atol=1e-6).any()
    source, out = np.random.default_rng(3), backend.new((7, 43), np.dtype(np.float32))
    calls = [getattr(backend, name)(0, 1, source, out).numpy() for _ in range(2)]
    assert not np.isclose(*calls, atol=1e-6).any()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 1025])
def test_every_element_is_drawn(n: int, dtype: str, backend: OnDevice) -> None:
    out = backend.put(np.full((n, 2), -9, dtype))[:, 0]
    assert backend.random_uniform(0.0, 1.0, np.random.default_rng(0), out) is out
    x = out.numpy()
    assert x.shape == (n,)
    assert ((x >= 0) & (x < 1)).all()


def test_numbers_stay_below_a_limit_to_which_they_are_rounded(backend: OnDevice) -> None:
    x = drawn(backend, "random_uniform", 4000, 1.0, 1.01, 0, "float16")  # 1.01 is 1 + 10 / 1024 there
    np.testing.assert_array_equal(np.unique(x), (1 + np.arange(10) / 1024).astype(np.float16))
    assert (drawn(backend, "random_uniform", 9, 2.5, 2.5, 0) == 2.5).all()
    falling = drawn(backend, "random_uniform", 900, 1.0, -1.0, 0)  # as NumPy's, in (high, low]
    assert falling.min() < -0.9
    assert falling.max() > 0.9
    falling = drawn(backend, "random_uniform", 4000, 1.01, 1.0, 0, "float16")
    np.testing.assert_array_equal(np.unique(falling), (1 + np.arange(1, 11) / 1024).astype(np.float16))


def test_stores_are_of_whole_sectors(backend: OnDevice, device: EmulatedDevice) -> None:
    drawn(backend, "random_uniform", 512, 0, 1, 0)
    assert device.traffic("random_uniform").sectors_per_request == 4
