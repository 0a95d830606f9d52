"""A page with the Tape view alone and a kernel's part played by Python: quick, and sized as a test needs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import bus, intern, schema
from flnb_telemetry.livetape import LiveTape
from flnb_telemetry.recording import Recording

if TYPE_CHECKING:
    from flnb_telemetry.analysis.tape import Tape
    from playwright.sync_api import Page

BUNDLE = Path(__file__).resolve().parents[2] / "flnb" / "widgets" / "static" / "dashboard.js"
PAGE = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; --jp-layout-color0: {ground}; --jp-layout-color1: {ground}; background: {ground}; }}
body {{ --jp-ui-font-color0: {ink}; --jp-ui-font-color1: {ink}; --jp-error-color1: {error}; }}
</style>
<div id="at"></div><script type="module">
import dashboard from "/dashboard.js";
document.body.dataset.jpThemeLight = String({light});
const listeners = new Set();
const model = {{
    get: name => ({{height: {height}, only: "tape"}})[name],
    send: async message => {{
        const answer = await window.ask(JSON.stringify(message));
        if (answer) for (const listener of listeners) listener(JSON.parse(answer), []);
    }},
    on: (_, listener) => listeners.add(listener),
    off: (_, listener) => listeners.delete(listener),
}};
dashboard.render({{model, el: document.getElementById("at")}});
</script>"""


class Stage:
    """Shows tapes on a page. `show` loads it anew; `probe` is what the view tells of itself."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self._tape: Tape | None = None
        self._live: LiveTape | None = None
        self._html = ""
        self._shown = 0
        page.expose_function("ask", self._ask)
        page.route("http://stage.test/**", self._serve)

    def show(self, tape: Tape, *, light: bool = True, height: int = 600, width: int = 1200) -> None:
        self._tape, self._live = tape, None
        ground, ink, error = (
            ("#fff", "rgba(0,0,0,.87)", "#d32f2f") if light else ("#111", "rgba(255,255,255,.87)", "#ef5350")
        )
        self._html = PAGE.format(ground=ground, ink=ink, error=error, light=json.dumps(light), height=height)
        self.page.set_viewport_size({"width": width, "height": height})
        self._shown += 1  # a page of its own, that no cache knows
        self.page.goto(f"http://stage.test/{self._shown}")
        self.page.wait_for_function("() => window.__flnb?.view?.boxes > 0")

    def probe(self) -> dict[str, Any]:
        found: dict[str, Any] = self.page.evaluate("() => window.__flnb.view")
        return found

    def box(self, name: str, row: str = "forward", kind: str = "module") -> dict[str, Any]:
        """Where on the page the first box of this name stands."""
        for target in self.probe()["targets"]:
            if (target["name"], target["row"], target["kind"]) == (name, row, kind):
                found: dict[str, Any] = target
                return found
        raise LookupError(f"no {kind} {name!r} in {sorted({target['name'] for target in self.probe()['targets']})}")

    def toggle(self, box: dict[str, Any]) -> float:
        """Click on a box's triangle; milliseconds until the picture has changed."""
        boxes = self.probe()["boxes"]
        self.page.evaluate(
            """boxes => {
                window.changed = null;
                addEventListener("pointerup", () => {
                    const began = performance.now();
                    const look = () => {
                        if (window.__flnb.view.boxes === boxes) requestAnimationFrame(look);
                        else window.changed = performance.now() - began;
                    };
                    requestAnimationFrame(look);
                }, {once: true, capture: true});
            }""",
            boxes,
        )
        self.page.mouse.click(box["x"] + 10, box["y"] + 12)
        self.page.wait_for_function("() => window.changed !== null")
        return float(self.page.evaluate("() => window.changed"))

    def _serve(self, route: Any) -> None:
        if route.request.url.endswith(".js"):
            route.fulfill(content_type="text/javascript", body=BUNDLE.read_text(encoding="utf-8"))
        else:
            route.fulfill(content_type="text/html", body=self._html)

    def _ask(self, text: str) -> str | None:
        message = json.loads(text)
        assert self._tape is not None
        self._live = self._live or LiveTape(self._tape)
        if message["type"] == "hello":
            return json.dumps(self._live.frame("tape"), allow_nan=False)
        return json.dumps(self._live.answer(message), allow_nan=False) if message["type"] == "tape" else None


def recorded(ops: list[tuple[str, str, str]], *, times: int = 1, bad: int = -1, norms: int = 256) -> Recording:
    """A recording as a pump feeds it: (scope, op, family) in a chain, `times` over, walked back, norms near the loss.

    `bad`: the node whose backward makes NaN.
    """
    size = len(ops) * times
    here = np.arange(size)
    plans = [intern.plans.id_of(intern.Plan(op, family, (64, 128), "float32", 32768)) for _, op, family in ops]
    contexts = [intern.contexts.id_of(intern.Context(scope, schema.FORWARD)) for scope, _, _ in ops]
    run = Recording("tape")
    forward, backward = np.zeros((size, schema.WORDS), np.int64), np.zeros((size, schema.WORDS), np.int64)
    plan, t = np.tile(plans, times), run.start + here * 2000
    forward[:, 0] = schema.OP | plan << schema.PLAN_SHIFT
    forward[:, 1], forward[:, 2], forward[:, 4] = t, t + 800 + here % 7 * 150, here + 1
    weight = np.tile([-2 - i if op == "matmul" else 0 for i, (_, op, _) in enumerate(ops)], times)
    forward[:, 5], forward[:, 6], forward[:, 7] = np.tile(contexts, times), np.where(here > 0, here, -1), weight
    back, u = here[::-1], run.start + (size + here) * 2000
    backward[:, 0] = schema.OP | plan[back] << schema.PLAN_SHIFT
    backward[:, 1], backward[:, 2], backward[:, 4] = u, u + 1500, back + 1
    backward[:, 5] = intern.contexts.id_of(intern.Context("", schema.BACKWARD))
    seen = min(size, norms)
    told = np.zeros((seen, schema.WORDS), np.int64)
    told[:, 0] = schema.GRAD_STAT | plan[back[:seen]] << schema.PLAN_SHIFT
    told[:, 1], told[:, 2], told[:, 5], told[:, 7] = u[:seen] + 1600, back[:seen] + 1, 8192, 32768
    norm = 10.0 ** np.random.default_rng(0).uniform(-3, 0, seen)
    sick = back[:seen] < bad
    told[:, 3], told[:, 4] = np.where(sick, np.nan, norm).view(np.int64), np.where(sick, 96, 0)
    parameters = np.unique(weight[weight < 0])
    leaves = np.zeros((len(parameters), schema.WORDS), np.int64)
    leaves[:, 0] = schema.LEAF | intern.plans.id_of(intern.Plan("leaf", "memory", (128, 128), "float32", 65536)) << 24
    leaves[:, 1], leaves[:, 2], leaves[:, 4] = u[-1] + 2000, parameters, 1
    leaves[:, 3] = [intern.strings.id_of(f"{ops[-2 - p][0]}.weight") for p in parameters.tolist()]
    for rows in (forward, backward, told, leaves):
        run.feed(1, rows)
    run.state, run.end = "finished", int(u[-1]) + 10_000
    assert bus.lanes is None
    return run
