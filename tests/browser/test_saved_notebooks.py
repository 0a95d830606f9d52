"""Every notebook of the repository, converted by nbconvert and opened offline, shows a picture for each widget.

CI has converted all notebooks into pages in output/notebooks, or in the folder $FLNB_NOTEBOOKS. If there are none, a
short notebook is run and converted here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.pixels import pixels_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES = Path(os.environ.get("FLNB_NOTEBOOKS") or ROOT / "output" / "notebooks")
NAMES = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
SHORT = "telemetry"
VIEWS = ".jp-OutputArea-output:is(:has(svg), :has(img))"
"""Outputs that are views: pictures of figures and widgets, drawings."""
WIDGETS = """() => [...document.querySelectorAll("script[type='application/vnd.jupyter.widget-state+json']")]
    .flatMap(script => script.textContent.match(/flnb-picture-[0-9a-f]+/g) ?? [])"""
"""The texts that the pictures of all widgets contain whose state the page holds."""
SHOWN = """name => [...document.querySelectorAll(`img[src*="${btoa(name)}"]`)].some(each => each.naturalWidth > 300)"""
"""Whether the page shows the picture of a widget."""
TEXTLESS = "* { color: transparent !important } svg text, svg tspan { fill: transparent !important }"
"""What remains to be seen of an output is more than text."""


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the converted pages: of all notebooks, or of the short one."""
    if PAGES.is_dir() and any(PAGES.glob("*.html")):
        return PAGES
    folder = tmp_path_factory.mktemp("notebooks")
    source = str(ROOT / "notebooks" / f"{SHORT}.ipynb")
    command = [sys.executable, "-m", "nbconvert", "--to", "html", "--execute", source, "--output-dir", str(folder)]
    renderer = {"PLOTLY_RENDERER": "plotly_mimetype"}
    subprocess.run(command, check=True, capture_output=True, timeout=200, env=os.environ | renderer)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_each_view_of_a_converted_notebook_is_a_picture_offline(
    page: Page, converted: Path, tmp_path: Path, name: str
) -> None:
    path = converted / f"{name}.html"
    if not path.exists():
        pytest.skip(f"{converted} has no page of {name}")
    (tmp_path / "page.html").write_text(without_repeated_scripts(path.read_text("utf-8")), "utf-8")
    page.context.set_offline(True)
    try:
        page.goto((tmp_path / "page.html").as_uri(), wait_until="load", timeout=60_000)
        page.add_style_tag(content=TEXTLESS)
        missing = [picture for picture in page.evaluate(WIDGETS) if not page.evaluate(SHOWN, picture)]
        seen = [pixels_of(page, output) for output in page.locator(VIEWS).all()]
    finally:
        page.context.set_offline(False)
    assert missing == [], "widgets that left no picture"
    assert seen, f"{name} has no view"
    blank = [counts for counts in seen if counts["ink"] < 600 or counts["colours"] < 3]
    assert blank == [], "blank, or text alone"


def without_repeated_scripts(html: str) -> str:
    """Return a page with only the first copy of each long script; nbconvert repeats plotly's 5 MB with every figure."""
    seen: set[str] = set()
    chunks = html.split("</script>")
    for at, chunk in enumerate(chunks):
        before, _, script = chunk.rpartition("<script")
        if len(script) > 1_000_000:
            chunks[at] = before + "<script>" if script in seen else chunk
            seen.add(script)
    return "</script>".join(chunks)
