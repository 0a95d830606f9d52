"""Training steps of the cuda backend on the emulated device, each batch uploaded in a stream of its own."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_backends.tensor.cuda.gpu import gpu_at

import flnb
from flnb import nn
from flnb.testing.cuda import emulate

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE, BATCH = 32, 64


@cache
def stream_for_copies() -> Any:
    """A stream that stays: memory which it has used waits for it whenever it is used again."""
    import cupy

    return cupy.cuda.Stream(non_blocking=True)


class Loader:
    """Uploads the next batch in a stream for copies, while the program computes with the one before."""

    def __init__(self) -> None:
        self.gpu, self.random, self.stream = gpu_at(), np.random.default_rng(0), stream_for_copies()
        self.gpu.several_streams = True
        self.fetch()

    def fetch(self) -> None:
        images = self.random.normal(size=(BATCH, SIZE)).astype(np.float32)
        with self.stream, flnb.scope("batch"):
            self.next = flnb.asarray(images)

    def take(self) -> Any:
        """Return the batch that was fetched; what is computed from now on waits for it."""
        self.gpu.driver.wait_for_stream(self.gpu.stream(), self.stream.ptr)
        return self.next


def trained(
    steps: int = 3, order: Any = "random", seed: int = 17, name: str = "digits", until: Callable[[], bool] | None = None
) -> Any:
    """The recording of some steps, or of steps until something is the case."""
    device = emulate(order, seed)
    with flnb.use_backend("cuda"):
        model = nn.Sequential(nn.Linear(SIZE, 48), nn.ReLU(), nn.Linear(48, 10))
        optimizer = flnb.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        labels, loader = flnb.asarray(np.arange(BATCH) % 10), Loader()
        flnb.sync()
        with flnb.record(name, grad_interval=None) as run:
            number = 0
            while number < steps if until is None else not until():
                with flnb.step(total=steps if until is None else None):
                    x = loader.take()
                    loader.fetch()
                    with flnb.scope("net"):
                        loss = flnb.cross_entropy(model(x), labels)
                    loss.backward()
                    del x, loss
                    loader.gpu.manager.stats()  # blocks of dropped tensors are freed here, else by the next allocation
                    optimizer.step()
                    optimizer.zero_grad()
                number += 1
            flnb.sync()
    assert not device.reports, device.reports
    return run
