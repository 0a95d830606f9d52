/** Two recordings compared: their memory beside each other with one scrubber for both, their ops, metrics and timelines. */

import { clamp } from "./clamp.ts";
import { ComparedMetrics } from "./comparemetrics.ts";
import { ComparedOps } from "./compareops.ts";
import { ComparedTimelines } from "./comparetimeline.ts";
import { h, keepKeys, on, setText } from "./dom.ts";
import { ExportMenu, isExportAnswer } from "./exporting.ts";
import { bytesText, integer, ratio, significant, UNKNOWN } from "./format.ts";
import { nameOf } from "./memory/bands.ts";
import type { SegmentOrder } from "./memory/places.ts";
import { counterpartRow, counterpartTime, inWords } from "./memory/counterpart.ts";
import { fragmentationOf } from "./memory/fragmentation.ts";
import { TOTALS_WIDTH, WASTE } from "./memory/lifetimes.ts";
import { square } from "./memory/legend.ts";
import { axisTop } from "./memory/timeline.ts";
import { categoryOrder } from "./palette.ts";
import { segmented } from "./panel.ts";
import { isComparison, isFrame, isTimelineMessage, type ToKernel } from "./protocol.ts";
import { type Selection, selectionOfBlock } from "./selection.ts";
import { Store } from "./store.ts";
import { Side } from "./compareside.ts";
import { Theme } from "./theme.ts";
import { stepTable } from "./memory/tables.ts";
import { LEAST_SECONDS, spanOfKey } from "./timeline/scale.ts";
import type { Actions, DataTable } from "./view.ts";

const NAMES = ["A", "B"] as const;
const HINT = "Click a block: the same allocation is marked on the other side. A drag on a timeline moves the scrubber; W and S zoom, A and D move, F shows all, [ and ] step.";
type Page = "memory" | "ops" | "metrics" | "timeline";

/** A figure of one recording: at the scrubber, or of the whole run. */
interface Figure { readonly name: string; readonly kind: "bytes" | "ratio" | "share" | "count"; readonly values: readonly number[]; readonly wide?: boolean; readonly about?: string }

const shown = ({ kind }: Figure, value: number): string => {
  if (!Number.isFinite(value)) return value === Infinity ? "∞" : UNKNOWN;
  return kind === "bytes" ? bytesText(value) : kind === "ratio" ? ratio(value) : kind === "share" ? `${(value * 100).toFixed(1)} %` : integer(value);
};

/** What B has more than A, with its sign. */
export function difference(figure: Figure): string {
  const value = figure.values[1]! - figure.values[0]!;
  if (!Number.isFinite(value)) return UNKNOWN;
  if (value === 0) return "0";
  const [sign, size] = [value < 0 ? "−" : "+", Math.abs(value)];
  return sign + (figure.kind === "ratio" ? significant(size) : shown(figure, size));
}

/** Read-only state for browser tests: `window.__flnbPair`. */
export interface ComparisonState {
  readonly whole: boolean;
  readonly page: Page;
  readonly cursors: readonly (number | null)[];
  readonly selections: readonly (Readonly<Selection> | null)[];
  readonly timelines: unknown;
}

let comparisons = 0;

export class Comparison {
  readonly element: HTMLElement;
  private readonly theme: Theme;
  private readonly sides: readonly [Side, Side];
  private readonly words = h("span", "fl-sub");
  private readonly table = h("table", "fl-table fl-figures");
  private readonly legend = h("div", "fl-legend");
  private readonly status = h("div", { class: "fl-status", role: "status", "aria-live": "polite" });
  private readonly sizes: ResizeObserver;
  private scheduled = 0;
  private landed = false;
  private page: Page = "memory";
  private readonly pages: Readonly<Record<Page, readonly HTMLElement[]>>;
  private readonly ops = new ComparedOps((op) => this.select(0, { kind: "op", label: op, op }));
  private readonly metrics: ComparedMetrics;
  private readonly timelines: ComparedTimelines;

  private readonly exportMenu: ExportMenu;

  /** `saved`: the page is a file; there is no kernel. */
  constructor(send: (message: ToKernel) => void, height?: number, saved = false) {
    this.element = h("div", { class: "fl-root fl-compare", role: "region", "aria-label": "two recordings compared", tabindex: -1 });
    if (height) this.element.style.height = `${height}px`;
    this.theme = new Theme(this.element);
    this.sides = [0, 1].map((at) => new Side(NAMES[at]!, this.theme, () => this.actions(at))) as unknown as readonly [Side, Side];
    const [a, b] = this.sides;
    for (const [side, other] of [[a, b], [b, a]] as const) side.fragmentation.beside = () => other.model.curve(other.store.range, side.fragmentation.pixels).ratio;
    const order = segmented<SegmentOrder>("Order of segments", [["address", "Address"], ["size", "Size"], ["holes", "Holes"]], "address", (chosen) => {
      for (const { map } of this.sides) map.order = chosen;
      this.resize();
    });
    const peak = h("button", { class: "fl-button", title: "Go to where A has most memory live", onclick: () => this.land() }, "Peak of A");
    const choice = segmented<Page>("What to compare", [["memory", "Memory"], ["ops", "Ops"], ["timeline", "Timeline"], ["metrics", "Metrics"]], "memory", (chosen) => this.show(chosen));
    const [figures, sides] = [h("div", { class: "fl-comparefigures", tabindex: 0 }, this.table, this.legend), h("div", { class: "fl-comparesides", tabindex: 0 }, a.element, b.element)];
    this.metrics = new ComparedMetrics(this.theme);
    this.timelines = new ComparedTimelines(this.theme, [a.store, b.store], send, () => this.schedule());
    this.exportMenu = new ExportMenu({
      name: () => this.sides.map(({ store }) => store.run?.name ?? "run").join("-and-"),
      shown: () => ({ element: this.element, views: this.tablesShown().map((describe) => ({ view: { element: this.element, describe } })) }),
      ask: send, refusal: () => (saved ? "a saved page has no kernel" : ""), announce: (message) => setText(this.status, message),
    }, `flnb-compare-${++comparisons}`, ["html", "svg"]);
    this.pages = { memory: [figures, sides, order, peak, this.words], ops: [this.ops.element], metrics: [this.metrics.element], timeline: [this.timelines.element] };
    this.element.append(
      h("div", "fl-viewbar", choice, this.words, h("span", "fl-space"), order, peak, this.exportMenu.element),
      figures, sides, this.ops.element, this.metrics.element, this.timelines.element, this.status);
    this.show("memory");
    this.sizes = new ResizeObserver(() => this.resize());
    for (const element of [this.element, a.element, b.element]) this.sizes.observe(element);
    this.theme.onChange(() => this.schedule());
    on(window, "keydown", this.key, true);
    send({ type: "hello", protocol: 1 });
  }

  receive(content: unknown, buffers: readonly (DataView | ArrayBuffer | Uint8Array)[]): void {
    if (isComparison(content)) this.ops.set(content);
    if (isExportAnswer(content)) this.exportMenu.receive(content, buffers[0]);
    if (isTimelineMessage(content)) {
      this.sides[content.side ?? 0].store.receive(content, buffers, performance.now());
      this.timelines.heard(content.side ?? 0, content);
    }
    if (!isFrame(content)) return;
    this.sides[content.side ?? 0].store.receive(content, buffers, performance.now());
    this.landed = false;
    if (!this.sides.every(({ store }) => store.landed)) return;
    this.landed = true;
    for (const side of this.sides) side.measure();
    const [allocated, reserved] = (["allocated", "reserved"] as const).map((name) => Math.max(...this.sides.map(({ most }) => most[name]))) as [number, number];
    const top = Math.max(...this.sides.map(({ store }) => axisTop(allocated, reserved, store.run?.capacity ?? null).top));
    for (const { timeline } of this.sides) timeline.least = { allocated, reserved, top };
    this.land();
  }

  /** The data of the page that is shown. */
  private tablesShown(): (() => DataTable)[] {
    if (this.page === "ops") return [() => this.ops.describe()];
    if (this.page === "timeline") return [() => this.timelines.describe()];
    if (this.page === "metrics") return [() => this.metrics.describe(this.sides[0].store, this.sides[1].store)];
    return this.sides.map((side) => () => ({ ...stepTable(side, side.model, Infinity), caption: `${side.letter}: memory at the peak of each step` }));
  }

  get testState(): ComparisonState {
    const [sides, landed, page, timelines] = [this.sides, (): boolean => this.landed, (): Page => this.page, this.timelines];
    return {
      get whole() { return landed(); },
      get page() { return page(); },
      get cursors() { return sides.map(({ store }) => store.cursor); },
      get selections() { return sides.map(({ store }) => store.selection); },
      get timelines() { return timelines.testState; },
    };
  }

  destroy(): void {
    cancelAnimationFrame(this.scheduled);
    this.sizes.disconnect();
    window.removeEventListener("keydown", this.key, true);
    this.timelines.destroy();
    this.theme.destroy();
    this.element.remove();
  }

  private show(page: Page): void {
    this.page = page;
    for (const [name, elements] of Object.entries(this.pages)) for (const element of elements) element.hidden = name !== page;
    this.resize();
  }

  /** What a reader does on one side happens on both. */
  private actions(at: number): Actions {
    const both = (act: (store: Store, time: (t: number) => number) => void): void => {
      const [here, there] = [this.sides[at]!.store, this.sides[1 - at]!.store];
      act(here, (t) => t);
      act(there, (t) => counterpartTime(here, there, t));
      this.schedule();
    };
    const nothing = (): void => undefined;
    return {
      select: (selection) => this.select(at, selection),
      setCursor: (t) => both((store, time) => store.setCursor(t === null ? null : time(t))),
      setRange: (t0, t1) => both((store, time) => store.setRange(time(t0), Math.max(time(t1), time(t0) + 1e-9))),
      live: () => this.land(), setLimit: nothing, pause: nothing, show: nothing, find: nothing, ask: nothing,
      announce: (message) => setText(this.status, message),
    };
  }

  private select(at: number, selection: Selection | null): void {
    const [here, there] = [this.sides[at]!.store, this.sides[1 - at]!.store];
    here.select(selection);
    let other = selection;
    if (selection?.kind === "block") {
      const row = counterpartRow(here, there, here.memory.lifetimes.row(selection.block!));
      other = row < 0 ? null : selectionOfBlock(there, row);
    } else if (selection?.kind === "segment" || selection?.kind === "hole") other = null;
    there.select(other);
    this.ops.select(selection?.op ?? null);
    this.schedule();
  }

  /** To where A has most live, and what stands for that in B. */
  private land(): void {
    this.sides[0].store.follow();
    const { store } = this.sides[0];
    const { cursor, range } = store;
    const { setCursor, setRange } = this.actions(0);
    setRange(range.t0, range.t1);
    setCursor(cursor);
  }

  private schedule(): void {
    if (!this.scheduled) this.scheduled = requestAnimationFrame(() => this.draw());
  }

  private resize(): void {
    const wide = this.element.clientWidth;
    for (const [name, fits] of [["fl-wide", wide >= 1040], ["fl-medium", wide >= 720 && wide < 1040], ["fl-narrow", wide < 720]] as const) this.element.classList.toggle(name, fits);
    for (const side of this.sides) side.resize();
    this.schedule();
  }

  private draw(): void {
    this.scheduled = 0;
    if (!this.landed) {
      setText(this.words, "waiting for the recordings");
      return;
    }
    this.theme.refresh();
    if (this.page === "metrics") this.metrics.draw(this.sides[0].store, this.sides[1].store);
    if (this.page === "timeline") this.timelines.draw();
    if (this.page !== "memory") {
      this.tell();
      return;
    }
    this.write();
    for (const side of this.sides) side.draw();
  }

  private write(): void {
    const [a, b] = this.sides;
    setText(this.words, "");
    const request = Math.max(...this.sides.map(({ model }) => model.request().bytes));
    const states = this.sides.map(({ store, model }) => model.state(store.at));
    const now = this.sides.map(({ model }, at) => fragmentationOf(model.index, states[at]!, request));
    const figures: Figure[] = [
      { name: "live", kind: "bytes", values: now.map(({ live }) => live) }, { name: "reserved", kind: "bytes", values: now.map(({ reserved }) => reserved) },
      { name: "reserved/live", kind: "ratio", values: now.map((one) => one.ratio) }, { name: `unusable(${bytesText(request)})`, kind: "share", values: now.map(({ unusable }) => unusable) },
      { name: "internal", kind: "share", values: now.map(({ internal }) => internal) }, { name: "largest hole", kind: "bytes", values: now.map(({ largest }) => largest) },
      { name: "segments", kind: "count", values: states.map(({ segments }) => segments.length), wide: true },
      { name: "peak reserved", kind: "bytes", values: this.sides.map(({ most }) => most.reserved) }, { name: "ratio at peak", about: "reserved/live when most was live, of the whole run", kind: "ratio", values: this.sides.map(({ most }) => most.ratio) },
      { name: "average ratio", kind: "ratio", values: this.sides.map(({ most }) => most.average) }, { name: "peak live", kind: "bytes", values: this.sides.map(({ most }) => most.allocated), wide: true },
    ];
    const hide = ({ wide }: Figure): { class: string | null } => ({ class: wide ? "fl-wideonly" : null });
    const wide = this.element.classList.contains("fl-wide");
    const line = (name: string, value: (figure: Figure) => string): HTMLElement => h("tr", {}, h("th", { scope: "row" }, name), ...figures.map((figure) => h("td", hide(figure), value(figure))));
    this.table.replaceChildren(h("caption", "fl-hidden", "Memory of both recordings"),
      h("thead", {}, h("tr", {}, h("td"), h("th", { colspan: wide ? 7 : 6 }, `at the scrubber: ${inWords(a.store, b.store, a.store.at, integer)}`), h("th", { colspan: wide ? 4 : 3 }, "of the whole run; ratio: reserved/live")),
        h("tr", {}, h("td"), ...figures.map((figure) => h("th", { scope: "col", title: figure.about, ...hide(figure) }, figure.name)))),
      h("tbody", {}, ...NAMES.map((name, at) => line(name, (figure) => shown(figure, figure.values[at]!))), line("B − A", difference)));
    this.legends();
    this.tell();
  }

  private legends(): void {
    const seen = new Set<number>();
    for (const { model, store } of this.sides) {
      const { totals } = model.timeline({ t0: 0, t1: store.now }, 64);
      totals.forEach((value, at) => value > 0 && seen.add(at % TOTALS_WIDTH));
    }
    const items = [...categoryOrder, WASTE].filter((category) => seen.has(category));
    this.legend.replaceChildren(...items.map((category) => h("span", "fl-legenditem", square(this.theme, category), nameOf(category))));
  }

  /** What is selected, and where it lies on either side. */
  private tell(): void {
    if (this.page === "timeline") {
      this.say(this.timelines.status);
      return;
    }
    const chosen = this.sides.find(({ store }) => store.selection)?.store.selection;
    if (!chosen && this.page !== "memory") {
      this.say(this.page === "ops" ? "Click a column to sort by it, an op to select it in both recordings." : "A in ink, B in colour; steps are those of each run.");
      return;
    }
    if (!chosen) {
      this.say(HINT);
      return;
    }
    const places = this.sides.map(({ store, letter }) => {
      const { lifetimes } = store.memory;
      const row = store.selection?.kind === "block" ? lifetimes.row(store.selection.block!) : -1;
      if (row < 0) return chosen.kind === "block" ? `${letter}: no such allocation` : "";
      const where = `${letter}: S${lifetimes.segment[row]!} + 0x${lifetimes.offset[row]!.toString(16)}, ${bytesText(lifetimes.size[row]!)}`;
      return lifetimes.isLive(row, store.at) ? where : `${where}, not live here`;
    });
    const parts = [...places.filter(Boolean), "Esc clears"].flatMap((place) => [" · ", place]);
    this.status.replaceChildren(h("span", "fl-text", "Selected ", h("b", "fl-code", chosen.label), ...parts));
  }

  /** A line for the status, whole in its title where it is cut. */
  private say(line: string): void {
    if (this.status.textContent !== line) this.status.replaceChildren(h("span", { class: "fl-text", title: line }, line));
  }

  private readonly key = (event: KeyboardEvent): void => {
    const path = event.composedPath();
    const target = path[0];
    if (!(target instanceof Element) || !path.includes(this.element)) return;
    if (keepKeys(event, this.element) || target.closest("input, [role=menu]")) return; // Escape closes the menu, and clears nothing
    if (this.page === "timeline") {
      // Of a button that was clicked the browser and its group need these; the others are the timeline's.
      const own = target.closest("button") !== null && (event.key === " " || event.key === "Enter" || event.key.startsWith("Arrow"));
      if (own || !this.timelines.key(event)) return;
      event.preventDefault();
      event.stopPropagation();
      return;
    }
    if (this.page === "metrics" && this.metrics.key(event)) {
      event.preventDefault();
      event.stopPropagation();
      return;
    }
    const at = this.sides[1].element.contains(target) ? 1 : 0;
    const { store, timeline, fragmentation, map } = this.sides[at]!;
    const pressed = target.closest("button, [role=radio]") !== null && (event.key === " " || event.key === "Enter");
    if (pressed) return;
    const picture = [timeline, fragmentation, map].find(({ surface }) => surface.canvas === target);
    if (!picture?.key(event) && !this.command(event.key, at, store)) return;
    event.preventDefault();
    event.stopPropagation();
  };

  private command(key: string, at: number, store: Store): boolean {
    const { setCursor, setRange } = this.actions(at);
    const step = (by: number): void => {
      const { steps } = store;
      const row = clamp(steps.after("t0", store.at) - 1 + by, 0, steps.length - 1);
      if (row >= 0) setCursor((steps.column("t0")[row]! + steps.column("t1")[row]!) / 2);
    };
    const commands: Record<string, () => void> = {
      Escape: () => this.select(at, null), f: () => setRange(0, store.now), "[": () => step(-1), "]": () => step(1),
    };
    const span = key.startsWith("Arrow") ? null : spanOfKey(key, store.range, store.at, store.limits, LEAST_SECONDS);
    if (span) setRange(span.t0, span.t1);
    const command = commands[key.length === 1 ? key.toLowerCase() : key];
    command?.();
    return span !== null || command !== undefined;
  }
}
