/** Lateness of many ranks over the steps that are kept, a pixel showing the largest in it; the worst are named beside it. */

import { on } from "../dom.ts";
import { label, setPen, strokeBox, Surface, tracePath } from "../canvas.ts";
import { entry } from "../columns.ts";
import { durationText, integer } from "../format.ts";
import { Panel } from "../panel.ts";
import { Tip } from "../tip.ts";
import type { DataTable, ViewContext } from "../view.ts";
import { WORST } from "./late.ts";
import type { CollectivesModel } from "./model.ts";

const LEFT = 40;
const TOP = 2;
const BOTTOM = 20;
const NAMES = 156;
/** Lateness below this share of the scale's end is left white. */
const LEAST = 0.06;

export interface Lateness {
  steps: readonly number[];
  /** By rank and step, ms; the largest of the step's calls. */
  values: Float64Array[];
  /** Means over the steps, and ranks from the worst on. */
  means: Float64Array;
  worst: readonly number[];
  most: number;
}

const known = new WeakMap<CollectivesModel, Lateness>();

/** How much later than the median each rank came, step by step. */
export function latenessOf(model: CollectivesModel): Lateness {
  const found = known.get(model);
  if (found) return found;
  const steps = [...new Set(Array.from({ length: model.rows }, (_, row) => model.step(row)))].filter((step) => step >= 0).sort((one, two) => one - two);
  const at = new Map(steps.map((step, index) => [step, index]));
  const values = Array.from({ length: model.ranks }, () => new Float64Array(steps.length));
  for (let row = 0; row < model.rows; row++) {
    const column = at.get(model.step(row));
    if (column === undefined) continue;
    const begins = Array.from({ length: model.ranks }, (_, rank) => model.begin(rank, row));
    const sorted = begins.filter((t) => !Number.isNaN(t)).sort((one, two) => one - two);
    const middle = sorted[sorted.length >> 1];
    if (middle === undefined) continue;
    begins.forEach((t, rank) => {
      if (t - middle > values[rank]![column]!) values[rank]![column] = t - middle;
    });
  }
  const means = Float64Array.from(values, (row) => row.reduce((sum, value) => sum + value, 0) / Math.max(1, row.length));
  const worst = Array.from(means, (_, rank) => rank).sort((one, two) => means[two]! - means[one]!);
  const result = { steps, values, means, worst, most: Math.max(1e-3, ...values.map((row) => Math.max(0, ...row))) };
  known.set(model, result);
  return result;
}

export class HeatMap {
  readonly panel: Panel;
  private readonly surface = new Surface("lateness of all ranks");
  private readonly tip: Tip;
  private model: CollectivesModel | null = null;
  private chosen = -1;

  constructor(private readonly context: ViewContext, pick: (rank: number, step: number | null) => void) {
    this.panel = new Panel("All ranks", () => this.describe());
    this.panel.body.append(this.surface.canvas);
    this.tip = new Tip(this.panel.body);
    const { canvas } = this.surface;
    on(canvas, "click", (event) => {
      const place = this.placeAt(event.offsetX, event.offsetY);
      if (place) pick(place.rank, place.step);
    });
    on(canvas, "pointermove", (event) => {
      const place = this.placeAt(event.offsetX, event.offsetY);
      canvas.style.cursor = place ? "pointer" : "default";
      if (!place || !this.model) return this.tip.hide();
      const lateness = latenessOf(this.model);
      const column = place.step === null ? -1 : lateness.steps.indexOf(place.step);
      const value = column < 0 ? lateness.means[place.rank]! : lateness.values[place.rank]![column]!;
      this.tip.show(`rank ${this.model.number(place.rank)} · ${place.step === null ? "mean" : `step ${integer(place.step)}`} · ${durationText(value * 1e6)} late`, event.offsetX, event.offsetY, this.surface.width);
    });
    on(canvas, "pointerleave", () => this.tip.hide());
  }

  resize(): void {
    this.surface.resize(this.panel.body.clientWidth, this.panel.body.clientHeight);
  }

  update(model: CollectivesModel, chosen: number): void {
    [this.model, this.chosen] = [model, chosen];
    const { steps } = latenessOf(model);
    this.panel.sub = `${model.ranks} ranks × ${integer(steps.length)} steps, lateness · click opens a lane`;
    this.draw();
  }

  private get right(): number {
    return Math.max(LEFT + 20, this.surface.width - NAMES);
  }

  private draw(): void {
    const { model } = this;
    const { theme } = this.context;
    const { colours } = theme;
    const { width, height } = this.surface;
    if (!model || width < 120 || height < 40) return;
    const c = this.surface.begin();
    const lateness = latenessOf(model);
    const { right } = this;
    const high = height - TOP - BOTTOM;
    this.cells(c, lateness, high, theme.family("communication"));
    strokeBox(c, colours.mark, LEFT - 0.5, TOP - 0.5, right - LEFT + 1, high + 1);
    const last = model.ranks - 1;
    for (const rank of [0, last >> 1, last]) label(c, String(model.number(rank)), LEFT - 6, Math.max(TOP + 5, Math.min(TOP + high - 5, TOP + ((rank + 0.5) * high) / model.ranks)), colours.dim, theme.ui(10), "right");
    if (lateness.steps.length) {
      label(c, integer(lateness.steps[0]), LEFT, height - 8, colours.dim, theme.ui(10));
      label(c, `step ${integer(lateness.steps.at(-1))}`, right, height - 8, colours.dim, theme.ui(10), "right");
    }
    this.key(c, lateness.most, height - 8);
    this.names(c, lateness, high);
  }

  /** A row of pixels may stand for several ranks, a column for several steps: it shows the latest. */
  private cells(c: CanvasRenderingContext2D, { values, steps, most }: Lateness, high: number, colour: string): void {
    const cells = new Map<number, number>();
    const { right } = this;
    const [rows, columns] = [Math.min(values.length, Math.floor(high)), Math.min(steps.length, Math.floor(right - LEFT))];
    values.forEach((row, rank) => row.forEach((value, step) => {
      const share = value / most;
      if (share < LEAST) return;
      const key = Math.floor((rank * rows) / values.length) * columns + Math.floor((step * columns) / steps.length);
      if (share > entry(cells, key, () => 0)) cells.set(key, share);
    }));
    c.fillStyle = colour;
    for (const [key, share] of cells) {
      const [row, column] = [Math.floor(key / columns), key % columns];
      const [x0, x1] = [column, column + 1].map((at) => Math.round(LEFT + (at * (right - LEFT)) / columns)) as [number, number];
      const [y0, y1] = [row, row + 1].map((at) => Math.round(TOP + (at * high) / rows)) as [number, number];
      c.globalAlpha = Math.min(1, 0.12 + 0.9 * share);
      c.fillRect(x0, y0, x1 - x0, y1 - y0);
    }
    c.globalAlpha = 1;
  }

  private key(c: CanvasRenderingContext2D, most: number, y: number): void {
    const { theme } = this.context;
    const x = (LEFT + this.right) / 2 - 28;
    c.fillStyle = theme.family("communication");
    for (let at = 0; at < 5; at++) {
      c.globalAlpha = 0.14 + at * 0.215;
      c.fillRect(x + at * 11, y - 4, 11, 7);
    }
    c.globalAlpha = 1;
    label(c, "0", x - 4, y, theme.colours.dim, theme.ui(10), "right");
    label(c, durationText(most * 1e6), x + 59, y, theme.colours.dim, theme.ui(10));
  }

  private names(c: CanvasRenderingContext2D, { worst, means }: Lateness, high: number): void {
    const { model } = this;
    const { theme } = this.context;
    const { colours } = theme;
    if (!model) return;
    const { right } = this;
    const width = this.surface.width;
    this.listed(worst).forEach((rank, at, all) => {
      const y = TOP + (high / all.length) * (at + 0.5);
      const of = TOP + ((rank + 0.5) * high) / model.ranks;
      setPen(c, colours.dim);
      tracePath(c, right + 2, of, right + 7, of, right + 20, y, right + 24, y);
      c.stroke();
      const place = worst.indexOf(rank);
      const strong = rank === this.chosen;
      label(c, String(model.number(rank)), right + 52, y, colours.ink, theme.ui(10.5, strong ? 600 : ""), "right");
      label(c, durationText(means[rank]! * 1e6), width - 34, y, strong ? colours.ink : colours.text, theme.ui(10.5, strong ? 600 : ""), "right");
      label(c, `${place + 1}.`, width - 12, y, colours.dim, theme.ui(10), "right");
    });
    label(c, "mean, place", width - 12, this.surface.height - 8, colours.dim, theme.ui(10), "right");
  }

  private listed(worst: readonly number[]): number[] {
    return worst.slice(0, WORST).sort((one, two) => one - two);
  }

  private placeAt(x: number, y: number): { rank: number; step: number | null } | null {
    const { model } = this;
    const high = this.surface.height - TOP - BOTTOM;
    if (!model || y < TOP || y >= TOP + high || x < LEFT) return null;
    const { steps, worst } = latenessOf(model);
    if (x > this.right) {
      const names = this.listed(worst);
      const rank = names[Math.floor(((y - TOP) / high) * names.length)];
      return rank === undefined ? null : { rank, step: null };
    }
    const rank = Math.floor(((y - TOP) / high) * model.ranks);
    const step = steps[Math.floor(((x - LEFT) / (this.right - LEFT)) * steps.length)];
    return step === undefined ? null : { rank, step };
  }

  private describe(): DataTable {
    const { model } = this;
    if (!model) return { caption: "Lateness", columns: [], rows: [] };
    const { worst, means, values } = latenessOf(model);
    return {
      caption: "Lateness of all ranks, the worst first", columns: ["Rank", "Mean", "Most"],
      rows: worst.map((rank) => [model.number(rank), durationText(means[rank]! * 1e6), durationText(Math.max(0, ...values[rank]!) * 1e6)]),
    };
  }
}
