"""Remedies are code: each one of a report, pasted, does what the report says."""

from __future__ import annotations

import gc
import textwrap
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

import flnb
from flnb.interface.device import default_device
from flnb.memory import Caching, ExactFit, HostDevice, MemoryManager, Native, OutOfMemoryError
from flnb.memory_lab import code_snippets
from tests.memory.test_postmortem import Hoarder

if TYPE_CHECKING:
    from flnb.memory_lab.postmortem import Postmortem

pytestmark = pytest.mark.usefixtures("nothing_held")

MIB = 1 << 20


class Program(NamedTuple):
    """Cells of a notebook, of which the last one asks for too much."""

    manager: type[MemoryManager]
    capacity: str
    before: str
    last: str

    def run(self, manager: MemoryManager | None = None) -> tuple[dict[str, Any], OutOfMemoryError]:
        """The variables, and how it ended; names here begin with _ so that they hold nothing that a report tells of."""
        _names: dict[str, Any] = {"flnb": flnb, "Hoarder": Hoarder, "zeros": zeros}
        manager = manager or self.manager(HostDevice(self.capacity))
        with flnb.use_memory_manager(manager), flnb.record(), pytest.raises(OutOfMemoryError) as caught:
            exec(f"{self.before}\n{self.last}", _names)
        return _names, caught.value


def zeros(mib: int) -> Any:
    return flnb.zeros((mib * MIB // 4,))


FRAGMENTED = """
kept = [zeros(3)]
gap, probe, other = zeros(3), zeros(3), zeros(3)
kept += [zeros(8), zeros(18)]
del gap, other
"""
LOCKED = """
kept = [zeros(3), zeros(3), zeros(3), zeros(3), zeros(8), zeros(18)]
manager, block = flnb.dispatch.state.current().manager, flnb.memory.block_of(kept[2]._data)
manager.user_lock(block); manager.user_lock(block)
del kept[1:4], block
"""
NET = """
import flnb.nn as nn
flnb.manual_seed(0)
net = nn.Sequential(*[nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 256), nn.Tanh()) for _ in range(3)])
x = flnb.ones((1024, 256))
"""
BLOCK = """
import flnb.nn as nn
flnb.manual_seed(0)
x = flnb.ones((512, 256))
def block():
    return nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 256))
"""
SEVERAL = BLOCK + "a, b = block(), block()"
LISTED = BLOCK + "nets = [block(), block(), block()]\nlast = block()"
CALLED = "y = x\nfor net in nets:\n    y = net(y)\ny = last(y)\nlarge = zeros(16)"
SCOPED = """
with flnb.scope("train"), flnb.scope("block"):
    y = net(x)
    large = zeros(30)
"""
PROGRAMS = {
    "in a scope of the user's": Program(ExactFit, "40MiB", NET, SCOPED),
    "two of one scope": Program(Native, "20MiB", SEVERAL, "y = b(a(x))\nlarge = zeros(16)"),
    "several in a list": Program(Native, "24MiB", LISTED, CALLED),
    "fragmented": Program(Caching, "48MiB", FRAGMENTED, "large = zeros(9)"),
    "locked": Program(Caching, "48MiB", LOCKED, "large = zeros(9)"),
    "hoarded": Program(Hoarder, "48MiB", "zeros(30)", "large = zeros(40)"),
    "activations": Program(ExactFit, "40MiB", NET, "y = net(x)\nlarge = zeros(30)"),
    "activations, cached": Program(Caching, "52MiB", NET, "y = net(x)\nlarge = zeros(30)"),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_each_remedy_pasted_does_what_it_says(program: Program) -> None:
    report: Postmortem = program.run()[1].report
    found = report.remedies
    assert found.unknown == ""
    assert found.fitting
    for row in found.rows:
        gc.collect()
        device = HostDevice(program.capacity)
        original = program.manager(device)
        names: dict[str, Any] = {"flnb": flnb, "Hoarder": Hoarder, "zeros": zeros}
        try:
            if row.what.startswith("flnb.use_memory_manager("):
                names["ran"] = manager = run_inside(row.what, f"{program.before}\n{program.last}", names)
            elif row.what.startswith("flnb.memory.lean("):
                manager = original
                with flnb.use_memory_manager(original):
                    exec(program.before, names)
                    run_inside(row.what, program.last, names)
            else:  # in a cell of its own, where the program stopped; blocks have numbers of their own in each run
                names, error = program.run(original)
                rows = {r.fits: r for r in error.report.remedies.rows if r.what.split("(")[0] == row.what.split("(")[0]}
                manager = original
                del error
                with flnb.use_memory_manager(original):
                    exec(rows[row.fits].what, names)
                    exec(program.last, names)
        except (OutOfMemoryError, ValueError):
            assert not row.fits, row.what
            continue
        assert row.fits, row.what
        assert manager.stats()["peak_reserved"] == row.peak, row.what


def run_inside(code: str, program: str, names: dict[str, Any]) -> MemoryManager:
    """Run a program in a block that begins with a remedy; the manager that was active there."""
    exec(f"with {code}:\n{textwrap.indent(program, '    ')}\n    ran = flnb.dispatch.state.current().manager", names)
    manager: MemoryManager = names["ran"]
    return manager


@pytest.mark.parametrize("name", ["activations", "in a scope of the user's"])
def test_what_modules_save_is_among_the_remedies_with_its_price(name: str) -> None:
    rows = {row.what: row for row in PROGRAMS[name].run()[1].report.remedies.rows}
    again = [row for what, row in rows.items() if what.startswith('flnb.memory.lean(net, recompute=["sequential.')]
    away = [row for what, row in rows.items() if what.startswith('flnb.memory.lean(net, offload=["sequential')]
    for found, cost in ((again, "recomputing takes "), (away, "moving ")):
        assert len(found) == 2  # as few as it takes, and all there are
        assert found[0].peak < found[1].peak
        assert all(row.fits and row.cost.startswith(cost) for row in found)


@pytest.mark.parametrize(("name", "models"), [("two of one scope", "[a, b]"), ("several in a list", "[*nets, last]")])
def test_a_remedy_names_all_modules_of_its_scopes(name: str, models: str) -> None:
    rows = PROGRAMS[name].run()[1].report.remedies.fitting
    leaner = [row.what for row in rows if "lean(" in row.what]
    assert leaner
    assert all(what.startswith(f"flnb.memory.lean({models}, ") for what in leaner)


TRANSFORMER = """
import flnb.nn as nn
flnb.manual_seed(0)
net = nn.Sequential(*[nn.TransformerEncoderLayer(32, 4, 128) for _ in range(4)])
x = flnb.random.normal((16, 32, 32))
"""


@pytest.mark.parametrize("kind", [Native, ExactFit, Caching])
@pytest.mark.parametrize("method", ["recompute", "offload"])
def test_a_step_that_failed_half_way_runs_to_its_end_with_all_that_there_is(
    kind: type[MemoryManager], method: str
) -> None:
    """Layers that had not run yet are in the remedy as well; gradients are those of a device that is large enough."""
    enough, plain = kind(HostDevice("256MiB")), {"flnb": flnb}
    step = "net(x).sum().backward()"
    with flnb.use_memory_manager(enough):
        exec(f"{TRANSFORMER}\n{step}", plain)
    capacity = str(int(0.6 * enough.stats()["peak_reserved"]))
    names, error = Program(kind, capacity, TRANSFORMER, step).run()
    rows = [row for row in error.report.remedies.fitting if f"lean(net, {method}=" in row.what]
    del names, error
    small = kind(HostDevice(capacity))
    names = {"flnb": flnb}
    with flnb.use_memory_manager(small):
        exec(TRANSFORMER, names)
        run_inside(rows[0].what, step, names)
    for a, b in zip(plain["net"].parameters(), names["net"].parameters(), strict=True):
        assert np.array_equal(a.grad.numpy(), b.grad.numpy())


def test_without_a_variable_of_the_model_there_is_nothing_to_paste() -> None:
    def build() -> Any:
        _names: dict[str, Any] = {"flnb": flnb}
        exec(NET, _names)
        return _names["net"]

    def program() -> None:
        with flnb.use_memory_manager(ExactFit(HostDevice("40MiB"))):
            y = build()(flnb.ones((1024, 256)))
            assert y.size + zeros(30).size

    with flnb.record(), pytest.raises(OutOfMemoryError) as caught:
        program()
    assert not any("lean(" in row.what for row in caught.value.report.remedies.rows)


def test_an_error_that_is_kept_lets_go_of_the_recording() -> None:
    with flnb.use_memory_manager(Caching(HostDevice("48MiB"))):
        with flnb.record() as run, pytest.raises(OutOfMemoryError) as caught:
            zeros(50)
        seen, error = weakref.ref(run), caught.value
        del run, caught
    gc.collect()
    assert seen() is not None  # the report is made from it
    assert error.report.remedies.unknown == "" or error.report.remedies.rows == ()
    error.__traceback__ = None
    gc.collect()
    assert seen() is None
    assert error.shortage is not None
    assert error.shortage.run is None


def test_how_managers_are_written() -> None:
    lease = Caching(HostDevice("3GiB")).device
    told = {"split_limit": "8MiB", "recycling_limit": None}
    expected = 'flnb.use_memory_manager(flnb.memory.Caching(flnb.memory.HostDevice("3GiB"), split_limit="8MiB"))'
    assert code_snippets.manager(Caching, told, lease, 3 << 30) == expected
    assert code_snippets.manager(Caching, {}, lease, 1000) == (
        "flnb.use_memory_manager(flnb.memory.Caching(flnb.memory.HostDevice(1000)))"
    )
    here = Caching(default_device()).device
    assert code_snippets.manager(Caching, told, here, 1) == 'flnb.use_memory_manager("caching:split_limit=8MiB")'
    assert code_snippets.manager(Hoarder, {}, here, 1) == "flnb.use_memory_manager(Hoarder())"
    assert code_snippets.manager(Caching, {"plan": object()}, lease, 1) is None
