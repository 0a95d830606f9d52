"""A real JupyterLab and a real Chromium, as a person would have them, on a copy of the quickstart."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.waiting import redrawn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Locator, Page

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "browser-test"
CHROMIUM = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
]
FLAGS = [
    "--no-browser",
    "--allow-root",
    "--ip=127.0.0.1",
    "--port=0",
    f"--IdentityProvider.token={TOKEN}",
    "--LabApp.news_url=",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
    "--LabApp.expose_app_in_browser=True",
    "--JupyterNotebookApp.expose_app_in_browser=True",  # Notebook 7, which the same server serves
    "--KernelManager.transport=ipc",
    "--FileContentsManager.delete_to_trash=False",
]
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
    # every cell is there from the start, also those out of sight
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
}


# Expressions of the page: its kernel, and how many cells its notebook has (those out of sight are not on the page).
KERNEL = "window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel"
COUNT = "window.jupyterapp.shell.currentWidget.content.widgets.length"


def unavailable() -> str | None:
    """Why browser tests cannot run here, if they cannot."""
    for module in ("playwright", "jupyterlab", "anywidget"):
        try:
            __import__(module)
        except ImportError:
            return f"needs {module}: pip install 'flnb[lab]' playwright"
    if browser() is None:
        return "needs chromium: apt-get install chromium"
    return None


def browser() -> str | None:
    """The Chromium to drive."""
    return os.environ.get("FLNB_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in this folder; skip it where there is no browser, unless the environment forbids the skip."""
    here = Path(__file__).parent
    reason = unavailable()
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if reason is not None and not os.environ.get("FLNB_REQUIRE_BROWSER"):
                item.add_marker(pytest.mark.skip(reason=reason))


@dataclass
class Lab:
    """A running JupyterLab: where it listens and the folder that it serves."""

    url: str
    folder: Path

    def write(self, name: str, *sources: str) -> None:
        """Put a notebook of these cells into the folder."""
        empty = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
        cells = [empty | {"id": f"cell{i}", "source": source} for i, source in enumerate(sources)]
        spec = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
        metadata = {"kernelspec": spec, "language_info": {"name": "python"}}
        content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
        (self.folder / name).write_text(json.dumps(content))

    def open(self, page: Page, name: str) -> None:
        """Open a notebook alone, without the file browser, and wait until its kernel answers."""
        page.goto(f"{self.url}lab/tree/{name}?token={TOKEN}&reset")
        page.wait_for_function(f"() => {KERNEL}?.connectionStatus === 'connected'", timeout=90_000)
        page.evaluate(f"async () => {{ await {KERNEL}.info }}")


def change_theme(page: Page, name: str) -> None:
    """To JupyterLab's "Light" or "Dark", and wait until the page is shown again."""
    page.evaluate(
        "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme: `JupyterLab ${theme}`})", name
    )
    page.wait_for_function(
        "light => (document.body.dataset.jpThemeLight === 'true') === light", arg=name == "Light", timeout=10_000
    )
    page.locator("#jupyterlab-splash").wait_for(state="detached")


def choose_tab(page: Page, name: str, timeout: float = 20_000) -> None:
    """Choose a tab of the first dashboard.

    JupyterLab may draw the dashboard anew between the press and the release of the button, which then is no click.
    """
    from playwright.sync_api import TimeoutError

    for _ in range(5):
        page.locator(".fl-root").first.locator("[role=tab]", has_text=name).click(timeout=timeout)
        with suppress(TimeoutError):
            page.wait_for_function("name => window.__flnb.tab === name", arg=name.lower(), timeout=2_000)
            return
    raise AssertionError(f"the tab {name} was clicked five times, and is not shown")


def run_cell(page: Page, number: int, wait: bool = False) -> None:
    """Run a cell of the notebook in front; with ``wait`` until it has ended."""
    page.evaluate(
        """([number, wait]) => {
            const lab = window.jupyterapp;
            lab.shell.currentWidget.content.activeCellIndex = number;
            const ended = lab.commands.execute('notebook:run-cell');
            return wait ? ended : null;
        }""",
        [number, wait],
    )


def resize(page: Page, dashboard: Locator, width: int) -> None:
    """Make the dashboard `width` pixels wide by making the window as wide as that needs."""
    from playwright.sync_api import TimeoutError

    for _ in range(3):
        box, size = dashboard.bounding_box(), page.viewport_size
        assert box is not None
        assert size is not None
        if abs(box["width"] - width) < 1:
            break
        page.set_viewport_size({"width": int(size["width"] + width - box["width"]), "height": 1000})
        with suppress(TimeoutError):  # by the next try it is laid out
            page.wait_for_function(
                "([element, width]) => Math.abs(element.getBoundingClientRect().width - width) < 1",
                arg=[dashboard.element_handle(), width],
                timeout=1000,
            )


def photograph(page: Page, dashboard: Locator, folder: Path, name: str) -> None:
    """Save screenshots of a dashboard as ``name-theme-width.png``: light and dark, 1200 and 900 pixels wide."""
    for theme in ("Light", "Dark"):
        change_theme(page, theme)
        for width in (1200, 900):
            resize(page, dashboard, width)
            dashboard.scroll_into_view_if_needed()
            page.mouse.move(0, 0)
            redrawn(page)
            dashboard.screenshot(path=folder / f"{name}-{theme.lower()}-{width}.png")
    change_theme(page, "Light")


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """JupyterLab on an empty folder of its own, with settings of its own."""
    if (reason := unavailable()) is not None:
        pytest.fail(f"FLNB_REQUIRE_BROWSER is set, and this {reason}")
    home = Path(tempfile.mkdtemp(prefix="flnb-lab-"))  # short: the kernel's sockets lie below it
    folder = home / "work"
    folder.mkdir()
    (home / "settings").mkdir()
    (home / "settings" / "overrides.json").write_text(json.dumps(SETTINGS))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))},
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "run"),
        "IPYTHONDIR": str(home / "ipython"),
    }
    log = home / "lab.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyterlab", *FLAGS, f"--ServerApp.root_dir={folder}"),
                *(f"--LabApp.app_settings_dir={home / 'settings'}", f"--LabApp.user_settings_dir={home / 'user'}"),
                f"--LabApp.workspaces_dir={home / 'workspaces'}",
            ],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Lab(_wait_for_server(process, home / "run", log), folder)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        shutil.rmtree(home, ignore_errors=True)


def _wait_for_server(process: subprocess.Popen[bytes], run: Path, log: Path) -> str:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"JupyterLab ended with status {process.returncode}:\n{log.read_text()[-4000:]}")
        for file in run.glob("jpserver-*.json"):
            with suppress(ValueError, OSError):
                url: str = json.loads(file.read_text())["url"]
                with urllib.request.urlopen(f"{url}api?token={TOKEN}", timeout=5):
                    return url
        time.sleep(0.1)
    pytest.fail(f"JupyterLab did not answer within 90 s:\n{log.read_text()[-4000:]}")


@pytest.fixture(scope="session")
def _context() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    profile = tempfile.mkdtemp(prefix="flnb-chromium-")
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile,
            executable_path=browser(),
            args=CHROMIUM,
            viewport={"width": 1400, "height": 1000},
            reduced_motion="reduce",
        )
        try:
            yield context
        finally:
            context.close()
            shutil.rmtree(profile, ignore_errors=True)


@pytest.fixture(scope="module")
def page(_context: Any) -> Iterator[Page]:
    """One browser tab for the tests of a module. What it logs as errors is at `page.flnb_errors`."""
    page = _context.new_page()
    page.set_default_timeout(30_000)
    page.flnb_errors = []
    page.on("pageerror", lambda error: page.flnb_errors.append(str(error)))
    try:
        yield page
    finally:
        page.close()


@pytest.fixture(scope="session")
def screenshots() -> Path:
    """Where the pictures go: $FLNB_SCREENSHOTS, else output/screenshots."""
    folder = Path(os.environ.get("FLNB_SCREENSHOTS") or ROOT / "output" / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
