"""A saved page of a run and the page that `flnb view --browser` serves, in a browser without any network."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import flnb
import flnb.nn as nn
from tests.browser.waiting import eventually, redrawn

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

BAD = "</script><script>window.broken = 1</script><!--"


@pytest.fixture(scope="module")
def run() -> Any:
    """A recording with memory, a metric, a tape of modules, and a name that would end an element."""
    with flnb.use_backend("numpy"):
        return recorded()


def recorded() -> Any:
    net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)), nn.Linear(64, 4))
    x = flnb.asarray(np.ones((32, 64), np.float32))
    with flnb.record(f"kept {BAD}", grad_interval=0) as made:
        for i in range(3):
            with flnb.step(), flnb.scope(BAD):
                net(x).sum().backward()
            flnb.log(loss=1.0 / (i + 1))
    return made


def watch(page: Page) -> list[str]:
    """Everything the page asks for from now on."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    return asked


def look(page: Page) -> None:
    """Every tab draws, the tape opens, and its search finds: from what the page has, or what its server answers."""
    page.wait_for_function("() => window.__flnb?.whole && window.__flnb.updates > 0")
    eventually(page, "[window.broken, window.__flnb.events > 0]", [None, True])
    for tab in ("ops", "memory", "metrics", "tape"):
        page.locator(f"[role=tab][id$=-tab-{tab}]").click()
        page.wait_for_function("tab => window.__flnb.tab === tab", arg=tab)
    page.wait_for_function("() => window.__flnb.view?.boxes > 0")
    page.keyboard.press("/")
    page.keyboard.type("relu")
    page.keyboard.press("Enter")
    page.wait_for_function("() => window.__flnb.selection?.node > 0")
    eventually(page, "window.__flnb.selection.op ?? window.__flnb.selection.label", "relu")
    assert page.flnb_errors == []  # type: ignore[attr-defined]


def colours(page: Page) -> int:
    """How many different pixels the largest canvas in sight has."""
    return int(
        page.evaluate("""() => {
        const [canvas] = [...document.querySelectorAll("canvas")].filter(c => c.offsetParent && c.width)
            .sort((a, b) => b.width * b.height - a.width * a.height);
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return new Set(new Uint32Array(data.buffer)).size;
    }""")
    )


def test_a_saved_page_shows_every_view_offline(page: Page, run: Any, tmp_path: Path, screenshots: Path) -> None:
    run.save_html(tmp_path / "run.html")
    asked = watch(page)
    page.set_viewport_size({"width": 1200, "height": 800})
    page.goto((tmp_path / "run.html").as_uri())
    look(page)
    redrawn(page)
    eventually(page, lambda: colours(page), lambda count: count > 5)
    page.screenshot(path=screenshots / "page.png")
    assert [url for url in asked if not url.startswith(("file:", "blob:"))] == []
    eventually(page, page.title, lambda title: title.startswith("kept </script>"))


def test_the_served_page_asks_its_server(page: Page, run: Any) -> None:
    from flnb.widgets.server import RunServer

    with RunServer(run) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        asked = watch(page)
        page.goto(server.url)
        look(page)
        assert {url for url in asked if not url.startswith("blob:")} == {server.url}
        page.goto("about:blank")
        server.shutdown()
        thread.join(5)


def test_a_page_of_two_runs_compares_them(page: Page, run: Any, tmp_path: Path) -> None:
    from flnb.widgets import page as pages

    pages.save(tmp_path / "two.html", run, run)
    page.goto((tmp_path / "two.html").as_uri())
    page.wait_for_function("() => window.__flnbPair?.whole")
    assert page.flnb_errors == []  # type: ignore[attr-defined]
