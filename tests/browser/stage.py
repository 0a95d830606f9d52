"""A page with a tape, a recording or a program, and a kernel's part played by Python: quick, and of the size needed."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import bus, intern, schema
from flnb_telemetry.live.recording import LiveRecording
from flnb_telemetry.live.tape import LiveTape
from flnb_telemetry.live.view import tape_frame
from flnb_telemetry.recording import Recording

from flnb.widgets import program
from flnb.widgets.answers import comparison_of
from flnb.widgets.exports import file_of
from flnb.widgets.proposals import Proposals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flnb_telemetry.analysis.tape import Tape
    from playwright.sync_api import Page

STATIC = Path(__file__).resolve().parents[2] / "flnb" / "widgets" / "static"
PAGE = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; background: var(--ground); }}
body {{ --ground: #111; --ink: rgba(255,255,255,.87); --jp-error-color1: #ef5350; }}
body[data-jp-theme-light=true] {{ --ground: #fff; --ink: rgba(0,0,0,.87); --jp-error-color1: #d32f2f; }}
/* a wide font, which a reader's machine may have, too */
body[data-jp-theme-light=true] {{ --jp-ui-font-family: "DejaVu Sans", sans-serif; }}
body {{ --jp-layout-color0: var(--ground); --jp-layout-color1: var(--ground); }}
body {{ --jp-ui-font-color0: var(--ink); --jp-ui-font-color1: var(--ink); }}
</style><body data-jp-theme-light={light}>
<div id="at"></div><script type="module">
import widget from "/{bundle}.js";
const listeners = new Set();
const model = {{
    get: name => ({{height: {height}, only: "{only}", shown_tab: "{tab}" || undefined}})[name],
    send: async message => {{
        let told = JSON.parse(await window.ask(JSON.stringify(message)));
        for (; told; told = JSON.parse(await window.ask(JSON.stringify({{type: "more", of: told[2]}})))) {{
            const [content, buffer] = told;
            const buffers = [await (await fetch("/buffer/" + buffer)).arrayBuffer()];
            const began = performance.now();
            for (const listener of listeners) listener(content, buffers);
            window.taken = (window.taken ?? 0) + performance.now() - began;
        }}
    }},
    on: (name, listener) => name === "msg:custom" && listeners.add(listener),
    off: (_, listener) => listeners.delete(listener),
}};
window.tell = content => listeners.forEach(listener => listener(content, [new ArrayBuffer(0)]));
widget.render({{model, el: document.getElementById("at")}});
</script>"""


class Stage:
    """Shows tapes and recordings on a page. `show` loads it anew; `probe` is what the view tells of itself."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self._tape: Tape | None = None
        self._live: LiveTape | None = None
        self._runs: list[LiveRecording] = []
        self._proposals: Proposals | None = None
        self._proposed: list[dict[str, Any]] = []
        self._buffers: list[bytes] = []
        self._f: Any = None
        self._run: Recording | None = None
        self._html = ""
        self._shown = self._asked = 0
        self._told: dict[int, Iterator[tuple[dict[str, Any], bytes]]] = {}
        self.busy = False  # a kernel that does not answer what is asked of the timeline
        page.expose_function("ask", self._ask)
        page.route("http://stage.test/**", self._serve)

    def show(self, tape: Tape, *, light: bool = True, height: int = 600, width: int = 1200) -> None:
        self._tape, self._live, self._runs, self._f = tape, None, [], None
        self._load("dashboard", light, height, width, only="tape")
        self.page.wait_for_function("() => window.__flnb?.view?.boxes > 0")

    def renew(self, tape: Tape) -> None:
        """Send another tape to the page that shows one, as a live run does at the next step."""
        self._tape, self._live = tape, LiveTape(tape)
        self.page.evaluate("content => window.tell(content)", tape_frame(self._live, "tape"))

    def view(
        self,
        *runs: Recording,
        light: bool = True,
        height: int = 680,
        width: int = 1200,
        model: Any = None,
        step: Any = None,
        tab: str = "",
    ) -> None:
        """Show one recording, or two beside each other, and wait until all is told; `tab` is the one to begin with."""
        self._runs, self._f = [LiveRecording(run) for run in runs], None
        self._proposals = Proposals(lambda: runs[0], self._proposed.append, model, step)
        self._load("comparison" if len(runs) > 1 else "dashboard", light, height, width, tab=tab)
        self.page.wait_for_function("() => (window.__flnbPair ?? window.__flnb)?.whole")

    def program(
        self, f: Any, run: Recording | None = None, *, light: bool = True, height: int = 680, width: int = 1200
    ) -> None:
        """Show the programs of a function of `flnb.jit`."""
        self._f, self._run, self._live, self._runs = f, run, None, []
        self._load("program", light, height, width)
        self.page.wait_for_function("() => window.__flnbProgram?.launches > 0")

    def _load(self, bundle: str, light: bool, height: int, width: int, *, only: str = "", tab: str = "") -> None:
        self._html = PAGE.format(light=json.dumps(light), bundle=bundle, height=height, only=only, tab=tab)
        self.page.set_viewport_size({"width": width, "height": height})
        self._buffers = []
        self._shown += 1  # a page of its own, that no cache knows
        self.page.goto(f"http://stage.test/{self._shown}")

    def resize(self, width: int, height: int, light: bool) -> None:
        """Give the page that is shown another size and theme, as its reader would."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.evaluate(
            """([height, light]) => {
                document.getElementById("at").lastElementChild.style.height = `${height}px`;
                document.body.dataset.jpThemeLight = light;
            }""",
            [height, light],
        )

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
        if "/buffer/" in route.request.url:
            route.fulfill(body=self._buffers[int(route.request.url.rpartition("/")[2])])
        elif route.request.url.endswith(".js"):
            script = STATIC / route.request.url.rpartition("/")[2]
            route.fulfill(content_type="text/javascript", body=script.read_text(encoding="utf-8"))
        else:
            route.fulfill(content_type="text/html", body=self._html)

    def _ask(self, text: str) -> str:
        """Return the first answer to a message, or the next one to an earlier message, as JSON; "null": no more."""
        message = json.loads(text)
        if message["type"] != "more":
            message["of"] = self._asked = self._asked + 1
            self._told[self._asked] = iter(self._answers(message))
        answer = next(self._told[message["of"]], None)
        if answer is None:
            del self._told[message["of"]]
            return "null"
        content, buffer = answer
        self._buffers.append(buffer)
        return json.dumps([content, len(self._buffers) - 1, message["of"]], allow_nan=False)

    def _answers(self, message: dict[str, Any]) -> Iterable[tuple[dict[str, Any], bytes]]:
        if self._runs:
            hello = message["type"] == "hello"
            if message["type"] in ("fit", "apply"):
                assert self._proposals is not None
                self._proposals.receive(message)
                self._proposals.wait()
                told, self._proposed[:] = list(self._proposed), []
                return [(answer, b"") for answer in told]
            if message["type"] == "export":
                content, buffers = file_of(self._runs[0].recording, message)
                return [(content, b"".join(buffers))]
            if not hello:
                if message["type"] == "timeline" and self.busy:
                    return []
                side = message.get("side", 0)
                known = message["type"] in ("tape", "stack", "timeline")
                answer = self._runs[side].answer(message) if known else None
                buffer = b"" if answer is None else answer.pop("buffer", b"")
                return [] if answer is None else [(answer | {"side": side}, buffer)]
            sides = enumerate(self._runs)
            told = ((content | {"side": side}, data) for side, run in sides for content, data in run.frames())
            pair = [run.recording for run in self._runs]
            return chain(told, [(comparison_of(*pair), b"")] if len(pair) > 1 else [])
        if self._f is not None:
            hello = message["type"] == "hello"
            return [(program.message(self._f, self._run) if hello else program.source_of(self._f, message), b"")]
        assert self._tape is not None
        self._live = self._live or LiveTape(self._tape)
        if message["type"] == "hello":
            return [(tape_frame(self._live, "tape"), b"")]
        return [(self._live.answer(message), b"")] if message["type"] == "tape" else []


def recorded(
    ops: list[tuple[str, str, str]], *, times: int = 1, bad: int = -1, norms: int = 256, seed: int = 0
) -> Recording:
    """A recording as a pump feeds it: (scope, op, family) in a chain, `times` over, walked back, norms near the loss.

    `bad`: the node whose backward makes NaN. `seed`: of the norms.
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
    norm = 10.0 ** np.random.default_rng(seed).uniform(-3, 0, seen)
    sick = back[:seen] < bad
    told[:, 3], told[:, 4] = np.where(sick, np.nan, norm).view(np.int64), np.where(sick, 96, 0)
    parameters = np.unique(weight[weight < 0])
    leaves = np.zeros((len(parameters), schema.WORDS), np.int64)
    leaves[:, 0] = schema.LEAF | intern.plans.id_of(intern.Plan("leaf", "memory", (128, 128), "float32", 65536)) << 24
    leaves[:, 1], leaves[:, 2], leaves[:, 4] = u[-1] + 2000, parameters, 1
    leaves[:, 3] = [intern.strings.id_of(f"{ops[-2 - p][0]}.weight") for p in parameters.tolist()]
    walk = np.array([[schema.WALK, u[0] - 100, size, *[0] * (schema.WORDS - 3)]], np.int64)
    for rows in (forward, walk, backward, told, leaves):
        run.feed(1, rows)
    run.state, run.end = "finished", int(u[-1]) + 10_000
    assert bus.lanes is None
    return run


def remembered(
    blocks: int, *, live: int = 1000, large: int = 64, steps: int = 100, capacity: int | None = None
) -> Recording:
    """A recording of allocations alone: about `live` blocks of 1 to `large` KiB at a time, in segments of 32 MiB.

    Every block is freed, the oldest first but for some of them; places are those of a first fit by size.
    """
    rng = np.random.default_rng(0)
    nbytes = rng.integers(1, large, blocks, endpoint=True) * 1024 - rng.integers(0, 500, blocks)
    size = -(-nbytes // 512) * 512
    born = np.arange(blocks) * 2 * 1000
    freed = np.minimum((np.arange(blocks) + rng.integers(1, 2 * live, blocks)) * 2000 + 1000, (2 * blocks + 8) * 1000)
    # Slots of the largest size, taken from a stack: as many as live at once.
    order = np.lexsort((np.r_[np.ones(blocks), np.zeros(blocks)], np.r_[born, freed]))
    slot, free, slots = np.zeros(blocks, np.int64), [], 0
    for event in order.tolist():
        if event >= blocks:
            free.append(int(slot[event - blocks]))
        elif free:
            slot[event] = free.pop()
        else:
            slot[event], slots = slots, slots + 1
    room = (large + 1) * 1024
    each = (32 << 20) // room
    run = Recording("remembered")
    run.meta = {"backend": "numpy", "manager": "slots", "device": "simulated", "capacity": capacity}
    scopes = [f"net.block{i}.{part}" for i in range(4) for part in ("conv", "norm", "act")]
    lines = [f"net.py:{10 + i}: x = {scope.rpartition('.')[2]}(x)" for i, scope in enumerate(scopes)]
    contexts = [
        intern.contexts.id_of(intern.Context(scope, schema.FORWARD, line=line))
        for scope, line in zip(scopes, lines, strict=True)
    ]
    plans = [
        intern.plans.id_of(intern.Plan(op, family, (64, 16, 8), "float32", 32768))
        for op, family in (("conv2d", "matmul"), ("batch_norm", "norm"), ("relu", "elementwise"))
    ]
    which = rng.integers(0, 12, blocks)
    category = rng.choice([0, 2, 3, 3, 3, 5, 6], blocks)
    alloc, gone = np.zeros((blocks, schema.WORDS), np.int64), np.zeros((blocks, schema.WORDS), np.int64)
    alloc[:, 0] = schema.ALLOC | category << schema.AUX_SHIFT | np.array(plans)[which % 3] << schema.PLAN_SHIFT
    alloc[:, 1], alloc[:, 2] = run.start + born + 1000, np.arange(blocks) + 1
    alloc[:, 6], address = slot // each + 1, (1 << 40) + slot // each * (64 << 20) + slot % each * room
    alloc[:, 3], alloc[:, 4], alloc[:, 5], alloc[:, 7] = address, size, nbytes, np.array(contexts)[which]
    gone[:, 0], gone[:, 1], gone[:, 2] = schema.FREE_COMPLETED, run.start + freed + 1000, alloc[:, 2]
    held = slots // each + 1
    segments, ticks = np.zeros((held, schema.WORDS), np.int64), np.zeros((steps, schema.WORDS), np.int64)
    segments[:, 0], segments[:, 2] = schema.SEGMENT_ALLOC, np.arange(held) + 1
    segments[:, 1] = run.start + 1000 + born[[int(np.flatnonzero(slot >= i * each)[0]) for i in range(held)]]
    segments[:, 3], segments[:, 4] = (1 << 40) + np.arange(held) * (64 << 20), 32 << 20
    last = int(freed.max()) + 2000
    ticks[:, 0], ticks[:, 3], ticks[:, 4] = schema.STEP, np.arange(steps), steps
    edges = run.start + np.arange(steps + 1) * last // steps
    ticks[:, 1], ticks[:, 2] = edges[:-1], edges[1:]
    for rows in (segments, alloc, gone, ticks):
        run.feed(1, rows)
    run.state, run.end = "finished", run.start + last
    return run
