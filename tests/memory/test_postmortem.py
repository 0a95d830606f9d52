"""What `OutOfMemoryError.report` says: facts, blockers, and remedies that a replay has proved."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from flnb_telemetry.safe_text import html_text

import flnb
import flnb.nn as nn
from flnb.dispatch import registry
from flnb.memory import Caching, HostDevice, MemoryManager, OutOfMemoryError, SimulatedDevice
from flnb.memory_lab.owners import owners
from flnb.show.postmortem import postmortem_html

if TYPE_CHECKING:
    from pathlib import Path

    from flnb.memory_lab.postmortem import Postmortem

pytestmark = pytest.mark.usefixtures("nothing_held")

MIB = 1 << 20


def tensor(mib: int) -> Any:
    return flnb.zeros((mib * MIB // 4,))


def fragmented(manager: MemoryManager) -> None:
    """In a segment of 20 MiB, probe lies between two holes of 3 MiB; there is no room for another such segment."""
    with flnb.use_memory_manager(manager):
        kept = [tensor(3)]
        gaps = [tensor(3)]
        probe = tensor(3)
        gaps += [tensor(3)]
        kept += [tensor(8), tensor(18)]
        del gaps
        kept += [tensor(9)]
        assert probe.size


def report_of(run: bool = True, manager: MemoryManager | None = None, program: Any = fragmented) -> Postmortem:
    manager = manager or Caching(HostDevice("48MiB"))
    with pytest.raises(OutOfMemoryError) as caught:
        if run:
            with flnb.record():
                program(manager)
        else:
            program(manager)
    report: Postmortem = caught.value.report
    assert report is caught.value.report
    return report


def test_a_fragmented_request() -> None:
    report = report_of()
    assert report.verdict == "not full: the device has room left, but not for the segment that caching wants"
    assert (report.request, report.op, report.manager, report.device) == (9 * MIB, "full", "caching", "host")
    assert (report.free, report.largest_hole, report.live) == (16 * MIB, 3 * MIB, 32 * MIB)
    assert (report.capacity, report.unreserved, report.cached) == (48 * MIB, 10 * MIB, 0)
    (probe,) = report.blockers
    assert (probe.names, probe.op, probe.size, probe.shape) == (("probe",), "full", 3 * MIB, (3 * MIB // 4,))
    assert (probe.category, probe.scope, probe.locks, probe.held) == ("input", "", 0, "a variable of fragmented()")
    assert probe.age is not None
    assert probe.age > 0
    assert report.closest is not None
    assert (report.closest.begin, report.closest.end, report.closest.freed) == (3 * MIB, 12 * MIB, 3 * MIB)


def too_much(manager: MemoryManager) -> None:
    flnb.memory.allocate(manager, 64 * MIB)


def backward(manager: MemoryManager) -> None:
    w = flnb.Variable(tensor(1))
    y = flnb.exp(w)
    z = y.sum() * 2.0
    with flnb.use_memory_manager(manager):
        held = tensor(47)
        z.backward()
    assert held.size


@pytest.mark.parametrize("run", [False, True])
@pytest.mark.parametrize(
    ("program", "line"),
    [
        (fragmented, "return flnb.zeros((mib * MIB // 4,))"),
        (too_much, "flnb.memory.allocate(manager, 64 * MIB)"),
    ],
)
def test_the_line_of_the_request_is_named(program: Any, line: str, run: bool) -> None:
    report = report_of(run=run, program=program)
    assert re.fullmatch(r"test_postmortem\.py:\d+: " + re.escape(line), report.line)
    assert f"\nrequested at {report.line}\n" in repr(report)
    assert f"<div><span class='code'>{html_text(f'requested at {report.line}')}</span></div>" in postmortem_html(report)


def test_the_recording_and_its_snapshot_name_the_line_of_the_request(tmp_path: Path) -> None:
    manager = Caching(HostDevice("4MiB"))
    with flnb.record(stacks=True) as run, pytest.raises(OutOfMemoryError) as caught:
        too_much(manager)
    line = caught.value.report.line
    assert line.endswith(": flnb.memory.allocate(manager, 64 * MIB)")
    assert f"largest hole 0 B; requested at {line}" in repr(run)
    run.to_torch_snapshot(tmp_path / "run.pickle")
    assert f"; requested at {line}" in repr(flnb.load_run(tmp_path / "run.pickle"))


def test_a_gradient_s_request_has_the_line_of_its_forward_op() -> None:
    report = report_of(program=backward)
    assert report.op in ("full", "multiply", "broadcast_to")
    assert report.line.partition(": ")[2] in ("y = flnb.exp(w)", "z = y.sum() * 2.0")


def test_remedies_are_what_a_replay_says_and_what_happens() -> None:
    """The first fits in the replay: and then it fits."""
    found = report_of().remedies
    assert found.unknown == ""
    assert found.capacity == 48 * MIB
    rows = {row.what: row for row in found.rows}
    assert rows["del probe"].fits
    assert rows["del probe"].peak == 38 * MIB
    assert rows["del probe"].cost == "none"
    assert rows['flnb.use_memory_manager(flnb.memory.Native(flnb.memory.HostDevice("48MiB")))'].fits
    assert not any(row.fits for row in found.rows if "recycling_limit" in row.what)  # nothing there to recycle
    assert list(found.rows) == sorted(found.rows, key=lambda row: (not row.fits, row.peak))
    kinds = {name: registry.find("memory manager", name) for name in registry.names("memory manager")}
    codes = {
        name: f'flnb.use_memory_manager(flnb.memory.{kind.__name__}(flnb.memory.HostDevice("48MiB")))'
        for name, kind in kinds.items()
    }
    names = [name for name, code in codes.items() if code in rows]
    assert len(names) >= 8
    assert "planned" not in names
    for name in names:
        row, manager = rows[codes[name]], kinds[name](HostDevice("48MiB"))
        if row.fits:
            fragmented(manager)
            assert manager.stats()["peak_reserved"] == row.peak
        else:
            with pytest.raises(OutOfMemoryError):
                fragmented(manager)


def full(manager: MemoryManager) -> None:
    with flnb.use_memory_manager(manager):
        kept = [tensor(20), tensor(20), tensor(20)]
        del kept


def test_a_first_request_that_does_not_fit_is_not_a_recording_that_began_too_late() -> None:
    device = flnb.memory.HostDevice("8MiB")
    refused = pytest.raises(flnb.memory.OutOfMemoryError, match=r"nothing is reserved yet.*'native'")
    with flnb.record(), flnb.use_memory_manager(flnb.memory.Caching(device)), refused as error:
        flnb.zeros((512, 1024))
    assert "Nothing was allocated before, so there is nothing to replay" in repr(error.value.report)
    with flnb.use_memory_manager(flnb.memory.Native(device)):
        assert flnb.zeros((512, 1024)).shape == (512, 1024), "as it says"


def test_a_remedy_that_the_replay_refutes_is_not_among_those_that_fit() -> None:
    report = report_of(program=full)
    assert report.verdict == "full: less is free than was asked for"
    assert report.remedies.rows
    assert report.remedies.fitting == ()
    assert {row.peak <= 48 * MIB for row in report.remedies.rows} == {True}
    assert f"0 of {len(report.remedies.rows)} remedies that were replayed let it through" in repr(report)


def test_the_text_is_short_and_begins_with_what_to_do() -> None:
    report = report_of()
    first, *rest = repr(report).splitlines()
    best = report.remedies.fitting[0].what
    assert first.startswith("Out of memory: asked for 9.00 MiB, free 16.0 MiB; ")
    assert f"{best} lets it through" in first
    assert len(rest) < 12


def test_without_a_recording_nothing_is_predicted() -> None:
    report = report_of(run=False)
    assert report.remedies.rows == ()
    assert report.remedies.unknown.startswith("Nothing was being recorded, so no remedy can be replayed.")
    assert "with flnb.record() as run" in repr(report)
    (probe,) = report.blockers
    assert probe.names == ("probe",)
    assert probe.age is None
    assert probe.op == ""


def test_a_recording_that_began_too_late_predicts_nothing() -> None:
    """Announced blocks lie elsewhere in the replay, where there is no hole between them."""
    manager = Caching(HostDevice("48MiB"))
    with flnb.use_memory_manager(manager):
        kept = [tensor(3), tensor(3), tensor(3), tensor(3), tensor(3), tensor(18)]
        del kept[1], kept[2]
        with pytest.raises(OutOfMemoryError) as caught, flnb.record():
            tensor(9)
    found = caught.value.report.remedies
    assert found.rows == ()
    assert found.unknown.startswith("Replayed from the recording, caching does not run out")
    assert len(kept) == 4


def test_locks_and_released_segments() -> None:
    manager = Caching(HostDevice("48MiB"))

    def program(manager: MemoryManager) -> None:
        with flnb.use_memory_manager(manager):
            kept = [tensor(3), tensor(3), tensor(3), tensor(3), tensor(8), tensor(18)]
            block = flnb.memory.block_of(kept[2]._data)
            assert block is not None
            manager.user_lock(block)
            manager.user_lock(block)
            del kept[1:4]
            tensor(9)

    report = report_of(manager=manager, program=program)
    (locked,) = report.locked
    assert [blocker.names for blocker in report.blockers] == [("kept[1]",)]  # what cannot go is no way out
    assert (locked.locks, locked.held) == (2, "a user lock alone: its array is gone")
    assert (locked.orphaned, locked.taped) == (True, False)
    rows = {row.what: row for row in report.remedies.rows}
    assert rows[f"flnb.memory.unlock({locked.id})"].fits
    assert "2 user locks" in repr(report)


class Hoarder(Caching):
    """Releases nothing by itself."""

    def _reserve(self, nbytes: int) -> Any:
        return self.device.reserve(nbytes)


def test_release_cached_where_segments_hold_nothing() -> None:
    def program(manager: MemoryManager) -> None:
        with flnb.use_memory_manager(manager):
            tensor(30)
            tensor(40)

    report = report_of(manager=Hoarder(HostDevice("48MiB")), program=program)
    assert report.cached == 30 * MIB
    row = {row.what: row for row in report.remedies.rows}["flnb.memory.release_cached()"]
    assert row.fits
    assert row.peak == 40 * MIB
    assert "release_cached() would give back 30.0 MiB" in repr(report)


def test_other_managers_blocks_are_not_in_the_trace() -> None:
    def program(manager: MemoryManager) -> None:
        others = flnb.zeros((15 * MIB,))
        fragmented(manager)
        assert others.size

    rows = {row.what: row for row in report_of(program=program).remedies.rows}
    assert rows["del probe"].peak == 38 * MIB


def test_the_tape_holds_activations() -> None:
    def program(manager: MemoryManager) -> None:
        with flnb.use_memory_manager(manager):
            net = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
            x = flnb.ones((2048, 256))
            h = net(x)
            for _ in range(9):
                h = net[2](h)

    report = report_of(program=program)
    held = " ".join(blocker.held for blocker in report.blockers)
    assert "the tape, for the gradient of" in held


@pytest.mark.parametrize(("more", "whose"), [({}, "train.py"), ({"get_ipython": None}, "the notebook")])
def test_variables_of_scripts_and_of_notebooks_are_told_apart(more: dict[str, Any], whose: str) -> None:
    script = compile("x = flnb.zeros((1 << 18,))\n1 / 0", "/some/where/train.py", "exec")
    with pytest.raises(ZeroDivisionError) as caught:
        exec(script, {"flnb": flnb, **more})
    (owner,) = [one for one in owners(caught.value.__traceback__).values() if one.names == ("x",)]
    assert owner.held == f"a variable of {whose}"


@pytest.mark.parametrize(
    ("sizes", "said"), [((8, 4), "one block of 4.00 MiB"), ((4, 4, 4), "2 blocks, 8.00 MiB in all,")]
)
def test_what_would_have_to_go_is_a_sum(sizes: tuple[int, ...], said: str) -> None:
    manager = flnb.memory.BestFit(flnb.memory.SimulatedDevice("12MiB"))
    with pytest.raises(flnb.memory.OutOfMemoryError) as caught:
        for size in (*sizes, sizes[-1] * (len(sizes) - 1)):
            flnb.memory.allocate(manager, size << 20)
    assert f"freeing {said} would join enough in one piece" in repr(caught.value.report)


def test_an_error_made_by_hand_has_no_report() -> None:
    with pytest.raises(ValueError, match="the state of memory at this error was not stored and is unknown"):
        OutOfMemoryError("by hand").report  # noqa: B018


def test_what_can_never_fit() -> None:
    manager = Caching(SimulatedDevice("8MiB"))
    with pytest.raises(OutOfMemoryError) as caught:
        flnb.memory.allocate(manager, 16 * MIB)
    assert caught.value.report.verdict == "never to fit: more than the device has"
    assert caught.value.report.closest is None
