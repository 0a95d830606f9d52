"""Dashboards with ipykernel 6.29, which receives no messages while a cell runs: new data are still shown then."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import KERNEL, run_cell

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from tests.browser.conftest import Lab

CELLS = [
    "import time, ipykernel, flnb\nprint('ipykernel', ipykernel.__version__)\nflnb.dashboard(height=560)",
    "with flnb.record('old'):\n"
    "    for _ in range(2000):\n"
    "        with flnb.step():\n"
    "            y = flnb.exp(flnb.ones((64, 64)))\n"
    "        time.sleep(0.008)\n",
]


@pytest.mark.slow
def test_a_kernel_that_hears_nothing_while_a_cell_runs_shows_ten_frames_a_second(
    lab: Lab, page: Page, tmp_path: Path
) -> None:
    packages = tmp_path / "packages"
    wanted = ("ipykernel==6.29.5", "nest-asyncio>=1.6")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*install, f"--target={packages}", *wanted], check=True, timeout=120)
    spec = lab.folder.parent / "data" / "kernels" / "old"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    environment = {"PYTHONPATH": str(packages)}
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "old", "env": environment}))
    lab.write("old.ipynb", *CELLS)
    path = lab.folder / "old.ipynb"
    path.write_text(path.read_text().replace('"name": "python3"', '"name": "old"'))
    lab.open(page, "old.ipynb")
    run_cell(page, 0)
    page.locator(".jp-OutputArea-output pre", has_text="ipykernel 6.29.5").wait_for(timeout=60_000)
    page.wait_for_function("() => window.__flnb !== undefined")
    run_cell(page, 1)
    page.wait_for_function("() => window.__flnb.state === 'recording' && window.__flnb.step > 50")
    first, began = page.evaluate("() => [window.__flnb.seq, performance.now()]")
    page.wait_for_function("from => window.__flnb.seq >= from + 12", arg=first, timeout=20_000)
    took = page.evaluate("began => performance.now() - began", began)
    assert page.evaluate("() => window.__flnb.state") == "recording", "the cell ended before"
    print(f"\nipykernel 6.29.5: 12 frames in {took:.0f} ms, of a cell that runs")
    page.get_by_role("tab", name="Timeline").click()
    page.wait_for_function("() => window.__flnb.view?.rows?.length > 0")
    page.locator(".fl-timeline canvas").focus()
    page.keyboard.press("f")
    for _ in range(3):  # into older steps, about which this kernel cannot be asked now
        page.keyboard.press("a")
    page.wait_for_function("() => window.__flnb.view.said.includes('coarse: the kernel is busy')", timeout=10_000)
    assert page.evaluate("() => window.__flnb.view.rows.some(row => row.bars > 0)"), "coarse levels are drawn"
    assert page.evaluate("() => window.__flnb.state") == "recording"
    page.wait_for_function("() => window.__flnb.state === 'finished' && window.__flnb.step === 1999", timeout=60_000)
    page.wait_for_function(f"() => {KERNEL}.status === 'idle'")
    assert page.flnb_errors == []
