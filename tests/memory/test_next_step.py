"""Replays of remedies go on after the failed request: through the step, and through one whole step."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import flnb
import flnb.nn as nn
from flnb.memory import Caching, HostDevice, MemoryManager, Native, OutOfMemoryError
from flnb.memory_lab import report_text
from flnb.memory_lab.next_step import Whole, continued, whole_steps
from flnb.memory_lab.traces import Trace, recorded
from flnb.show.postmortem import postmortem_html
from tests.memory.test_postmortem import report_of, tensor

if TYPE_CHECKING:
    from flnb.memory_lab.postmortem import Postmortem

pytestmark = pytest.mark.usefixtures("nothing_held")

STEPS, CAPACITY = 7, "48MiB"


def leaking(manager: MemoryManager, steps: int = STEPS) -> None:
    """Three more MiB stay in each step, between tensors that go: at step 6 caching has no piece of 9 MiB."""
    with flnb.use_memory_manager(manager):
        kept = [tensor(2)]
        for _ in range(steps):
            with flnb.step():
                kept.append(tensor(3))
                y = tensor(9)
                z = y + 1.0
                del y, z


@cache
def leaked() -> Postmortem:
    return report_of(manager=Caching(HostDevice(CAPACITY)), program=leaking)


def manager_of(what: str) -> MemoryManager:
    made: MemoryManager = eval(what.removeprefix("flnb.use_memory_manager"), {"flnb": flnb})
    return made


def test_what_is_said_of_a_whole_step_is_what_happens() -> None:
    """The program stopped in step 6, so the steps until 7 are what was replayed."""
    rows = [row for row in leaked().remedies.rows if row.what.startswith("flnb.use_memory_manager(")]
    through, again = [row for row in rows if row.through], [row for row in rows if row.again]
    assert len(through) >= 4
    assert len(again) >= 1
    for row in through:
        manager = manager_of(row.what)
        leaking(manager, STEPS + 1)
        assert manager.stats()["peak_reserved"] == row.peak, row.what
    for row in again:
        assert not row.fits
        leaking(manager_of(row.what), STEPS)
        with pytest.raises(OutOfMemoryError, match=r"9\.00 MiB"):
            leaking(manager_of(row.what), STEPS + 1)
        assert report_text.verdict(row) == "gets past it, then runs out at add (9.00 MiB) in the next step"


def test_a_remedy_for_one_request_alone_is_none() -> None:
    """Deleting y by hand helps in this step and not in the next one, which makes it again."""
    (row,) = (row for row in leaked().remedies.rows if row.what == "del y")
    assert (row.fits, row.through, row.again) == (False, False, "add (9.00 MiB) in the next step")
    assert row not in leaked().remedies.fitting
    rows = leaked().remedies.rows
    assert list(rows) == sorted(rows, key=lambda row: row.rank)


def test_the_report_says_how_far_the_replays_went() -> None:
    said = "replayed up to this request, on to the end of the step, and through one whole step, both like step 5"
    report = leaked()
    assert report.remedies.steps == said
    assert f"; {said}:" in repr(report)
    assert "lets it through, and a whole step" in repr(report).splitlines()[0]
    html = postmortem_html(report)
    for text in (f"each one {said}; ", "gets past it, and through a whole step", "runs out at add (9.00 MiB)"):
        assert text in html
    alone = report_of()
    assert alone.remedies.steps.startswith("replayed up to this request: no whole step was recorded before it, so")
    assert {report_text.verdict(row) for row in alone.remedies.fitting} == {"gets past it; what follows was not tried"}


def without_steps(manager: MemoryManager) -> None:
    kept = []
    with flnb.use_memory_manager(manager):
        for mib in (3, 4, 5):
            with flnb.step():
                kept.append(tensor(mib))
        tensor(40)


def once(manager: MemoryManager) -> None:
    with flnb.use_memory_manager(manager):
        with flnb.step():
            tensor(3)
        tensor(50)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (without_steps, "no recorded step made the same requests up to it"),
        (once, "one whole step was recorded before it, two are needed"),
    ],
)
def test_it_is_said_why_no_step_was_replayed(program: Any, why: str) -> None:
    found = report_of(manager=Native(HostDevice(CAPACITY)), program=program).remedies
    assert why in found.steps
    assert not any(row.through or row.again for row in found.rows)


@cache
def training() -> tuple[Trace, list[Whole]]:
    """A recording of six steps of Adam on two layers, of which the losses stay."""
    flnb.manual_seed(0)
    with flnb.use_memory_manager(Native(HostDevice())), flnb.record() as run:
        net = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64))
        optimizer, x, losses = flnb.optim.Adam(net.parameters(), lr=0.01), flnb.ones((32, 64)), []
        for _ in range(6):
            optimizer.zero_grad()
            losses.append((net(x) ** 2).sum(axis=0))
            losses[-1].sum().backward()
            optimizer.step()
    return recorded(run, run.memory.block), whole_steps(run, int(run.table("step")["t1"][-1]))


@pytest.mark.parametrize("at", [1, 4, 9, 13])
def test_a_training_step_is_continued_as_it_was(at: int) -> None:
    """Cut in its fifth step at any request, the trace goes on as the recording did."""
    trace, steps = training()
    stops = np.searchsorted(trace.t, [step.end for step in steps], "right")
    places = np.flatnonzero(trace.calls > 0)
    cut = int(places[np.searchsorted(places, stops[3]) + at])
    assert cut < stops[4]
    count = int(trace.calls[cut])
    part = replace(
        trace, calls=trace.calls[: cut + 1], nbytes=trace.nbytes[:count], t=trace.t[: cut + 1],
        category=trace.category[:count], op=trace.op[:count], scope=trace.scope[:count], shapes=trace.shapes[:count],
    )  # fmt: skip
    found = continued(part, steps[:4])
    assert found is not None
    assert (found.like, found.begin) == (steps[3].number, stops[4])
    assert found.trace.calls.tolist() == trace.calls[: stops[5]].tolist()
    assert found.trace.nbytes.tolist() == trace.nbytes[: len(found.trace.nbytes)].tolist()
