/** Fragmentation over time: reserved/live as a line above, the unusable share as an area below, on one time axis. */

import { max, range } from "d3-array";
import { fillBox, horizontal, label, setPen, Surface, tracePath, vertical } from "../canvas.ts";
import { clamp } from "../clamp.ts";
import { bytesText, joined, percentText, ratio } from "../format.ts";
import { momentsAt, paintCursor } from "../timeline/paint.ts";
import type { ViewContext } from "../view.ts";
import { bindAxis, drawSteps, stepCursor, TimeAxis } from "./axis.ts";
import type { FragmentationCurve } from "./fragmentation.ts";
import type { MemoryModel } from "./model.ts";
import { Tip } from "../tip.ts";

const BOTTOM = 18;
const TOP = 6;

/** Upper ends of the ratio axis with their ticks. */
const RATIO_AXES = [[1, 1.25, 1.5], [1, 1.5, 2], [1, 2, 3], [1, 3, 5], [1, 5, 10], [1, 10, 20], [1, 25, 50], [1, 100, 200], [1, 500, 1000]] as const;
/** The axis grows beyond this only for what is no spike: at the end of a step nearly everything is free for a moment. */
const SPIKES_ABOVE = 5;

/** Upper end of the ratio axis and its ticks; spikes above it are drawn at the edge. */
export function ratioAxis(values: Float64Array): { top: number; ticks: readonly number[] } {
  const known = values.filter((value) => !Number.isNaN(value)).sort();
  const most = known.at(-1) ?? 1;
  const typical = known[Math.floor(known.length * 0.75)] ?? 1;
  const ticks = RATIO_AXES.find(([, , top]) => top >= (top < SPIKES_ABOVE ? most : typical)) ?? RATIO_AXES.at(-1)!;
  return { top: ticks[2], ticks };
}

/** Stretches of a curve above the top of its axis, from one column to another; those a few pixels apart are one. */
export function stretchesAbove(values: Float64Array, top: number): [number, number][] {
  const found: [number, number][] = [];
  values.forEach((value, at) => {
    if (!(value > top)) return;
    const last = found.at(-1);
    if (last && at - last[1] < 12) last[1] = at + 1;
    else found.push([at, at + 1]);
  });
  return found;
}

export class FragmentationChart {
  readonly surface: Surface;
  curve: FragmentationCurve | null = null;
  /** The ratios of the picture beside this one, which is drawn on the same scale. */
  beside: (() => Float64Array) | null = null;
  private readonly tip: Tip;
  private axis: TimeAxis | null = null;
  private hover: { x: number; y: number } | null = null;
  private top = 5;

  constructor(private readonly context: ViewContext, private readonly model: MemoryModel, host: HTMLElement) {
    this.surface = new Surface("fragmentation over time");
    this.tip = new Tip(host);
    host.append(this.surface.canvas);
    bindAxis(this.surface.canvas, context, {
      axis: () => this.axis,
      hover: (place) => {
        this.hover = place;
        this.showTip();
        this.draw();
      },
    });
  }

  key(event: KeyboardEvent): boolean {
    return stepCursor(event, this.context, this.model.index);
  }

  resize(width: number, height: number): void {
    this.surface.resize(width, height);
  }

  /** Columns of the curve. */
  get pixels(): number {
    return new TimeAxis(this.context.store.range, this.surface.width).pixels;
  }

  private get split(): number {
    return Math.round((this.surface.height - BOTTOM) * 0.58);
  }

  private ratioY(value: number): number {
    return this.split - 2 - ((Math.min(value, this.top) - 1) / (this.top - 1)) * (this.split - 4 - TOP);
  }

  private shareY(value: number): number {
    const bottom = this.surface.height - BOTTOM;
    return bottom - value * (bottom - this.split - 12);
  }

  draw(): void {
    const { store, theme } = this.context;
    const { width, height } = this.surface;
    if (width < 120 || height < 70) return;
    const axis = (this.axis = new TimeAxis(store.range, width));
    const curve = (this.curve = this.model.curve(axis.range, axis.pixels));
    const c = this.surface.begin();
    const { colours } = theme;
    const scales = [curve.ratio, ...(this.beside ? [this.beside()] : [])].map(ratioAxis);
    const scale = scales.reduce((one, other) => (other.top > one.top ? other : one));
    this.top = scale.top;
    const font = theme.ui(10.5);
    for (const value of scale.ticks) {
      horizontal(c, axis.left, axis.right, this.ratioY(value), colours.grid);
      label(c, `${value}×`, axis.left - 6, this.ratioY(value), colours.dim, font, "right");
    }
    for (const value of [0, 1]) {
      horizontal(c, axis.left, axis.right, this.shareY(value), value ? colours.grid : colours.mark);
      label(c, `${value * 100} %`, axis.left - 6, this.shareY(value), colours.dim, font, "right");
    }
    this.area(c, axis, curve);
    for (const { t } of store.exchanges) if (axis.inside(axis.x(t))) vertical(c, axis.x(t), TOP, height - BOTTOM, colours.ink, [3, 3]);
    this.line(c, axis, curve);
    this.headlines(c, axis, curve);
    drawSteps(c, axis, store, theme, height - BOTTOM, false);
    if (this.hover && axis.inside(this.hover.x)) {
      fillBox(c, colours.dim, Math.floor(this.hover.x), TOP, 1, height - TOP - BOTTOM);
    }
    paintCursor({ c, theme, scale: axis, height: height - BOTTOM }, store.cursor, false);
  }

  private area(c: CanvasRenderingContext2D, axis: TimeAxis, curve: FragmentationCurve): void {
    c.fillStyle = this.context.theme.colours.ink;
    c.globalAlpha = 0.16;
    c.beginPath();
    const bottom = this.shareY(0);
    for (let k = 0; k < curve.unusable.length; k++) {
      const value = curve.unusable[k]!;
      if (value > 0) c.rect(axis.left + k, this.shareY(value), 1, bottom - this.shareY(value));
    }
    c.fill();
    c.globalAlpha = 1;
  }

  private line(c: CanvasRenderingContext2D, axis: TimeAxis, curve: FragmentationCurve): void {
    setPen(c, this.context.theme.colours.ink, 1.25);
    c.lineJoin = "round";
    c.beginPath();
    let pen = false;
    for (let k = 0; k < curve.ratio.length; k++) {
      const value = curve.ratio[k]!;
      if (Number.isNaN(value)) {
        pen = false;
        continue;
      }
      const y = this.ratioY(value);
      if (pen) c.lineTo(axis.left + k, y);
      else c.moveTo(axis.left + k, y);
      c.lineTo(axis.left + k + 1, y);
      pen = true;
    }
    c.stroke();
  }

  /** What it costs: at the peak of the range, and on average; each where the curve leaves room for it, else nowhere. */
  private headlines(c: CanvasRenderingContext2D, axis: TimeAxis, curve: FragmentationCurve): void {
    const { theme } = this.context;
    const { colours } = theme;
    const { peak } = curve;
    const known = Number.isFinite(peak.ratio) && peak.live > 0;
    const [x, y] = [Math.max(axis.left, axis.x(peak.time)), known ? this.ratioY(peak.ratio) : 0];
    const level = Number.isFinite(curve.average) ? this.ratioY(curve.average) : NaN;
    const taken: { x: number; wide: number; y: number }[] = [];
    const note = (what: string, font: string, colour: string, xs: readonly number[], ys: readonly number[]): void => {
      const wide = theme.measure(what, font);
      const high = ys.map((at) => clamp(at, TOP + 2, this.split - 8)).filter((at) => !(Math.abs(at - level) <= 8)); // not on the line of the average
      const place = xs.flatMap((left) => high.map((at) => ({ x: left, wide, y: at }))).find((one) =>
        one.x >= axis.left + 4 && one.x + wide <= axis.right - 2 && this.free(axis, curve, one) && taken.every((other) => other.x > one.x + wide + 8 || one.x > other.x + other.wide + 8));
      if (!place) return;
      taken.push(place);
      fillBox(c, colours.bg, place.x - 2, place.y - 7, wide + 4, 13); // over what else is drawn
      label(c, what, place.x, place.y, colour, font);
    };
    if (known) {
      const [what, font] = [`at peak ${ratio(peak.ratio)}`, theme.ui(11, 500)];
      note(what, font, colours.ink, [x + 8, x - 8 - theme.measure(what, font)], [y - 13, y + 13, y]);
      taken.push({ x: x - 4, wide: 8, y });
    }
    const above = stretchesAbove(curve.ratio, this.top).map(([from, to]) => [axis.left + from, axis.left + to] as const);
    c.fillStyle = colours.ink;
    for (const [from, to] of above) {
      const middle = (from + to) / 2;
      tracePath(c, middle - 4, TOP, middle + 4, TOP, middle, TOP - 6);
      c.fill();
    }
    for (const [from, to] of above.sort(([a, b], [x, y]) => y - x - b + a).slice(0, 2)) {
      const [what, font] = [`beyond ${this.top}×: ${ratioText(max(curve.ratio.subarray(from - axis.left, to - axis.left))!)}`, theme.ui(10.5)];
      note(what, font, colours.ink, [to + 6, from - 6 - theme.measure(what, font), from + 4], [TOP + 6, TOP + 14]);
    }
    if (!Number.isNaN(level)) {
      horizontal(c, axis.left, axis.right, level, colours.dim, [3, 3]);
      const [what, font] = [`time average in view ${ratio(curve.average)}`, theme.ui(10.5)];
      const last = axis.right - 2 - theme.measure(what, font);
      note(what, font, colours.dim, range(Math.max(0, Math.floor((last - axis.left) / 6))).map((at) => last - at * 6), [level - 9, level + 9]);
    }
    if (!known) return;
    c.fillStyle = colours.bg;
    setPen(c, colours.ink, 1.5);
    c.beginPath();
    c.arc(x, y, 3.5, 0, 7);
    c.fill();
    c.stroke();
  }

  /** Whether the curve and its jumps stay out of the place of a text. */
  private free(axis: TimeAxis, { ratio: values }: FragmentationCurve, { x, wide, y }: { x: number; wide: number; y: number }): boolean {
    const [from, to] = [Math.floor(x - axis.left) - 4, Math.ceil(x + wide - axis.left) + 3];
    let before = NaN;
    for (let k = Math.max(0, from); k <= Math.min(values.length - 1, to); k++) {
      const at = this.ratioY(values[k]!);
      if (Math.max(at, Number.isNaN(before) ? at : before) > y - 8 && Math.min(at, Number.isNaN(before) ? at : before) < y + 8) return false;
      before = at;
    }
    return true;
  }

  private showTip(): void {
    const { axis, curve, hover } = this;
    if (!axis || !curve || !hover || !axis.inside(hover.x)) {
      this.tip.hide();
      return;
    }
    const k = clamp(Math.floor(hover.x - axis.left), 0, curve.ratio.length - 1);
    const share = percentText(curve.unusable[k]!);
    const near = momentsAt(this.context.store.exchanges, hover.x, (t) => axis.x(t));
    this.tip.show(joined([`reserved/live ${ratioText(curve.ratio[k]!)}`, `unusable ${share}`, `largest hole ${bytesText(curve.largest[k]!)}`, near]), hover.x, hover.y, this.surface.width);
  }
}

/** A ratio in words where nothing lives in what is reserved. */
export const ratioText = (value: number): string => (value === Infinity ? "∞ (nothing live)" : ratio(value));
