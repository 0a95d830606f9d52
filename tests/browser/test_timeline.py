"""The Timeline in Chromium: what threads did when, of finished runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_telemetry import schema

import flnb
from benchmarks.timelineview import recorded as synthetic
from flnb import nn, optim
from tests.browser.stage import Stage
from tests.browser.waiting import eventually, redrawn

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page


HEADING, RIGHT = 108, 12
"""Pixels beside the time axis."""


@pytest.fixture(scope="module")
def stage(page: Page) -> Stage:
    return Stage(page)


def trained(backend: str, steps: int = 6) -> Any:
    """A recording of a few steps of a small network."""
    with flnb.use_backend(backend):
        flnb.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 10))
        optimizer = optim.Adam(model.parameters(), lr=1e-2)
        x, y = flnb.randn(128, 64), flnb.asarray([i % 10 for i in range(128)])
        with flnb.record(backend) as run:
            for _ in range(steps):
                with flnb.step():
                    optimizer.zero_grad()
                    loss = flnb.cross_entropy(model(x), y)
                    loss.backward()
                    optimizer.step()
                    flnb.log(loss=float(loss))
    return run


@pytest.fixture(scope="module")
def run() -> Any:
    return trained("numpy")


def settled(page: Page) -> dict[str, Any]:
    """What the view tells of itself, once it draws the window that it has asked for."""
    page.wait_for_function(
        """() => {
            const view = window.__flnb.view, span = view?.shown;
            return view?.rows?.length > 0 && view.pixel <= 1.02 * (span.t1 - span.t0) / (view.place.width - 120);
        }"""
    )
    redrawn(page, texts=0)
    found: dict[str, Any] = page.evaluate("() => window.__flnb.view")
    return found


def opened(page: Page) -> dict[str, Any]:
    page.locator("[role=tab]", has_text="Timeline").click()
    page.wait_for_function("() => window.__flnb.view?.rows?.length > 0")
    page.keyboard.press("f")
    return settled(page)


def place_of(view: dict[str, Any], run: Any, t: float, kind: str) -> tuple[float, float]:
    """Where on the page a time (ns) stands in the row of a kind of the first thread."""
    span, place = view["shown"], view["place"]
    share = ((t - run.start) / 1e6 - span["t0"]) / (span["t1"] - span["t0"])
    row = [one["kind"] for one in view["rows"]].index(kind)
    return place["x"] + HEADING + share * (place["width"] - HEADING - RIGHT), place["y"] + view["tops"][0][row]


def looked_at(page: Page, run: Any, t0: float, t1: float) -> dict[str, Any]:
    """Zoom by the wheel until about the time between t0 and t1 (ns) is in sight."""
    view = settled(page)
    page.locator(".fl-timeline canvas").focus()
    for _ in range(60):
        span = view["shown"]
        if (span["t1"] - span["t0"]) * 1e6 < 4 * (t1 - t0):
            return view
        page.mouse.move(*place_of(view, run, (t0 + t1) / 2, "op"))
        page.mouse.wheel(0, -250)
        page.wait_for_function(
            "t => window.__flnb.view.shown.t1 - window.__flnb.view.shown.t0 < t", arg=span["t1"] - span["t0"]
        )
        view = settled(page)
    raise AssertionError(f"sixty turns of the wheel, and {view['shown']} is in sight")


@pytest.mark.timeout(120)
def test_every_op_is_in_the_lane_and_a_click_finds_exactly_it(stage: Stage, run: Any, screenshots: Path) -> None:
    page, op = stage.page, run.table("op")
    stage.view(run)
    opened(page)
    eventually(page, "window.__flnb.view.rows.map(row => row.kind)", ["phase", "scope", "scope", "op"])
    shown = settled(page)
    assert shown["rows"][-1]["events"] == len(op["t0"])
    merged = shown["rows"][-1]["bars"] < len(op["t0"])  # on a slow machine every op may be a pixel wide
    assert ("merged below a pixel" in shown["said"]) == merged
    assert shown["lanes"] == ["main"]
    names = [run.catalog.plans.items[plan].op for plan in op["plan"].tolist()]
    for wanted in ("permute_dims", "layer_norm"):  # a short op, and a long one
        at = len(names) // 2 + names[len(names) // 2 :].index(wanted)
        view = looked_at(page, run, op["t0"][at], op["t1"][at])
        assert "every event drawn" in view["said"]
        page.mouse.click(*place_of(view, run, (op["t0"][at] + op["t1"][at]) / 2, "op"))
        page.wait_for_function("number => window.__flnb.view.selected?.number === number", arg=at)
        page.wait_for_function("block => window.__flnb.view.selected?.block === block", arg=int(op["alloc_id"][at]))
        step = int((run.table("step")["t1"] < op["t0"][at]).sum())
        eventually(page, "[window.__flnb.selection?.op, window.__flnb.selection?.step]", [wanted, step])
        page.keyboard.press("f")
    same = [i for i in range(len(names)) if op["node"][i] == op["node"][at] and i != at]
    eventually(page, "window.__flnb.view.selected?.related?.map(one => one.number)", same[:16])
    page.screenshot(path=screenshots / "timeline-selected.png")


@pytest.mark.timeout(120)
def test_arrows_measure_search_and_cursor(stage: Stage, run: Any, screenshots: Path) -> None:
    """From an op to its backward and its memory; M counts; / finds; the cursor is that of every view."""
    page, op = stage.page, run.table("op")
    stage.view(run, width=1400)
    opened(page)
    page.keyboard.press("/")
    page.keyboard.type("layer_norm")
    page.keyboard.press("Enter")
    page.wait_for_function("() => window.__flnb.view.selected?.related?.length > 0")
    selected = page.evaluate("() => window.__flnb.view.selected")
    names = [run.catalog.plans.items[plan].op for plan in op["plan"].tolist()]
    assert names[selected["number"]].startswith("layer_norm")
    first = selected["number"]
    page.keyboard.press("Enter")
    page.wait_for_function("first => window.__flnb.view.selected.number > first", arg=first)
    page.keyboard.press("Escape")
    page.locator(".fl-timeline canvas").focus()
    at = first
    blocks = run.table("alloc")
    mine = {int(op["alloc_id"][at])} | {
        int(number)
        for number, t, plan in zip(blocks["alloc_id"], blocks["t"], blocks["plan"], strict=True)
        if op["t0"][at] - 20_000 <= t <= op["t1"][at] and plan == op["plan"][at]
    }
    looked_at(page, run, op["t0"][at], op["t1"][at])
    page.mouse.click(*place_of(settled(page), run, (op["t0"][at] + op["t1"][at]) / 2, "op"))
    page.wait_for_function("number => window.__flnb.view.selected?.number === number", arg=at)
    page.wait_for_function("count => window.__flnb.view.allocations === count", arg=len(mine - {0}))
    page.screenshot(path=screenshots / "timeline-arrows.png")
    related = page.evaluate("() => window.__flnb.view.selected.related.length")
    eventually(page, page.locator(".fl-side .fl-rowlist button").count, related)
    page.locator(".fl-side .fl-rowlist button").first.click()  # to its backward op, wherever that is
    page.wait_for_function("number => window.__flnb.view.selected.number !== number", arg=at)
    view = settled(page)
    back = view["selected"]
    assert view["shown"]["t0"] <= back["t0"] <= back["t1"] <= view["shown"]["t1"]
    page.keyboard.press("m")  # the selected event is measured whole
    page.wait_for_function("() => window.__flnb.view.measure?.found")
    eventually(page, "window.__flnb.view.measure.found.counts.op", 1)
    page.keyboard.press("Escape")
    eventually(page, "window.__flnb.view.measure", None)
    page.keyboard.press("Escape")  # nothing is selected any more
    page.keyboard.press("f")
    step = run.table("step")
    shown = settled(page)
    for t in (step["t0"][2], step["t1"][3]):  # on the axis: from step 2 to the end of step 3
        x, _ = place_of(shown, run, t, "op")
        page.mouse.click(x, shown["place"]["y"] + 8)
        page.keyboard.press("m")
    page.wait_for_function("() => window.__flnb.view.measure?.found")
    found = page.evaluate("() => window.__flnb.view.measure.found")
    t0, t1 = (run.start + round(found[name] * 1e6) for name in ("t0", "t1"))
    begun = op["t0"][(op["t0"] >= t0) & (op["t0"] < t1)]
    assert abs(found["counts"]["op"] - len(begun)) <= 1  # the bounds are rounded to the ns
    assert len(begun) > 20
    page.screenshot(path=screenshots / "timeline-measured.png")
    eventually(page, "window.__flnb.cursor", pytest.approx((step["t1"][3] - run.start) / 1e9, rel=0.01))
    x, _ = place_of(shown, run, (step["t0"][2] + step["t1"][2]) / 2, "op")  # Ops and Tape follow the cursor
    page.mouse.click(x, shown["place"]["y"] + 8)
    inside = (op["t0"] >= step["t0"][2]) & (op["t0"] < step["t1"][2])
    wanted = sorted(
        f"{name}{int((inside & (np.array(names) == name)).sum())}"
        for name in {names[i] for i in np.flatnonzero(inside)}
    )
    page.locator("[role=tab]", has_text="Ops").click()
    page.locator(".fl-stepops", has_text="In step 2, under the cursor").wait_for()
    rows = page.locator(".fl-stepops + dl")
    counts = "dl => [...dl.querySelectorAll('dt')].map(dt => dt.textContent + parseInt(dt.nextSibling.textContent))"
    eventually(page, lambda: sorted(rows.evaluate(counts)), wanted)
    page.screenshot(path=screenshots / "ops-of-step.png")
    page.locator("[role=tab]", has_text="Tape").click()
    label = page.locator('canvas[aria-label^="Tape graph of step 2: "]:visible')
    label.wait_for()  # the tape follows the cursor to a step whose gradients may not have been measured
    assert f"{len(run.tape.nodes)} nodes" in (label.get_attribute("aria-label") or "").replace("\u202f", "")
    assert page.get_by_text("under the cursor").and_(page.locator(":visible")).count() == 0
    page.screenshot(path=screenshots / "tape-of-other-step.png")
    page.locator("[role=tab]", has_text="Timeline").click()
    page.mouse.click(place_of(shown, run, step["t1"][3], "op")[0], shown["place"]["y"] + 8)
    page.locator("[role=tab]", has_text="Memory").click()
    eventually(page, "window.__flnb.cursor", pytest.approx((step["t1"][3] - run.start) / 1e9, rel=0.01))


@pytest.mark.timeout(120)
def test_while_the_kernel_is_busy_the_coarse_piece_is_drawn_and_said(stage: Stage, screenshots: Path) -> None:
    """Of steps before the newest ones, which the browser has in full."""
    run, page = trained("numpy", 14), stage.page
    op = run.table("op")
    stage.view(run)
    opened(page)
    stage.busy = True
    try:
        page.locator(".fl-timeline canvas").focus()
        for _ in range(6):
            page.mouse.move(*place_of(page.evaluate("() => window.__flnb.view"), run, op["t0"][40], "op"))
            page.mouse.wheel(0, -400)
            redrawn(page)
        page.wait_for_function("() => window.__flnb.view.coarse")
        eventually(page, "window.__flnb.view.said", lambda said: "coarse: the kernel is busy" in said)
        eventually(page, "window.__flnb.view.rows.at(-1).bars", lambda bars: bars > 0)
        page.screenshot(path=screenshots / "timeline-busy.png")
    finally:
        stage.busy = False
    page.keyboard.press("w")
    page.wait_for_function("() => !window.__flnb.view.coarse")
    settled(page)
    eventually(page, "window.__flnb.view.said", lambda said: "coarse" not in said)
    page.locator("[aria-label='Timeline as a table']").click()
    rows = page.locator("section[aria-label=Timeline] .fl-data tbody tr")
    eventually(page, rows.count, lambda count: count > 3)
    assert not page.flnb_errors  # type: ignore[attr-defined]


@pytest.mark.timeout(120)
def test_lanes_have_what_a_thread_recorded_compiled_and_ran(stage: Stage, screenshots: Path) -> None:
    pytest.importorskip("llvmlite")
    run, page = trained("deferred"), stage.page
    op, kernel = run.table("op"), run.table("kernel")
    stage.view(run, light=False)
    shown = opened(page)
    events = {row["kind"]: row["events"] for row in shown["rows"] if row["kind"] != "scope"}
    for kind in ("record", "compile", "materialize"):
        assert events[kind] == len(run.table(kind)["t0"]) > 0
    assert events["op"] == int((op["estimated"] == 0).sum()) + len(kernel["t0"])
    assert events["part"] == int((op["estimated"] == 1).sum())
    row = max(range(len(kernel["t0"])), key=lambda i: (kernel["t0"][i] > run.table("step")["t0"][-1], kernel["ops"][i]))
    view = looked_at(page, run, kernel["t0"][row], kernel["t1"][row])
    page.mouse.click(*place_of(view, run, (kernel["t0"][row] + kernel["t1"][row]) / 2, "op"))
    page.wait_for_function("() => window.__flnb.selection?.kind === 'kernel'")
    page.wait_for_function(
        "count => document.querySelectorAll('.fl-part').length === count", arg=int(kernel["ops"][row])
    )
    page.screenshot(path=screenshots / "timeline-kernel.png")
    page.locator("[role=tab]", has_text="Ops").click()
    page.get_by_role("radio", name="Kernel").click()
    page.locator("tr[aria-selected=true]").first.wait_for()
    assert not page.flnb_errors  # type: ignore[attr-defined]


@pytest.mark.timeout(120)
def test_of_a_module_or_of_equal_blocks_on_the_tape_all_ops_stand_out(stage: Stage, screenshots: Path) -> None:
    """Forward and backward, in every step; equal blocks are one box, of which the kernel knows the nodes."""
    model, head = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(6))), nn.Linear(16, 2)
    x = flnb.ones((4, 16))

    class OpByOp(flnb.backends.NumpyBackend):
        linear = None  # the module of the head has several nodes

    with flnb.use_backend(OpByOp()):
        flnb.sum(head(model(x))).backward()  # what is prepared at first calls is in no recording
        with flnb.record(grad_interval=0) as run:
            for _ in range(2):
                with flnb.step():
                    flnb.sum(head(model(x))).backward()
    page, op = stage.page, run.table("op")
    stage.view(run)
    scope, phase, _ = run.catalog.places(op["context"], op["node"])
    names = [run.catalog.strings.items[number] for number in scope]
    for name, kind, outer in (("sequential.0–5", "nodes", "sequential."), ("linear", "scope", "linear")):
        inside = np.array([own.startswith(outer) for own in names])
        assert inside[phase == schema.BACKWARD].any()
        assert not inside.all()
        page.locator("[role=tab]", has_text="Tape").click()
        page.wait_for_function("name => window.__flnb.view?.targets?.some(one => one.name === name)", arg=name)
        target = next(one for one in stage.probe()["targets"] if one["name"] == name)
        page.mouse.click(target["x"] + 60, target["y"] + 10)
        page.wait_for_function("kind => window.__flnb.selection?.kind === kind", arg=kind)
        shown = opened(page)
        for _ in range(12):  # until each op is a bar, in what is drawn and beside it
            if shown["rows"][-1]["bars"] == len(names):
                break
            length = shown["shown"]["t1"] - shown["shown"]["t0"]
            page.keyboard.press("w")
            page.wait_for_function("t => window.__flnb.view.shown.t1 - window.__flnb.view.shown.t0 < t", arg=length)
            shown = settled(page)
        assert shown["rows"][-1]["bars"] == len(names)
        eventually(page, "window.__flnb.view.faint.at(-1)", int((~inside).sum()))
        page.screenshot(path=screenshots / f"timeline-lit-{kind}.png")
        page.keyboard.press("Escape")


@pytest.mark.timeout(120)
def test_a_saved_page_says_that_it_has_no_more_detail(page: Page, tmp_path: Path) -> None:
    """Of a recording so even that any window has merged events, however slow the machine that shows it."""
    run = synthetic(20_000)
    t = run.table("op")["t0"][3000]
    run.save_html(tmp_path / "run.html")
    page.goto((tmp_path / "run.html").as_uri())
    page.locator("[role=tab]", has_text="Timeline").click()
    page.wait_for_function("() => window.__flnb.view?.rows?.length > 0")
    page.locator(".fl-timeline canvas").focus()
    page.keyboard.press("f")
    for _ in range(20):
        view = page.evaluate("() => window.__flnb.view")
        length = view["shown"]["t1"] - view["shown"]["t0"]
        if view["pixel"] > 1.1 * length / (view["place"]["width"] - HEADING - RIGHT):
            break  # more is wished for than the page has
        page.mouse.move(*place_of(view, run, t, "op"))
        page.mouse.wheel(0, -400)
        page.wait_for_function(
            "t => window.__flnb.view.shown.t1 - window.__flnb.view.shown.t0 < t && window.__flnb.view.pixel",
            arg=length,
        )
    page.wait_for_function("() => window.__flnb.view.said.includes('merged: a saved page has no more detail')")
    eventually(page, "!window.__flnb.view.coarse", True)
