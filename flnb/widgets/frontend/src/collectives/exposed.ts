/** What communication costs a step: the time in which a rank only communicates, step by step. */

import { horizontal, label, Surface, ticks } from "../canvas.ts";
import { clamp } from "../clamp.ts";
import { h, on, setText } from "../dom.ts";
import { duration, durationText, integer, percent, percentText, plain } from "../format.ts";
import { Panel } from "../panel.ts";
import type { DataTable, ViewContext } from "../view.ts";
import type { CollectivesModel } from "./model.ts";

const LEFT = 48;
const RIGHT = 12;
const TOP = 8;
const BOTTOM = 16;

export class Exposed {
  readonly panel: Panel;
  private readonly surface = new Surface("exposed communication a step");
  private readonly host: HTMLElement;
  private readonly figures = [0, 1, 2].map(() => ({ value: h("b"), unit: h("span", "fl-unit"), name: h("div", "fl-dim") }));
  private model: CollectivesModel | null = null;

  /** The step whose figures are shown. */
  private chosen = -1;

  constructor(private readonly context: ViewContext, private readonly pick: (step: number) => void) {
    this.panel = new Panel("Exposed", () => this.describe());
    this.panel.sub = "mean of the ranks";
    this.host = h("div", { style: "position:relative;flex:1;min-height:0" }, this.surface.canvas);
    this.panel.body.append(h("div", "fl-column",
      h("div", "fl-bigfigures", ...this.figures.map(({ value, unit, name }) => h("div", {}, value, " ", unit, name))), this.host));
    on(this.surface.canvas, "click", (event) => {
      const row = this.rowAt(event.offsetX);
      if (row) pick(row.step);
    });
    this.surface.canvas.tabIndex = 0;
  }

  /** The arrows go from step to step; true when taken. */
  key(event: KeyboardEvent): boolean {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!by || event.composedPath()[0] !== this.surface.canvas) return false;
    const steps = this.model?.section.steps ?? [];
    const next = steps[clamp(steps.findIndex(({ step }) => step === this.chosen) + by, 0, steps.length - 1)];
    if (next) this.pick(next.step);
    return true;
  }

  resize(): void {
    this.surface.resize(this.host.clientWidth, this.host.clientHeight);
  }

  /** Three figures of the step, and all steps. */
  update(model: CollectivesModel, step: number): void {
    this.model = model;
    const { steps } = model.section;
    const row = steps.find((one) => one.step === step) ?? steps.at(-1);
    const quantities = [duration(row && row.exposed_ms * 1e6), percent(row?.share), percent(row?.overlap)];
    const names = ["exposed", row ? `of step ${integer(row.step)}` : "of the step", "overlap"];
    this.figures.forEach(({ value, unit, name }, at) => {
      setText(value, quantities[at]![0]);
      setText(unit, quantities[at]![1]);
      setText(name, names[at]!);
    });
    this.chosen = row?.step ?? -1;
    this.draw();
  }

  private draw(): void {
    const { theme } = this.context;
    const { colours } = theme;
    const { width, height } = this.surface;
    const rows = this.model?.section.steps ?? [];
    if (width < 80 || height < 30) return;
    const c = this.surface.begin();
    const most = Math.max(1e-3, ...rows.map(({ exposed_ms: ms }) => ms));
    const marks = ticks(0, most * 1.05, height > 70 ? 3 : 2);
    const y = (value: number): number => height - BOTTOM - (value / (most * 1.05)) * (height - BOTTOM - TOP);
    marks.forEach((value, at) => {
      horizontal(c, LEFT, width - RIGHT, y(value), at ? colours.grid : colours.mark);
      label(c, at === marks.length - 1 ? `${plain(value)} ms` : plain(value), LEFT - 5, y(value), colours.dim, theme.ui(10), "right");
    });
    const wide = this.barWidth(rows.length);
    rows.forEach((row, at) => {
      c.fillStyle = row.step === this.chosen ? colours.ink : theme.family("communication");
      const x = LEFT + at * wide;
      const top = Math.min(y(row.exposed_ms), y(0) - 1);
      c.fillRect(x, top, Math.max(1, wide - (wide > 3 ? 1 : 0)), y(0) - top);
    });
    if (!rows.length) return;
    label(c, integer(rows[0]!.step), LEFT, height - 7, colours.dim, theme.ui(10));
    if (rows.length > 1) label(c, `step ${integer(rows.at(-1)!.step)}`, clamp(LEFT + wide * rows.length, LEFT + 80, width - RIGHT), height - 7, colours.dim, theme.ui(10), "right");
  }

  private barWidth(count: number): number {
    return Math.min(24, (this.surface.width - LEFT - RIGHT) / Math.max(1, count));
  }

  private rowAt(x: number): { step: number } | undefined {
    const rows = this.model?.section.steps ?? [];
    return rows[Math.floor((x - LEFT) / this.barWidth(rows.length))];
  }

  private describe(): DataTable {
    const rows = [...(this.model?.section.steps ?? [])].reverse();
    return {
      caption: "Exposed communication by step, mean of the ranks", columns: ["Step", "Time", "Exposed", "Share", "Overlap"],
      rows: rows.map((row) => [row.step, durationText(row.ms * 1e6), durationText(row.exposed_ms * 1e6), percentText(row.share), percentText(row.overlap)]),
    };
  }
}
