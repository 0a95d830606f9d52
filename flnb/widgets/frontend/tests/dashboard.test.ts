// @vitest-environment jsdom
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import module from "../src/index.ts";
import { Simulation } from "../src/dev/simulate.ts";

type Listener = (content: unknown, buffers: DataView[]) => void;

/** jsdom draws nothing and lays nothing out: what the dashboard asks of the browser answers without doing anything. */
let resized: ((entries: object[]) => void)[] = [];
class Watcher {
  constructor(callback: (entries: object[]) => void) {
    resized.push(callback);
  }
  observe(): void {}
  disconnect(): void {}
}
const pencil: unknown = new Proxy({}, {
  get: (_, name) => (name === "measureText" ? (text: string) => ({ width: text.length * 6 }) : name === "canvas" ? undefined : () => pencil),
  set: () => true,
});

let frames: FrameRequestCallback[] = [];
const open = new Set<() => void>();
beforeEach(() => {
  frames = [];
  resized = [];
  vi.stubGlobal("ResizeObserver", Watcher);
  vi.stubGlobal("IntersectionObserver", undefined);
  Element.prototype.scrollIntoView = vi.fn();
  vi.stubGlobal("DOMMatrix", class {});
  vi.stubGlobal("requestAnimationFrame", (callback: FrameRequestCallback) => frames.push(callback));
  vi.stubGlobal("cancelAnimationFrame", () => undefined);
  vi.stubGlobal("matchMedia", () => ({ matches: false, addEventListener: () => undefined, removeEventListener: () => undefined }));
  HTMLCanvasElement.prototype.getContext = (() => pencil) as never;
});
afterEach(() => {
  for (const destroy of open) destroy();
  open.clear();
  vi.unstubAllGlobals();
  vi.restoreAllMocks();
  document.body.replaceChildren();
});

let clock = 0;
const draw = (later = 300): void => {
  const due = frames;
  frames = [];
  clock = Math.max(clock, performance.now() + 700) + later; // after 300 ms a drawing renews the text
  for (const callback of due) callback(clock);
};

function mounted(simulation = new Simulation(), values = new Map<string, unknown>(), chosen = new Set<() => void>()) {
  const sent: unknown[] = [];
  const listeners = new Set<Listener>();
  const el = document.createElement("div");
  document.body.append(el);
  const model = {
    get: (name: string) => values.get(name),
    set: (name: string, value: unknown) => {
      values.set(name, value);
      for (const follow of chosen) follow();
    },
    send: (message: unknown) => void sent.push(message),
    on: (event: string, listener: Listener) => void (event === "msg:custom" ? listeners : chosen as Set<unknown>).add(listener as never),
    off: (event: string, listener: Listener) => void (event === "msg:custom" ? listeners : chosen as Set<unknown>).delete(listener as never),
  };
  const destroy = module.render({ model, el });
  open.add(destroy);
  const tick = (): void => {
    simulation.advance(0.04);
    const { content, buffers } = simulation.frame();
    for (const listener of listeners) listener(content, buffers);
  };
  const root = el.querySelector<HTMLElement>(".fl-root")!;
  const press = (key: string, on: Element = root, init: KeyboardEventInit = {}): KeyboardEvent => {
    const event = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, composed: true, ...init });
    on.dispatchEvent(event);
    draw();
    return event;
  };
  return { el, root, sent, tick, press, destroy, listeners };
}

describe("the widget", () => {
  it("shows the same tab again when its output is drawn anew", () => {
    const values = new Map<string, unknown>();
    const first = mounted(undefined, values);
    first.tick();
    draw();
    [...first.root.querySelectorAll<HTMLElement>("[role=tab]")].find((tab) => tab.textContent === "Memory")!.click();
    first.destroy();
    const second = mounted(undefined, values);
    second.tick();
    draw();
    expect(second.root.querySelector("[role=tab][aria-selected=true]")!.textContent).toBe("Memory");
  });

  it("follows the one that it replaces until that goes", () => {
    const values = new Map<string, unknown>(), chosen = new Set<() => void>();
    const [first, second] = [mounted(undefined, values, chosen), mounted(undefined, values, chosen)];
    first.tick();
    second.tick();
    draw();
    [...first.root.querySelectorAll<HTMLElement>("[role=tab]")].find((tab) => tab.textContent === "Memory")!.click();
    first.destroy();
    draw();
    expect(second.root.querySelector("[role=tab][aria-selected=true]")!.textContent).toBe("Memory");
    second.destroy();
    expect(chosen.size).toBe(0);
  });

  it("greets the kernel, and acknowledges drawn frames, several with one message, but those of a new tab at once", () => {
    const { sent, tick, root } = mounted();
    expect(sent).toEqual([{ type: "hello", protocol: 1 }]);
    tick();
    tick();
    expect(sent).toHaveLength(1);
    draw();
    expect(sent.slice(1)).toEqual([{ type: "ack", seq: 2, tab: "overview" }]);
    expect(window.__flnb).toMatchObject({ seq: 2, frames: 2, updates: 1, drawn: [2, window.__flnb!.step], paused: false, state: "recording" });
    for (const later of [50, 60]) void [tick(), draw(later)];
    expect(sent.slice(2)).toEqual([{ type: "ack", seq: 4, tab: "overview" }]);
    [...root.querySelectorAll<HTMLElement>("[role=tab]")].find((tab) => tab.textContent === "Memory")!.click();
    draw(20); // with no frame to acknowledge
    tick();
    draw(20);
    expect(sent.slice(3)).toEqual([{ type: "ack", seq: 5, tab: "memory" }]);
  });

  it("says what to do before the first recording", () => {
    const { root } = mounted();
    draw();
    expect(root.querySelector<HTMLElement>(".fl-empty")!.hidden).toBe(false);
    expect(root.querySelector(".fl-empty pre")!.textContent).toBe("with flnb.record() as run:\n    train(net, loader)");
    expect(root.querySelector(".fl-status")!.textContent).toContain("Waiting for the first event");
  });

  it("shows ops and counters", () => {
    const { root, tick } = mounted();
    for (let at = 0; at < 20; at++) tick();
    draw();
    expect(root.querySelector<HTMLElement>(".fl-empty")!.hidden).toBe(true);
    expect(root.querySelector(".fl-ops tbody tr")!.textContent).toMatch(/^conv2d_backward/);
    expect(root.querySelector(".fl-recbar")!.textContent).toMatch(/Recording.*step of 600.*events\/s.*1\.8 %telemetry0dropped/);
    expect(root.querySelector(".fl-ops th[aria-sort=descending]")!.textContent).toBe("Total ↓");
  });

  it("names the parts that are active, and beside them when they were exchanged", () => {
    const simulation = new Simulation();
    const { root, tick, listeners } = mounted(simulation);
    tick();
    draw();
    const meta = root.querySelector<HTMLElement>(".fl-meta")!;
    expect(meta.title).toBe(meta.textContent);
    simulation.advance(0.04);
    const { content, buffers } = simulation.frame();
    const later = { ...content, run: { ...content.run, manager: "buddy" }, exchanges: [{ t: 61.24, text: "manager caching → buddy" }] };
    for (const listener of listeners) listener(later, buffers);
    draw();
    expect(meta.textContent).toContain(" · buddy · ");
    expect(meta.title).toBe(`${meta.textContent}\n01:01.2 manager caching → buddy`);
    const again = simulation.frame(); // what has no news leaves them
    for (const listener of listeners) listener(again.content, again.buffers);
    draw();
    expect(meta.title).toContain("manager caching → buddy");
  });

  it("shows all of a run by F, and of one that goes on the newest steps before that", () => {
    const simulation = new Simulation();
    const { root, tick, press, listeners } = mounted(simulation);
    for (let at = 0; at < 20; at++) tick();
    [...root.querySelectorAll<HTMLElement>("[role=tab]")].find((tab) => tab.textContent === "Memory")!.click();
    const said = (): string => {
      draw();
      return root.querySelector(".fl-page:not([hidden]) .fl-sub")!.textContent!;
    };
    expect(said()).toMatch(/^steps (?!1 )\d+ to 34 /);
    press("f"); // its newest steps are in sight already
    expect(said()).toMatch(/^steps 1 to 34 /);
    press("f");
    expect(said()).toMatch(/^steps (?!1 )\d+ to 34 /);
    const { content, buffers } = simulation.frame();
    for (const listener of listeners) listener({ ...content, run: { ...content.run, state: "finished" } }, buffers);
    press("f");
    expect(said()).toMatch(/^steps 1 to 34 /);
  });

  it("pauses the picture by the button and by Space, while frames still come", () => {
    const { root, tick, press } = mounted();
    for (let at = 0; at < 10; at++) tick();
    draw();
    root.querySelector<HTMLElement>(".fl-pause")!.click();
    const { updates, frames: received } = window.__flnb!;
    tick();
    draw();
    expect(window.__flnb).toMatchObject({ paused: true, updates, frames: received + 1 });
    expect(root.querySelector(".fl-status")!.textContent).toMatch(/Paused at step \d+ · the kernel goes on: \d+ steps? behind live · Resume/);
    press(" ");
    expect(window.__flnb!.paused).toBe(false);
    expect(window.__flnb!.updates).toBeGreaterThan(updates);
  });

  it("selects the op that a report on the same page tells of, until it is taken away", () => {
    const { tick, destroy } = mounted();
    for (let at = 0; at < 20; at++) tick();
    draw();
    window.dispatchEvent(new CustomEvent("flnb-select", { detail: { op: "conv2d" } }));
    expect(window.__flnb!.selection).toEqual({ kind: "op", label: "conv2d", op: "conv2d" });
    expect(window.__flnb!.tab).toBe("ops");
    window.dispatchEvent(new CustomEvent("flnb-select", { detail: {} }));
    expect(window.__flnb!.selection).toMatchObject({ op: "conv2d" });
    destroy();
    window.dispatchEvent(new CustomEvent("flnb-select", { detail: { op: "add" } }));
    expect(window.__flnb!.selection).toMatchObject({ op: "conv2d" });
  });

  it("asks for the node that a report on the same page tells of, and shows the tape", () => {
    const { tick, sent } = mounted();
    for (let at = 0; at < 20; at++) tick();
    draw();
    window.dispatchEvent(new CustomEvent("flnb-select", { detail: { op: "conv2d", scope: "net.block1.conv", nth: 0 } }));
    expect(window.__flnb!.tab).toBe("tape");
    expect(sent).toContainEqual({ type: "tape", op: "conv2d", scope: "net.block1.conv", nth: 0 });
    expect(window.__flnb!.selection).toMatchObject({ op: "conv2d" });
  });

  it("asks for the code of the selected op, and shows the answer", async () => {
    const { root, tick, sent, listeners } = mounted();
    for (let at = 0; at < 20; at++) tick();
    draw();
    [...root.querySelectorAll<HTMLElement>(".fl-tabs button")].find((button) => button.textContent === "Ops")!.click();
    window.dispatchEvent(new CustomEvent("flnb-select", { detail: { op: "conv2d" } }));
    draw();
    for (const listener of listeners) listener({ type: "code", code: "x = 0", said: "what another view asked for" }, []);
    await Promise.resolve();
    expect(root.querySelector(".fl-sheet pre")).toBeNull();
    root.querySelector<HTMLElement>(".fl-opener")!.click();
    expect(sent).toContainEqual({ type: "code", op: "conv2d" });
    for (const listener of listeners) listener({ type: "code", code: "y = 1", said: "op 7" }, []);
    await Promise.resolve();
    expect(root.querySelector(".fl-sheet pre")!.textContent).toBe("y = 1");
  });

  it("selects an op by a click, tells it in words, and clears by Escape", () => {
    const { root, tick, press } = mounted();
    for (let at = 0; at < 20; at++) tick();
    draw();
    root.querySelectorAll<HTMLElement>(".fl-ops tbody tr")[1]!.querySelector("td")!.click();
    draw();
    expect(window.__flnb!.selection).toMatchObject({ kind: "op", op: "conv2d" });
    expect(root.querySelector(".fl-ops tr[aria-selected=true]")!.textContent).toMatch(/^conv2d/);
    expect(root.querySelector(".fl-statusleft")!.textContent).toContain("Selected conv2d");
    expect(root.querySelector("[role=status]")!.textContent).toBe("Selected conv2d");
    press("Escape");
    expect(window.__flnb!.selection).toBeNull();
    expect(root.querySelector(".fl-ops tr[aria-selected=true]")).toBeNull();
  });

  it("filters the table by the search field", () => {
    const { root, tick, press } = mounted();
    for (let at = 0; at < 20; at++) tick();
    draw();
    press("/");
    const input = root.querySelector<HTMLInputElement>("input[type=search]")!;
    expect(document.activeElement).toBe(input);
    input.value = "pool";
    input.dispatchEvent(new Event("input"));
    draw();
    expect([...root.querySelectorAll(".fl-ops tbody tr .fl-code")].map((name) => name.textContent)).toEqual(["max_pool2d_backward", "max_pool2d"]);
    expect(root.querySelector(".fl-head .fl-sub")!.textContent).toBe("2 of 20 ops match");
  });

  it("keeps the rows in place under the pointer", () => {
    const { root, tick } = mounted();
    for (let at = 0; at < 20; at++) tick();
    draw();
    const body = root.querySelector(".fl-ops tbody")!;
    const order = () => [...body.querySelectorAll<HTMLElement>("tr")].map((row) => row.dataset["name"]);
    const before = order();
    body.dispatchEvent(new Event("pointerenter"));
    for (let at = 0; at < 60; at++) tick();
    draw();
    expect(order().slice(0, before.length)).toEqual(before);
  });

  it("leaves keys with modifiers, and keys outside of it, to JupyterLab, but no plain key of its own", () => {
    const { root, tick, press } = mounted();
    tick();
    draw();
    const heard = vi.fn();
    document.addEventListener("keydown", heard, true);
    const suppressed = () => root.hasAttribute("data-lm-suppress-shortcuts");
    expect(press("s", root, { ctrlKey: true }).defaultPrevented).toBe(false);
    expect(suppressed()).toBe(false);
    expect(press("a", document.body).defaultPrevented).toBe(false);
    expect(press("x").defaultPrevented).toBe(false);
    expect(suppressed()).toBe(true);
    press("Enter", root, { shiftKey: true });
    expect(suppressed()).toBe(false);
    expect(heard).toHaveBeenCalledTimes(4);
    expect(press("a").defaultPrevented).toBe(true);
    expect(heard).toHaveBeenCalledTimes(4);
    document.removeEventListener("keydown", heard, true);
  });

  it("opens tabs with roles and arrows", () => {
    const { root, tick, press } = mounted();
    tick();
    draw();
    const tabs = [...root.querySelectorAll<HTMLElement>("[role=tab]")];
    expect(tabs.map((tab) => tab.textContent)).toEqual(["Overview", "Ops", "Memory", "Tape", "Timeline", "Collectives", "Devices", "Metrics"]);
    for (const none of tabs.splice(4, 3)) expect(none.hidden).toBe(true); // a run without programs, of one rank, without a device, has none of these
    for (const tab of tabs) {
      tab.click();
      draw();
      const page = root.querySelector<HTMLElement>("[role=tabpanel]:not([hidden])")!;
      expect(tab.getAttribute("aria-controls")).toBe(page.id);
      expect(page.getAttribute("aria-labelledby")).toBe(tab.id);
      expect(root.querySelectorAll("[role=tab][aria-selected=true]")).toHaveLength(1);
    }
    press("ArrowRight", tabs[4]!);
    expect(window.__flnb!.tab).toBe("overview");
    press("o");
    expect(window.__flnb!.tab).toBe("ops");
  });

  it("keeps every picture's size while the page is hidden for a moment, and measures again", () => {
    let [width, height] = [0, 0];
    vi.spyOn(HTMLElement.prototype, "clientWidth", "get").mockImplementation(() => width);
    vi.spyOn(HTMLElement.prototype, "clientHeight", "get").mockImplementation(() => height);
    const { root, tick } = mounted();
    const page = root.querySelector(".fl-overview")!;
    const told = (to: readonly [number, number]): void => {
      const contentRect = { width: to[0], height: to[1] };
      const targets = [root, root.querySelector(".fl-strip")!, ...page.children];
      for (const callback of resized) callback(targets.map((target) => ({ target, contentRect })));
    };
    const sizes = () => [...root.querySelectorAll<HTMLCanvasElement>(".fl-strip canvas, .fl-overview .fl-canvas")].map((canvas) => [canvas.width, canvas.height]);
    for (let at = 0; at < 20; at++) tick();
    // Told of a size that is gone again when the charts are drawn: it is asked for once more, without another notice.
    told([400, 300]);
    draw();
    const charts = () => [...page.querySelectorAll<HTMLCanvasElement>(".fl-chart canvas")].map((canvas) => canvas.width);
    expect(charts().length).toBeGreaterThan(1);
    [width, height] = [400, 300];
    draw();
    document.body.dataset["jpThemeName"] = "JupyterLab Dark";
    tick();
    draw();
    expect(new Set(charts())).toEqual(new Set([400]));
    told([400, 300]);
    draw();
    const shown = sizes();
    expect(shown.every(([wide, tall]) => wide === 400 && tall === 300)).toBe(true);
    [width, height] = [0, 0];
    told([0, 0]);
    told([400, 300]);
    tick();
    draw();
    expect(sizes()).toEqual(shown);
  });

  it("tells one step, and the steps that are drawn", () => {
    const { root, tick } = mounted();
    for (let at = 0; at < 30; at++) {
      tick();
      draw();
    }
    const sub = (name: string): string => root.querySelector(`[aria-label="${name}"] .fl-sub`)!.textContent!;
    expect(sub("Metrics")).toBe(`step ${window.__flnb!.step}`);
    expect(root.querySelector(".fl-recbar")!.textContent).toContain(`${window.__flnb!.step}step of`);
    root.querySelectorAll<HTMLElement>("[role=tab]")[2]!.click();
    tick();
    draw();
    // The newest step still runs: the last one that has an end is the one before it.
    expect(sub("Allocated")).toMatch(new RegExp(`^steps \\d+ to ${window.__flnb!.step! - 1} `));
  });

  it("leaves nothing behind", () => {
    const { el, destroy, listeners, press } = mounted();
    draw();
    destroy();
    open.delete(destroy);
    expect(listeners.size).toBe(0);
    expect(el.querySelector(".fl-root")).toBeNull();
    expect(press("a", document.body).defaultPrevented).toBe(false);
  });

  it("stands beside another of its kind", () => {
    const one = mounted();
    const two = mounted();
    const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
    expect(new Set(ids).size).toBe(ids.length);
    one.tick();
    draw();
    one.press(" ");
    expect(one.root.querySelector(".fl-pause")!.textContent).toContain("Resume");
    expect(two.root.querySelector(".fl-pause")!.textContent).toContain("Pause");
  });
});
