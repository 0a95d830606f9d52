"""The memory of a recording in Chromium: any moment of it, a block and its life, two recordings under one scrubber."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_telemetry import quantity
from flnb_telemetry.intern import Frame

import flnb
from tests.browser.stage import Stage, remembered
from tests.browser.waiting import eventually, redrawn

if TYPE_CHECKING:
    from pathlib import Path

    from flnb_telemetry.recording import Recording
    from playwright.sync_api import Page


TIMELINE = 'canvas[aria-label^="Memory by category"]:visible'
MAP = 'canvas[aria-label*="segments with"]:visible'


@pytest.fixture(scope="module")
def stage(page: Page) -> Stage:
    return Stage(page)


@pytest.fixture(scope="module")
def run() -> Recording:
    run = remembered(20_000, live=400, capacity=64 << 20)
    numbers = set(run.table("alloc")["context"].tolist())
    run.catalog.stacks = {
        i: (Frame("forward", "/project/net.py", i), Frame("<module>", "train.py", 7)) for i in numbers
    }
    return run


def click(page: Page, selector: str, x: float, y: float) -> None:
    box: Any = page.locator(selector).first.bounding_box()
    page.mouse.click(box["x"] + x, box["y"] + y)


@pytest.mark.timeout(60)
def test_the_overviews_legend_names_all_categories_where_they_need_two_lines(stage: Stage, run: Recording) -> None:
    stage.view(run, width=740)
    legend = stage.page.locator(".fl-legend").first
    legend.locator("span").first.wait_for()
    eventually(stage.page, legend.locator(":scope > span:visible").count, 5)
    heights = "legend => [legend.scrollHeight, legend.clientHeight]"
    eventually(stage.page, lambda: legend.evaluate(heights), [32, 32])


@pytest.mark.timeout(60)
def test_any_moment_of_a_recording_is_the_recordings_own(stage: Stage, run: Recording) -> None:
    page = stage.page
    stage.view(run)
    eventually(page, "window.__flnb.cursor", pytest.approx(run.memory.peak.t))
    page.get_by_role("tab", name="Memory").click()
    page.keyboard.press("f")
    redrawn(page)
    for x in np.linspace(60, 600, 7).tolist():
        before = page.evaluate("() => window.__flnb.cursor")
        click(page, TIMELINE, x, 80)
        t = eventually(page, "window.__flnb.cursor", lambda t, before=before: t != before)
        state, seen = run.memory.at(t), page.evaluate("() => window.__flnb.view")
        assert seen["allocated"] == state.allocated
        assert seen["reserved"] == state.reserved
        assert seen["largest"] == state.largest_hole
        assert sum(seen["categories"]) + seen["waste"] == state.allocated
        assert [seen["segments"], seen["blocks"]] == [len(state.segments), sum(len(s.blocks) for s in state.segments)]


def test_a_block_tells_its_tensor_and_its_life(stage: Stage, run: Recording, screenshots: Path) -> None:
    page = stage.page
    click(page, MAP, 300, 14)
    page.wait_for_function("() => window.__flnb.selection?.kind === 'block'")
    chosen = page.evaluate("() => window.__flnb.selection")
    block = next(b for s in run.memory.at(chosen["t"]).segments for b in s.blocks if b.id == chosen["block"])
    panel = page.get_by_label("Selected block")
    for said in (block.op, block.scope, "f32 [64,16,8]", f"{block.requested:,} B".replace(",", "\u202f")):
        panel.filter(has_text=said).wait_for()
    stack = panel.locator(".fl-stack li")
    context = run.memory.block["context"][run.memory.block["alloc_id"] == chosen["block"]].item()
    eventually(page, stack.all_inner_texts, [f"net.py:{context} forward", "train.py:7 <module>"])
    page.screenshot(path=str(screenshots / "memory-of-a-recording.png"))
    assert not stage.page.flnb_errors  # type: ignore[attr-defined]


def test_the_keyboard_reaches_a_hole_and_it_names_its_neighbours(
    stage: Stage, run: Recording, screenshots: Path
) -> None:
    page = stage.page
    page.locator(MAP).first.focus()
    chosen = page.evaluate("() => window.__flnb.selection")
    for _ in range(80):
        page.keyboard.press("ArrowRight")
        chosen = eventually(page, "window.__flnb.selection", lambda now, before=chosen: now != before)
        segment = next(s for s in run.memory.at(chosen["t"]).segments if s.id == chosen["segment"])
        beside = chosen["kind"] == "hole" and [
            b for b in segment.blocks if chosen["offset"] in (b.offset + b.size, b.offset - chosen["bytes"])
        ]
        if beside and len(beside) == 2:
            break
    else:
        pytest.fail("no hole between two blocks is reached by 80 presses")
    page.wait_for_function("() => document.querySelector('.fl-side .fl-title')?.innerText.includes('hole')")
    panel, at = page.get_by_label("Selected block"), run.memory.block["context"]
    panel.filter(has_text=quantity.size(chosen["bytes"])).wait_for()
    for block in beside:
        line = run.catalog.contexts.items[at[run.memory.block["alloc_id"] == block.id].item()].line
        for said in (block.op, block.scope, line):
            assert said
            panel.filter(has_text=said).wait_for()
    eventually(page, lambda: panel.inner_text().count("Age"), 2)
    page.screenshot(path=str(screenshots / "memory-hole.png"))
    page.get_by_label("Selected block").locator(".fl-rowlist button").last.click()
    page.wait_for_function("block => window.__flnb.selection?.block === block", arg=beside[1].id)
    page.get_by_label("Selected block").locator(".fl-stack").wait_for()


@pytest.mark.timeout(60)
def test_two_managers_stand_side_by_side_under_one_scrubber(stage: Stage, run: Recording, screenshots: Path) -> None:
    page = stage.page
    other = flnb.memory.rerun(run, "buddy")
    stage.view(run, other)
    for x in (100.0, 400.0):
        before = page.evaluate("() => window.__flnbPair.cursors")
        click(page, TIMELINE, x, 60)
        here, there = eventually(page, "window.__flnbPair.cursors", lambda now, before=before: now != before)
        assert here == there, "the same allocations at the same times"
        table = page.get_by_role("table", name="Memory of both recordings")
        for memory in (run.memory, other.memory):
            table.filter(has_text=quantity.size(memory.at(here).reserved)).wait_for()
    click(page, MAP, 200, 14)
    page.wait_for_function("() => window.__flnbPair.selections[0]?.kind === 'block'")
    eventually(page, "new Set(window.__flnbPair.selections.map(one => one?.block)).size", 1)
    for width, light in ((1200, True), (900, False)):
        stage.view(run, other, light=light, width=width)
        page.locator(".fl-figures tbody td:visible").first.wait_for()
        redrawn(page)
        page.screenshot(path=str(screenshots / f"memory-side-by-side-{width}.png"))
        figures: Any = page.locator(".fl-figures tbody td:visible").all()
        right = max(box["x"] + box["width"] for cell in figures if (box := cell.bounding_box()))
        assert right <= width, "no figure is cut"
    assert not page.flnb_errors  # type: ignore[attr-defined]
