"""What sets the shipped managers apart: settings, from where they come, and where each puts what."""

from __future__ import annotations

import random
from typing import Any

import pytest
from flnb_telemetry import schema

import flnb
import flnb.nn as nn
from flnb.dispatch.memory import allocate
from flnb.interface.memory import AllocHint
from flnb.memory import Buddy, ByCategory, Expandable, HostDevice, Reserved, SimulatedDevice
from tests.memory.test_managers import MANAGERS, MIB, made

pytestmark = pytest.mark.usefixtures("nothing_held")


@pytest.mark.parametrize(
    ("variable", "text", "name", "setting", "value"),
    [
        ("FLNB_MEM_SPLIT_SIZE_MB", "20", "caching", "split_limit", 20 * MIB),
        ("FLNB_MEM_RECYCLING_SIZE_MB", "1.5", "by-category", "recycling_limit", 3 * MIB // 2),
        ("FLNB_MEM_SPLIT_SIZE_MB", "3", "expandable", "split_limit", 3 * MIB),
        ("FLNB_MEM_EXPANDABLE_STEP", "4MiB", "expandable", "step", 4 * MIB),
        ("FLNB_MEM_BEST_FIT_STEP", "1MiB", "best-fit", "step", MIB),
        ("FLNB_MEM_BEST_FIT_ROUNDING", "500B", "best-fit", "rounding", 512),
        ("FLNB_MEM_EXACT_ROUNDING", "4KiB", "exact", "rounding", 4096),
        ("FLNB_MEM_BUDDY_ARENA", "1MiB", "buddy", "arena", MIB),
        ("FLNB_MEM_BUDDY_SMALLEST", "64B", "buddy", "smallest", 64),
        ("FLNB_MEM_SLAB", "8MiB", "slab", "slab", 8 * MIB),
        ("FLNB_MEM_RESERVE", "0.5", "reserved", "reserved", 32 * MIB),
        ("FLNB_MEM_RESERVE", "16MiB", "reserved", "reserved", 16 * MIB),
        ("FLNB_MEM_APART", "gradient", "by-category", "apart", frozenset({"gradient"})),
    ],
)
def test_settings_come_from_the_environment(
    monkeypatch: Any, variable: str, text: str, name: str, setting: str, value: Any
) -> None:
    def found() -> Any:
        manager = made(name, SimulatedDevice("64MiB"))
        return manager.device.reserved if setting == "reserved" else getattr(manager, setting)

    assert found() != value
    monkeypatch.setenv(variable, text)
    assert found() == value
    monkeypatch.setenv(variable, "potatoes")
    with pytest.raises(ValueError, match=f"the environment variable {variable}.* is 'potatoes(MiB)?'; expected"):
        found()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda d: Expandable(d, step=0), r"Expandable\(step=...\) is 0; expected bytes"),
        (lambda d: Buddy(d, arena="3MiB"), r"Buddy\(arena=3145728\): expected a power of two"),
        (lambda d: Buddy(d, smallest=32), r"Buddy\(smallest=32\): expected a power of two, at least 64"),
        (lambda d: Buddy(d, arena=1024, smallest=2048), "arena=1024 bytes, expected at least the smallest block"),
        (lambda d: Reserved(d, reserve=1.5), r"Reserved\(reserve=...\) is 1.5; expected a share above 0 and at most 1"),
        (lambda d: Reserved(d, reserve=0.0), r"is 0.0; expected a share"),
        (lambda d: Reserved(d, reserve="some"), r"is 'some'; expected bytes"),
        (lambda _: Reserved(SimulatedDevice(), 0.5), "a share of a capacity, but the device 'simulated' has none"),
        (lambda d: ByCategory(d, apart="weights"), "is 'weights'; expected some of unknown, parameter, .* joined by"),
    ],
)
def test_wrong_settings_are_told(wrong: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        wrong(SimulatedDevice("64MiB"))


def test_what_sets_policies_apart() -> None:
    """One trace, told by hand, that each treats in its own way."""

    def after(name: str, *sizes: int) -> tuple[int, int]:
        manager = made(name, SimulatedDevice("1GiB"))
        for size in sizes:
            allocate(manager, size)
        return manager.stats()["allocated"], manager.stats()["reserved"]

    assert after("exact", 700, 700) == (2048, 2048)
    assert after("best-fit", 700, 700) == (2 * 704, 2 * MIB)
    assert after("buddy", 700, 33 * MIB) == (64 * MIB + 1024, 128 * MIB)
    assert after("slab", 700, 33 * MIB) == (40 * MIB + 768, 42 * MIB)
    assert after("caching", 700, 3 * MIB)[1] == 22 * MIB
    assert after("expandable", 700, 3 * MIB)[1] == 6 * MIB
    assert after("reserved", 700)[1] == (1 << 30) * 9 // 10 // 512 * 512


def test_categories_that_live_long_are_apart() -> None:
    manager = ByCategory(SimulatedDevice())
    kept = [manager.alloc(size, hint=AllocHint(category="parameter")) for size in (5000, 3 * MIB)]
    passing = [manager.alloc(size, hint=AllocHint(category="activation")) for size in (5000, 3 * MIB)]
    unknown = manager.alloc(5000)
    assert len({block.segment.id for block in kept + passing}) == 4
    assert unknown.segment is passing[0].segment
    optimizer_state = manager.alloc(4 * MIB, hint=AllocHint(category="optimizer_state"))
    assert optimizer_state.segment is kept[1].segment


def test_parameters_of_a_model_are_apart_from_what_it_computes() -> None:
    with flnb.use_memory_manager(made("by-category", HostDevice())) as manager:
        model, x = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 300)), flnb.ones((64, 300))
        loss = (model(x) ** 2).sum()
        loss.backward()
        apart = {schema.CATEGORIES.index("parameter"), schema.CATEGORIES.index("optimizer_state")}
        kinds = [{block.category in apart for block in blocks if block.id} for _, blocks in manager.snapshot()]
        assert {True} in kinds
        assert {False} in kinds
        assert {True, False} not in kinds


@pytest.mark.parametrize(
    "spec",
    [
        *MANAGERS, "best-fit:step=1MiB,rounding=4KiB", "buddy:arena=16MiB,smallest=1KiB", "expandable:step=8MiB",
        "exact:rounding=64KiB", "slab:slab=4MiB", "reserved:reserve=0.5", "reserved:reserve=48MiB",
        "by-category:apart=activation+gradient,split_limit=8MiB",
    ],
)  # fmt: skip
def test_replays_by_name_and_settings(spec: str) -> None:
    draw, calls, sizes, live = random.Random(1), [], [], []
    for _ in range(400):
        if live and draw.random() < 0.45:
            calls.append(-live.pop(draw.randrange(len(live))))
        else:
            sizes.append(draw.choice([100, 5000, MIB, 3 * MIB]))
            live.append(len(sizes))
            calls.append(len(sizes))
    trace = flnb.memory.Trace.of_calls(calls, sizes)
    (row,) = flnb.memory.replay(trace, [spec], capacity="1GiB").rows
    assert row.first_oom is None
    assert row.calls == len(calls)
    assert (row.reserved >= row.live).all()
    assert row.peak_reserved == row.reserved.max()
