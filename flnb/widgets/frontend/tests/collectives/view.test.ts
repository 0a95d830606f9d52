// @vitest-environment jsdom
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { RankSimulation, type RankOptions } from "../../src/dev/ranks.ts";
import module from "../../src/index.ts";

interface Probe { ranks: number; rows: number; shown: { t0: number; t1: number }; selected: number; call: { seq: number; late: number | null; why: string[] } | null; stuck: string | null }

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

function mounted(options: RankOptions = {}, ms = 1500) {
  const simulation = new RankSimulation(options);
  simulation.advance(ms);
  const listeners = new Set<(content: unknown, buffers: DataView[]) => void>();
  const el = document.createElement("div");
  document.body.append(el);
  open.add(module.render({
    el, model: { get: () => undefined, send: () => undefined, on: (_, listener) => void listeners.add(listener), off: (_, listener) => void listeners.delete(listener) },
  }));
  const tick = (by = 0): void => {
    simulation.advance(by);
    const { content, buffers } = simulation.frame();
    for (const listener of listeners) listener(content, buffers);
    draw();
  };
  tick();
  const root = el.querySelector<HTMLElement>(".fl-root")!;
  const tab = [...root.querySelectorAll<HTMLElement>("[role=tab]")].find((one) => one.textContent === "Collectives")!;
  tab.click();
  draw();
  const press = (key: string): void => {
    root.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, composed: true }));
    draw();
  };
  const probe = (): Probe => window.__flnb!.view as Probe;
  const text = (selector: string): string => root.querySelector(selector)?.textContent ?? "";
  return { root, tab, tick, press, probe, text };
}

describe("the Collectives tab", () => {
  it("is there where a run has ranks, and names the late one with its reason", () => {
    const { root, tab, probe, text } = mounted();
    expect(tab.hidden).toBe(false);
    expect(probe()).toMatchObject({ ranks: 4, selected: -1, stuck: null });
    expect(text(".fl-why")).toMatch(/^Rank 2 was last, by 4\d\.\d ms4\d\.\d ms in data\.take, the median of the others/);
    const rows = [...root.querySelectorAll(".fl-late tbody tr")].map((row) => [...row.querySelectorAll("td")].map((cell) => cell.textContent));
    expect(rows[0]).toEqual(["2", "b", expect.any(String), expect.stringMatching(/ms$/), "data.take"]);
    expect(written).toContain("rank 3");
    expect(written).toContain("Buckets");
    expect(written).toContain("head.fc1, head.fc2 · 4 params");
    expect(root.querySelector(".fl-timeline canvas")!.getAttribute("aria-label")).toContain("Rank 2 was last");
  });

  it("says what the call carries, and what share of the best bandwidth it reached, with the formula", () => {
    const { root, press } = mounted();
    press("r");
    const pairs = [...root.querySelectorAll(".fl-callside .fl-pairs dt")].map((term) => `${term.textContent}: ${term.nextElementSibling!.textContent}`.replace(/\s/g, " "));
    expect(pairs.slice(0, 4)).toEqual(["Kind: all_reduce float32", "Elements: 1 059 850", "Holds: head.fc1, head.fc2 · 4 params", "Bytes: 4.04 MiB 4 239 400 B"]);
    const achieved = [...root.querySelectorAll(".fl-achieved > div")].map((line) => line.textContent);
    expect(achieved).toEqual(["0.939 GB/s of 1.08 measured peak86.9 %", "", "2 (n − 1) / n × bytes / transfer 6.77 ms"]);
  });

  it("follows the newest step until something is selected, and is paused from then on: the window of steps goes on", () => {
    const { root, tick, press, probe } = mounted();
    const before = probe().shown;
    tick(400);
    expect(probe().shown.t0).toBeGreaterThan(before.t0);
    press("r");
    expect(probe().call!.late).toBe(2);
    expect(window.__flnb!.paused).toBe(true);
    const { shown, call } = probe();
    tick(1500);
    expect(probe().shown).toEqual(shown);
    expect(probe().call!.seq).toBe(call!.seq);
    expect(window.__flnb!.selection).toMatchObject({ kind: "collective", sequence: call!.seq, communicator: "world", bucket: 0 });
    root.querySelector<HTMLElement>(".fl-recbar button:last-of-type")!.click();
    draw();
    expect(window.__flnb!.paused).toBe(false);
    expect(probe().shown.t0).toBeGreaterThan(shown.t1);
  });

  it("goes from call to call by J and K, and back to nothing by Escape", () => {
    const { press, probe, text } = mounted();
    press("r");
    const here = probe().call!.seq;
    press("j");
    expect(probe().call!.seq).toBe(here + 1);
    press("k");
    press("k");
    expect(probe().call!.seq).toBe(here - 1);
    expect(text(".fl-status")).toContain(`world #${here - 1}`);
    press("Escape");
    expect(window.__flnb!.selection).toBeNull();
    expect(probe().selected).toBe(-1);
  });

  it("zooms and pans the one range of all views, and no further than there are data", () => {
    const { press, probe } = mounted();
    const span = (): number => probe().shown.t1 - probe().shown.t0;
    const before = span();
    press("w");
    expect(span()).toBeCloseTo(before / 1.5, 6);
    const { t0 } = probe().shown;
    press("a");
    expect(probe().shown.t0).toBeLessThan(t0);
    for (let turn = 0; turn < 40; turn++) press("s");
    for (let turn = 0; turn < 4; turn++) press("d");
    expect(probe().shown.t1).toBeLessThanOrEqual(1600);
    expect(window.__flnb!.cursor).toBeNull();
  });

  it("of a rank in the table shows the call to which it came latest", () => {
    const { root, probe } = mounted();
    root.querySelector<HTMLElement>(".fl-late tbody tr")!.click();
    draw();
    expect(probe().call!.late).toBe(2);
    expect(probe().selected).toBeGreaterThanOrEqual(0);
  });

  it("has above 32 ranks a summary and the worst eight, and lanes of one rank and the median one", () => {
    const { root, text } = mounted({ ranks: 64, delay: (rank) => (rank === 37 ? 20 : 0) });
    const shown = [...root.querySelectorAll<HTMLElement>("section[aria-label='All ranks']")];
    expect(shown.map((one) => one.hidden)).toEqual([false]);
    expect(root.querySelectorAll(".fl-late tbody tr")).toHaveLength(8);
    expect(text("section[aria-label='Who is late'] .fl-sub")).toContain("the worst 8 of 64");
    expect(written.filter((one) => /^rank \d+$/.test(one) && one !== "rank 37").length).toBeGreaterThan(0);
    expect(text(".fl-why")).toContain("Rank 37 was last");
  });

  it("says of a call that hangs what each rank does, and has the old panels back when it is over", () => {
    const { root, probe, text } = mounted({ stuckAt: 8 }, 2000);
    expect(probe().stuck).toContain("rank 3 has not come");
    expect(text(".fl-stucktext")).toMatch(/^✕ Collective 32 does not match: /);
    const rows = [...root.querySelectorAll("section[aria-label='What each rank does'] .fl-scroll tbody tr")].map((row) => [...row.querySelectorAll("td")].map((cell) => cell.textContent).slice(0, 3));
    expect(rows).toEqual([["0", "waits", "all_reduce float32[1024] sum"], ["1", "✕ differs", "all_reduce int32[1024] sum"], ["2", "waits", "all_reduce float32[1024] sum"], ["3", "stopped", "not called"]]);
    expect(root.querySelector<HTMLElement>("section[aria-label='Who is late']")!.hidden).toBe(true);
    expect(text(".fl-why")).toMatch(/^Rank 1 made another call/);
  });

  it("has a table behind the picture", () => {
    const { root, probe } = mounted();
    root.querySelector<HTMLElement>("[aria-label='Collectives as a table']")!.click();
    draw();
    const rows = root.querySelectorAll("section[aria-label=Collectives] .fl-data tbody tr");
    expect(rows).toHaveLength(probe().rows);
    expect([...rows].some((row) => row.textContent!.includes("in data.take"))).toBe(true);
    const heads = [...root.querySelectorAll<HTMLElement>("section[aria-label=Collectives] .fl-data th")];
    const column = heads.findIndex((head) => head.classList.contains("fl-number"));
    const values = (): number[] => [...root.querySelectorAll(`section[aria-label=Collectives] .fl-data td:nth-child(${column + 1})`)].map((cell) => Number(cell.textContent!.replace(/[^\d.]/g, "")));
    const before = values();
    heads[column]!.querySelector("button")!.click();
    expect(heads[column]!.ariaSort ?? heads[column]!.getAttribute("aria-sort")).toBe("descending");
    expect(values()).toEqual([...before].sort((one, other) => other - one));
    heads[column]!.querySelector("button")!.click();
    expect(values()).toEqual([...before].sort((one, other) => one - other));
  });
});
