/** Where is the peak, who holds it, how much is unusable? */

import { h, setText } from "../dom.ts";
import { bytesText, integer, joined, percentText, ratio } from "../format.ts";
import { markOption, Panel, segmented } from "../panel.ts";
import type { DataTable, View, ViewContext } from "../view.ts";
import { stepsIn } from "./axis.ts";
import { categoryStack } from "./bands.ts";
import { BlockMap } from "./blockmap.ts";
import { CapacityLine } from "./capacity.ts";
import { MemoryDetails } from "./details.ts";
import { FragmentationChart, ratioText } from "./fragmentation-chart.ts";
import { fragmentationOf } from "./fragmentation.ts";
import { type Grouping, Groups, onlyLines, REST } from "./grouping.ts";
import { BandTable, blockLegend, keyOf } from "./legend.ts";
import { allocatedOf, RESERVED, WASTE } from "./lifetimes.ts";
import { memoryOf, type MemoryModel } from "./model.ts";
import type { SegmentOrder } from "./places.ts";
import { ProposalPanel } from "./proposal.ts";
import { blockTable, fragmentationTable, stepTable } from "./tables.ts";
import { TimelineChart } from "./timeline.ts";

/** A drawing that takes longer than this (ms) is spread over two frames. */
const SLOW = 12;

/** Below the chart of fragmentation from the start: the chart's height is measured with them there. */
const FORMULAS = ["ratio = reserved/live", "unusable(r) = Σ(free blocks < r)/Σ(free)", "internal = Σ(size − requested)/Σ(size)", "average = ∫reserved/∫live"]
  .map((each) => each.replaceAll(" ", "\u00a0")).join(" · ");

export class MemoryView implements View {
  readonly element: HTMLElement;
  private readonly model: MemoryModel;
  private readonly timeline: { panel: Panel; host: HTMLElement; chart: TimelineChart };
  private readonly fragmentation: { panel: Panel; host: HTMLElement; chart: FragmentationChart };
  private readonly blocks: { panel: Panel; host: HTMLElement; map: BlockMap };
  private readonly details: MemoryDetails;
  private readonly proposal: ProposalPanel;
  private readonly line: CapacityLine;
  private readonly bands = new BandTable();
  private grouping: Grouping = "category";
  private readonly choice: HTMLElement;
  private readonly groups: Partial<Record<Grouping, Groups>> = {};
  /** The run whose grouping was chosen at its opening. */
  private opened = -1;
  private readonly figures: Record<"ratio" | "unusable" | "internal" | "largest" | "peak" | "average", { name: HTMLElement; value: HTMLElement }>;
  private drawn = "";
  /** The `drawn` that the text tells of. */
  private told = "";
  /** The text's version that was written; pictures follow every frame. */
  private wrote = -1;
  private cost = 0; // milliseconds of a drawing, smoothed
  private turn = 0;

  constructor(private readonly context: ViewContext) {
    this.model = memoryOf(context.store);
    const beside = "width:192px;flex:none;font-size:11px;overflow:hidden auto";
    const canvasHost = (): HTMLElement => h("div", { style: "position:relative;flex:1;min-width:0" });
    const row = (...children: HTMLElement[]): HTMLElement => h("div", { style: "position:absolute;inset:0;display:flex" }, ...children);

    const first = new Panel("Allocated", () => stepTable(context, this.model));
    this.choice = segmented<Grouping>("What the areas stand for", [["category", "Category"], ["scope", "Scope"], ["op", "Op"], ["line", "Line"]], "category", (by) => this.group(by));
    first.tools.append(this.choice);
    const firstHost = canvasHost();
    first.body.append(row(firstHost, h("div", { style: beside }, this.bands.element)));
    this.timeline = { panel: first, host: firstHost, chart: new TimelineChart(context, this.model, firstHost) };

    const second = new Panel("Fragmentation", () => fragmentationTable(context, this.model));
    const secondHost = canvasHost();
    const figure = (): { name: HTMLElement; value: HTMLElement } => ({ name: h("span", "fl-dim"), value: h("span") });
    this.figures = { ratio: figure(), unusable: figure(), internal: figure(), largest: figure(), peak: figure(), average: figure() };
    this.figures.ratio.value.style.fontWeight = "600";
    for (const [figure, when] of [["peak", "when most was live"], ["average", "on average"]] as const) this.figures[figure].name.title = `reserved/live ${when}, of the time in sight`;
    const lines = Object.values(this.figures).map(({ name, value }) => h("div", { style: "display:flex;justify-content:space-between;line-height:16px" }, name, value));
    const caption = h("div", { style: "flex:none;padding:0 12px 5px;font:10.5px/15px var(--fl-code);font-variant-ligatures:none", title: "reserved/live is what fragmentation costs; r is the request; sums over free blocks, or live ones" }, FORMULAS);
    const above = h("div", { style: "display:flex;flex:1;min-height:0" }, secondHost, h("div", { style: `${beside};padding:2px 12px 0 10px`, tabindex: 0 }, ...lines));
    second.body.append(h("div", "fl-column", above, caption));
    this.fragmentation = { panel: second, host: secondHost, chart: new FragmentationChart(context, this.model, secondHost) };

    const third = new Panel("Block map", () => blockTable(context, this.model));
    const thirdHost = h("div", "fl-callhost");
    third.body.append(thirdHost);
    const map = new BlockMap(context, this.model, thirdHost, false);
    third.tools.append(blockLegend(), segmented<SegmentOrder>("Order of segments", [["address", "Address"], ["size", "Size"], ["holes", "Holes"]], "address", (order) => {
      map.order = order;
      map.resize(thirdHost.clientWidth, thirdHost.clientHeight);
      this.drawn = "";
      this.render(performance.now());
    }));
    this.blocks = { panel: third, host: thirdHost, map };
    for (const { panel } of [this.fragmentation, this.blocks]) panel.element.style.borderTop = "1px solid var(--fl-line)";

    this.details = new MemoryDetails(context, this.model);
    this.proposal = new ProposalPanel(context, this.model);
    this.timeline.chart.capacityLine = this.line = new CapacityLine(context, firstHost, (limit) => this.proposal.ask(limit));
    const side = h("div", "fl-sides", this.proposal.element, this.details.element);
    const main = h("div", { style: "display:grid;grid-template-rows:minmax(216px,250fr) minmax(160px,170fr) minmax(114px,164fr);min-width:0;min-height:0" },
      first.element, second.element, third.element);
    this.element = h("div", { class: "fl-split", style: "height:100%;width:100%" }, main, side);
  }

  describe(all = false): DataTable {
    return stepTable(this.context, this.model, all ? Infinity : undefined);
  }

  furtherTables(): DataTable[] {
    return [fragmentationTable(this.context, this.model, Infinity), blockTable(this.context, this.model, Infinity)];
  }

  resize(): void {
    this.drawn = "";
    const { timeline, fragmentation, blocks } = this;
    timeline.chart.resize(timeline.host.clientWidth, timeline.host.clientHeight);
    fragmentation.chart.resize(fragmentation.host.clientWidth, fragmentation.host.clientHeight);
    blocks.map.resize(blocks.host.clientWidth, blocks.host.clientHeight);
    this.details.resize();
  }

  render(now: number): void {
    const { store, theme } = this.context;
    this.model.update();
    if (store.landed && this.opened !== store.run?.id) this.open(store.run!.id);
    this.details.update(now);
    this.proposal.update();
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
    this.blocks.map.colourOf = this.grouping === "line" ? this.groups.line!.fills(this.context.theme) : null;
    if (!this.blocks.panel.update(now) && turn !== 1) this.blocks.map.draw();
    this.cost += 0.2 * (performance.now() - began - this.cost);
  }

  key(event: KeyboardEvent): boolean {
    return this.line.key(event) || keyOf(event, [this.timeline.chart, this.fragmentation.chart, this.blocks.map]);
  }

  probe(): unknown {
    const { store } = this.context;
    const state = this.model.state(store.at);
    const { reserved, largest } = fragmentationOf(this.model.index, state, this.model.request().bytes);
    return {
      allocated: allocatedOf(state.totals), reserved, largest, categories: [...state.totals.subarray(0, WASTE)], waste: state.totals[WASTE],
      segments: state.segments.length, blocks: state.blocks, locked: this.blocks.map.conditions(state),
    };
  }

  destroy(): void {
    this.element.remove();
  }

  /** Everything that is read rather than seen. */
  private write(): void {
    const { store } = this.context;
    const at = store.at;
    const { totals } = this.model.index.totalsAt(at);
    const state = this.model.state(at);
    const request = this.model.request();
    const range = stepsIn(store, store.range);
    this.timeline.panel.sub = joined([range, "areas add up to allocated"]);
    this.legends(totals, at);
    this.timeline.chart.label();
    const requestText = bytesText(request.bytes);
    this.fragmentation.panel.sub = request.bytes > 0
      ? `line: reserved/live · filled: unusable for a request of ${requestText}, the largest ${request.steps > 0 ? `of the last ${request.steps} ${request.steps === 1 ? "step" : "steps"}` : "so far"}`
      : "line: reserved/live · filled: unusable";
    const { ratio: ratioFigure, unusable, internal, largest, peak, average } = this.figures;
    const now = fragmentationOf(this.model.index, state, request.bytes);
    setText(ratioFigure.name, "reserved/live");
    setText(ratioFigure.value, ratioText(now.ratio));
    setText(unusable.name, request.bytes > 0 ? `unusable(${requestText})` : "unusable");
    setText(unusable.value, percentText(now.unusable));
    setText(internal.name, "internal");
    setText(internal.value, Number.isNaN(now.internal) ? "–" : `${(now.internal * 100).toFixed(2)} %`);
    setText(largest.name, "largest hole");
    setText(largest.value, bytesText(now.largest));
    const curve = this.model.curve(store.range, Math.max(1, this.fragmentation.chart.pixels));
    const seen = range.replace(" to ", "–") || "in sight"; // short: it stands beside its value
    setText(peak.name, `at peak, ${seen}`);
    setText(peak.value, ratio(curve.peak.live ? curve.peak.ratio : NaN));
    setText(average.name, `mean, ${seen}`);
    setText(average.value, ratio(curve.average));
    const step = store.stepAt(at);
    const segments = state.segments.length;
    const where = store.cursor === null ? "now" : `at the cursor${step === null ? "" : `, step ${integer(step)}`}`;
    this.blocks.panel.sub = `${integer(segments)} ${segments === 1 ? "segment" : "segments"}, ${bytesText(totals[RESERVED]!)} · ${where}`;
  }

  private legends(totals: Float64Array, at: number): void {
    const { theme } = this.context;
    const { chart } = this.timeline;
    const live = allocatedOf(totals);
    if (!chart.groups) return this.bands.update(categoryStack(this.model.timeline(this.context.store.range, 1), theme).bands, totals, live, false);
    const held = chart.groups.at(at);
    // Of a time whose blocks have left, nobody knows who held what.
    held[held.length - 1] = Math.max(0, live - held.reduce((sum, value) => sum + value, 0));
    const bands = chart.groups.bands(theme).filter(({ name, column }) => column < REST || held[column]! > 0 || name === "");
    this.bands.update(bands, held, live, this.grouping === "op");
  }

  /** Of a recording that is all there: group by lines where blocks have no categories, which would all be grey. */
  private open(run: number): void {
    this.opened = run;
    if (this.grouping !== "category" || !onlyLines(this.context.store)) return;
    markOption(this.choice, 3);
    this.group("line");
  }

  private group(by: Grouping): void {
    this.grouping = by;
    this.timeline.chart.groups = by === "category" ? null : (this.groups[by] ??= new Groups(this.context.store, this.model, by));
    this.drawn = "";
    this.told = "";
    this.wrote = -1;
    this.render(performance.now());
  }
}
