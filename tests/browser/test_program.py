"""The Program view in Chromium: its stages, its kernels with their ops, and the plan of its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import flnb
from flnb import models, optim
from flnb.graph.describing import launches
from tests.browser.stage import Stage
from tests.browser.waiting import eventually, redrawn

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from tests.browser.conftest import Lab


@pytest.fixture(scope="module")
def stage(page: Page) -> Stage:
    return Stage(page)


@pytest.fixture(scope="module")
def step() -> Any:
    """A captured training step of a small model, and a recording of three calls."""
    flnb.manual_seed(0)
    recipe = models.get("vit")
    model = recipe.build("small")
    batch = [flnb.asarray(a) for a in recipe.batch("small", size=2)]
    optimizer = optim.Adam(model.parameters(), lr=1e-3)

    @flnb.jit
    def train() -> Any:
        optimizer.zero_grad()
        loss = recipe.loss(model, *batch)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(3):
        train()
    with flnb.record("three steps") as run:
        for _ in range(3):
            train()
    return train, run


def test_stages_show_what_became_of_the_recorded_ops(stage: Stage, step: Any) -> None:
    train, run = step
    program = train.programs[0]
    (sweep,) = flnb.graph.history(train)
    found = launches(program)
    stage.program(train, run)
    page = stage.page
    page.get_by_role("option", name="recorded").click()
    eventually(page, page.locator(".fl-programrecorded tbody tr").count, len(sweep.before))
    page.keyboard.press("]")
    eventually(page, "window.__flnbProgram.stage", "rewritten")
    assert eventually(page, page.locator(".fl-changed").count, len(sweep.changes)) > 0
    page.keyboard.press("]")
    eventually(page, page.locator(".fl-card").count, len(found))
    fused = [each for each in found if each.kind == "kernel" and len(each.members) > 1]
    eventually(page, page.locator(".fl-fused").count, len(fused))
    page.keyboard.press("]")
    live = eventually(page, "window.__flnbProgram.live", lambda live: len(live) == len(found))
    assert 0.5 * program.memory.size < max(live) <= program.memory.size


def test_a_click_on_a_kernel_lists_its_ops_with_estimated_shares(stage: Stage, step: Any) -> None:
    train, run = step
    stage.program(train, run)
    page = stage.page
    kernel = max(launches(train.programs[0]), key=lambda each: (each.kind == "kernel", len(each.members)))
    page.locator(f".fl-card[data-launch='{kernel.number}']").click()
    rows = page.locator(".fl-programops tbody tr")
    eventually(page, lambda: [row.split()[0] for row in rows.all_inner_texts()], kernel.ops)
    assert all("≈" in row for row in rows.all_inner_texts())
    texts = page.locator(".fl-programsource")
    eventually(page, lambda: texts.inner_text().strip(), flnb.graph.source(train, "loops")[kernel.title])
    page.get_by_role("radio", name="LLVM").click()
    page.wait_for_function("() => document.querySelector('.fl-programsource').innerText.includes('define void')")
    eventually(page, lambda: texts.inner_text().strip(), flnb.graph.source(train)[kernel.title].strip())
    page.keyboard.press("Escape")
    eventually(page, "window.__flnbProgram.selected", None)


def test_without_a_recording_no_time_is_shown(stage: Stage, step: Any) -> None:
    stage.program(step[0])
    stage.page.locator(".fl-meta", has_text="no times: give it a recording").wait_for()
    rows = stage.page.locator(".fl-programcosts tbody tr")
    rows.first.filter(has_text="–").wait_for()
    rows.first.focus()
    stage.page.keyboard.press("End")
    stage.page.keyboard.press("Enter")
    eventually(stage.page, "window.__flnbProgram.selected", int(rows.last.get_attribute("data-launch") or -1))


def test_pictures(stage: Stage, step: Any, screenshots: Path) -> None:
    for light in (True, False):
        for width in (1200, 800):
            stage.program(*step, light=light, width=width)
            for name in ("recorded", "rewritten", "fused", "planned"):
                stage.page.get_by_role("option", name=name).click()
                redrawn(stage.page)
                stage.page.screenshot(path=screenshots / f"program-{name}-{'light' if light else 'dark'}-{width}.png")


CELL = """
import flnb
from flnb import nn, optim
model = nn.Linear(8, 4)
optimizer = optim.SGD(model.parameters(), lr=0.1)

@flnb.jit
def step(x):
    optimizer.zero_grad()
    loss = flnb.mean(flnb.exp(model(x)))
    loss.backward()
    optimizer.step()
    return loss

for _ in range(3):
    step(flnb.ones((2, 8)))
step
"""


@pytest.mark.timeout(150)
def test_a_jitted_function_on_a_cells_last_line_is_shown_as_a_program(lab: Lab, page: Page, screenshots: Path) -> None:
    lab.write("program.ipynb", CELL)
    page.set_viewport_size({"width": 1400, "height": 1000})
    lab.open(page, "program.ipynb")
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells') }")
    page.wait_for_function("() => window.__flnbProgram?.launches > 0", timeout=90_000)
    eventually(page, page.locator(".fl-program .fl-run").inner_text, "step")
    card = page.locator(".fl-card", has_text="matmul").first
    card.click()
    page.locator(".fl-program .fl-side", has_text="weight").wait_for()
    page.screenshot(path=screenshots / "program-in-a-cell.png")
    assert page.flnb_errors == []  # type: ignore[attr-defined]
