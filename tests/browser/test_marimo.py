"""Views of recordings that have ended, in marimo."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import ROOT, TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Page

if not os.environ.get("FLNB_REQUIRE_BROWSER"):  # then it must be there
    pytest.importorskip("marimo")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
NOTEBOOK = """
import marimo
app = marimo.App(width="full")

@app.cell
def _():
    import flnb
    w = flnb.Variable(flnb.ones((64, 64)))
    with flnb.record("in marimo") as run:
        for _ in range(3):
            with flnb.step():
                flnb.tanh(w @ w).sum().backward()
    return flnb, run

@app.cell
def _(flnb, run):
    flnb.view(run)
    return

@app.cell
def _(flnb, run):
    flnb.widgets.Ops(run, height=300)
    return
"""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Where marimo serves the notebook as an app."""
    notebook, log = tmp_path / "notebook.py", tmp_path / "log"
    notebook.write_text(NOTEBOOK)
    port = 20_000 + os.getpid() % 20_000
    command = [sys.executable, "-m", "marimo", "run", str(notebook), "--headless", "--host", "127.0.0.1"]
    path = os.pathsep.join(str(ROOT / folder) for folder in (".", "telemetry", "backends"))
    with log.open("w") as stream:
        process = subprocess.Popen(
            [*command, "--port", str(port), "--token", "--token-password", TOKEN],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/?access_token={TOKEN}"
    finally:
        process.terminate()
        process.wait(20)


def test_a_finished_run_and_a_view_of_it_are_shown(page: Page, address: str, screenshots: Path) -> None:
    page.set_viewport_size({"width": 1200, "height": 1100})
    page.goto(address)
    page.locator(".fl-root").nth(1).wait_for(timeout=60_000)
    whole = page.locator(".fl-root").first
    for tab, seen in (("Ops", "tanh"), ("Memory", "allocated"), ("Tape", "forward")):
        whole.get_by_role("tab", name=tab).click()
        whole.get_by_role("tabpanel", name=tab).wait_for()
        if tab != "Tape":
            whole.get_by_text(seen, exact=True).first.wait_for()
    whole.locator("canvas[aria-label^='Tape graph'][aria-label*='3 nodes']:visible").first.wait_for()
    page.locator(".fl-root").nth(1).get_by_text("tanh", exact=True).first.wait_for()
    page.screenshot(path=str(screenshots / "marimo.png"))
    assert not page.flnb_errors  # type: ignore[attr-defined]
