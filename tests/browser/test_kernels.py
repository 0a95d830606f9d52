"""Kernels that compute several ops, in the dashboard: a click lists their ops with the user's lines and shares."""

from __future__ import annotations

import runpy
from typing import TYPE_CHECKING, Any

import pytest

import flnb
from flnb.graph.describing import launches
from tests.browser.conftest import choose_tab
from tests.browser.stage import Stage
from tests.browser.waiting import eventually, redrawn

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from tests.browser.conftest import Lab

pytest.importorskip("llvmlite")

CELLS = [
    "import flnb\nfrom flnb import nn, optim\nflnb.dashboard(height=680)",
    """model = nn.Sequential(nn.Linear(64, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 10))
optimizer = optim.Adam(model.parameters(), lr=1e-2)

@flnb.jit
def step(x, y):
    optimizer.zero_grad()
    loss = flnb.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss

x, y = flnb.randn(128, 64), flnb.asarray([i % 10 for i in range(128)])
with flnb.record("training") as run:
    for _ in range(300):
        with flnb.step():
            step(x, y).item()
print("done")""",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A recording of five steps of a small model, the first of them at once, and the jitted step."""
    script = tmp_path_factory.mktemp("kernels") / "train.py"
    script.write_text("\n".join([*CELLS[0].splitlines()[:-1], CELLS[1].replace("300", "5")]))
    names = runpy.run_path(str(script))
    return names["run"], names["step"]


@pytest.mark.timeout(120)
def test_a_click_on_a_kernel_lists_its_ops(page: Page, run: Any, screenshots: Path) -> None:
    recording, step = run
    kernels = [each for each in launches(step.programs[0]) if each.kind == "kernel"]
    wanted = max(kernels, key=lambda each: len(each.ops))
    stage = Stage(page)
    for light in (True, False):
        for width in (1400, 900):
            stage.view(recording, light=light, width=width)
            page.locator("[role=tab]", has_text="Ops").click()
            page.get_by_role("radio", name="Kernel").click()
            rows = page.locator(".fl-page:not([hidden]) table[aria-label='Time of ops'] tbody tr")
            page.locator(f"tr[data-name^='{'+'.join(dict.fromkeys(wanted.ops[:4]))}']").first.wait_for()
            assert rows.count() <= len(kernels)
            ops = page.locator(".fl-parts .fl-part")
            for at in range(rows.count()):
                rows.nth(at).click()
                redrawn(page)
                if [text.split()[0] for text in ops.all_inner_texts()] == wanted.ops:
                    break
            texts = ops.all_inner_texts()
            assert [text.split()[0] for text in texts] == wanted.ops
            assert all("≈" in text for text in texts)
            shares = [float(text.partition("≈")[2].split()[0]) for text in texts]
            assert shares == pytest.approx([100 * share for share in wanted.shares], abs=4)
            page.locator(".fl-partline", has_text="flnb.cross_entropy(model(x), y)").first.wait_for()
            page.mouse.move(0, 0)
            redrawn(page)
            page.screenshot(path=screenshots / f"ops-kernel-{'light' if light else 'dark'}-{width}.png")
    assert not page.flnb_errors  # type: ignore[attr-defined]


@pytest.mark.timeout(60)
def test_a_run_without_programs_offers_no_kernels(page: Page) -> None:
    with flnb.use_backend("numpy"), flnb.record("eager") as eager:
        flnb.exp(flnb.ones((64, 64)))
    stage = Stage.__new__(Stage)
    del stage
    assert len(eager.table("kernel")["t0"]) == 0


@pytest.mark.timeout(240)
def test_in_a_notebook_the_kernels_of_a_live_run_can_be_clicked(lab: Lab, page: Page, screenshots: Path) -> None:
    lab.write("kernels.ipynb", *CELLS)
    page.set_viewport_size({"width": 1400, "height": 1000})
    lab.open(page, "kernels.ipynb")
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells') }")
    page.locator(".fl-root").first.wait_for(timeout=90_000)
    page.wait_for_function("() => window.__flnb?.step > 5", timeout=90_000)
    choose_tab(page, "Ops")
    page.locator(".fl-root").first.get_by_role("radio", name="Kernel").click()
    rows = page.locator(".fl-page:not([hidden]) table[aria-label='Time of ops'] tbody tr")
    rows.first.wait_for()
    page.locator("tr[data-name^='add+sum+multiply+subtract']").first.click()
    page.wait_for_function("() => window.__flnb.selection?.kind === 'kernel'")
    parts = page.locator(".fl-parts .fl-part")
    eventually(page, parts.count, lambda count: count > 10)
    page.locator(".fl-partline", has_text="loss = flnb.cross_entropy(model(x), y)").first.wait_for()
    page.screenshot(path=screenshots / "ops-kernel-notebook.png")
    assert not page.flnb_errors  # type: ignore[attr-defined]
