"""The time in which a way to compute an op is chosen is not the op's own."""

from __future__ import annotations

from time import perf_counter_ns

import numpy as np
import pytest
from flnb_telemetry import schema
from flnb_telemetry.lane import Lane

import flnb

OP, CHOICE = schema.OP, schema.CHOICE


def drained(lane: Lane) -> list[tuple[int, int]]:
    """Beginning and end of the ops among a lane's records."""
    records = lane.drain()
    return [(a, b) for kind, a, b, *_ in records.tolist() if kind & 0xFF == OP]


@pytest.mark.parametrize("apart", [False, True])
def test_an_op_begins_later_by_the_time_of_a_choice_in_it(apart: bool) -> None:
    lane = Lane(1)
    lane.emit(CHOICE, 120, 180)
    first = drained(lane) if apart else []  # the pump came between
    lane.emit(schema.ALLOC, 185)
    lane.emit(OP, 100, 200)
    lane.emit(OP, 210, 230)
    assert first + drained(lane) == [(160, 200), (210, 230)]
    lane.emit(OP, 100, 240)  # no choice is subtracted twice
    assert drained(lane) == [(100, 240)]


def test_a_choice_outside_of_ops_changes_none() -> None:
    lane = Lane(1)
    lane.emit(OP, 100, 110)
    lane.emit(CHOICE, 120, 180)
    lane.emit(OP, 181, 200)
    assert drained(lane) == [(100, 110), (181, 200)]


def test_what_is_prepared_within_another_preparation_is_subtracted_once() -> None:
    lane = Lane(1)
    lane.emit(schema.COMPILE, 130, 150)
    lane.emit(schema.COMPILE, 120, 180)
    lane.emit(CHOICE, 185, 190)
    lane.emit(OP, 100, 200)
    assert drained(lane) == [(165, 200)]


@pytest.mark.parametrize("name", ["gelu", "max_pool2d"])
def test_the_first_call_of_an_op_does_not_count_the_making_of_its_machine_code(name: str) -> None:
    pytest.importorskip("llvmlite")
    pytest.importorskip("cffi")
    x = flnb.asarray(np.ones((3, 5, 17, 19), np.float32))  # a shape of no other test
    arguments = (2,) if name == "max_pool2d" else ()
    try:
        backend = flnb.backends.CpuBackend(threads=1)
    except (ImportError, OSError) as error:
        pytest.skip(str(error))
    with flnb.use_backend(backend), flnb.record() as run:
        began = perf_counter_ns()
        for _ in range(2):
            getattr(flnb, name)(x, *arguments)
    made = run.table("compile")
    assert set(made["values"].tolist()) == {1}
    assert set(made["calls"].tolist()) == {0}
    op = run.table("op")
    first, second = (op["t0"][at] for at in (-2, -1))
    spent = made["t1"].max() - made["t0"].min()
    assert made["t1"].max() <= op["t1"][-2]
    prepared = int((made["t1"] - made["t0"]).max())
    assert first - spent <= made["t0"].min()
    assert began + prepared <= first <= second, "the op begins later by the time of the preparation"
    assert run.ops.prepared >= prepared
    for shown in (repr(run.ops), repr(run.ops.by("scope")), run.ops._repr_html_()):
        assert "not in these times: " in shown
    with flnb.use_backend(backend), flnb.record() as again:
        getattr(flnb, name)(x, *arguments)
    assert len(again.table("compile")["t0"]) == 0
    assert "not in these times" not in repr(again.ops)


def test_the_first_random_numbers_do_not_count_the_making_of_their_machine_code() -> None:
    pytest.importorskip("llvmlite")
    pytest.importorskip("cffi")
    from flnb_backends.native import uniform

    try:
        backend = flnb.backends.CpuBackend(threads=1)
    except (ImportError, OSError) as error:
        pytest.skip(str(error))
    uniform._function.cache_clear()  # another test may have drawn before
    with flnb.use_backend(backend), flnb.record() as run:
        for _ in range(2):
            flnb.random.rand((uniform.LEAST,))
    made, op = run.table("compile"), run.table("op")
    spent = made["t1"] - made["t0"]
    assert len(spent) == 1
    assert op["t0"][0] - spent[0] <= made["t0"][0] < made["t1"][0] <= op["t1"][0]
    assert run.ops.prepared == spent[0]


def test_the_choice_for_a_new_shape_is_not_the_ops_own_time() -> None:
    pytest.importorskip("cffi")
    from flnb.backends import CpuBackend

    class Choosing(CpuBackend):
        choices = {}  # noqa: RUF012

    x = np.ones((4, 8, 19, 23), np.float32)
    w = np.ones((8, 8, 3, 3), np.float32)
    with flnb.use_backend(Choosing(threads=1)), flnb.record() as run:
        flnb.conv2d(flnb.asarray(x), flnb.asarray(w))
    choices, ops = run.table("choice"), run.table("op")
    at = [run.catalog.plans.items[number].op for number in ops["plan"].tolist()].index("conv2d")
    (began,), (ended,) = choices["t0"], choices["t1"]
    start = ops["t0"][at] - (ended - began)  # of the call
    assert ops["t1"][at - 1] <= start <= began
    assert ended <= ops["t1"][at]
