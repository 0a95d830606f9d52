"""Reports, errors and controls in JupyterLab, at three widths, light and dark: nothing is cut, axe-core is content."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import COUNT, KERNEL, change_theme
from tests.browser.test_screens import AXE, LAYOUT
from tests.browser.test_truth import run_cell

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from tests.browser.conftest import Lab

CELLS = [
    """import flnb
from benchmarks.tune import example
from flnb import nn
from IPython.display import display

def train(manager):
    flnb.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 10))
    with flnb.use_memory_manager(manager), flnb.record(f"on {manager}", grad_interval=0) as run:
        for _ in range(2):
            with flnb.step():
                net(flnb.ones((64, 16))).sum().backward()
    return run

def f(backend=None):
    return flnb.gelu(flnb.ones((8, 16)) @ flnb.ones((16, 4))).sum()

run, other = train("caching"), train("buddy")
display(run, run.ops, run.ops.by("scope", "phase"), run.memory.peak, run.tape)
display(flnb.compare_runs(run, other))
display(flnb.memory.diff(run.memory.peak, other.memory.peak))
display(flnb.memory.replay(run, ["caching", "buddy"], seconds=1))
display(flnb.compare_backends(f, ["numpy", "numpy"]))
display(flnb.models.summary("lenet", depth=2))""",
    "flnb.memory.tune(example(500), flnb.memory.Caching, seconds=0.1, split_limit=['1MiB', '4MiB'])",
    """with flnb.use_memory_manager(flnb.memory.Caching(flnb.memory.HostDevice("4MiB"))):
    held = [flnb.ones((256, 1024)) for _ in range(3)]
    flnb.ones((1024, 1024))""",
]
OUTPUT = ".jp-OutputArea-output:not(:has(> pre))"
SCROLLED = "wider than its place"
"""Wide tables scroll in the narrow outputs of a notebook."""
EXCLUDED = [".js-plotly-plot", ".widget-inline-hbox"]
"""What plotly and ipywidgets draw."""
VIOLATIONS = f"""async () => (await axe.run(
    {{include: [{OUTPUT!r}], exclude: {EXCLUDED}}}, {{resultTypes: ["violations"]}},
)).violations.flatMap(
    ({{id, nodes}}) => nodes.map(({{target, failureSummary}}) => `${{id}}: ${{target}} ${{failureSummary}}`))"""


@pytest.mark.timeout(240)
def test_reports_errors_and_controls_are_whole_and_accessible(lab: Lab, page: Page, screenshots: Path) -> None:
    if not AXE.exists() and not os.environ.get("FLNB_REQUIRE_BROWSER"):
        pytest.skip("needs axe-core: run npm ci in flnb/widgets/frontend")
    lab.write("outputs.ipynb", *CELLS)
    lab.open(page, "outputs.ipynb")
    page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
    page.wait_for_function(f"() => {COUNT} === {len(CELLS)}")
    for number in range(len(CELLS)):
        run_cell(page, number)
    page.locator(".flnb-oom").wait_for(timeout=60_000)
    page.wait_for_function(f"() => {KERNEL}.status === 'idle'")
    page.locator(".legendtext").first.wait_for()
    assert page.locator(".jp-RenderedImage:visible").count() == 0, "a widget hides its own picture"
    page.set_default_timeout(8000)
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = []
    for theme in ("Light", "Dark"):
        change_theme(page, theme)
        for width in (600, 900, 1400):
            page.set_viewport_size({"width": width, "height": 1000})
            page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            look = f"{width}-{theme.lower()}"
            for number, output in enumerate(page.locator(f"{OUTPUT}:visible").all()):
                output.screenshot(path=screenshots / f"output-{number}-{look}.png")
                said = [text for text in output.evaluate(LAYOUT) if not text.startswith(SCROLLED)]
                found += [f"{number}-{look}: {text}" for text in said]
            found += [f"{look}: {said}" for said in page.evaluate(VIOLATIONS)]
    assert found == []
    assert not page.flnb_errors  # type: ignore[attr-defined]
