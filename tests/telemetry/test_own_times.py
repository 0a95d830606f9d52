"""The time of an op is its own: what observers do around it, and repeats that are timed elsewhere, do not count."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from flnb_telemetry import bus, encoding, schema
from flnb_telemetry.lane import Lane

import flnb
import flnb.testing
from flnb.dispatch.observe import Observer, observe


class Slow(Observer):
    def before(self, op: Any, arguments: Any) -> None:
        time.sleep(0.05)

    def after(self, op: Any, arguments: Any, result: Any) -> None:
        time.sleep(0.05)


@pytest.mark.parametrize("observers", [1, 2])
def test_what_observers_do_is_not_the_time_of_the_op(observers: int) -> None:
    x = flnb.ones((4,))
    with flnb.record() as run, observe(*[Slow() for _ in range(observers)]):
        x + 1.0
        x * 2.0
    assert run.ops["add"].count == run.ops["multiply"].count == 1
    assert 0 < run.ops["add"].total < 0.05e9
    ops = run.table("op")
    assert (ops["t1"] >= ops["t0"]).all()


def test_comparing_backends_leaves_the_times_of_ops_alone() -> None:
    class Sleepy(flnb.backends.NumpyBackend):
        def add(self, x: Any, y: Any, out: Any = None) -> Any:
            time.sleep(0.01)
            return super().add(x, y, out)

    x = flnb.ones((4,))
    with flnb.record() as run:
        flnb.compare_backends(lambda: x + 1.0, ["numpy", Sleepy])
    assert run.ops["add"].count == 1
    assert run.ops["add"].total < 0.01e9


def test_a_row_and_its_op_may_be_drained_apart() -> None:
    lane = Lane(1)
    lane.emit(encoding.EXCLUDED, 30, 50)
    lane.emit(encoding.EXCLUDED, 1, 2)
    assert not len(lane.drain())
    lane.emit(schema.OP, 1000, 2000)
    lane.emit(schema.OP, 3000, 4000)
    assert lane.drain()[:, :3].tolist() == [[schema.OP, 1031, 1948], [schema.OP, 3000, 4000]]
    full = Lane(1, schema.RECORD_BYTES)
    full.emit(encoding.EXCLUDED, 1, 1)
    full.emit(schema.OP, 1000, 2000)
    assert (full.drain()[:, 0] & 0xFF).tolist() == [schema.DROPPED]  # its op was dropped


def test_uncounted_leaves_out_ops_and_nothing_else() -> None:
    x = flnb.asarray(np.ones((256, 256)))
    with flnb.record() as run:
        x + 1.0
        with bus.uncounted():
            y = x * 2.0
            with bus.uncounted():
                x - 1.0
            x / 2.0
        y + 1.0
    assert {row.key[0]: row.count for row in run.ops} == {"add": 2}
    assert len(run.table("alloc")["t"]) >= 4


def test_the_kits_repeats_are_not_counted() -> None:
    with flnb.record() as run:
        flnb.testing.check_backend("numpy", dtypes=("float64",))
    with flnb.record() as once:
        for sample in flnb.testing.samples():
            sample.function(*map(flnb.asarray, sample.inputs))
    assert run.ops["expm1"].count == 2 * once.ops["expm1"].count  # on the backend and on the reference
