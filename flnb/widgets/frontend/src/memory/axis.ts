/** The time axis that the memory charts share: scale, step ticks, and what pointer and wheel do to it. */

import { clamp } from "../clamp.ts";
import { on } from "../dom.ts";
import { bisectLeft, bisectRight } from "d3-array";
import { label, vertical } from "../canvas.ts";
import { integer } from "../format.ts";
import type { Range, Store } from "../store.ts";
import type { Theme } from "../theme.ts";
import { LEAST_SECONDS, panOf, spanOfWheel, takesWheel, TimeScale } from "../timeline/scale.ts";
import type { ViewContext } from "../view.ts";
import type { MemoryIndex } from "./events.ts";

export const LEFT = 48;
export const RIGHT = 10;

/** The scale of a memory chart, in seconds. */
export class TimeAxis extends TimeScale {
  readonly pixels: number;

  constructor(readonly range: Range, width: number) {
    super(range, LEFT, width - RIGHT, 0);
    this.pixels = Math.max(1, Math.round(this.right - this.left));
  }

  inside(x: number): boolean {
    return x >= this.left && x <= this.right;
  }
}

/** First and last step that are at least partly in the range, for the subtitle; "" where there is none. */
export function stepsIn(store: Store, { t0, t1 }: Range): string {
  const { steps } = store;
  const [begin, end, index] = [steps.column("t0"), steps.column("t1"), steps.column("index")];
  const first = bisectLeft(end, t0, 0, steps.length);
  const last = steps.after("t0", t1) - 1;
  if (first > last || first >= steps.length || begin[first] === undefined) return "";
  return first === last ? `step ${integer(index[first])}` : `steps ${integer(index[first])} to ${integer(index[last])}`;
}

/** A tick where each step begins and its number where there is room. */
export function drawSteps(c: CanvasRenderingContext2D, axis: TimeAxis, store: Store, theme: Theme, y: number, ticks = true): void {
  const { steps } = store;
  const [begin, end, index] = [steps.column("t0"), steps.column("t1"), steps.column("index")];
  const first = Math.max(0, bisectLeft(end, axis.range.t0, 0, steps.length));
  const last = steps.after("t0", axis.range.t1);
  const font = theme.ui(10.5);
  const need = theme.measure(integer(index[Math.max(0, last - 1)]), font) + 12;
  let free = -Infinity;
  for (let at = first; at < last; at++) {
    const x = axis.x(begin[at]!);
    if (x < axis.left - 1) continue;
    const labelled = x >= free;
    if (labelled || axis.x(end[at]!) - x > 4) if (ticks) vertical(c, x, y, y + (labelled ? 4 : 2), theme.colours.dim);
    if (!labelled || x + need - 8 > axis.right + 8) continue;
    label(c, integer(index[at]), x + 4, y + 10, theme.colours.dim, font);
    free = x + need;
  }
}

export interface AxisHandlers {
  axis(): TimeAxis | null;
  /** Pointer over the chart at this place, or null when it leaves. */
  hover(place: { x: number; y: number } | null): void;
  /** A press that did not move; true keeps the cursor where it is. */
  click?(x: number, y: number): boolean;
}

/** Press and drag move the cursor, the wheel zooms around the pointer. */
export function bindAxis(canvas: HTMLCanvasElement, context: ViewContext, handlers: AxisHandlers): void {
  const { store, actions } = context;
  let pressed: { x: number; y: number; moved: boolean } | null = null;
  const cursorTo = (x: number): void => {
    const axis = handlers.axis();
    if (axis) actions.setCursor(clamp(axis.time(x), axis.range.t0, axis.range.t1));
  };
  canvas.tabIndex = 0;
  canvas.style.touchAction = "pan-y";
  canvas.style.cursor = "crosshair";
  on(canvas, "pointerdown", (event) => {
    if (event.button !== 0) return;
    pressed = { x: event.offsetX, y: event.offsetY, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  on(canvas, "pointermove", (event) => {
    handlers.hover({ x: event.offsetX, y: event.offsetY });
    if (!pressed) return;
    if (Math.abs(event.offsetX - pressed.x) > 2) pressed.moved = true;
    if (pressed.moved) cursorTo(event.offsetX);
  });
  const release = (event: PointerEvent): void => {
    if (pressed && !pressed.moved && event.type === "pointerup" && !handlers.click?.(event.offsetX, event.offsetY)) cursorTo(event.offsetX);
    pressed = null;
  };
  on(canvas, "pointerup", release);
  on(canvas, "pointercancel", release);
  on(canvas, "pointerleave", () => handlers.hover(null));
  on(canvas, "wheel", (event) => {
    const axis = handlers.axis();
    if (!axis || !takesWheel(event, canvas)) return;
    event.preventDefault();
    const { t0, t1 } = spanOfWheel(event, store.range, axis, store.limits, LEAST_SECONDS);
    if (store.following && panOf(event) === null) {
      store.span = t1 - t0;
      actions.setCursor(null);
    } else actions.setRange(t0, t1);
  }, { passive: false });
}

/** The arrow keys on a focused chart: the cursor steps to the next event, and the range follows it. True when taken. */
export function stepCursor(event: KeyboardEvent, { store, actions }: ViewContext, index: MemoryIndex): boolean {
  if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return false;
  const { time, length } = index;
  const at = event.key === "ArrowRight" ? bisectRight(time, store.at, 0, length) : bisectLeft(time, store.at, 0, length) - 1;
  if (at < 0 || at >= length) return true;
  const t = time[at]!;
  actions.setCursor(t);
  const { t0, t1 } = store.range;
  const from = Math.max(0, t - (t1 - t0) / 2);
  if (t < t0 || t > t1) actions.setRange(from, from + t1 - t0);
  return true;
}
