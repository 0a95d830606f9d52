"""A pretended program: it emits what a dispatcher and a memory manager would, through the real bus."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from flnb_telemetry import bus, intern, pump, schema

if TYPE_CHECKING:
    from collections.abc import Iterator


class Program:
    """Emits records with times of its own (`t`, ns), so that every expected number is known exactly."""

    def __init__(self) -> None:
        self.t = time.perf_counter_ns()
        self.block = 0
        self.node = 0

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
    ) -> None:
        assert bus.lanes is not None
        lane = bus.lanes.lane
        begin = self.t if at is None else at
        code = schema.OP | self.plan(name, family, shape) << schema.PLAN_SHIFT
        lane.emit(code, begin, begin + spent, block, node, lane.context, *parents)
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
        self.t += 1
        code = schema.GRAD_STAT | (1 << schema.AUX_SHIFT if name else 0)
        bus.emit(code, self.t, node, bus.float_bits(norm), bad, 64, intern.strings.id_of(name), saved)


@pytest.fixture
def program() -> Program:
    return Program()


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
