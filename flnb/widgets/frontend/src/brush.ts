/** The overview strip: the whole run's memory in grey, the one time range over it, marks where something went wrong. */

import { clamp } from "./clamp.ts";
import { attribute, on } from "./dom.ts";
import { fillBox, horizontal, label, Surface, ticks, tracePath, vertical } from "./canvas.ts";
import { integer } from "./format.ts";
import type { Range } from "./store.ts";
import { panned, TimeScale, within } from "./timeline/scale.ts";
import type { ViewContext } from "./view.ts";

const MARGIN = 10;
const GRIP = 6;

export class Brush {
  readonly element: HTMLElement;
  private readonly context: ViewContext;
  private readonly surface: Surface;
  private drag: { mode: "move" | "left" | "right"; x: number; range: Range } | null = null;
  private drawn = "";
  private drawnAt = 0;

  constructor(context: ViewContext, element: HTMLElement) {
    this.context = context;
    this.surface = new Surface("the whole run and the time range shown");
    this.element = element;
    const { canvas } = this.surface;
    attribute(canvas, "role", "slider");
    canvas.tabIndex = 0;
    element.append(canvas);
    on(canvas, "pointerdown", this.press);
    on(canvas, "pointermove", this.move);
    on(canvas, "pointerup", this.release);
    on(canvas, "pointercancel", this.release);
    on(canvas, "dblclick", () => context.actions.live());
    on(canvas, "keydown", this.key);
  }

  resize(width: number, height: number): void {
    if (!this.surface.resize(width, height)) return;
    // Drawn at once: numbers beside it change its width often, and a cleared canvas would stay blank for a frame.
    this.drawn = "";
    this.render(performance.now());
  }

  /** The whole run, in seconds. */
  private get scale(): TimeScale {
    const { overview } = this.context.store.memory;
    return new TimeScale({ t0: 0, t1: Math.max(this.context.store.now, overview.count * overview.width) }, MARGIN, this.surface.width - MARGIN);
  }

  render(now: number): void {
    const { store, theme } = this.context;
    const { width, height } = this.surface;
    if (width < 40) return;
    // What the reader does shows at once; the run grows slowly against its whole length.
    const key = `${store.versions.view} ${theme.version} ${width} ${store.versions.frame}`;
    const grown = this.drawn.slice(0, this.drawn.lastIndexOf(" ")) === key.slice(0, key.lastIndexOf(" "));
    if (key === this.drawn || (grown && now - this.drawnAt < 180)) return;
    this.drawn = key;
    this.drawnAt = now;
    const c = this.surface.begin();
    const { colours } = theme;
    const { overview } = store.memory;
    if (overview.count === 0 && store.steps.length === 0) {
      horizontal(c, MARGIN, width - MARGIN, height / 2, colours.mark, [2, 3]);
      label(c, "no time range yet", width / 2, height / 2 - 9, colours.dim, theme.ui(10.5), "center");
      return;
    }
    const { scale } = this;
    this.profile(c, scale);
    for (const t of ticks(0, scale.t1, 6)) if (t > 0) vertical(c, scale.x(t), height - 3, height, colours.dim);
    const { t0, t1 } = store.range;
    const [left, right] = [Math.max(MARGIN, scale.x(t0)), Math.min(width - MARGIN, scale.x(t1))];
    fillBox(c, colours.range, left, 0, Math.max(2, right - left), height);
    c.fillStyle = colours.brand;
    for (const edge of [left, Math.max(left + 2, right)]) {
      c.fillRect(Math.round(edge) - 1, 0, 2, height);
      c.beginPath();
      c.roundRect(Math.round(edge) - 2.5, height / 2 - 6, 5, 12, 2);
      c.fill();
    }
    if (store.cursor !== null) vertical(c, scale.x(store.cursor), 0, height, colours.brand);
    for (const { t } of store.exchanges) vertical(c, scale.x(t), 0, height, colours.ink, [2, 2]);
    this.marks(c, scale);
    const canvas = this.surface.canvas;
    attribute(canvas, "aria-valuemin", "0");
    attribute(canvas, "aria-valuemax", scale.t1.toFixed(2));
    attribute(canvas, "aria-valuenow", t1.toFixed(2));
    attribute(canvas, "aria-valuetext", `${t0.toFixed(2)} to ${t1.toFixed(2)} of ${scale.t1.toFixed(2)} seconds${store.following ? ", following" : ""}`);
  }

  /** The largest allocation of every pixel, as a quiet silhouette. */
  private profile(c: CanvasRenderingContext2D, scale: TimeScale): void {
    const { store, theme } = this.context;
    const { overview, peak } = store.memory;
    const { width, height } = this.surface;
    const most = Math.max(peak.allocated, 1);
    c.fillStyle = theme.colours.mark;
    let last = 0;
    for (let x = MARGIN; x < width - MARGIN; x++) {
      const from = Math.max(0, Math.floor(scale.time(x) / overview.width));
      const to = clamp(Math.ceil(scale.time(x + 1) / overview.width) - 1, from, overview.count - 1);
      let value = 0;
      for (let bin = from; bin <= to; bin++) value = Math.max(value, overview.allocated[bin]!);
      if (from >= overview.count) value = scale.time(x) <= store.now ? last : 0;
      last = value;
      const tall = (value / most) * (height - 9);
      c.fillRect(x, height - 3 - tall, 1, tall);
    }
  }

  private marks(c: CanvasRenderingContext2D, scale: TimeScale): void {
    const { store, theme } = this.context;
    const { norms: { all: gradientNorm }, steps } = store;
    const values = gradientNorm.column("value");
    let shown = -Infinity;
    for (let row = 0; row < gradientNorm.length; row++) {
      if (!Number.isNaN(values[row]!)) continue;
      const x = scale.x(gradientNorm.column("t")[row]!);
      if (x - shown < 64) continue;
      shown = x;
      const step = gradientNorm.column("step")[row]!;
      const wide = x + 70 < this.surface.width;
      label(c, "✕", x, 7, theme.colours.error, theme.ui(11, 700), "center");
      if (wide) label(c, `step ${integer(step)}`, x + 8, 7, theme.colours.dim, theme.ui(10.5));
    }
    const { counters } = store;
    if (!counters?.dropped || counters.dropped_first_step === null) return;
    const column = steps.column("index");
    for (let row = 0; row < steps.length; row++) {
      if (column[row]! !== counters.dropped_first_step) continue;
      const x = scale.x(steps.column("t0")[row]!);
      c.fillStyle = theme.colours.warn;
      tracePath(c, x, 2, x + 5, 7, x, 12, x - 5, 7);
      c.fill();
      label(c, "dropped", x + 8, 7, theme.colours.dim, theme.ui(10.5));
      break;
    }
  }

  private readonly press = (event: PointerEvent): void => {
    const { store, actions } = this.context;
    if (store.now <= 1e-3) return;
    this.surface.canvas.setPointerCapture(event.pointerId);
    const x = event.offsetX;
    const { scale } = this;
    let range = store.range;
    const [left, right] = [scale.x(range.t0), scale.x(range.t1)];
    let mode: "move" | "left" | "right" = "move";
    if (Math.abs(x - left) <= GRIP && right - left > 2 * GRIP) mode = "left";
    else if (Math.abs(x - right) <= GRIP && right - left > 2 * GRIP) mode = "right";
    else if (x < left - GRIP || x > right + GRIP) {
      const half = (range.t1 - range.t0) / 2;
      range = within({ t0: scale.time(x) - half, t1: scale.time(x) + half }, scale);
      actions.setRange(range.t0, range.t1);
    }
    this.drag = { mode, x, range };
  };

  private readonly move = (event: PointerEvent): void => {
    const { store, actions } = this.context;
    const { scale } = this;
    if (!this.drag) {
      const [left, right] = [scale.x(store.range.t0), scale.x(store.range.t1)];
      const near = Math.abs(event.offsetX - left) <= GRIP || Math.abs(event.offsetX - right) <= GRIP;
      this.surface.canvas.style.cursor = near ? "ew-resize" : event.offsetX > left && event.offsetX < right ? "grab" : "pointer";
      return;
    }
    const by = (event.offsetX - this.drag.x) * scale.pixel;
    const { t0, t1 } = this.drag.range;
    const least = scale.t1 / 2000;
    if (this.drag.mode === "left") actions.setRange(clamp(t0 + by, 0, t1 - least), t1);
    else if (this.drag.mode === "right") actions.setRange(t0, Math.max(Math.min(scale.t1, t1 + by), t0 + least));
    else if (by !== 0) {
      const moved = panned(this.drag.range, by, scale);
      actions.setRange(moved.t0, moved.t1);
    }
  };

  private readonly release = (): void => {
    this.drag = null;
  };

  private readonly key = (event: KeyboardEvent): void => {
    if (event.key === "Home" || event.key === "End") {
      const { t0, t1 } = this.context.store.range;
      if (event.key === "Home") this.context.actions.setRange(0, t1 - t0);
      else this.context.actions.live();
      event.preventDefault();
    }
  };
}
