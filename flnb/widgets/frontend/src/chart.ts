/** A line chart over steps: the raw line thin, the smoothed one in ink over it, bad values as a cross. */

import { bisectCenter } from "d3-array";
import { fillBox, horizontal, label, Surface, ticks, vertical } from "./canvas.ts";
import { clamp } from "./clamp.ts";
import { attribute, h, on, setText } from "./dom.ts";
import { integer, joined, plain, significant } from "./format.ts";
import type { Theme } from "./theme.ts";
import type { Measure } from "./view.ts";

export interface Curve {
  /** Sorted by step; only the first `length` entries count. NaN marks a bad value. */
  steps: ArrayLike<number>;
  values: ArrayLike<number>;
  length: number;
}

/** Whether an axis should be logarithmic: all values positive, over more than a factor of ten, or named as losses and norms are. */
export function wantsLog(name: string, curve: Curve): boolean {
  let [least, most] = [Infinity, 0];
  for (let at = 0; at < curve.length; at++) {
    const value = curve.values[at]!;
    if (Number.isNaN(value)) continue;
    if (value <= 0) return false;
    least = Math.min(least, value);
    most = Math.max(most, value);
  }
  return most > 0 && (/loss|norm/i.test(name) || most / least > 30);
}

/** Exponentially smoothed values (in the logarithm where `log`), with a window of about `window` points. Skips NaN. */
export function smooth(curve: Curve, window: number, log: boolean): Float64Array {
  const result = new Float64Array(curve.length);
  const weight = 2 / (Math.max(1, window) + 1);
  let state = NaN;
  let seen = 0;
  for (let at = 0; at < curve.length; at++) {
    const value = log ? Math.log(curve.values[at]!) : curve.values[at]!;
    if (Number.isFinite(value)) {
      seen++;
      // The first points average all there is, so that the line does not hang on its first value.
      state = Number.isNaN(state) ? value : state + Math.max(weight, 1 / seen) * (value - state);
    }
    result[at] = log ? Math.exp(state) : state;
  }
  return result;
}

/** Lower and upper end of an axis that holds the values with a little air. */
export function extent(values: ArrayLike<number>, length: number, log: boolean): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (let at = 0; at < length; at++) {
    const value = values[at]!;
    if (!Number.isFinite(value) || (log && value <= 0)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return log ? [0.1, 1] : [0, 1];
  if (log) return low === high ? [low / 2, high * 2] : [low * (low / high) ** 0.06, high * (high / low) ** 0.06];
  const air = high > low ? (high - low) * 0.06 : Math.abs(high) * 0.1 || 0.5;
  return [low >= 0 && low - air < 0 ? 0 : low - air, high + air];
}

/** Tick values of an axis: powers of ten (with 2 and 5 where a decade or two is all there is), or round steps: also of a logarithmic one with hardly a power of ten. */
export function axisTicks(low: number, high: number, log: boolean): number[] {
  if (!log) return ticks(low, high, 4);
  const decades = Math.log10(high / low);
  const factors = decades < 0.9 ? [1, 2, 3, 5, 7] : decades < 1.6 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / 4));
  const values: number[] = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    if (power % every) continue;
    for (const factor of factors) {
      const value = factor * 10 ** power;
      if (value >= low && value <= high) values.push(value);
    }
  }
  const found = values.map((value) => Number(value.toPrecision(3)));
  const even = decades < 1 && found.length < 3 ? ticks(low, high, 4).filter((value) => value > 0) : [];
  return even.length > found.length ? even : found;
}

const OUTSIDE = "outside of steps";

/** What was logged outside of any step has the number −1. */
export const stepName = (step: number): string => (step < 0 ? OUTSIDE : `step ${integer(step)}`);

const LEFT = 48;
const RIGHT = 12;
const TOP = 7;
const BOTTOM = 15;

export class Chart {
  readonly element: HTMLElement;
  private readonly body: HTMLElement;
  private readonly surface: Surface;
  private readonly value: HTMLElement;
  private readonly caption: HTMLElement;
  private readonly tip: HTMLElement;
  private readonly theme: Theme;
  private curve: Curve = { steps: [], values: [], length: 0 };
  /** Another run's curve under it, in the brand's colour. */
  private beside: Curve | null = null;
  private log = false;
  private hover: number | null = null;
  private span: [number, number] = [0, 1];
  private readonly format: (value: number) => string;
  private readonly axisFormat: (value: number) => string;
  /** Called with the index of the point that was clicked. */
  onPick: ((at: number) => void) | null = null;

  /** Values as the header and the tooltip show them, and as the axis does. */
  constructor(name: string, theme: Theme, format: (value: number) => string = significant, axisFormat: (value: number) => string = plain) {
    this.theme = theme;
    this.axisFormat = axisFormat;
    this.format = format;
    this.surface = new Surface(name);
    this.value = h("b");
    this.caption = h("span");
    this.tip = h("div", { class: "fl-tip", hidden: true });
    this.body = h("div", "fl-chartbody", this.surface.canvas, this.tip);
    this.element = h("div", "fl-chart", h("div", "fl-charthead", this.value, this.caption), this.body);
    const { canvas } = this.surface;
    on(canvas, "pointermove", (event) => this.point(event.offsetX));
    on(canvas, "pointerleave", () => this.point(null));
    on(canvas, "blur", () => this.point(null));
    canvas.tabIndex = 0;
    on(canvas, "click", () => {
      if (this.hover !== null) this.onPick?.(this.hover);
    });
  }

  /** New data; `shown` is the key value in the header, `first` and `last` are steps that the axis holds besides its own. */
  set(curve: Curve, options: { name: string; note?: string | undefined; shown: string; log: boolean; last: number | null; first?: number; beside?: Curve | null }): void {
    this.curve = curve;
    this.beside = options.beside ?? null;
    this.log = options.log;
    setText(this.value, options.shown);
    // A single dot on an empty grid is no fault: nothing else is known.
    setText(this.caption, joined([options.name, options.note, options.log && "log", curve.length === 1 && `only ${stepName(curve.steps[0]!)}`]));
    this.caption.title = options.name;
    const first = curve.length ? curve.steps[0]! : 0;
    const last = Math.max(options.last ?? -1, curve.length ? curve.steps[curve.length - 1]! : 1);
    const begin = Math.min(0, first, options.first ?? 0);
    this.span = last < 0 ? [-1.5, -0.5] : [begin, Math.max(last, begin + 1)]; // without steps: one place, in the middle
    attribute(this.surface.canvas, "aria-label", `${options.name}: ${options.shown} ${last < 0 ? OUTSIDE : `at step ${this.span[1]}`}`);
  }

  /** Fit to the element's place; false where that has no size now (a hidden page), and must be asked again. */
  measure(): boolean {
    const { clientWidth, clientHeight } = this.body;
    this.surface.resize(clientWidth, clientHeight);
    return clientWidth > 0 && clientHeight > 0;
  }

  render(cursorStep: number | null): void {
    const { width, height } = this.surface;
    if (width < 60 || height < 30) return;
    const c = this.surface.begin();
    const { colours } = this.theme;
    const { curve, beside, log } = this;
    const ends = [curve, ...(beside ? [beside] : [])].filter(({ length }) => length).map(({ values, length }) => extent(values, length, log));
    const [low, high] = ends.length ? [Math.min(...ends.map(([least]) => least)), Math.max(...ends.map(([, most]) => most))] : extent([], 0, log);
    const place = log ? Math.log : (value: number): number => value;
    const y = (value: number): number => TOP + ((place(high) - place(value)) / (place(high) - place(low))) * (height - TOP - BOTTOM);
    const x = this.x;
    for (const tick of axisTicks(low, high, log)) {
      horizontal(c, LEFT - 6, width - RIGHT, y(tick), colours.grid);
      label(c, this.axisFormat(tick), LEFT - 10, y(tick), colours.dim, this.theme.ui(10.5), "right");
    }
    horizontal(c, LEFT - 6, width - RIGHT, height - BOTTOM, colours.mark);
    if (this.span[0] >= 0) label(c, integer(this.span[0]), LEFT - 6, height - 7, colours.dim, this.theme.ui(10));
    label(c, stepName(this.span[1]), width - RIGHT, height - 7, colours.dim, this.theme.ui(10), "right");
    if (cursorStep !== null) vertical(c, x(cursorStep), TOP, height - BOTTOM, colours.brand);
    if (beside) {
      this.line(c, beside, beside.values, x, y, colours.brand, 1.6, false);
      if (beside.length < 12) this.dots(c, beside, x, y, colours.brand);
    }
    if (curve.length > 40) {
      this.line(c, curve, curve.values, x, y, colours.dim, 0.8, true);
      this.line(c, curve, smooth(curve, clamp(curve.length / 50, 5, 60), log), x, y, colours.ink, 1.6, false);
    } else {
      this.line(c, curve, curve.values, x, y, colours.ink, 1.4, false);
      if (curve.length < 12) this.dots(c, curve, x, y, colours.ink);
    }
    this.bad(c, x);
    if (this.hover !== null && this.hover < curve.length) {
      const at = x(curve.steps[this.hover]!);
      vertical(c, at, TOP, height - BOTTOM, colours.dim);
      const value = curve.values[this.hover]!;
      if (Number.isFinite(value)) {
        fillBox(c, colours.ink, at - 2, y(value) - 2, 4, 4);
      }
    }
  }

  /** Arrows read one point after another, Enter goes to the one that is read; true when taken. */
  key(event: KeyboardEvent): boolean {
    const { curve: { length }, hover } = this;
    if (event.composedPath()[0] !== this.surface.canvas || !length) return false;
    if (event.key === "Enter") {
      if (hover !== null) this.onPick?.(hover);
      return hover !== null;
    }
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (by) this.mark(hover === null ? length - 1 : clamp(hover + by, 0, length - 1));
    return by !== 0;
  }

  /** Steps and values: at most so many evenly chosen points. */
  rows(most = 1000): [number, Measure][] {
    const every = Math.max(1, Math.ceil(this.curve.length / most));
    const rows: [number, Measure][] = [];
    for (let at = 0; at < this.curve.length; at += every) {
      const value = this.curve.values[at]!;
      rows.push([this.curve.steps[at]!, { value, text: this.format(value) }]);
    }
    return rows;
  }

  private readonly x = (step: number): number =>
    LEFT + ((step - this.span[0]) / (this.span[1] - this.span[0])) * (this.surface.width - LEFT - RIGHT);

  /** A pixel column with several points shows their full height. */
  private line(
    c: CanvasRenderingContext2D, { steps, length }: Curve, values: ArrayLike<number>, x: (step: number) => number, y: (value: number) => number,
    colour: string, width: number, faint: boolean,
  ): void {
    c.strokeStyle = colour;
    c.globalAlpha = faint ? 0.7 : 1;
    c.lineWidth = width;
    c.lineJoin = "round";
    c.beginPath();
    let pen = false;
    let [column, least, most, last] = [-1, 0, 0, 0];
    const flush = (): void => {
      if (column < 0) return;
      if (pen) c.lineTo(column, least);
      else c.moveTo(column, least);
      if (most !== least) c.lineTo(column, most);
      if (last !== most) c.lineTo(column, last);
      pen = true;
    };
    for (let at = 0; at < length; at++) {
      const value = values[at]!;
      if (!Number.isFinite(value) || (this.log && value <= 0)) {
        flush();
        column = -1;
        pen = false;
        continue;
      }
      const here = Math.round(x(steps[at]!) * 2) / 2;
      const level = y(value);
      if (here === column) {
        least = Math.min(least, level);
        most = Math.max(most, level);
      } else {
        flush();
        column = here;
        least = most = level;
      }
      last = level;
    }
    flush();
    c.stroke();
    c.globalAlpha = 1;
  }

  private dots(c: CanvasRenderingContext2D, { steps, values, length }: Curve, x: (step: number) => number, y: (value: number) => number, colour: string): void {
    c.fillStyle = colour;
    for (let at = 0; at < length; at++) {
      const value = values[at]!;
      if (Number.isFinite(value)) c.fillRect(x(steps[at]!) - 1.5, y(value) - 1.5, 3, 3);
    }
  }

  private bad(c: CanvasRenderingContext2D, x: (step: number) => number): void {
    const { error } = this.theme.colours;
    let last = -Infinity;
    for (let at = 0; at < this.curve.length; at++) {
      if (Number.isFinite(this.curve.values[at]!)) continue;
      const here = x(this.curve.steps[at]!);
      if (here - last < 3) continue;
      vertical(c, here, TOP, this.surface.height - BOTTOM, error, [2, 2]);
      if (here - last > 40) label(c, "NaN ✕", here + 4 > this.surface.width - RIGHT - 30 ? here - 3 : here + 3, TOP + 3, error, this.theme.ui(10.5, 600), here + 4 > this.surface.width - RIGHT - 30 ? "right" : "left");
      last = here;
    }
  }

  private point(offset: number | null): void {
    const { curve } = this;
    let found: number | null = null;
    if (offset !== null && curve.length) {
      const step = this.span[0] + ((offset - LEFT) / (this.surface.width - LEFT - RIGHT)) * (this.span[1] - this.span[0]);
      found = bisectCenter(curve.steps, step, 0, curve.length);
    }
    if (found !== this.hover || found !== null) this.mark(found);
  }

  /** Show step and value of a point, or of none. */
  private mark(found: number | null): void {
    const { curve } = this;
    this.hover = found;
    this.tip.hidden = found === null;
    if (found !== null) {
      const value = curve.values[found]!;
      setText(this.tip, `${stepName(curve.steps[found]!)} · ${Number.isFinite(value) ? this.format(value) : "NaN"}`);
      const at = this.x(curve.steps[found]!);
      const right = at > this.surface.width - 110;
      Object.assign(this.tip.style, { top: "0", left: right ? "auto" : `${at + 6}px`, right: right ? `${this.surface.width - at + 6}px` : "auto" });
    }
    this.onHover?.();
  }

  /** Asks the owner for a new drawing. */
  onHover: (() => void) | null = null;
}
