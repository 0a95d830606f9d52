/** The time axis of a timeline: scale, ticks, zoom and pan. Times are milliseconds. */

import { ticks } from "../canvas.ts";

export interface Span { readonly t0: number; readonly t1: number }

/** The least that a timeline shows: a microsecond. */
export const LEAST = 1e-3;

/** Linear scale between times and pixels. */
export class TimeScale implements Span {
  readonly t0: number;
  readonly t1: number;
  /** Milliseconds of a pixel. */
  readonly pixel: number;

  constructor(span: Span, readonly left: number, readonly right: number) {
    this.t0 = span.t0;
    this.t1 = Math.max(span.t1, span.t0 + LEAST);
    this.pixel = (this.t1 - this.t0) / Math.max(1, right - left);
  }

  x(t: number): number {
    return this.left + (t - this.t0) / this.pixel;
  }

  time(x: number): number {
    return this.t0 + (x - this.left) * this.pixel;
  }

  /** Whether a stretch of time is at least partly in sight. */
  shows(start: number, end: number): boolean {
    return end >= this.t0 && start <= this.t1;
  }
}

/** A span `factor` times as long, in which the time `about` keeps its place; within the limits. */
export function zoomed(span: Span, factor: number, about: number, limits: Span): Span {
  const length = Math.min(Math.max((span.t1 - span.t0) * factor, LEAST), Math.max(LEAST, limits.t1 - limits.t0));
  const share = (about - span.t0) / (span.t1 - span.t0);
  return within({ t0: about - share * length, t1: about + (1 - share) * length }, limits);
}

export function panned(span: Span, by: number, limits: Span): Span {
  return within({ t0: span.t0 + by, t1: span.t1 + by }, limits);
}

/** The span of the same length, moved into the limits as far as it fits. */
export function within(span: Span, limits: Span): Span {
  const length = span.t1 - span.t0;
  if (length >= limits.t1 - limits.t0) return { t0: limits.t0, t1: Math.max(limits.t1, limits.t0 + LEAST) };
  const t0 = Math.min(Math.max(span.t0, limits.t0), limits.t1 - length);
  return { t0, t1: t0 + length };
}

/** Ticks in sight, as times and labels counted from `origin`, in the unit that reads best. */
export function timeTicks(scale: TimeScale, origin: number): { t: number; label: string }[] {
  const [low, high] = [scale.t0 - origin, scale.t1 - origin];
  const goal = Math.max(2, Math.min(10, (scale.right - scale.left) / 75));
  const [unit, name] = high - low > 3000 ? [1000, "s"] : high - low > 3 ? [1, "ms"] : [1e-3, "µs"];
  const values = ticks(low / unit, high / unit, goal);
  const digits = Math.max(0, -Math.floor(Math.log10((values[1] ?? 1) - (values[0] ?? 0)) + 1e-9));
  return values.map((value) => ({ t: value * unit + origin, label: value === 0 ? "0" : `${value.toFixed(digits).replace("-", "−")} ${name}` }));
}
