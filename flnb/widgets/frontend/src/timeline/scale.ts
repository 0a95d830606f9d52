/** The time axis of every view: scale, ticks, zoom and pan, by wheel and by key. Times are milliseconds, of the memory charts seconds. */

import { ticks } from "../canvas.ts";
import { clamp } from "../clamp.ts";

export interface Span { readonly t0: number; readonly t1: number }

/** The least that a timeline shows: a microsecond. */
export const LEAST = 1e-3;
/** The least that the whole dashboard shows, in seconds. */
export const LEAST_SECONDS = 1e-5;

/** Linear scale between times and pixels. */
export class TimeScale implements Span {
  readonly t0: number;
  readonly t1: number;
  /** Milliseconds of a pixel. */
  readonly pixel: number;

  constructor(span: Span, readonly left: number, readonly right: number, least = LEAST) {
    this.t0 = span.t0;
    this.t1 = Math.max(span.t1, span.t0 + least);
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
export function zoomed(span: Span, factor: number, about: number, limits: Span, least = LEAST): Span {
  const length = clamp((span.t1 - span.t0) * factor, least, Math.max(least, limits.t1 - limits.t0));
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
  const t0 = clamp(span.t0, limits.t0, limits.t1 - length);
  return { t0, t1: t0 + length };
}

/** The span after a key: W and S zoom about the middle or the cursor in sight, A, D and the arrows pan; null for other keys. */
export function spanOfKey(key: string, span: Span, cursor: number | null, limits: Span, least = LEAST): Span | null {
  const length = span.t1 - span.t0;
  const about = cursor !== null && cursor > span.t0 && cursor < span.t1 ? cursor : (span.t0 + span.t1) / 2;
  switch (key) {
    case "w": case "W": return zoomed(span, 1 / 1.5, about, limits, least);
    case "s": case "S": return zoomed(span, 1.5, about, limits, least);
    case "a": case "A": return panned(span, -length / 4, limits);
    case "d": case "D": return panned(span, length / 4, limits);
    case "ArrowLeft": return panned(span, -length / 10, limits);
    case "ArrowRight": return panned(span, length / 10, limits);
    default: return null;
  }
}

/** Whether a wheel belongs to the view: a notebook scrolls under it, unless the reader works in the dashboard or asks with Ctrl. */
export function takesWheel(event: WheelEvent, element: Element): boolean {
  return event.ctrlKey || event.metaKey || element.closest(".fl-root")?.contains(document.activeElement) === true;
}

/** Pixels that a wheel pans by: a sideways one, or any with Shift; null where it zooms, by `zoomOf`. */
export const panOf = ({ shiftKey, deltaX, deltaY }: WheelEvent): number | null =>
  shiftKey || Math.abs(deltaX) > Math.abs(deltaY) ? deltaX || deltaY : null;
export const zoomOf = ({ deltaY }: WheelEvent): number => Math.exp(deltaY * 0.002);

/** The span after a wheel, about the pointer. */
export function spanOfWheel(event: WheelEvent, span: Span, scale: TimeScale, limits: Span, least = LEAST): Span {
  const pan = panOf(event);
  return pan === null ? zoomed(span, zoomOf(event), scale.time(event.offsetX), limits, least) : panned(span, pan * scale.pixel, limits);
}

/** Ticks in sight, as times and labels counted from `origin`, in the unit that reads best. */
export function timeTicks(scale: TimeScale, origin: number): { t: number; label: string }[] {
  const [low, high] = [scale.t0 - origin, scale.t1 - origin];
  const goal = clamp((scale.right - scale.left) / 75, 2, 10);
  const [unit, name] = high - low > 3000 ? [1000, "s"] : high - low > 3 ? [1, "ms"] : [1e-3, "µs"];
  const values = ticks(low / unit, high / unit, goal);
  const digits = Math.max(0, -Math.floor(Math.log10((values[1] ?? 1) - (values[0] ?? 0)) + 1e-9));
  return values.map((value) => ({ t: value * unit + origin, label: value === 0 ? "0" : `${value.toFixed(digits).replace("-", "−")} ${name}` }));
}
