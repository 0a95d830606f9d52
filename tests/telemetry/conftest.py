"""A sink that keeps everything; a pretended program, which emits what a dispatcher and a memory manager would, through
the real bus; and a pretended browser, which adds frames up as the dashboard does."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_telemetry import bus, encoding, intern, log, pump, record, schema, step

if TYPE_CHECKING:
    from collections.abc import Iterator


class Collector:
    """A sink that keeps everything."""

    grad_interval: float | None = None
    live = True
    patience: float | None = None
    failure: BaseException | None = None

    def __init__(self) -> None:
        self.parts: list[tuple[int, Any]] = []

    def feed(self, lane: int, records: Any) -> None:
        self.parts.append((lane, records))

    def rows(self, kind: int = schema.OP) -> Any:
        rows = np.concatenate([np.empty((0, 8), np.int64), *(part for _, part in self.parts)])
        return rows[(rows[:, 0] & 0xFF) == kind]


@pytest.fixture
def sink() -> Iterator[Collector]:
    found = Collector()
    yield found
    pump.detach(found)


class Program:
    """Emits records with times of its own (`t`, ns), so that every expected number is known exactly."""

    def __init__(self) -> None:
        self.t = time.perf_counter_ns()
        self.block = 0
        self.node = 0
        self.walked = 0  # the node at which the last backward pass began

    @staticmethod
    def plan(op: str, family: str = "elementwise", shape: tuple[int, ...] = (8, 8), dtype: str = "float32") -> int:
        size = 4
        for extent in shape:
            size *= extent
        return intern.plans.id_of(intern.Plan(op, family, shape, dtype, size, 0, (shape, shape)))

    def op(
        self,
        name: str = "add",
        spent: int = 1000,
        *,
        family: str = "elementwise",
        shape: tuple[int, ...] = (8, 8),
        block: int = 0,
        node: int = 0,
        parents: tuple[int, int] = (0, 0),
        at: int | None = None,
        line: str = "",
    ) -> None:
        assert bus.lanes is not None
        lane = bus.lanes.lane
        context = lane.context
        if line:
            context = intern.contexts.id_of(intern.contexts.items[context]._replace(line=line))
        begin = self.t if at is None else at
        code = schema.OP | self.plan(name, family, shape) << schema.PLAN_SHIFT
        lane.emit(code, begin, begin + spent, block, node, context, *parents)
        self.t = max(self.t, begin + spent)

    def forward(self, name: str, *parents: int, **options: object) -> int:
        """An op that makes a tape node; its number."""
        self.node += 1
        first = (*parents, 0, 0)[:2]
        self.op(name, node=self.node, parents=first, **options)  # type: ignore[arg-type]
        if len(parents) > 2:
            bus.emit(schema.EDGE, self.t, self.node, *(*parents[2:], 0, 0, 0, 0, 0)[:5])
        return self.node

    def segment(self, number: int, address: int, size: int) -> None:
        self.t += 1
        bus.emit(schema.SEGMENT_ALLOC, self.t, number, address, size)

    def resize(self, number: int, address: int, size: int) -> None:
        self.t += 1
        bus.emit(schema.SEGMENT_RESIZE, self.t, number, address, size)

    def release(self, number: int, address: int, size: int) -> None:
        self.t += 1
        bus.emit(schema.SEGMENT_FREE, self.t, number, address, size)

    def alloc(
        self, address: int, size: int, requested: int = 0, *, segment: int = 1, category: str = "activation"
    ) -> int:
        self.t += 1
        self.block += 1
        code = schema.ALLOC | schema.CATEGORIES.index(category) << schema.AUX_SHIFT
        bus.emit(code, self.t, self.block, address, size, requested or size, segment)
        return self.block

    def free(self, block: int, address: int, size: int, *, segment: int = 1, pending: int = 0) -> None:
        self.t += 1
        bus.emit(schema.FREE_REQUESTED, self.t, block, address, size, 0, segment)
        self.t += pending
        bus.emit(schema.FREE_COMPLETED, self.t, block, address, size, 0, segment)

    def gradient(self, node: int, norm: float, *, bad: int = 0, saved: int = 0, name: str = "") -> None:
        if node > self.walked:
            self.walked = node
            self.t += 1
            bus.emit(schema.WALK, self.t, node)
        self.t += 1
        code = schema.GRAD_STAT | (1 << schema.AUX_SHIFT if name else 0)
        bus.emit(code, self.t, node, encoding.float_bits(norm), bad, 64, intern.strings.id_of(name), saved)


DTYPES = {"f64": np.float64, "f32": np.float32, "i32": np.int32, "u32": np.uint32, "u8": np.uint8}
LISTS = ("strings", "plans", "contexts")


class Browser:
    """Adds frames up as the dashboard does."""

    def __init__(self) -> None:
        self.sequence: int | None = None
        self.content: dict[str, Any] = {}
        self.arrays: dict[str, Any] = {}
        self.names: dict[str, list[Any]] = {name: [] for name in LISTS}
        self.blocks: dict[int, dict[str, float]] = {}
        self.freed: dict[int, float] = {}
        self.segments: dict[int, tuple[float, float]] = {}
        self.steps: list[tuple[float, float, float]] = []
        self.metrics: list[tuple[str, float, float]] = []
        self.ops: dict[str, dict[str, float]] = {}
        self.scopes: dict[str, dict[str, float]] = {}
        self.lines: dict[str, dict[str, float]] = {}
        self.shapes: dict[str, dict[str, float]] = {}
        self.tape: dict[str, Any] | None = None

    def take(self, frame: tuple[dict[str, Any], bytes]) -> dict[str, Any]:
        content, buffer = frame
        content = json.loads(json.dumps(content, allow_nan=False))
        assert content["type"] == "frame"
        assert content["protocol"] == 1
        assert self.sequence is None or content["seq"] == self.sequence + 1
        self.sequence = content["seq"]
        if content["keyframe"]:
            number = self.sequence
            self.__init__()  # type: ignore[misc]
            self.sequence = number
        for name in LISTS:
            if name in content:
                assert content[name]["first"] == len(self.names[name])
                self.names[name] += content[name]["items"]
        arrays = {}
        for name, (dtype, offset, length) in content["arrays"].items():
            assert offset % 8 == 0
            arrays[name] = np.frombuffer(buffer, DTYPES[dtype], length, offset)
        assert len(buffer) % 8 == 0
        self.content, self.arrays = content, arrays
        self._memory(arrays)
        self._tables(arrays)
        self.steps += zip(*(arrays.get(f"step.{k}", ()) for k in ("index", "t0", "t1")), strict=True)
        for name, index, value in zip(*(arrays.get(f"metric.{k}", ()) for k in ("name", "step", "value")), strict=True):
            self.metrics.append((self.names["strings"][name], index, value))
        self.tape = content.get("tape", self.tape)
        return content

    def _memory(self, arrays: dict[str, Any]) -> None:
        for number, t, size in zip(*(arrays.get(f"segment.{k}", ()) for k in ("id", "t", "size")), strict=True):
            self.segments[int(number)] = (
                self.segments.get(int(number), (t,))[0],
                size,
            )  # told again when it is resized
        keys = ("id", "t", "segment", "offset", "size", "requested", "category", "plan", "context", "node")
        columns = [arrays.get(f"alloc.{key}", np.empty(0)) for key in keys]
        for row in zip(*columns, strict=True):
            self.blocks[int(row[0])] = dict(zip(keys, map(float, row), strict=True))
        for number, t in zip(arrays.get("free.id", ()), arrays.get("free.t", ()), strict=True):
            self.blocks.pop(int(number), None)
            self.freed[int(number)] = float(t)
        for number in arrays.get("release.id", ()):
            del self.segments[int(number)]

    def _tables(self, arrays: dict[str, Any]) -> None:
        for prefix, table in (("op", self.ops), ("scope", self.scopes), ("line", self.lines), ("shape", self.shapes)):
            for i, name in enumerate(arrays.get(f"{prefix}.name", ())):
                row = {key: float(arrays[f"{prefix}.{key}"][i]) for key in ("count", "total", "p99", "max", "bytes")}
                table[self.names["strings"][name]] = row


@pytest.fixture
def new_browser() -> type[Browser]:
    return Browser


@pytest.fixture
def program() -> Program:
    return Program()


@pytest.fixture
def run(program: Any) -> Any:
    with record("digits") as run:
        program.segment(1, 0, 1 << 20)
        for i in range(12):
            with step(total=12), bus.scope("net"):
                block = program.alloc(4096 * i, 4096, 4000, category="parameter" if i < 3 else "activation")
                node = program.forward("matmul", -1, -2, family="matmul", block=block)
                with bus.phase("backward"):
                    program.op("multiply", node=node)
                    program.gradient(node, 0.5 + i, saved=64)
                program.gradient(-1, 2.0, name="weight")
                log(loss=1 / (1 + i), accuracy=i / 12)
                if i > 5:
                    program.free(block, 4096 * i, 4096)
        program.t += 10
    return run


@pytest.fixture
def new_program() -> type[Program]:
    return Program


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No manager announces its blocks here, and no test leaves a session behind."""
    monkeypatch.setattr(bus, "announcers", [])
    monkeypatch.setattr(bus, "describers", [])
    yield
    assert pump.session is None
    assert bus.lanes is None
