/** The Memory panel of the overview. */

import { h } from "../dom.ts";
import { bytesText, joined, ratio } from "../format.ts";
import { categoryOrder } from "../palette.ts";
import { Panel } from "../panel.ts";
import type { DataTable, View, ViewContext } from "../view.ts";
import { nameOf } from "./bands.ts";
import { BlockMap } from "./blockmap.ts";
import { keyOf, square } from "./legend.ts";
import { allocatedOf, TOTALS_WIDTH, WASTE } from "./lifetimes.ts";
import { memoryOf, type MemoryModel } from "./model.ts";
import { stepTable } from "./tables.ts";
import { TimelineChart } from "./timeline.ts";

const LEGEND_SAMPLES = 64;

/** Figures of the moments where most was live: the ratio that memory costs. */
function headline(context: ViewContext): string {
  const { peak } = context.store.memory;
  return peak.allocated > 0 ? `reserved/live at peak ${ratio(peak.reserved / peak.allocated)}` : "";
}

export class MemoryPanel implements View {
  readonly element: HTMLElement;
  private readonly model: MemoryModel;
  private readonly panel: Panel;
  private readonly chart: TimelineChart;
  private readonly map: BlockMap;
  private readonly legend = h("div", "fl-legend");
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
    this.panel.body.append(h("div", "fl-column", this.chartHost, this.legend, this.mapHost));
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
      this.panel.sub = joined([`live ${store.lower ? "≥" : ""}${bytesText(live)}`, headline(this.context)]);
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
    const items = [...categoryOrder.filter((category) => most[category]! > 0), WASTE];
    const key = `${items.join()} ${theme.version}`;
    if (key === this.legendKey || peak === 0) return;
    this.legendKey = key;
    this.legend.replaceChildren(...items.map((category) =>
      h("span", { style: "display:inline-flex;align-items:center;gap:5px;white-space:nowrap;height:16px", ...(category === WASTE ? { class: "fl-wideonly" } : {}) }, square(theme, category), category === WASTE ? "waste" : nameOf(category).replace(" state", ""))));
    this.resize(); // the legend may have another number of lines
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
