"""Steps of optimizers in one launch, beside the same algorithms as ops on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import flnb
from flnb import nn, optim

if TYPE_CHECKING:
    from flnb.testing.cuda import EmulatedDevice

ALGORITHMS: dict[str, Any] = {
    "sgd": lambda some: optim.SGD(some, lr=0.1),
    "sgd, decay": lambda some: optim.SGD(some, lr=0.1, weight_decay=0.3),
    "momentum": lambda some: optim.SGD(some, lr=0.1, momentum=0.9, weight_decay=0.3),
    "nesterov": lambda some: optim.SGD(some, lr=0.1, momentum=0.9, nesterov=True),
    "nag": lambda some: optim.NAG(some, lr=0.1, weight_decay=0.3),
    "adam": lambda some: optim.Adam(some, lr=0.1, betas=(0.8, 0.9), weight_decay=0.3),
    "adamw": lambda some: optim.AdamW(some, lr=0.1, weight_decay=0.3),
    "amsgrad": lambda some: optim.AMSgrad(some, lr=0.1, betas=(0.5, 0.5)),
}
SHAPES = (37,), (3, 5), (), (0, 4), (70, 11)


def after_steps(name: str, dtype: Any, backend: str, steps: int = 4) -> tuple[list[Any], dict[str, Any], Any]:
    """Train parameters of several shapes, one of them a transposed view; returns them, the state, and the recording."""
    random = np.random.default_rng(7)
    start = [random.normal(size=shape).astype(dtype) for shape in SHAPES]
    with flnb.use_backend(backend), flnb.record("steps") as run:
        some = [nn.Parameter(flnb.asarray(values)) for values in start]
        some.append(nn.Parameter(flnb.asarray(start[-1]).T))
        optimizer = ALGORITHMS[name](some)
        for step in range(steps):
            for item in some:
                values = random.normal(size=item.shape) * (step % 2 * 3 + 1)
                item.grad = flnb.asarray(values.astype(dtype))
            optimizer.step()
        return [item.data.numpy() for item in some], optimizer.state_dict()["state"], run


def updates(run: Any) -> int:
    """How often the recording has a step in one call."""
    return sum(row.count for row in run.ops if row.key[0].endswith("_update"))


CASES = [(name, dtype) for name in ALGORITHMS for dtype in (np.float32, np.float64, np.float16)]


@pytest.mark.parametrize(("name", "dtype"), [*CASES, ("momentum", np.complex64), ("nag", np.complex64)])
def test_the_same_values_as_by_ops_on_the_host(name: str, dtype: Any, cuda: EmulatedDevice) -> None:
    wanted, state, _ = after_steps(name, dtype, "numpy")
    found, there, run = after_steps(name, dtype, "cuda")
    close = {"rtol": 1e-12, "atol": 1e-12} if dtype == np.float64 else {"rtol": 2e-5, "atol": 2e-5}
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, **close if dtype != np.float16 else {"rtol": 2e-3, "atol": 2e-3})
    for slot, values in state.items():
        np.testing.assert_allclose(there[slot].numpy(), values.numpy(), err_msg=slot, **close)
    assert updates(run) == (0 if dtype == np.complex64 else 4 * (len(SHAPES) + 1))


def test_a_parameter_that_a_step_wrote_cannot_be_used_by_an_older_graph(cuda: EmulatedDevice) -> None:
    with flnb.use_backend("cuda"):
        weight = nn.Parameter(flnb.asarray([1.0, 2.0]))
        loss = flnb.sum(weight * weight)
        loss.backward(retain_graph=True)
        optim.SGD([weight], lr=0.1).step()
        with pytest.raises(RuntimeError, match="in place"):
            loss.backward()


def test_own_algorithms_and_own_ops_are_called(cuda: EmulatedDevice) -> None:
    """A class derived from Adam may have changed any of its methods, one derived from the backend any of its ops."""
    from flnb_backends.tensor.cuda.backend import CudaBackend

    class Plain(optim.Adam):
        pass

    class Counting(CudaBackend):
        calls = 0

        def multiply(self, x: Any, y: Any, out: Any = None) -> Any:
            type(self).calls += 1
            return super().multiply(x, y, out)

    for backend, algorithm in (("cuda", Plain), (Counting, optim.Adam)):
        with flnb.use_backend(backend), flnb.record("steps") as run:
            weight = nn.Parameter(flnb.asarray([1.0, 2.0]))
            weight.grad = flnb.asarray([1.0, -1.0])
            algorithm([weight], lr=0.1).step()
        assert np.allclose(weight.data.numpy(), [0.9, 2.1])
        assert not updates(run)
    assert Counting.calls >= 4


@pytest.mark.parametrize(("name", "value"), [("sgd", np.nan), ("amsgrad", np.nan), ("adam", np.inf)])
def test_values_that_are_no_numbers_stay(name: str, value: float, cuda: EmulatedDevice) -> None:
    found = []
    for backend in ("numpy", "cuda"):
        with flnb.use_backend(backend):
            weight = nn.Parameter(flnb.asarray([1.0, 2.0]))
            optimizer = ALGORITHMS[name]([weight])
            for slope in ([1.0, value], [1.0, 1.0]):
                weight.grad = flnb.asarray(slope)
                optimizer.step()
            found.append(weight.data.numpy())
    np.testing.assert_allclose(*found, rtol=1e-6)
    assert np.isfinite(found[1]).tolist() == [True, False]


@pytest.mark.parametrize("algorithm", ["sgd", "adam"])
def test_a_gradient_of_another_dtype_or_device_is_refused(algorithm: str, cuda: EmulatedDevice) -> None:
    """A kernel would read float64 where float32 is, and write over the parameter's end."""
    with flnb.use_backend("cuda:1"):
        elsewhere = flnb.asarray([1.0, 1.0, 1.0], dtype=np.float32)
    with flnb.use_backend("cuda"):
        for slope, error in ((flnb.asarray(np.ones(3)), ValueError), (elsewhere, TypeError)):
            weight = nn.Parameter(flnb.asarray([1.0, 2.0, 3.0], dtype=np.float32))
            weight.grad = slope
            with pytest.raises(error, match=r"float64\[3\]|cuda:1"):
                ALGORITHMS[algorithm]([weight]).step()
            np.testing.assert_array_equal(weight.data.numpy(), [1, 2, 3])
