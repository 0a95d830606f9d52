"""The Export menu: what it saves is what is shown or recorded, by keyboard too; what cannot be had says why."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import flnb
from tests.browser.stage import Stage
from tests.browser.test_screens import AXE, LAYOUT, SIZES, VIOLATIONS, recorded
from tests.browser.waiting import eventually, redrawn

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


def saved(page: Page, item: str) -> Path:
    """Choose an item of the menu; returns the file that the browser has saved."""
    page.get_by_role("button", name="Export").click()
    with page.expect_download(timeout=20_000) as download:
        page.get_by_role("menuitem", name=item).click()
    page.evaluate("name => (window.saved = name)", download.value.suggested_filename)
    return Path(download.value.path())


def reasons(menu: Locator) -> list[str]:
    """What the items say that cannot be chosen."""
    found: list[str] = menu.locator("[aria-disabled=true] .fl-dim").all_inner_texts()
    return found


def test_the_menu_saves_what_is_shown_and_what_was_recorded(page: Page, screenshots: Path, tmp_path: Path) -> None:
    run, stage = recorded(), Stage(page)
    button, menu = page.get_by_role("button", name="Export"), page.get_by_role("menu", name="Export")
    found = []
    for size, width, height, light in SIZES:
        stage.view(run, width=width, height=height, light=light)
        redrawn(page)
        found += page.evaluate(LAYOUT)  # of the bar with its button; an open menu lies on the views
        button.click()
        menu.wait_for()
        page.screenshot(path=str(screenshots / f"export-{size}.png"))
        if AXE.exists():
            page.evaluate(AXE.read_text(encoding="utf-8"))
            found += page.evaluate(VIOLATIONS)
        eventually(page, lambda: reasons(menu), [])
    assert found == []

    page.keyboard.press("ArrowUp")  # from the first item to the last
    eventually(page, "document.activeElement.textContent", "Report as a picture (.svg)")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    eventually(page, "document.activeElement.textContent", "Table of the view (.csv)")
    page.keyboard.press("Escape")
    menu.wait_for(state="hidden")
    eventually(page, lambda: button.evaluate("each => each === document.activeElement"), True)

    page.get_by_role("tab", name="Memory").click()
    redrawn(page)
    picture = saved(page, "Picture of").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n")
    assert int.from_bytes(picture[16:20], "big") > 300  # its width
    page.get_by_role("tab", name="Ops").click()
    redrawn(page)
    with saved(page, "Table of").open(newline="", encoding="utf-8") as file:
        titles, *rows = csv.reader(file)
    assert "matmul" in {cell for row in rows for cell in row}
    assert {len(row) for row in rows} == {len(titles)}
    stored = saved(page, "Recording")
    assert page.evaluate("window.saved") == "training-a-small-network.flnb"
    (tmp_path / "a.flnb").write_bytes(stored.read_bytes())
    assert flnb.load_run(tmp_path / "a.flnb").events == run.events
    (tmp_path / "a.json.gz").write_bytes(saved(page, "Trace").read_bytes())
    assert flnb.load_run(tmp_path / "a.json.gz").ops["matmul"].count == run.ops["matmul"].count
    assert saved(page, "Report").read_text(encoding="utf-8").startswith("<svg ")
    (tmp_path / "a.html").write_bytes(saved(page, "Page (").read_bytes())

    page.goto((tmp_path / "a.html").as_uri())
    page.wait_for_function("() => window.__flnb?.whole")
    button.click()
    eventually(page, lambda: reasons(menu), ["a saved page has no kernel"] * 4)
    menu.get_by_role("menuitem", name="Recording").click(force=True)
    redrawn(page)
    assert menu.is_visible()
    assert not page.flnb_errors  # type: ignore[attr-defined]
