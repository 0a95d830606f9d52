"""Every view at three sizes, light and dark: nothing is cut, axe-core finds nothing to complain of."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import flnb
from flnb import distributed, nn, optim
from tests.browser.conftest import ROOT
from tests.browser.stage import Stage, remembered
from tests.browser.waiting import eventually, redrawn
from tests.memory.pretended_torch import PretendedTorch, saved

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

LAYOUT = Path(__file__).with_name("layout.js").read_text(encoding="utf-8")
INKED = Path(__file__).with_name("inked.js")  # records where canvases have their texts, for the layout's check
AXE = ROOT / "flnb" / "widgets" / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
HURRIED = Path(__file__).with_name("hurried.js")
# Rows of a table are alike.
VIOLATIONS = """async () => (await axe.run(
    {include: [".fl-root"], exclude: [".fl-table tbody tr:nth-child(n+6):not([aria-selected=true])"]},
    {resultTypes: ["violations"]},
)).violations.flatMap(
    ({id, nodes}) => nodes.map(({target, failureSummary}) => `${id}: ${target} ${failureSummary}`))"""
SIZES = (("small", 600, 420), ("medium", 900, 680), ("large", 1400, 900))
LARGE = {"width": 1400, "height": 900}
"""The size to begin with, which is that of the last look, too."""


@pytest.fixture(scope="module")
def stage(page: Page) -> Stage:
    if not AXE.exists():
        if os.environ.get("FLNB_REQUIRE_BROWSER"):
            pytest.fail("needs axe-core: run npm ci in flnb/widgets/frontend")
        pytest.skip("needs axe-core: run npm ci in flnb/widgets/frontend")
    page.add_init_script(path=INKED)
    page.add_init_script(path=HURRIED)
    return Stage(page)


def train(steps: int = 4) -> None:
    """A small network, whose ops, blocks, tape and metrics every view shows."""
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 10))
    optimizer = optim.Adam(model.parameters(), lr=1e-2)
    x, y = flnb.randn(32, 16), flnb.asarray([i % 10 for i in range(32)])
    for i in range(steps):
        with flnb.step():
            optimizer.zero_grad()
            loss = flnb.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            flnb.log(loss=loss.item(), **{"accuracy/validation top-1": i / steps})


def recorded() -> Any:
    with flnb.use_memory_manager("caching"), flnb.record("training a small network") as run:
        train()
    return run


def of_ranks() -> Any:
    def work() -> None:
        model = distributed.DataParallel(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), bucket=20_000)
        for _ in range(3):
            with flnb.step():
                (model(flnb.ones((8, 64))) ** 2).mean().backward()
        model.close()

    with flnb.record("ranks") as run:
        distributed.run_threads(3, work)
    return run


def of_programs() -> Any:
    pytest.importorskip("llvmlite")
    with flnb.use_backend("deferred"), flnb.record("programs") as run:
        train(5)
    return run


def on_device() -> Any:
    if shutil.which("g++") is None and "CI" not in os.environ:
        pytest.skip("g++ is not installed")
    from tests.testing.cuda.training import trained

    return trained(steps=2, seed=17)


def complaints(stage: Stage, name: str, screenshots: Path) -> list[str]:
    """What is wrong with the view that is shown, at any size, light or dark."""
    page, found = stage.page, []
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE.read_text(encoding="utf-8"))
    for size, width, height in SIZES:
        for light in (False, True):
            look = f"{name}-{size}-{'light' if light else 'dark'}"
            stage.resize(width, height, light)
            redrawn(page)
            page.screenshot(path=str(screenshots / f"screen-{look}.png"))
            layout = page.evaluate(LAYOUT)
            for _ in range(5 if layout else 0):  # what is laid out by steps may not have been through
                redrawn(page)
                layout = page.evaluate(LAYOUT)
            found += [f"{look}: {said}" for said in (*layout, *page.evaluate(VIOLATIONS))]
    return found


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("make", "tabs"),
    [
        (recorded, ["Overview", "Ops", "Memory", "Tape", "Timeline", "Metrics"]),
        (of_ranks, ["Collectives"]),
        (of_programs, ["Timeline"]),
        (on_device, ["Devices"]),
    ],
)
def test_views_are_whole_and_accessible(
    stage: Stage, screenshots: Path, make: Callable[[], Any], tabs: list[str]
) -> None:
    found = []
    stage.view(make(), **LARGE)
    for tab in tabs:
        stage.page.get_by_role("tab", name=tab).click()
        found += complaints(stage, f"{make.__name__}-{tab.lower()}", screenshots)
    assert found == []
    assert not stage.page.flnb_errors  # type: ignore[attr-defined]


@pytest.mark.timeout(240)
def test_comparisons_and_programs_are_whole_and_accessible(stage: Stage, screenshots: Path) -> None:
    page, found = stage.page, []
    run = remembered(2000, live=200, capacity=64 << 20)
    w = flnb.Variable(flnb.ones((16, 16)))

    @flnb.jit
    def f(x: Any) -> Any:
        return flnb.gelu(x @ w + 1.0).sum()

    for _ in range(3):
        f(flnb.ones((8, 16)))
    stage.view(run, flnb.memory.rerun(run, "buddy"), **LARGE)
    found += complaints(stage, "compare", screenshots)
    stage.view(recorded(), recorded(), **LARGE)
    for name in ("Ops", "Timeline", "Metrics"):
        page.get_by_role("radio", name=name, exact=True).click()
        found += complaints(stage, f"compare-{name.lower()}", screenshots)
    stage.program(f, **LARGE)
    for name in ("recorded", "rewritten", "fused", "planned"):
        page.get_by_role("option", name=name).click()
        found += complaints(stage, f"program-{name}", screenshots)
    assert found == []
    assert not page.flnb_errors  # type: ignore[attr-defined]


BELOW = """() => {
    const panel = document.querySelector("section[aria-label='Fragmentation']");
    const formulas = [...panel.querySelectorAll("div")].find(each => each.textContent.startsWith("ratio\\u00a0="));
    const [below, chart] = [formulas, panel.querySelector("canvas")].map(each => each.getBoundingClientRect());
    return Math.round(below.top - chart.bottom);
}"""


@pytest.mark.timeout(240)
def test_what_is_selected_and_tables_are_whole_and_accessible(stage: Stage, screenshots: Path) -> None:
    page, found = stage.page, []
    stage.view(remembered(2000, live=200, capacity=64 << 20), tab="memory", **LARGE)
    picture = page.locator("section[aria-label='Block map'] canvas")
    picture.scroll_into_view_if_needed()
    picture.click(position={"x": 120, "y": 20})
    page.locator(".fl-side .fl-title").first.wait_for()
    found += complaints(stage, "block", screenshots)
    for size, width, height in SIZES:
        stage.resize(width, height, True)
        redrawn(page)
        assert page.evaluate(BELOW) >= 0, f"{size}: the formulas are below the chart of fragmentation"
    page.get_by_role("button", name="Block map as a table").click()
    found += complaints(stage, "blocks-table", screenshots)
    stage.view(recorded(), tab="timeline", **LARGE)
    page.wait_for_function("() => window.__flnb.view?.tops?.length")
    redrawn(page)
    view = stage.probe()
    row = [one["kind"] for one in view["rows"]].index("op")
    page.mouse.click(view["place"]["x"] + view["place"]["width"] - 20, view["place"]["y"] + view["tops"][0][row])
    page.keyboard.press("m")
    found += complaints(stage, "measured", screenshots)
    page.get_by_role("button", name="Export").click()
    page.get_by_role("menu").wait_for()
    found += complaints(stage, "export", screenshots)
    assert found == []
    assert not page.flnb_errors  # type: ignore[attr-defined]


INK = """() => [...document.querySelectorAll(".fl-page:not([hidden]) canvas")]
    .flatMap(each => (each.texts ?? []).map(({words}) => words))"""

PLACED = """() => [...document.querySelectorAll(".fl-page:not([hidden]) canvas")].flatMap(each => {
    const {x, y} = each.getBoundingClientRect();
    return (each.texts ?? []).map(one => ({...one, left: one.left + x, right: one.right + x, top: one.top + y}));
})"""


@pytest.mark.timeout(60)
def test_all_of_a_head_sorts_and_buttons_of_an_op_have_a_margin(stage: Stage) -> None:
    page = stage.page
    stage.view(recorded(), tab="ops")
    head = page.locator(".fl-ops th", has_text="Count")
    place = head.bounding_box()
    assert place
    page.mouse.click(place["x"] + 2, place["y"] + 3)
    page.locator(".fl-ops th[aria-sort=descending]", has_text="Count").wait_for()
    page.mouse.click(place["x"] + place["width"] - 2, place["y"] + place["height"] - 3)
    page.locator(".fl-ops th[aria-sort=ascending]", has_text="Count").wait_for()
    page.locator(".fl-ops tbody tr").first.click()
    button = page.get_by_role("button", name="Open in a cell")
    button.wait_for()
    assert button.evaluate("button => getComputedStyle(button).margin") == "8px 12px"
    assert not page.flnb_errors  # type: ignore[attr-defined]


ROWS = """rows => rows.map(row => [row.dataset.name, row.querySelector(".fl-code").textContent,
    row.querySelector(".fl-source").textContent, row.cells[0].title,
    Number(row.cells[1].textContent.replace(/\\D/g, ""))])"""


@pytest.mark.timeout(60)
def test_ops_are_grouped_by_line_and_shape_as_the_run_groups_them(stage: Stage) -> None:
    """A click on a row selects its ops in all views: in the Timeline the others are faint."""
    page, shown = stage.page, ".fl-page:not([hidden]) .fl-ops tbody tr"
    with flnb.record("by line", stacks=True) as run:
        train(2)
    stage.view(run, tab="ops")
    for key in ("line", "shape"):
        wanted = {row.key[0]: row.count for row in run.ops.by(key)}
        page.locator(".fl-page:not([hidden])").get_by_role("radio", name=key.title(), exact=True).click()
        page.wait_for_function(
            "([rows, count]) => document.querySelectorAll(rows).length === count", arg=[shown, len(wanted)]
        )
        rows = page.locator(shown).evaluate_all(ROWS)
        assert {name: count for name, *_, count in rows} == wanted
        for name, text, source, title, _ in rows:
            assert title == name
            assert (text, source) == ((name.partition(": ")[::2]) if key == "line" else (name, ""))
        page.locator(shown).first.click()
        page.wait_for_function("([key, name]) => window.__flnb.selection?.[key] === name", arg=[key, rows[0][0]])
        assert page.locator(f"{shown}[aria-selected=true]").count() == 1
    assert any(re.fullmatch(r"test_screens\.py:\d+: loss\.backward\(\)", row.key[0]) for row in run.ops.by("line"))
    page.locator("[role=tab][id$=-tab-timeline]").click()
    page.wait_for_function("() => window.__flnb.view?.faint?.some(count => count > 0)")
    assert not page.flnb_errors  # type: ignore[attr-defined]


# How far from the right edge the texts of the last column that is shown end, and how wide sources are.
EDGES = """() => {
    const place = document.querySelector(".fl-page:not([hidden]) .fl-ops").parentElement;
    const ends = [...place.querySelectorAll("tr")].map(row => {
        const range = document.createRange();
        range.selectNodeContents([...row.cells].filter(cell => cell.getClientRects().length).at(-1));
        return place.getBoundingClientRect().left + place.clientWidth - range.getBoundingClientRect().right;
    });
    return [Math.min(...ends), Math.max(...[...place.querySelectorAll(".fl-source")].map(each => each.clientWidth))];
}"""


@pytest.mark.timeout(60)
def test_columns_of_ops_end_before_the_edge_and_lines_have_their_source_where_there_is_room(stage: Stage) -> None:
    page, run = stage.page, recorded()
    for tab in ("ops", "overview"):
        stage.view(run, tab=tab, **LARGE)
        for key in ("Op", "Line"):
            page.locator(".fl-page:not([hidden])").get_by_role("radio", name=key, exact=True).click()
            for _, width, height in SIZES:
                stage.resize(width, height, True)
                redrawn(page)
                eventually(page, lambda: page.evaluate(EDGES)[0], lambda room: room >= 8)
            if key == "Line":
                assert page.evaluate(EDGES)[1] > (300 if tab == "ops" else 60)
    assert not page.flnb_errors  # type: ignore[attr-defined]


@pytest.mark.timeout(60)
def test_a_run_that_failed_before_its_first_op_says_so_and_one_that_ended_opens_with_one_step(stage: Stage) -> None:
    """Of a network whose steps need the same memory the tape is that of the step at which the run opens."""
    page = stage.page
    with pytest.raises(ZeroDivisionError), flnb.record("failed") as failed:
        _ = 1 / 0
    stage.view(failed, **LARGE)
    for words in ("No op ran before it failed.", "No tape: the run failed before anything was differentiated."):
        page.get_by_text(words, exact=True).locator("visible=true").wait_for()
    stage.view(recorded(), **LARGE)
    page.get_by_role("tab", name="Tape").click()
    page.locator('canvas[aria-label^="Tape graph of step "]:visible').wait_for()
    eventually(page, page.get_by_text("under the cursor").locator("visible=true").count, 0)
    tape = page.locator('canvas[aria-label^="Tape graph of step "]:visible').get_attribute("aria-label") or ""
    page.get_by_role("tab", name="Ops").click()
    step = re.findall(r"of step (\d+): ", tape)[0]
    page.locator(".fl-stepops:visible", has_text=f"In step {step}, under the cursor").wait_for()
    assert not page.flnb_errors  # type: ignore[attr-defined]


@pytest.mark.timeout(60)
def test_a_snapshot_of_pytorch_opens_by_line_in_colours(stage: Stage, tmp_path: Path) -> None:
    """Its blocks have no categories: by these, all areas and blocks were grey."""
    page, torch = stage.page, PretendedTorch(3)
    for _ in range(60):
        torch.step()
    stage.view(flnb.memory.load_snapshot(saved(tmp_path / "torch.pickle", torch.snapshot())), tab="memory")
    areas = page.get_by_role("radiogroup", name="What the areas stand for")
    areas.get_by_role("radio", name="Line", checked=True).wait_for()
    bands = page.locator(".fl-page:not([hidden]) .fl-bands .fl-bandname")
    page.wait_for_function(
        "() => /m0[.]py:0/.test(document.querySelector('.fl-page:not([hidden]) .fl-bands')?.textContent)"
    )
    assert {"m0.py:0", "m1.py:1", "m3.py:3"} <= set(bands.all_text_contents())
    areas.get_by_role("radio", name="Category").click()
    bands.get_by_text("unknown").wait_for()
    assert not page.flnb_errors  # type: ignore[attr-defined]


@pytest.mark.timeout(60)
def test_exchanges_of_parts_are_marked_in_memory_and_timeline(stage: Stage, screenshots: Path) -> None:
    page, found = stage.page, []
    with flnb.use_memory_manager("caching"), flnb.record("exchanged") as run:
        train(3)
        with flnb.use_memory_manager("buddy"):
            train(3)
    stage.view(run, **LARGE)
    for tab in ("Memory", "Timeline"):
        page.get_by_role("tab", name=tab).click()
        page.keyboard.press("f")
        found += complaints(stage, f"exchanged-{tab.lower()}", screenshots)
        for size, width, height in (SIZES[0], SIZES[-1]):
            stage.resize(width, height, True)
            redrawn(page)
            words = [each for each in page.evaluate(PLACED) if each["words"].endswith("caching → buddy")]
            assert len(words) == 1, f"{tab}, {size}"
            told = []
            for x in (words[0]["left"] - 9, words[0]["right"] + 8):  # their line is on either side
                page.mouse.move(x, words[0]["top"])
                redrawn(page)
                told += page.locator(".fl-page:not([hidden]) .fl-tip:visible").all_inner_texts()
            assert any("manager caching → buddy" in each for each in told), f"{tab}, {size}: {told}"
    assert re.search(r"\n00:\d\d\.\d manager caching → buddy$", page.locator(".fl-meta").get_attribute("title") or "")
    assert {"memory", "loss"} <= set(page.evaluate(INK)), "tracks under the lanes"
    axis = [words for words in page.evaluate(INK) if re.search(r"^[\d.−]+ (µs|ms|s)$", words)]
    assert axis
    assert not any(words.startswith("−") for words in axis), "time counts from a step that began before, or the run"
    assert found == []
    assert not page.flnb_errors  # type: ignore[attr-defined]
