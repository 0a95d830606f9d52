"""The planned manager: what comes again lies where it lay, and nothing ever lies on something else."""

from __future__ import annotations

import random
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flnb
import flnb.nn as nn
from flnb.memory import Block, Caching, HostDevice, Plan, Planned, SimulatedDevice, Trace
from flnb.memory_lab.replaying import Counter
from tests.memory.test_managers import MIB, Model, calls, replayed, tiled

STEP = Trace.of_calls([1, 2, -1, 3, 4, -2, -3, -4], [3 * MIB, 5000, 2 * MIB, 64])
MADE = {"no plan": None, "a plan": STEP, "a packing": flnb.memory.pack(STEP)}


def run_step(manager: Planned, trace: Trace = STEP) -> list[Block]:
    """Make the calls of a trace; gives the blocks, some of them freed."""
    blocks: list[Block] = []
    for call in trace.calls.tolist():
        if call > 0:
            blocks.append(flnb.memory.allocate(manager, int(trace.nbytes[call - 1])))
        else:
            flnb.memory.release(manager, blocks[-call - 1])
    return blocks


@pytest.mark.parametrize("plan", MADE)
def test_the_conformance_kit_passes(plan: str) -> None:
    report = flnb.testing.check_manager(lambda device: Planned(device, MADE[plan]))
    assert report, report


def test_the_plan_is_followed_again_and_again_in_one_segment() -> None:
    packing = flnb.memory.pack(STEP)
    manager = Planned(lease := Counter(SimulatedDevice()), packing)
    for _ in range(3):
        blocks = run_step(manager)
        (segment,) = lease.segments.values()
        assert [block.address - segment.address for block in blocks] == packing.offsets.tolist()
    assert packing.height == 3 * MIB + 5056  # a multiple of 64 each
    assert segment.size == 3 * MIB + 5120  # the device's granularity
    assert len(lease.changes) == 1
    assert manager.stats()["missed"] == manager.missed == 0


@settings(max_examples=50, deadline=None)
@given(calls, st.booleans())
def test_nothing_overlaps_whatever_is_asked(made: list[tuple[str, int]], in_step: bool) -> None:
    """Sizes of the plan's and others, in any order, with steps that begin anywhere; and the events tell all of it."""
    with flnb.record() as run:
        model, planned = Model(Planned(SimulatedDevice("64MiB"), STEP)), STEP.nbytes.tolist()
        for what, number in made:
            if what == "release_cached":
                model.manager.release_cached()
            elif what == "alloc" and in_step and number % 5 == 0:
                with flnb.step():
                    model.alloc(planned[0])
            elif what == "alloc":
                model.alloc(planned[number % 4] if number % 3 else number)
            else:
                model.free(number)
            model.check()
            spans = sorted((block.address, block.address + block.size) for block in model.live)
            assert all(low[1] <= high[0] for low, high in pairwise(spans))
    assert replayed(run, model.manager) == tiled(model.manager)
    model.free_all()


def test_another_size_ends_the_plan_until_the_next_step() -> None:
    manager = Planned(SimulatedDevice(), STEP)
    first = flnb.memory.allocate(manager, 3 * MIB)
    other, then = flnb.memory.allocate(manager, 7000), flnb.memory.allocate(manager, 5000)
    assert other.segment is not first.segment
    assert then.segment is not first.segment
    assert manager.missed == 2
    for block in (first, other, then):
        flnb.memory.release(manager, block)
    run_step(manager)
    assert manager.missed == 2


def test_a_step_block_begins_the_plan_anew() -> None:
    manager = Planned(SimulatedDevice(), STEP)
    with flnb.step():
        old = flnb.memory.allocate(manager, 3 * MIB)
        flnb.memory.allocate(manager, 9000)
    assert manager.missed == 1
    with flnb.step():
        new = flnb.memory.allocate(manager, 3 * MIB)  # its place is still taken
        after = flnb.memory.allocate(manager, 5000)
    assert manager.missed == 2
    assert old.segment is after.segment is not new.segment


def test_other_threads_do_not_disturb_the_plan() -> None:
    manager = Planned(SimulatedDevice(), STEP)
    asked: list[Block] = []

    def load() -> None:
        asked.extend(flnb.memory.allocate(manager, size) for size in (77, 5000))

    def worker() -> None:
        thread = threading.Thread(target=load)
        thread.start()
        thread.join()

    def train() -> None:
        for _ in range(2):
            with flnb.step():
                blocks = [flnb.memory.allocate(manager, 3 * MIB)]
                worker()
                blocks.append(flnb.memory.allocate(manager, 5000))
            offsets = [block.address - manager.segment.address for block in blocks if manager.segment]
            assert offsets == flnb.memory.pack(STEP).offsets[:2].tolist()
            for block in blocks:
                flnb.memory.release(manager, block)
            worker()

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert manager.missed == 0
    assert len(asked) == 8
    assert manager.segment not in [block.segment for block in asked]
    block = flnb.memory.allocate(manager, 3 * MIB)  # outside of steps, in a third thread, which begins the plan
    assert block.segment is manager.segment


def test_what_a_recorded_step_leaves_behind_has_no_place_and_is_not_missed() -> None:
    with flnb.record() as run:
        for _ in range(3):
            with flnb.step():
                x = flnb.ones((512, 512))
                y = (x + 1.0) * x
                del x
    plan = flnb.memory.plan(run)
    assert plan.offsets.tolist()[2] == -1
    assert (plan.offsets[:2] >= 0).all()
    assert plan.height == 2 * 512 * 512 * 4
    assert repr(plan) == f"<Plan: 2 of 3 allocations in {plan.height} bytes>"
    with flnb.use_memory_manager(Planned(plan=plan)) as manager:
        for _ in range(2):
            with flnb.step():
                x = flnb.ones((512, 512))
                y = (x + 1.0) * x
                del x
    assert manager.missed == 0
    del y


def test_what_other_threads_make_in_a_step_is_not_planned() -> None:
    with flnb.record() as run:
        for _ in range(3):
            with flnb.step():
                x = flnb.ones((512, 512))
                thread = threading.Thread(target=flnb.ones, args=((300, 300),))
                thread.start()
                thread.join()
                del x
    assert flnb.memory.plan(run).nbytes.tolist() == [512 * 512 * 4]


def test_a_recording_without_steps_is_planned_as_a_whole_without_what_was_there() -> None:
    with flnb.use_memory_manager(Caching()):
        x = flnb.ones((512, 512))
        with flnb.record() as run:
            y = x + 1.0
    plan = flnb.memory.plan(run)
    assert plan.nbytes.tolist() == [512 * 512 * 4]
    assert plan.offsets.tolist() == [0]
    del x, y


def trained(manager: Any, steps: int, after: Any = lambda step: None) -> list[bytes]:
    """Parameters of a small CNN after some steps."""
    flnb.manual_seed(5)
    with flnb.use_memory_manager(manager):
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 256))
        optimizer = flnb.optim.Adam(model.parameters(), lr=0.01)
        x, y = flnb.random.normal((16, 1, 8, 8)), flnb.asarray(np.arange(16) % 3)
        for step in range(steps):
            optimizer.zero_grad()
            flnb.cross_entropy(model(x), y).backward()
            optimizer.step()
            after(step)
        return [np.asarray(parameter.data).tobytes() for parameter in model.parameters()]


def test_training_by_plan_gives_the_same_bits_and_asks_the_device_for_nothing_more() -> None:
    with flnb.record() as run:
        expected = trained(Caching(), 4)
    lease, asked = Counter(HostDevice("256MiB")), []
    manager = Planned(lease, flnb.memory.plan(run))
    assert trained(manager, 4, lambda step: asked.append((len(lease.changes), manager.missed))) == expected
    assert len(manager.sizes) > 10  # composites that run whole need few blocks
    native, missed = zip(*asked, strict=True)
    assert native[1:] == native[:1] * 3
    assert missed[1:] == missed[:1] * 3  # what comes before the first step: the model


def test_the_place_goes_back_when_memory_is_short_and_comes_again() -> None:
    manager = Planned(SimulatedDevice("32MiB"), STEP)
    run_step(manager)
    large = flnb.memory.allocate(manager, 30 * MIB)
    missed = manager.missed
    with pytest.raises(flnb.memory.OutOfMemoryError, match=r"asked for 3\.00 MiB"):
        run_step(manager)
    flnb.memory.release(manager, large)
    assert manager.release_cached() == 30 * MIB
    run_step(manager)
    assert manager.missed == missed + 1


def test_a_block_that_is_freed_twice() -> None:
    manager = Planned(SimulatedDevice(), STEP)
    block = manager.alloc(3 * MIB)
    manager.free(block)
    with pytest.raises(ValueError, match="was already freed"):
        manager.free(block)


def test_the_environment_names_a_recording(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    with flnb.record() as run:
        (flnb.ones((512, 512)) + 1.0).sum()
    path = run.save(tmp_path / "step.flnb")
    monkeypatch.setenv("FLNB_MEM_PLAN", str(path or tmp_path / "step.flnb"))
    assert Planned().sizes == [512 * 512 * 4] * 2


@pytest.mark.parametrize(
    ("plan", "error", "says"),
    [
        (3, TypeError, "expected a recording .* or a Trace, got int"),
        (Plan(np.array([8]), np.array([8]), 16), ValueError, "offsets that are no multiples of 64"),
    ],
)
def test_what_is_no_plan(plan: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Planned(plan=plan)


def test_a_step_that_is_not_there() -> None:
    with flnb.record() as run, flnb.step():
        (flnb.ones((512, 512)) + 1.0).sum()
    with pytest.raises(IndexError, match="has no step 3; it has 1"):
        flnb.memory.plan(run, step=3)
    with flnb.record() as run, flnb.step():
        pass
    with pytest.raises(ValueError, match="makes no allocation in its step 0"):
        flnb.memory.plan(run, step=0)


def test_random_steps_by_plan() -> None:
    """Steps that differ a little from the plan: a size, an order, a free that comes later."""
    draw, manager = random.Random(4), Planned(SimulatedDevice(), STEP)
    for _ in range(200):
        model = Model(manager)
        for nbytes in STEP.nbytes.tolist():
            model.alloc(nbytes if draw.random() < 0.9 else draw.randrange(MIB))
            if draw.random() < 0.5:
                model.free(draw.randrange(9))
            tiled(manager)
        while model.live:
            model.free(0)
    assert 0 < manager.missed < 400
