"""Training steps whose ops also run on the emulated device: on blocks of a manager, in streams that wait for others.

Numbers are NumPy's; what is real is what the device is asked for and does, and the memory that this takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_backends.memory.cuda import CudaDevice
from flnb_telemetry import intern, schema

import flnb
from flnb.testing.cuda import build_kernels
from tests.testing.cuda.arrays import TEXT

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.interface.memory import Block
    from flnb.testing.cuda import EmulatedDevice

SIZE = 64
WEIGHT, GRADIENT, ACTIVATION, STATE, INPUT, TEMPORARY = range(1, 7)


class Training:
    """A network of two layers: each batch is uploaded in a stream of its own while the step before it computes."""

    def __init__(self, device: EmulatedDevice) -> None:
        self.device, self.driver = device, device.driver
        self.driver.use(0)
        module = self.driver.load(build_kernels(TEXT))
        self.kernels = {name: self.driver.kernel(module, name) for name in ("matmul", "scale", "softmax", "block_sum")}
        memory = CudaDevice("64MiB", driver=self.driver)
        self.manager = flnb.memory.Caching(memory)
        self.compute, self.copies = self.driver.stream(), self.driver.stream()
        self.stream = self.compute  # in which blocks are allocated
        memory.order.stream = lambda: self.stream  # type: ignore[method-assign]
        self.pinned = self.driver.allocate_host(4 * SIZE * SIZE)
        self.events = [self.driver.event() for _ in range(3)]
        self.next: Block | None = None

    def close(self) -> None:
        """Give the memory back."""
        self.driver.synchronize()
        self.driver.free_host(self.pinned)

    def block(self, scope: str, op: str, category: int = ACTIVATION, size: int = 4 * SIZE * SIZE) -> Block:
        """A block for what an op makes in a scope, to be used by the stream that computes."""
        code = intern.plans.id_of(intern.Plan(op, "", (SIZE, SIZE), "float32", size)) << schema.PLAN_SHIFT
        with flnb.scope(scope):
            return flnb.memory.allocate(self.manager, size, code, category)

    def free(self, block: Block, *streams: int) -> None:
        block.streams = streams or (self.compute,)
        flnb.memory.release(self.manager, block)

    def launch(
        self, name: str, *given: Any, blocks: tuple[int, ...], threads: tuple[int, ...], shared: int = 0
    ) -> None:
        held = [each.address if hasattr(each, "address") else each for each in given]
        self.driver.launch(self.kernels[name], blocks, threads, held, self.compute, shared)

    def matmul(self, a: Block, b: Block, c: Block) -> None:
        sizes = [np.int32(SIZE)] * 3
        self.launch("matmul", a, b, c, *sizes, blocks=(SIZE // 16, SIZE // 16), threads=(16, 16))

    def scale(self, x: Block, y: Block, by: float = 0.5) -> None:
        count = SIZE * SIZE
        self.launch("scale", x, y, np.float32(by), np.int32(count), blocks=(count // 256,), threads=(256,))

    def prefetch(self) -> None:
        """Upload the next batch in the stream for copies."""
        self.stream = self.copies
        self.next = self.block("batch", "", INPUT)
        self.stream = self.compute
        self.driver.upload(self.next.address, self.pinned, self.next.size, self.copies)
        self.driver.record(self.events[0], self.copies)

    def step(self, weights: list[Block], states: list[Block], loss: Block) -> None:
        """One step: forward, backward, optimizer."""
        assert self.next is not None
        driver, x = self.driver, self.next
        driver.wait_event(self.compute, self.events[0])
        hidden, active = self.block("net.fc1", "matmul"), self.block("net.fc1", "multiply")
        output, chances = self.block("net.fc2", "matmul"), self.block("loss", "softmax")
        with flnb.phase("forward"):
            with flnb.scope("net.fc1"):
                self.op("matmul", lambda: self.matmul(x, weights[0], hidden))
                self.op("multiply", lambda: self.scale(hidden, active))
            self.prefetch()
            with flnb.scope("net.fc2"):
                self.op("matmul", lambda: self.matmul(active, weights[1], output))
            with flnb.scope("loss"):
                warps = SIZE // 32
                self.op("softmax", lambda: self.launch(
                    "softmax", output, chances, np.int32(SIZE), blocks=(SIZE,), threads=(SIZE,), shared=4 * warps
                ))  # fmt: skip
                self.driver.fill(loss.address, 0, 4, self.compute)
                self.op("sum", lambda: self.launch(
                    "block_sum", chances, loss, np.int32(SIZE * SIZE), blocks=(4,), threads=(256,)
                ))  # fmt: skip
        gradients = [self.block(f"net.fc{i}", "matmul", GRADIENT) for i in (1, 2)]
        with flnb.phase("backward"):
            self.op("matmul", lambda: self.matmul(active, chances, gradients[1]))
            back = self.block("net.fc2", "matmul", TEMPORARY)
            self.op("matmul", lambda: self.matmul(chances, weights[1], back))
            self.op("multiply", lambda: self.scale(back, hidden))
            self.op("matmul", lambda: self.matmul(x, hidden, gradients[0]))
        # the batch of this step was used by both streams, and goes while they still have to do with it
        for block in (back, hidden, active, output, chances):
            self.free(block)
        driver.record(self.events[1], self.compute)
        driver.download(self.pinned, x.address, 4 * SIZE, self.copies)
        driver.record(self.events[2], self.copies)
        self.free(x, self.compute, self.copies)
        with flnb.phase("optimizer"):
            for weight, gradient, state in zip(weights, gradients, states, strict=True):
                self.op("multiply", lambda gradient=gradient, state=state: self.scale(gradient, state, 0.9))
                self.op("multiply", lambda state=state, weight=weight: self.scale(state, weight, 0.99))
                self.free(gradient)

    def op(self, name: str, run: Callable[[], object]) -> None:
        """An op of flnb, which launches while it runs."""
        with flnb.use_backend(Launching(run)), flnb.use_memory_manager(flnb.memory.Native()):
            x = flnb.ones((4, 4))
            {"matmul": lambda: x @ x, "multiply": lambda: x * x, "softmax": lambda: flnb.softmax(x, axis=-1)}.get(
                name, lambda: flnb.sum(x)
            )()


class Launching(flnb.backends.NumpyBackend):
    """NumPy, but each of these ops also launches."""

    def __init__(self, run: Callable[[], object]) -> None:
        super().__init__()
        self.run = run

    def matmul(self, *given: Any, **more: Any) -> Any:
        self.run()
        return super().matmul(*given, **more)

    def multiply(self, *given: Any, **more: Any) -> Any:
        self.run()
        return super().multiply(*given, **more)

    def sum(self, *given: Any, **more: Any) -> Any:
        self.run()
        return super().sum(*given, **more)

    def softmax(self, *given: Any, **more: Any) -> Any:
        self.run()
        return super().softmax(*given, **more)


def trained(
    device: EmulatedDevice,
    steps: int = 3,
    order: Any = "random",
    seed: int = 17,
    name: str = "digits",
    until: Callable[[], bool] | None = None,
) -> Any:
    """The recording of some steps, or of steps until something is the case."""
    device.begin(order, seed)
    training = Training(device)
    with flnb.use_memory_manager(training.manager):
        weights = [training.block(f"net.fc{i}.weight", "full", WEIGHT) for i in (1, 2)]
        states = [training.block(f"net.fc{i}.velocity", "full", STATE) for i in (1, 2)]
        loss = training.block("loss", "sum", TEMPORARY, 4)
        for block in (*weights, *states):
            training.driver.fill(block.address, 0, block.size)
        training.driver.synchronize()
        with flnb.record(name) as run:
            training.prefetch()
            number = 0
            while number < steps if until is None else not until():
                number += 1
                with flnb.step(total=steps if until is None else None):
                    training.step(weights, states, loss)
                if until is not None:
                    training.driver.wait(training.compute)
            training.driver.synchronize()
        for block in (*weights, *states, loss, training.next):
            if block is not None:
                flnb.memory.release(training.manager, block)
    training.close()
    assert device.reports == []
    return run


assert schema.CATEGORIES[WEIGHT : TEMPORARY + 1] == (
    "parameter", "gradient", "activation", "optimizer_state", "input", "temporary",
)  # fmt: skip
