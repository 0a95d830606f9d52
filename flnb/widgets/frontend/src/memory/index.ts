/** Where is the peak, who holds it, how much is unusable? The Memory panel of the overview and the Memory view. */

import type { Surface } from "../canvas.ts";
import { attribute, h, setQuantity, setText } from "../dom.ts";
import { bytes, integer, percent, ratio, text } from "../format.ts";
import { categoryLabels, categoryOrder } from "../palette.ts";
import { Panel, segmented } from "../panel.ts";
import type { DataTable, View, ViewContext } from "../view.ts";
import { stepsIn } from "./axis.ts";
import { BlockMap } from "./blockmap.ts";
import type { SegmentOrder } from "./places.ts";
import { MemoryDetails } from "./details.ts";
import { FragmentationChart, ratioText } from "./fragmentation-chart.ts";
import { fragmentationOf } from "./fragmentation.ts";
import { allocatedOf, RESERVED, TOTALS_WIDTH, WASTE } from "./lifetimes.ts";
import { memoryOf, type MemoryModel } from "./model.ts";
import { TimelineChart } from "./timeline.ts";

/** A drawing that takes longer than this (ms) is spread over two frames. */
const SLOW = 12;
const TABLE_STEPS = 200;
const LEGEND_SAMPLES = 64;
const TABLE_BLOCKS = 1500;

const HATCH = "background:repeating-linear-gradient(135deg,var(--fl-dim) 0 1px,transparent 1px 3px)";

export function square(theme: ViewContext["theme"], category: number): HTMLElement {
  return h("i", { class: "fl-square", style: category === WASTE ? HATCH : `background:${theme.category(category)}` });
}

export const nameOf = (category: number): string => (category === WASTE ? "rounding waste" : categoryLabels[category]!);

/** The largest moment of each of the last steps, for the table behind the timeline. */
function stepTable(context: ViewContext, model: MemoryModel): DataTable {
  const { steps } = context.store;
  const rows: (string | number)[][] = [];
  for (let at = steps.length - 1; at >= Math.max(0, steps.length - TABLE_STEPS); at--) {
    const line = model.timeline({ t0: steps.column("t0")[at]!, t1: Math.max(steps.column("t1")[at]!, steps.column("t0")[at]! + 1e-9) }, 1);
    const value = (column: number): string => text(bytes(line.totals[column]!));
    rows.push([steps.column("index")[at]!, text(bytes(line.allocated[0]!)), text(bytes(line.reserved[0]!)), line.allocated[0]! > 0 ? ratio(line.reserved[0]! / line.allocated[0]!) : "–",
      ...categoryOrder.map(value), value(WASTE)]);
  }
  return { caption: "Memory at the peak of each step", columns: ["Step", "Peak live", "Reserved", "Reserved / live", ...categoryOrder.map(nameOf), "waste"], rows };
}

/** Figures of the moments where most was live: the ratio that memory costs. */
function headline(context: ViewContext): string {
  const { peak } = context.store.memory;
  return peak.allocated > 0 ? `reserved/live at peak ${ratio(peak.reserved / peak.allocated)}` : "";
}

/** A key belongs to the picture that has the focus. */
function keyOf(event: KeyboardEvent, pictures: readonly { surface: Surface; key(event: KeyboardEvent): boolean }[]): boolean {
  const target = event.composedPath()[0];
  return pictures.find(({ surface }) => surface.canvas === target)?.key(event) ?? false;
}

class MemoryPanel implements View {
  readonly element: HTMLElement;
  private readonly model: MemoryModel;
  private readonly panel: Panel;
  private readonly chart: TimelineChart;
  private readonly map: BlockMap;
  private readonly legend = h("div", { class: "fl-legend" });
  private readonly chartHost = h("div", { style: "position:relative;flex:1;min-height:0" });
  private readonly mapHost = h("div", { style: "position:relative;flex:none;height:56px" });
  private drawn = "";
  /** The `drawn` that the text tells of. */
  private told = "";
  /** The text's version that was written; pictures follow every frame. */
  private wrote = -1;
  private legendKey = "";

  constructor(private readonly context: ViewContext) {
    this.model = memoryOf(context.store);
    this.panel = new Panel("Memory", () => stepTable(context, this.model));
    this.panel.body.append(h("div", { style: "position:absolute;inset:0;display:flex;flex-direction:column" }, this.chartHost, this.legend, this.mapHost));
    this.chart = new TimelineChart(context, this.model, this.chartHost);
    this.map = new BlockMap(context, this.model, this.mapHost, true);
    this.element = this.panel.element;
  }

  resize(): void {
    this.drawn = "";
    this.chart.resize(this.chartHost.clientWidth, this.chartHost.clientHeight);
    this.map.resize(this.mapHost.clientWidth, this.mapHost.clientHeight);
  }

  render(now: number): void {
    const { store, theme } = this.context;
    this.model.update();
    const viewed = `${store.versions.view} ${theme.version}`;
    const key = `${viewed} ${store.versions.memory} ${store.versions.steps}`;
    const news = key !== this.drawn;
    // What was drawn since the last text is told with the next one, also when nothing more comes.
    if (this.wrote !== store.versions.text && this.told !== key) {
      this.wrote = store.versions.text;
      this.told = key;
      const totals = this.model.index.totalsAt(store.at).totals;
      const live = allocatedOf(totals);
      this.panel.sub = [`live ${store.lower ? "≥" : ""}${text(bytes(live))}`, headline(this.context)].filter(Boolean).join(" · ");
      this.legends();
      this.chart.label();
    }
    if (!news) return;
    this.drawn = key;
    if (this.panel.update(now)) return;
    this.chart.draw();
    this.map.draw();
  }

  /** Categories that can be seen in this picture, steady ones first. */
  private legends(): void {
    const { theme } = this.context;
    const line = this.model.timeline(this.context.store.range, LEGEND_SAMPLES);
    const most = new Float64Array(TOTALS_WIDTH);
    let peak = 0;
    for (let k = 0; k < line.pixels; k++) {
      for (let column = 0; column < TOTALS_WIDTH; column++) most[column] = Math.max(most[column]!, line.totals[k * TOTALS_WIDTH + column]!);
      peak = Math.max(peak, line.allocated[k]!);
    }
    const items = [...categoryOrder.filter((category) => most[category]! > peak * 0.01), WASTE];
    const key = `${items.join()} ${theme.version}`;
    if (key === this.legendKey || peak === 0) return;
    this.legendKey = key;
    this.legend.replaceChildren(...items.map((category) =>
      h("span", { style: "display:inline-flex;align-items:center;gap:5px;white-space:nowrap;height:16px", ...(category === WASTE ? { class: "fl-wideonly" } : {}) }, square(theme, category), category === WASTE ? "waste" : nameOf(category).replace(" state", ""))));
  }

  describe(): DataTable {
    return stepTable(this.context, this.model);
  }

  key(event: KeyboardEvent): boolean {
    return keyOf(event, [this.chart, this.map]);
  }

  destroy(): void {
    this.element.remove();
  }
}

class MemoryView implements View {
  readonly element: HTMLElement;
  private readonly model: MemoryModel;
  private readonly timeline: { panel: Panel; host: HTMLElement; chart: TimelineChart };
  private readonly fragmentation: { panel: Panel; host: HTMLElement; chart: FragmentationChart };
  private readonly blocks: { panel: Panel; host: HTMLElement; map: BlockMap };
  private readonly details: MemoryDetails;
  private readonly legendCells = new Map<number | "allocated", { row: HTMLElement; value: HTMLElement; square: HTMLElement | null }>();
  private readonly figures: Record<"ratio" | "unusable" | "internal" | "largest", { name: HTMLElement; value: HTMLElement }>;
  private readonly caption: HTMLElement;
  private drawn = "";
  /** The `drawn` that the text tells of. */
  private told = "";
  /** The text's version that was written; pictures follow every frame. */
  private wrote = -1;
  private cost = 0; // milliseconds of a drawing, smoothed
  private turn = 0;

  constructor(private readonly context: ViewContext) {
    this.model = memoryOf(context.store);
    const side = "width:178px;flex:none;font-size:11px;overflow:hidden";
    const canvasHost = (): HTMLElement => h("div", { style: "position:relative;flex:1;min-width:0" });
    const row = (...children: HTMLElement[]): HTMLElement => h("div", { style: "position:absolute;inset:0;display:flex" }, ...children);

    const first = new Panel("Allocated by category", () => stepTable(context, this.model));
    const firstHost = canvasHost();
    first.body.append(row(firstHost, h("div", { style: side }, this.legendTable())));
    this.timeline = { panel: first, host: firstHost, chart: new TimelineChart(context, this.model, firstHost) };

    const second = new Panel("Fragmentation", () => this.fragmentationTable());
    const secondHost = canvasHost();
    const figure = (): { name: HTMLElement; value: HTMLElement } => ({ name: h("span", { class: "fl-dim" }), value: h("span") });
    this.figures = { ratio: figure(), unusable: figure(), internal: figure(), largest: figure() };
    this.figures.ratio.value.style.fontWeight = "600";
    const lines = Object.values(this.figures).map(({ name, value }) => h("div", { style: "display:flex;justify-content:space-between;line-height:18px" }, name, value));
    this.caption = h("div", { style: "flex:none;padding:0 12px 5px;font:10.5px/15px var(--fl-code);font-variant-ligatures:none" });
    const above = h("div", { style: "display:flex;flex:1;min-height:0" }, secondHost, h("div", { style: `${side};padding:2px 12px 0 10px` }, ...lines));
    second.body.append(h("div", { style: "position:absolute;inset:0;display:flex;flex-direction:column" }, above, this.caption));
    this.fragmentation = { panel: second, host: secondHost, chart: new FragmentationChart(context, this.model, secondHost) };

    const third = new Panel("Block map", () => this.blockTable());
    const thirdHost = h("div", { style: "position:absolute;inset:0" });
    third.body.append(thirdHost);
    const map = new BlockMap(context, this.model, thirdHost, false);
    third.tools.append(this.blockLegend(), segmented<SegmentOrder>("Order of segments", [["address", "Address"], ["size", "Size"], ["holes", "Holes"]], "address", (order) => {
      map.order = order;
      map.resize(thirdHost.clientWidth, thirdHost.clientHeight);
      this.drawn = "";
      this.render(performance.now());
    }));
    this.blocks = { panel: third, host: thirdHost, map };
    for (const { panel } of [this.fragmentation, this.blocks]) panel.element.style.borderTop = "1px solid var(--fl-line)";

    this.details = new MemoryDetails(context, this.model);
    const main = h("div", { style: "display:grid;grid-template-rows:minmax(150px,250fr) minmax(130px,170fr) minmax(110px,164fr);min-width:0;min-height:0" },
      first.element, second.element, third.element);
    this.element = h("div", { class: "fl-split", style: "height:100%;width:100%" }, main, this.details.element);
  }

  resize(): void {
    this.drawn = "";
    const { timeline, fragmentation, blocks } = this;
    timeline.chart.resize(timeline.host.clientWidth, timeline.host.clientHeight);
    fragmentation.chart.resize(fragmentation.host.clientWidth, fragmentation.host.clientHeight);
    blocks.map.resize(blocks.host.clientWidth, blocks.host.clientHeight);
  }

  render(now: number): void {
    const { store, theme } = this.context;
    this.model.update();
    this.details.update(now);
    const viewed = `${store.versions.view} ${theme.version}`;
    const key = `${viewed} ${store.versions.memory} ${store.versions.steps}`;
    const tell = this.wrote !== store.versions.text && this.told !== key;
    const still = key === this.drawn;
    // What was drawn since the last text is told with the next one, also when nothing more comes; then all is drawn.
    if (!still || tell) this.draw(now, key, viewed, still);
    if (!tell) return;
    this.wrote = store.versions.text;
    this.told = key;
    this.write();
  }

  private draw(now: number, key: string, viewed: string, whole: boolean): void {
    const began = performance.now();
    // Where a whole picture takes long, the two lower ones take turns: each still moves ten times a second.
    const turn = !whole && this.cost > SLOW && this.drawn.startsWith(`${viewed} `) ? (this.turn ^= 1) : 2;
    this.drawn = key;
    if (!this.timeline.panel.update(now)) this.timeline.chart.draw();
    if (!this.fragmentation.panel.update(now) && turn !== 0) this.fragmentation.chart.draw();
    if (!this.blocks.panel.update(now) && turn !== 1) this.blocks.map.draw();
    this.cost += 0.2 * (performance.now() - began - this.cost);
  }

  key(event: KeyboardEvent): boolean {
    return keyOf(event, [this.timeline.chart, this.fragmentation.chart, this.blocks.map]);
  }

  probe(): unknown {
    const { store } = this.context;
    const state = this.model.state(store.at);
    const { reserved, largest } = fragmentationOf(this.model.index, state, this.model.request().bytes);
    return {
      allocated: allocatedOf(state.totals), reserved, largest, categories: [...state.totals.subarray(0, WASTE)], waste: state.totals[WASTE],
      segments: state.segments.length, blocks: state.blocks,
    };
  }

  destroy(): void {
    this.element.remove();
  }

  /** Everything that is read rather than seen. */
  private write(): void {
    const { store, theme } = this.context;
    const at = store.at;
    const { totals } = this.model.index.totalsAt(at);
    const state = this.model.state(at);
    const request = this.model.request();
    const range = stepsIn(store, store.range);
    this.timeline.panel.sub = [range, "areas add up to allocated"].filter(Boolean).join(" · ");
    for (const [category, cell] of this.legendCells) {
      const value = category === "allocated" ? allocatedOf(totals) : totals[category]!;
      setQuantity(cell.value, bytes(value));
      if (cell.square && category !== WASTE) cell.square.style.background = theme.category(category as number);
    }
    this.timeline.chart.label();
    const requestText = text(bytes(request.bytes));
    this.fragmentation.panel.sub = request.bytes > 0
      ? `line: reserved/live · filled: unusable for a request of ${requestText}, the largest ${request.steps > 0 ? `of the last ${request.steps} ${request.steps === 1 ? "step" : "steps"}` : "so far"}`
      : "line: reserved/live · filled: unusable";
    const { ratio: ratioFigure, unusable, internal, largest } = this.figures;
    const now = fragmentationOf(this.model.index, state, request.bytes);
    setText(ratioFigure.name, "reserved/live");
    setText(ratioFigure.value, ratioText(now.ratio));
    setText(unusable.name, request.bytes > 0 ? `unusable(${requestText})` : "unusable");
    setText(unusable.value, text(percent(now.unusable)));
    setText(internal.name, "internal");
    setText(internal.value, Number.isNaN(now.internal) ? "–" : `${(now.internal * 100).toFixed(2)} %`);
    setText(largest.name, "largest hole");
    setText(largest.value, text(bytes(now.largest)));
    const formula = "ratio = reserved/live · unusable(r) = Σ(free blocks < r)/Σ(free) · internal = Σ(size − requested)/Σ(size) · time average = ∫reserved/∫live";
    setText(this.caption, formula);
    attribute(this.caption, "title", "reserved/live is what fragmentation costs; r is the request; sums over free blocks, or live ones");
    const step = store.stepAt(at);
    const segments = state.segments.length;
    const where = store.cursor === null ? "now" : `at the cursor${step === null ? "" : `, step ${integer(step)}`}`;
    this.blocks.panel.sub = `${integer(segments)} ${segments === 1 ? "segment" : "segments"}, ${text(bytes(totals[RESERVED]!))} · ${where}`;
  }

  private legendTable(): HTMLElement {
    const table = h("table", { class: "fl-table", style: "font-size:11px" });
    const body = h("tbody");
    const line = (key: number | "allocated", name: string): void => {
      const mark = key === "allocated" ? null : square(this.context.theme, key);
      const value = h("td");
      const bold = key === "allocated" ? "font-weight:600;border:0;" : "";
      const element = h("tr", {}, h("td", { class: "fl-left", style: `${bold}height:18px;padding-left:10px` }, ...(mark ? [mark] : []), mark ? h("span", { style: "margin-left:6px" }, name) : name), value);
      attribute(value, "style", `${bold}height:18px`);
      this.legendCells.set(key, { row: element, value, square: mark });
      body.append(element);
    };
    for (const category of [...categoryOrder].reverse()) line(category, nameOf(category));
    line(WASTE, nameOf(WASTE));
    line("allocated", "allocated");
    table.append(h("caption", { class: "fl-hidden" }, "Bytes by category at the cursor"), body);
    return table;
  }

  private blockLegend(): HTMLElement {
    const item = (style: string, name: string): HTMLElement =>
      h("span", { style: "display:inline-flex;align-items:center;gap:5px" }, h("i", { class: "fl-square", style }), name);
    return h("div", { class: "fl-wideonly", style: "display:flex;gap:12px;font-size:11px;color:var(--fl-dim)" },
      item("border:1px dashed var(--fl-dim)", "free"), item(HATCH, "waste"), item("width:1px;height:6px;background:var(--fl-ink);margin:0 3px", "split"));
  }

  private fragmentationTable(): DataTable {
    const { store } = this.context;
    const { steps } = store;
    const request = this.model.request().bytes;
    const rows: (string | number)[][] = [];
    for (let at = steps.length - 1; at >= Math.max(0, steps.length - 40); at--) {
      const line = this.model.timeline({ t0: steps.column("t0")[at]!, t1: steps.column("t1")[at]! }, 1);
      const found = fragmentationOf(this.model.index, this.model.state(line.time[0]!), request);
      rows.push([steps.column("index")[at]!, ratioText(found.ratio), text(percent(found.unusable)), Number.isNaN(found.internal) ? "–" : `${(found.internal * 100).toFixed(2)} %`, text(bytes(found.largest)), text(bytes(found.free))]);
    }
    return { caption: "Fragmentation at the peak of each step", columns: ["Step", "reserved/live", `unusable(${text(bytes(request))})`, "internal", "largest hole", "free"], rows };
  }

  private blockTable(): DataTable {
    const { store } = this.context;
    const { lifetimes } = store.memory;
    const rows: (string | number)[][] = [];
    for (const segment of this.model.state(store.at).segments) {
      for (const row of segment.rows) {
        if (rows.length >= TABLE_BLOCKS) break;
        const plan = store.plan(lifetimes.plan[row]!);
        rows.push([`S${segment.id}`, `0x${lifetimes.offset[row]!.toString(16)}`, `#${lifetimes.id[row]!}`, nameOf(Math.min(lifetimes.category[row]!, 6)), plan?.op ?? "–",
          store.context(lifetimes.context[row]!)?.scope ?? "–", text(bytes(lifetimes.requested[row]!)), text(bytes(lifetimes.size[row]!))]);
      }
    }
    return { caption: "Blocks of every segment", columns: ["Segment", "Offset", "Block", "Category", "Op", "Scope", "Requested", "Rounded"], rows };
  }
}

export const createMemoryPanel = (context: ViewContext): View => new MemoryPanel(context);
export const createMemoryView = (context: ViewContext): View => new MemoryView(context);
