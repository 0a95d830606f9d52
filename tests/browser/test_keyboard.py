"""Every view without a mouse: Tab and the arrows reach each control that a mouse can use, and each picture has keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import flnb
from tests.browser.stage import Stage
from tests.browser.test_screens import of_ranks, on_device, recorded
from tests.browser.waiting import redrawn

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

REACHED = Path(__file__).with_name("reached.js")
SEEN = """() => [window.__flnb?.selection, window.__flnb?.cursor, window.__flnb?.range,
    window.__flnbPair?.cursors, window.__flnbPair?.selections, window.__flnbPair?.timelines?.span,
    document.activeElement.getContext?.("2d") && document.activeElement.toDataURL(), window.__flnbProgram?.selected]
    .map(value => JSON.stringify(value)).join()"""
"""What keys of a picture change: the selection, the cursor, the time in sight, the picture itself."""


@pytest.fixture(scope="module")
def stage(page: Page) -> Stage:
    page.add_init_script(path=REACHED)
    return Stage(page)


def drawn(page: Page) -> None:
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def walk(page: Page, name: str) -> list[str]:
    """Go through all stops of the view, and in each group of choices through its members; return what is wrong."""
    page.evaluate("() => { forgetReached(); document.activeElement?.blur(); }")
    for _ in range(page.evaluate("() => stops()") + 3):
        page.keyboard.press("Tab")
    found = page.evaluate("() => unreached(false)")
    for _ in range(page.evaluate("() => groups()")):
        for _ in range(page.evaluate("() => nextGroup()")):
            page.keyboard.press("ArrowRight")  # around, to the one that was chosen
    found += page.evaluate("() => unreached(true)")
    found = [f"{name}: only a mouse can use {control}" for control in found]
    for number in range(page.evaluate("() => pictures()")):
        label = page.evaluate("number => focusPicture(number)", number)
        changed = False
        for key in ("ArrowLeft", "ArrowRight", "ArrowDown", "Enter", "w"):
            before = page.evaluate(SEEN)
            page.keyboard.press(key)
            drawn(page)
            changed = changed or page.evaluate(SEEN) != before
            if changed:
                break
        if not changed:
            found.append(f"{name}: no key changes anything in the picture {label}")
    return found


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("make", "tabs"),
    [
        (recorded, ["Overview", "Ops", "Memory", "Tape", "Timeline", "Metrics"]),
        (of_ranks, ["Collectives"]),
        (on_device, ["Devices"]),
    ],
)
def test_the_keyboard_reaches_all_that_a_mouse_does(stage: Stage, make: Callable[[], Any], tabs: list[str]) -> None:
    page, found = stage.page, list[str]()
    stage.view(make(), width=1400, height=900)
    for tab in tabs:
        page.get_by_role("tab", name=tab).click()
        redrawn(page)
        found += walk(page, tab)
    assert found == []
    assert not page.flnb_errors  # type: ignore[attr-defined]


@pytest.mark.timeout(120)
def test_the_keyboard_reaches_all_of_comparisons_and_programs(stage: Stage) -> None:
    page, found = stage.page, list[str]()
    stage.view(recorded(), recorded(), width=1400, height=900)
    for name in ("Memory", "Ops", "Timeline", "Metrics"):
        page.get_by_role("radio", name=name, exact=True).click()
        page.wait_for_function("name => window.__flnbPair.page === name", arg=name.lower())
        drawn(page)
        found += walk(page, f"two runs, {name}")
    w = flnb.Variable(flnb.ones((16, 16)))

    @flnb.jit
    def f(x: Any) -> Any:
        return flnb.gelu(x @ w + 1.0).sum()

    for _ in range(3):
        f(flnb.ones((8, 16)))
    stage.program(f, width=1400, height=900)
    found += walk(page, "program")
    assert found == []
    assert not page.flnb_errors  # type: ignore[attr-defined]
