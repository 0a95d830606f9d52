"""The Export menu: what it saves is what is shown or recorded, by keyboard too; what cannot be had says why."""

from __future__ import annotations

import base64
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


HEAD = """async data => {
    const picture = await createImageBitmap(await (await fetch("data:image/png;base64," + data)).blob());
    const page = document.querySelector(".fl-page:not([hidden])").getBoundingClientRect();
    const box = document.querySelector(".fl-page:not([hidden]) .fl-charthead").getBoundingClientRect();
    const scale = picture.width / page.width;
    const canvas = Object.assign(document.createElement("canvas"), {width: picture.width, height: picture.height});
    const context = canvas.getContext("2d");
    context.drawImage(picture, 0, 0);
    const place = [box.left - page.left, box.top - page.top, box.width, box.height];
    const part = place.map(each => Math.round(each * scale));
    const pixels = new Uint32Array(context.getImageData(...part).data.buffer);
    return pixels.filter(pixel => pixel !== pixels[0]).length;
}"""
"""Counts the pixels of a saved picture that differ from the background where the page has the first chart's head."""


def reasons(menu: Locator) -> list[str]:
    """What the items say that cannot be chosen."""
    found: list[str] = menu.locator("[aria-disabled=true] .fl-dim").all_inner_texts()
    return found


def test_the_menu_saves_what_is_shown_and_what_was_recorded(page: Page, screenshots: Path, tmp_path: Path) -> None:
    run, stage = recorded(), Stage(page)
    button, menu = page.get_by_role("button", name="Export"), page.get_by_role("menu", name="Export")
    found = []
    for size, width, height in SIZES:
        stage.view(run, width=width, height=height, light=size == "medium")
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
    steps, fragmentation, blocks = saved(page, "Table of").read_text(encoding="utf-8").split("\n\n")
    captions = [part.partition("\n")[0] for part in (steps, fragmentation, blocks)]
    assert captions == [
        "Memory at the peak of each step", "Fragmentation at the peak of each step", "Blocks of every segment"
    ]  # fmt: skip
    counts = [len(part.strip().splitlines()) - 2 for part in (steps, fragmentation, blocks)]
    assert counts[:2] == [len(run.steps["index"])] * 2
    assert counts[2] == page.evaluate("window.__flnb.view.blocks") > 0
    page.get_by_role("tab", name="Ops").click()
    redrawn(page)
    with saved(page, "Table of").open(newline="", encoding="utf-8") as file:
        titles, *rows = csv.reader(file)
    assert titles[:3] == ["Op", "Count", "Total (ns)"]
    assert {row[0]: (int(row[1]), int(row[2]), int(row[7])) for row in rows} == {
        row.key[0]: (row.count, row.total, row.bytes) for row in run.ops
    }
    page.get_by_role("tab", name="Metrics").click()
    page.locator(".fl-chart").first.wait_for()
    redrawn(page)
    with saved(page, "Table of").open(newline="", encoding="utf-8") as file:
        titles, *rows = csv.reader(file)
    loss = {int(row[0]): float(row[titles.index("loss")]) for row in rows if row[titles.index("loss")]}
    assert loss == dict(zip(run.metrics["loss"]["step"].tolist(), run.metrics["loss"]["value"].tolist(), strict=True))
    figure = saved(page, "Figure of").read_text(encoding="utf-8")
    assert figure.startswith("<svg ")
    assert "loss: " in figure
    ink = page.evaluate(HEAD, base64.b64encode(saved(page, "Picture of").read_bytes()).decode())
    assert ink > 20  # the title and the value above the first chart
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
    eventually(page, lambda: reasons(menu), ["a saved page has no kernel"] * 5)
    menu.get_by_role("menuitem", name="Recording").click(force=True)
    redrawn(page)
    assert menu.is_visible()
    assert not page.flnb_errors  # type: ignore[attr-defined]
