"""Two recordings compared in Chromium: their ops and what changed, their timelines, and the curves of their metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from flnb_telemetry.analysis.roofline import Peaks

import flnb
from tests.browser.stage import Stage
from tests.browser.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from flnb_telemetry.recording import Recording
    from playwright.sync_api import Page


@pytest.fixture(scope="module")
def stage(page: Page) -> Stage:
    return Stage(page)


def trained(name: str, batch: int, steps: int) -> Recording:
    net = flnb.nn.Sequential(first=flnb.nn.Linear(64, 64), relu=flnb.nn.ReLU(), last=flnb.nn.Linear(64, 64))
    with flnb.record(name) as run:
        for step in range(steps):
            with flnb.step():
                net(flnb.ones((batch, 64))).sum().backward()
                flnb.log(loss=batch / (1 + step), **({"accuracy": 0.5} if steps > 4 else {}))
    return run


def timelines_of(page: Page, stage: Stage, a: Recording, b: Recording) -> None:
    """Check the lanes of both on one axis: where steps begin in each, the durations, and an op's counterpart."""
    page.get_by_role("radio", name="Timeline").click()
    page.wait_for_function("() => window.__flnbPair.timelines.tops.length === 2")
    number = page.get_by_role("spinbutton", name="Step at which both are aligned")
    number.fill("99")
    number.press("Enter")  # A has four steps
    page.wait_for_function("() => window.__flnbPair.timelines.step === 3")
    begins, took = [], []
    for run in (a, b):
        step = run.table("step")
        begins.append((int(step["t0"][3]) - run.start) / 1e6)
        took.append((int(step["t1"][3]) - int(step["t0"][3])) / 1e6)
    found = page.evaluate("() => window.__flnbPair.timelines")
    assert [side["zero"] for side in found["sides"]] == pytest.approx(begins)
    assert [lanes[0][0] for lanes in (side["lanes"] for side in found["sides"])] == ["A", "B"]
    assert found["span"]["t0"] <= 0 < max(took) <= found["span"]["t1"]
    ratio = float(found["said"].rpartition("B/A ")[2].rstrip("×"))
    assert found["said"].startswith("step 3: A ")
    assert ratio == pytest.approx(took[1] / took[0], rel=0.01)
    # every op of the step, once the kernel has answered about both
    page.wait_for_function("""() => window.__flnbPair.timelines.sides.every(
        ({pixel}) => pixel <= (({t0, t1}) => (t1 - t0) / 900)(window.__flnbPair.timelines.span))""")
    op, t0 = b.table("op"), int(b.table("step")["t0"][3])
    inside = np.flatnonzero((op["t0"] >= t0) & (op["t1"] <= b.table("step")["t1"][3]))
    layer = next(row for row in inside.tolist() if b.catalog.plans.items[int(op["plan"][row])].op == "linear")
    before = None
    while found != before:  # rows move when another answer comes
        page.wait_for_timeout(200)
        before, found = found, page.evaluate("() => window.__flnbPair.timelines")
    span, place, row = found["span"], found["place"], found["sides"][1]["rows"][0].index("op")
    middle = ((int(op["t0"][layer]) + int(op["t1"][layer])) / 2 - t0) / 1e6
    x = 108 + (middle - span["t0"]) / (span["t1"] - span["t0"]) * (place["width"] - 108 - 12)
    page.mouse.click(place["x"] + x, place["y"] + found["tops"][1][row])
    page.wait_for_function("() => window.__flnbPair.timelines.chosen.length === 2")
    sides = page.evaluate("() => window.__flnbPair.timelines.chosen.map(({side}) => side)")
    assert sides == [1, 0]
    said = page.locator(".fl-status", has_text="linear · sequential.first: A ")
    said.wait_for()
    shown = float(said.inner_text().rpartition("B/A ")[2].rstrip("×"))
    own = a.table("op")
    first = int(a.table("step")["t0"][3])
    other = next(
        row for row in np.flatnonzero(own["t0"] >= first).tolist()
        if a.catalog.plans.items[int(own["plan"][row])].op == "linear"
    )  # fmt: skip
    times = [int(table["t1"][at] - table["t0"][at]) for table, at in ((own, other), (op, layer))]
    assert shown == pytest.approx(times[1] / times[0], rel=0.01)
    page.get_by_role("radio", name="Beginning").click()
    page.wait_for_function("() => window.__flnbPair.timelines.said.startsWith('whole runs: A ')")
    assert page.evaluate("() => window.__flnbPair.timelines.sides.map(({zero}) => zero)") == [0, 0]
    page.keyboard.press("]")  # the clicked button has the focus; its group shows what holds now
    page.wait_for_function("() => window.__flnbPair.timelines.step === 0")
    choice = page.get_by_role("radio", name="Step", exact=True)
    assert choice.get_attribute("aria-checked") == "true"
    page.get_by_role("button", name="Timelines as a table").click()
    page.locator(".fl-comparedtimeline tbody tr").first.wait_for()
    runs = page.locator(".fl-comparedtimeline tbody tr td:first-child").all_inner_texts()
    assert set(runs) == {"A", "B"}
    page.get_by_role("button", name="Timelines as a table").click()
    number.fill("3")
    choice.click()
    page.wait_for_function("() => window.__flnbPair.timelines.step === 3")


def long_step(ops: int) -> Recording:
    """A recording of two steps with more ops than a page has pixels; the last but one is a sine as many before it."""
    x = flnb.ones(8)
    with flnb.record("long") as run:
        for _ in range(2):
            with flnb.step():
                for _ in range(ops):
                    flnb.sin(x)
                    flnb.exp(x)
    return run


@pytest.mark.timeout(60)
def test_the_counterpart_of_an_op_late_in_a_long_step_is_found(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flnb.explore.runs.measured_peaks", lambda: Peaks(1e11, 1e10, 1e11))
    runs, page = (long_step(3000), long_step(3100)), stage.page
    stage.view(*runs)
    page.get_by_role("radio", name="Timeline").click()
    page.wait_for_function("() => window.__flnbPair.timelines.step === 1")
    begins, places = [], []
    for run in runs:
        op, begin = run.table("op"), int(run.table("step")["t0"][1])
        sines = [plan.op == "sin" for plan in run.catalog.plans.items]
        rows = np.flatnonzero((op["t0"] >= begin) & np.array(sines)[op["plan"]])
        begins.append(begin)
        places.append((op["t0"][rows], op["t1"][rows]))
    late = 2950  # of both
    t0, t1 = ((int(times[late]) - begins[0]) / 1e6 for times in places[0])
    for _ in range(40):
        found = page.evaluate("() => window.__flnbPair.timelines")
        span, place = found["span"], found["place"]
        wide = place["width"] - 108 - 12
        x = place["x"] + 108 + ((t0 + t1) / 2 - span["t0"]) / (span["t1"] - span["t0"]) * wide
        y = place["y"] + found["tops"][0][found["sides"][0]["rows"][0].index("op")]
        if (t1 - t0) / (span["t1"] - span["t0"]) * wide > 8:
            break
        page.mouse.move(x, y)
        page.mouse.wheel(0, -400)
        page.wait_for_function("t => window.__flnbPair.timelines.span.t1 !== t", arg=span["t1"])
    page.wait_for_function("""() => window.__flnbPair.timelines.sides[0].pixel <= (({t0, t1}) => (t1 - t0) / 900)(
        window.__flnbPair.timelines.span)""")
    page.mouse.click(x, y)
    page.wait_for_function("() => window.__flnbPair.timelines.chosen.length === 2")
    own, other = page.evaluate("() => window.__flnbPair.timelines.chosen")
    assert (own["side"], other["side"]) == (0, 1)
    for chosen, begin, times in zip((own, other), begins, places, strict=True):
        expected = [(int(each[late]) - begin) / 1e6 for each in times]
        assert [chosen["t0"], chosen["t1"]] == pytest.approx(expected, abs=1e-5)
    page.locator(".fl-status", has_text="sin: A ").wait_for()
    assert not page.flnb_errors  # type: ignore[attr-defined]


@pytest.mark.timeout(120)
def test_ops_timelines_and_metrics_of_two_runs(
    stage: Stage, screenshots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flnb.explore.runs.measured_peaks", lambda: Peaks(1e11, 1e10, 1e11))
    a, b = trained("small batch", 256, 4), trained("large batch", 1024, 8)
    expected = flnb.compare_runs(a, b)
    page = stage.page
    stage.view(a, b)
    page.get_by_role("radio", name="Ops").click()
    page.wait_for_function("() => window.__flnbPair.page === 'ops'")
    rows = page.locator(".fl-compared tbody tr:visible")
    eventually(page, rows.count, len(expected.rows))
    top = [expected.rows[0].op, expected.rows[0].scope or "–"]
    eventually(page, lambda: rows.first.locator("td").all_inner_texts()[:2], top)
    row = next(row for row in expected.rows if (row.op, row.scope) == ("linear", "sequential.first"))
    shown = rows.filter(has_text="linear").filter(has_text=row.scope).first.locator("td").all_inner_texts()
    assert shown[9] == ", ".join(row.changes)
    assert "bigger 4.00×" in shown[9]
    page.get_by_role("button", name="bytes of results in B").click()
    largest = max(expected.rows, key=lambda row: row.b.bytes)
    eventually(page, rows.first.locator("td").first.inner_text, largest.op)
    rows.first.locator("td button").click()
    page.locator(".fl-status", has_text=largest.op).wait_for()
    eventually(page, "window.__flnbPair.selections.map(one => one?.op)", [largest.op] * 2)
    page.screenshot(path=screenshots / "compared-ops.png")
    timelines_of(page, stage, a, b)
    page.screenshot(path=screenshots / "compared-timelines.png")
    page.get_by_role("radio", name="Metrics").click()
    heads = page.locator(".fl-compared .fl-charthead:visible")
    for parts in (("loss", "A 64", "B 128"), ("A –", "B 50")):
        eventually(
            page,
            heads.all_inner_texts,
            lambda texts, parts=parts: any(all(part in text for part in parts) for text in texts),
        )
    page.screenshot(path=screenshots / "compared-metrics.png")
    page.get_by_role("radio", name="Memory").click()
    page.locator('canvas[aria-label^="Memory by category"]:visible').first.wait_for()
    page.get_by_role("button", name="Export").click()
    page.get_by_role("menu", name="Export").wait_for()
    page.keyboard.press("Escape")  # is the menu's: the selection stays
    page.get_by_role("menu", name="Export").wait_for(state="hidden")
    assert page.evaluate("window.__flnbPair.selections.map(one => one?.op)") == [largest.op] * 2
    assert not page.flnb_errors  # type: ignore[attr-defined]
