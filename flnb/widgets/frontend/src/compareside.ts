/** One of two recordings that are compared: its memory over time, its fragmentation and its block map. */

import { h, setText } from "./dom.ts";
import { bytesText, integer, joined } from "./format.ts";
import { BlockMap } from "./memory/blockmap.ts";
import { FragmentationChart } from "./memory/fragmentation-chart.ts";
import { memoryOf, type MemoryModel } from "./memory/model.ts";
import { TimelineChart } from "./memory/timeline.ts";
import { Panel } from "./panel.ts";
import { Store } from "./store.ts";
import { Theme } from "./theme.ts";
import type { Actions, ViewContext } from "./view.ts";

export class Side {
  readonly element: HTMLElement;
  readonly store = new Store();
  readonly model: MemoryModel;
  readonly timeline: TimelineChart;
  readonly fragmentation: FragmentationChart;
  readonly map: BlockMap;
  /** Of the whole run. */
  most = { allocated: 0, reserved: 0, ratio: NaN, average: NaN };
  private readonly name = h("b", "fl-run");
  private readonly meta = h("span", "fl-meta");
  private readonly hosts: HTMLElement[];
  private readonly panels: Panel[];

  constructor(readonly letter: string, theme: Theme, actions: (store: Store) => Actions) {
    this.model = memoryOf(this.store);
    const context: ViewContext = { store: this.store, theme, actions: actions(this.store), alone: true };
    this.panels = ["Allocated by category", "Fragmentation", "Block map"].map((title) => new Panel(title, undefined, `${letter}: ${title}`));
    this.hosts = this.panels.map(({ body }) => body.appendChild(h("div", { style: "position:absolute;inset:0" })));
    const [first, second, third] = this.hosts as [HTMLElement, HTMLElement, HTMLElement];
    this.timeline = new TimelineChart(context, this.model, first);
    this.fragmentation = new FragmentationChart(context, this.model, second);
    this.map = new BlockMap(context, this.model, third, false);
    this.element = h("section", { class: "fl-compareside", "aria-label": `recording ${letter}` },
      h("header", "fl-head", h("span", "fl-letter", letter), this.name, this.meta), ...this.panels.map(({ element }) => element));
  }

  resize(): void {
    [this.timeline, this.fragmentation, this.map].forEach((picture, at) => picture.resize(this.hosts[at]!.clientWidth, this.hosts[at]!.clientHeight));
  }

  /** Looks through the whole run, once it is there. */
  measure(): void {
    const { store, model } = this;
    model.update();
    const run = { t0: 0, t1: Math.max(store.now, 1e-9) };
    const { peak } = store.memory;
    this.most = {
      allocated: peak.allocated, reserved: model.timeline(run, 1).reserved[0]!, ratio: peak.allocated > 0 ? peak.reserved / peak.allocated : NaN,
      average: model.curve(run, 1).average,
    };
  }

  draw(): void {
    const { store, model } = this;
    model.update();
    const { run } = store;
    setText(this.name, run?.name ?? "");
    const device = run && (run.capacity === null ? run.device : `${run.device} ${bytesText(run.capacity)}`);
    setText(this.meta, joined([run?.manager, device, run?.note]));
    const segments = model.state(store.at).segments.length;
    this.panels[2]!.sub = `${integer(segments)} ${segments === 1 ? "segment" : "segments"} at the scrubber`;
    this.panels[1]!.sub = "line: reserved/live · filled: unusable";
    for (const picture of [this.timeline, this.fragmentation, this.map]) picture.draw();
    this.timeline.label();
  }
}
