// @vitest-environment jsdom
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { DeviceSimulation, type DeviceOptions } from "../../src/dev/devices.ts";
import { RankSimulation } from "../../src/dev/ranks.ts";
import module from "../../src/index.ts";

interface Probe { axis: string; rows: number; shown: { t0: number; t1: number }; note: string; task: { seq: number; name: string; asked: number; ran: number } | null; waiting: string[]; blocks: number }

/** jsdom draws nothing and lays nothing out: every element has one size, and what is drawn is written down. */
const written: string[] = [];
const pencil: unknown = new Proxy({}, {
  get: (_, name) => (name === "measureText" ? (text: string) => ({ width: text.length * 6 }) : name === "canvas" ? undefined
    : name === "fillText" ? (text: string) => void written.push(text) : () => pencil),
  set: () => true,
});
let frames: FrameRequestCallback[] = [];
const open = new Set<() => void>();
let clock = 0;

beforeEach(() => {
  frames = [];
  written.length = 0;
  vi.stubGlobal("ResizeObserver", class {
    constructor(private readonly callback: (entries: object[]) => void) {}
    observe(target: Element): void { this.callback([{ target, contentRect: { width: 900, height: 380 } }]); }
    disconnect(): void {}
  });
  Element.prototype.scrollTo = (() => undefined) as never;
  vi.stubGlobal("IntersectionObserver", undefined);
  vi.stubGlobal("DOMMatrix", class {});
  vi.stubGlobal("requestAnimationFrame", (callback: FrameRequestCallback) => frames.push(callback));
  vi.stubGlobal("cancelAnimationFrame", () => undefined);
  vi.stubGlobal("matchMedia", () => ({ matches: false, addEventListener: () => undefined, removeEventListener: () => undefined }));
  HTMLCanvasElement.prototype.getContext = (() => pencil) as never;
  for (const [name, size] of [["clientWidth", 900], ["clientHeight", 380]] as const) Object.defineProperty(HTMLElement.prototype, name, { configurable: true, get: () => size });
});
afterEach(() => {
  for (const destroy of open) destroy();
  open.clear();
  vi.unstubAllGlobals();
  document.body.replaceChildren();
});

const draw = (): void => {
  for (let turn = 0; turn < 3; turn++) {
    const due = frames;
    frames = [];
    clock = Math.max(clock, performance.now() + 700) + 300;
    for (const callback of due) callback(clock);
  }
};

function mounted(options: DeviceOptions | null = {}) {
  const simulation = options ? new DeviceSimulation(options) : new RankSimulation();
  if (simulation instanceof RankSimulation) simulation.advance(500);
  const listeners = new Set<(content: unknown, buffers: DataView[]) => void>();
  const el = document.createElement("div");
  document.body.append(el);
  open.add(module.render({
    el, model: { get: () => undefined, send: () => undefined, on: (_, listener) => void listeners.add(listener), off: (_, listener) => void listeners.delete(listener) },
  }));
  const { content, buffers } = simulation.frame();
  for (const listener of listeners) listener(content, buffers);
  draw();
  const root = el.querySelector<HTMLElement>(".fl-root")!;
  const tab = [...root.querySelectorAll<HTMLElement>("[role=tab]")].find((one) => one.textContent === "Devices")!;
  tab.click();
  draw();
  const press = (key: string): void => {
    root.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, composed: true }));
    draw();
  };
  const probe = (): Probe => window.__flnb!.view as Probe;
  const text = (selector: string): string => root.querySelector(selector)?.textContent ?? "";
  const pairs = (): Record<string, string> => Object.fromEntries([...root.querySelectorAll(".fl-callside .fl-pairs dt")].map((term) => [term.textContent, term.nextElementSibling!.textContent!.replace(/\s/g, " ")]));
  return { root, tab, press, probe, text, pairs };
}

const NOTE = "emulated device: order and counts are real, durations are not";

describe("the Devices tab", () => {
  it("is there where a run has device events, and nowhere else", () => {
    expect(mounted().tab.hidden).toBe(false);
    expect(mounted(null).tab.hidden).toBe(true);
  });

  it("shows the times of a GPU: idle time with its cause, copies with bytes, events, what waits", () => {
    const { probe, text, root } = mounted();
    expect(probe()).toMatchObject({ axis: "time", note: "", task: null });
    for (const said of ["device idle 1.47 ms", "waits for e33", "e33", "8.00 MiB · 22.1 GB/s to the device", "stream 0", "stream 1", "data, freed, waits for e34"]) expect(written).toContain(said);
    expect(root.querySelector<HTMLElement>(".fl-devicenote")!.hidden).toBe(true);
    expect(text(".fl-callside")).toContain("step 411");
  });

  it("has an order in place of times for an emulated device, and says so", () => {
    const { probe, text, root, pairs, press } = mounted({ emulated: true });
    expect(probe()).toMatchObject({ axis: "order", note: NOTE });
    expect(text(".fl-badge")).toBe(NOTE);
    expect(text(".fl-devicenote .fl-sub")).toBe("equal slots · random order, seed 17");
    expect(root.querySelector<HTMLElement>("[aria-label=Axis]")!.hidden).toBe(true);
    expect(written.filter((said) => /\d (ns|µs|ms|s)$|GB\/s|idle/.test(said))).toEqual([]);
    press("]");
    expect(Object.keys(pairs())).not.toContain("Time");
    expect(pairs()["Asked"]).toBe("1 of 19 in step 411");
    expect(root.querySelector(".fl-timeline canvas")!.getAttribute("aria-label")).toContain(NOTE);
    press("]");
    expect(pairs()).toMatchObject({ Sectors: "4.00 a request, ideal 4", Conflicts: "0.125 extra turns a shared request" });
    expect(pairs()).toMatchObject({ Registers: "–", "Shared memory": "33.0 KiB a block" });
    expect(text(".fl-occupancy")).toBe("Occupancy, theoretical–");
    expect(root.querySelector<HTMLElement>(".fl-occupancy [title]")!.title).toContain("g++ compiles for the emulated device");
    expect(root.querySelector(".fl-warps")).toBeNull();
  });

  it("goes from launch to launch by ] and [, and tells of each what is known", () => {
    const { press, probe, pairs, text, root } = mounted();
    press("]");
    expect(probe().task).toMatchObject({ name: "copy to the device" });
    expect(pairs()).toMatchObject({ Route: "to the device", Bytes: "8.00 MiB 8 388 608 B", "Host memory": "pinned" });
    press("]");
    expect(probe().task!.name).toBe("gemm_f32_128x64");
    expect(pairs()).toMatchObject({ Op: "conv2d float32 [256, 64]", Time: "310 µs", "Grid × block": "[64, 8] × [256]", Threads: "131 072 512 blocks of 256", Registers: "96 a thread", "Shared memory": "33.0 KiB a block" });
    expect(pairs()["Queued"]).toMatch(/µs after its launch$/);
    expect(text(".fl-occupancy")).toBe("Occupancy, theoretical25.0 %");
    expect(text(".fl-warpnote")).toBe("16 of 64 warps, 2 blocks; registers limit it");
    expect([root.querySelectorAll(".fl-warps i").length, root.querySelectorAll(".fl-warps .fl-on").length]).toEqual([64, 16]);
    expect(text(".fl-status")).toContain("gemm_f32_128x64");
    press("[");
    expect(probe().task!.name).toBe("copy to the device");
    press("Escape");
    expect(probe().task).toBeNull();
  });

  it("goes to the next idle time by G", () => {
    const { press, text } = mounted();
    press("g");
    expect(text("[role=status]")).toBe("device idle 1.47 ms, host");
  });

  it("changes a GPU's axis to the order", () => {
    const { root, probe } = mounted();
    [...root.querySelectorAll<HTMLElement>("[aria-label=Axis] button")].find((one) => one.textContent === "Order")!.click();
    draw();
    expect(probe().axis).toBe("order");
    expect(probe().note).toBe("");
  });

  it("zooms and pans, and F shows the step again", () => {
    const { press, probe } = mounted({ emulated: true });
    const { t0, t1 } = probe().shown;
    press("w");
    expect(probe().shown.t1 - probe().shown.t0).toBeCloseTo((t1 - t0) / 1.5);
    press("a");
    expect(probe().shown.t0).toBeLessThan(t0 + (t1 - t0) / 3);
    press("f");
    expect(probe().shown).toEqual({ t0, t1 });
  });

  it("has the same tasks and blocks in tables", () => {
    const { root, probe } = mounted({ emulated: true });
    root.querySelector<HTMLElement>("[aria-label='Devices as a table']")!.click();
    const table = root.querySelector("section[aria-label=Devices] .fl-data")!;
    expect(table.querySelectorAll("tbody tr")).toHaveLength(probe().rows);
    expect(table.querySelector("caption")!.textContent).toContain(NOTE);
    expect([...table.querySelectorAll("th")].map((one) => one.textContent)).not.toContain("Time");
    root.querySelector<HTMLElement>("[aria-label='Block map as a table']")!.click();
    expect(root.querySelectorAll("section[aria-label='Block map'] .fl-data tbody tr")).toHaveLength(probe().blocks);
  });
});
