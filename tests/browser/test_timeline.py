"""The Timeline in Chromium: what threads recorded, compiled and ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import flnb
from flnb import nn, optim
from tests.browser.conftest import choose_tab
from tests.browser.stage import Stage

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from tests.browser.conftest import Lab

pytest.importorskip("llvmlite")

CELLS = [
    "import time, flnb\nfrom flnb import nn, optim\nflnb.dashboard(height=680)",
    """with flnb.use_backend("deferred"):
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))
    optimizer = optim.SGD(model.parameters(), lr=1e-2)
    x, y = flnb.randn(128, 64), flnb.asarray([i % 10 for i in range(128)])
    with flnb.record("training"):
        for _ in range(600):
            with flnb.step():
                optimizer.zero_grad()
                loss = flnb.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
            time.sleep(0.02)
print("done")""",
]


@pytest.fixture(scope="module")
def stage(page: Page) -> Stage:
    return Stage(page)


@pytest.fixture(scope="module")
def run() -> Any:
    """A recording of six steps of a loop as it is, on the backend `deferred`: programs are made in some of them."""
    with flnb.use_backend("deferred"):
        flnb.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 10))
        optimizer = optim.Adam(model.parameters(), lr=1e-2)
        x, y = flnb.randn(128, 64), flnb.asarray([i % 10 for i in range(128)])
        with flnb.record("deferred") as run:
            for _ in range(6):
                with flnb.step():
                    optimizer.zero_grad()
                    loss = flnb.cross_entropy(model(x), y)
                    loss.backward()
                    optimizer.step()
    return run


def opened(page: Page) -> dict[str, Any]:
    page.locator("[role=tab]", has_text="Timeline").click()
    page.wait_for_function("() => window.__flnb.view?.rows > 0")
    page.wait_for_timeout(400)
    found: dict[str, Any] = page.evaluate("() => window.__flnb.view")
    return found


@pytest.mark.timeout(120)
def test_lanes_have_what_a_thread_recorded_compiled_and_ran(stage: Stage, run: Any, screenshots: Path) -> None:
    page = stage.page
    op = run.table("op")
    wanted = {kind: len(run.table(kind)["t0"]) for kind in ("record", "compile", "materialize", "kernel")}
    wanted["op"] = int((op["estimated"] == 0).sum())
    assert min(wanted.values()) > 0
    for light in (True, False):
        for width in (1400, 900):
            stage.view(run, light=light, width=width)
            shown = opened(page)
            assert shown["kinds"] == wanted
            assert shown["lanes"] == [f"thread {op['lane'][0]}"]
            assert shown["steps"] == run.steps["index"].tolist()
            page.screenshot(path=screenshots / f"timeline-{'light' if light else 'dark'}-{width}.png")
            page.keyboard.press("[")
            page.wait_for_timeout(200)
            page.screenshot(path=screenshots / f"timeline-before-{'light' if light else 'dark'}-{width}.png")


@pytest.mark.timeout(120)
def test_a_click_on_a_kernel_selects_it_in_every_view(stage: Stage, run: Any, screenshots: Path) -> None:
    page = stage.page
    stage.view(run)
    shown = opened(page)
    place, span = shown["place"], shown["shown"]
    kernel = run.table("kernel")
    row = max(range(len(kernel["t0"])), key=lambda i: (kernel["t0"][i] > run.table("step")["t0"][-1], kernel["ops"][i]))
    middle = ((kernel["t0"][row] + kernel["t1"][row]) / 2 - run.start) / 1e6
    x = 92 + (middle - span["t0"]) / (span["t1"] - span["t0"]) * (place["width"] - 92 - 12)
    page.mouse.click(place["x"] + x, place["y"] + 34 + 3 + 16 + 12 + 18 + 9)
    page.wait_for_function("() => window.__flnb.selection?.kind === 'kernel'")
    assert page.locator(".fl-part").count() == kernel["ops"][row]
    page.wait_for_timeout(300)
    page.screenshot(path=screenshots / "timeline-kernel.png")
    page.locator("[role=tab]", has_text="Ops").click()
    page.get_by_role("radio", name="Kernel").click()
    page.locator("tr[aria-selected=true]").first.wait_for()
    page.locator("[role=tab]", has_text="Timeline").click()
    page.locator("[aria-label='Timeline as a table']").click()
    rows = page.locator("section[aria-label=Timeline] .fl-data tbody tr")
    assert rows.count() == shown["rows"]
    assert not page.flnb_errors  # type: ignore[attr-defined]


@pytest.mark.timeout(60)
def test_a_run_without_programs_has_no_such_tab(stage: Stage) -> None:
    with flnb.use_backend("numpy"), flnb.record("eager") as eager:
        flnb.exp(flnb.ones((64, 64)))
    stage.view(eager)
    stage.page.wait_for_timeout(400)
    assert not stage.page.locator("[role=tab]", has_text="Timeline").is_visible()


@pytest.mark.timeout(240)
def test_in_a_notebook_the_lanes_follow_the_run(lab: Lab, page: Page, screenshots: Path) -> None:
    lab.write("timeline.ipynb", *CELLS)
    page.set_viewport_size({"width": 1400, "height": 1000})
    lab.open(page, "timeline.ipynb")
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells') }")
    page.locator(".fl-root").first.wait_for(timeout=90_000)
    page.wait_for_function("() => window.__flnb?.step > 2", timeout=90_000)
    choose_tab(page, "Timeline")
    page.wait_for_function("() => window.__flnb.view?.steps.length > 1", timeout=30_000)
    last = page.evaluate("() => window.__flnb.view.steps.at(-1)")
    page.wait_for_function("last => window.__flnb.view.steps.at(-1) > last", arg=last, timeout=30_000)
    assert page.evaluate("() => window.__flnb.view.kinds.kernel") > 0
    page.screenshot(path=screenshots / "timeline-notebook.png")
    assert not page.flnb_errors  # type: ignore[attr-defined]
