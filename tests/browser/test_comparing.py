"""Two recordings compared in Chromium: their ops and what changed, and the curves of their metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from flnb_telemetry.analysis.roofline import Peaks

import flnb
from tests.browser.stage import Stage

if TYPE_CHECKING:
    from pathlib import Path

    from flnb_telemetry.recording import Recording
    from playwright.sync_api import Page


def trained(name: str, batch: int, steps: int) -> Recording:
    net = flnb.nn.Sequential(first=flnb.nn.Linear(64, 64), relu=flnb.nn.ReLU(), last=flnb.nn.Linear(64, 64))
    with flnb.record(name) as run:
        for step in range(steps):
            with flnb.step():
                net(flnb.ones((batch, 64))).sum().backward()
                flnb.log(loss=batch / (1 + step), **({"accuracy": 0.5} if steps > 4 else {}))
    return run


@pytest.mark.timeout(120)
def test_ops_and_metrics_of_two_runs(page: Page, screenshots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flnb.explore.runs.measured_peaks", lambda: Peaks(1e11, 1e10, 1e11))
    a, b = trained("small batch", 256, 4), trained("large batch", 1024, 8)
    expected = flnb.compare_runs(a, b)
    stage = Stage(page)
    stage.view(a, b)
    page.get_by_role("radio", name="Ops").click()
    page.wait_for_function("() => window.__flnbPair.page === 'ops'")
    rows = page.locator(".fl-compared tbody tr:visible")
    assert rows.count() == len(expected.rows)
    cells = rows.first.locator("td").all_inner_texts()
    assert cells[:2] == [expected.rows[0].op, expected.rows[0].scope or "–"]
    row = expected["matmul"]
    shown = rows.filter(has_text="matmul").filter(has_text=row.scope).first.locator("td").all_inner_texts()
    assert shown[9] == ", ".join(row.changes)
    assert "bigger 3.40×" in shown[9]  # gradients of weights are as large as before
    page.get_by_role("button", name="bytes of results in B").click()
    largest = max(expected.rows, key=lambda row: row.b.bytes)
    assert rows.first.locator("td").first.inner_text() == largest.op
    rows.first.locator("td button").click()
    page.locator(".fl-status", has_text=largest.op).wait_for()
    assert page.evaluate("() => window.__flnbPair.selections.map(one => one.op)") == [largest.op] * 2
    page.screenshot(path=screenshots / "compared-ops.png")
    page.get_by_role("radio", name="Metrics").click()
    heads = page.locator(".fl-compared .fl-charthead:visible")
    heads.first.wait_for()
    texts = heads.all_inner_texts()
    assert any("A 64" in text and "B 128" in text and "loss" in text for text in texts), texts
    assert any("A –" in text and "B 50" in text for text in texts), texts
    page.screenshot(path=screenshots / "compared-metrics.png")
    page.get_by_role("radio", name="Memory").click()
    page.locator('canvas[aria-label^="Memory by category"]:visible').first.wait_for()
    assert not page.flnb_errors  # type: ignore[attr-defined]
