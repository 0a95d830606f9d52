/** Under the lanes, on the same time axis: live and reserved memory, and what was logged. */

import { fillBox, horizontal, label, setPen, ticks } from "../canvas.ts";
import { clamp } from "../clamp.ts";
import { bytesText, inUnitOf, plain } from "../format.ts";
import { categoryStack, drawBands, paintMissing, strokeSteps } from "../memory/bands.ts";
import type { MemoryModel } from "../memory/model.ts";
import { axisTop } from "../memory/timeline.ts";
import type { Store } from "../store.ts";
import { HEADING } from "../timeline/lanes.ts";
import type { Frame } from "../timeline/paint.ts";

const [MEMORY, MEMORY_LEAST, METRIC, METRIC_MOST] = [110, 56, 34, 72];
const MOST = 3;
/** Lanes that need more than this share of the picture scroll before metrics give way. */
const SHARE = 0.5;

export class Tracks {
  /** Top of the memory track, its bottom, and the value at the top. */
  private place = { top: 0, bottom: 0, most: 1 };
  /** So many metrics have a track. */
  private shown = 0;

  /** `beside`: the store whose tracks are drawn beside these, without metrics and on the same scale. */
  constructor(private readonly store: Store, private readonly memory: MemoryModel, private readonly title = "memory", private readonly beside: Store | null = null) {}

  /** Pixels that the tracks take of a picture of this height, in which lanes need so many. Where there is more than all need, lanes get a third of it; where there is less, metrics go first. */
  height(whole: number, lanes: number): number {
    const [memory, least] = this.remembers ? [MEMORY, MEMORY_LEAST] : [0, 0];
    this.shown = this.beside ? 0 : Math.min(this.store.metrics.size, MOST);
    while (this.shown > 0 && Math.min(lanes, whole * SHARE) + least + this.shown * METRIC > whole) this.shown--;
    const metrics = this.shown * METRIC;
    const spare = whole - lanes - memory - metrics;
    return Math.round(spare < 0 ? Math.max(least + metrics, whole - lanes) : memory + metrics + Math.max(spare * 2 / 3, spare - lanes));
  }

  /** Whether there is a track of memory. */
  get remembers(): boolean {
    return this.store.memory.lifetimes.used > 0 || this.store.memory.series.length > 0;
  }

  /** The height of so many bytes on the canvas. */
  y(value: number): number {
    const { top, bottom, most } = this.place;
    return bottom - (value / most) * (bottom - top);
  }

  draw(frame: Frame, footer: number): void {
    const metrics = [...this.store.metrics.keys()].slice(0, this.shown);
    const high = this.remembers ? clamp(Math.floor(footer / (metrics.length + 4)), METRIC, METRIC_MOST) : footer / Math.max(1, metrics.length);
    let top = frame.height - footer;
    const memory = footer - metrics.length * high;
    if (memory > 24 && this.remembers) {
      this.drawMemory(frame, top, top + memory);
      top += memory;
    }
    for (const name of metrics) {
      this.drawMetric(frame, name, top, top + high);
      top += high;
    }
  }

  private drawMemory(frame: Frame, from: number, to: number): void {
    const { c, theme, scale, width } = frame;
    const { colours } = theme;
    this.memory.update();
    const pixels = Math.max(1, Math.floor(scale.right - scale.left));
    const line = this.memory.timeline({ t0: scale.t0 / 1e3, t1: scale.t1 / 1e3 }, pixels);
    let [live, reserved] = [Math.max(this.store.memory.peak.allocated, this.beside?.memory.peak.allocated ?? 0), 0];
    for (const value of line.allocated) live = Math.max(live, value);
    for (const value of line.reserved) reserved = Math.max(reserved, value);
    const { top: most, reserved: drawn } = axisTop(live, reserved, null);
    this.place = { top: from + 8, bottom: to - 4, most };
    fillBox(c, colours.bg, 0, from, width, to - from);
    horizontal(c, 0, width, from, colours.line);
    label(c, this.title, 12, from + 12, colours.ink, theme.ui(11, 500));
    label(c, drawn ? "live, reserved" : "live", 12, from + 25, colours.dim, theme.ui(10));
    if (!drawn) label(c, `reserved ${bytesText(reserved)}`, 12, from + 38, colours.dim, theme.ui(10));
    const { unit, number } = inUnitOf(most);
    for (const value of ticks(0, most, clamp((to - from) / 45, 1, 3), true)) {
      const y = this.y(value);
      if (value > 0) horizontal(c, scale.left, scale.right, y, colours.grid);
      if (y > from + 50) label(c, `${number(value)} ${unit}`, scale.left - 5, y, colours.dim, theme.ui(10), "right");
    }
    frame.clipped(() => {
      const places = { left: scale.left, y: (value: number) => this.y(value) };
      drawBands(c, places, categoryStack(line, theme), theme);
      paintMissing(c, theme, this.store.memory.gaps, (t) => scale.x(t * 1e3), from + 1, to);
      if (drawn && reserved > 0) {
        setPen(c, colours.ink, 1.25);
        strokeSteps(c, places, line.reserved);
      }
    }, from + 1, to);
  }

  private drawMetric({ c, theme, scale, width, clipped }: Frame, name: string, from: number, to: number): void {
    const { colours } = theme;
    const metric = this.store.metrics.get(name)!;
    fillBox(c, colours.bg, 0, from, width, to - from);
    horizontal(c, 0, width, from, colours.line);
    label(c, theme.fit(name, theme.ui(11, 500), HEADING - 16), 12, from + 11, colours.ink, theme.ui(11, 500));
    const [t, value] = [metric.column("t"), metric.column("value")];
    const [first, last] = [Math.max(0, metric.after("t", scale.t0 / 1e3) - 1), Math.min(metric.length, metric.after("t", scale.t1 / 1e3) + 1)];
    let [low, high] = [Infinity, -Infinity];
    for (let at = first; at < last; at++) if (Number.isFinite(value[at]!)) [low, high] = [Math.min(low, value[at]!), Math.max(high, value[at]!)];
    if (!(high >= low)) return;
    label(c, theme.fit(low === high ? plain(low) : `${plain(low)} – ${plain(high)}`, theme.ui(10), HEADING - 16), 12, from + 24, colours.dim, theme.ui(10));
    const y = (at: number): number => to - 6 - ((value[at]! - low) / (high - low || 1)) * (to - from - 14);
    clipped(() => {
      const every = Math.max(1, Math.floor((last - first) / (4 * (scale.right - scale.left))));
      setPen(c, colours.text, 1.25);
      c.beginPath();
      let started = false;
      for (let at = first; at < last; at += every) {
        if (!Number.isFinite(value[at]!)) {
          started = false;
          continue;
        }
        if (started) c.lineTo(scale.x(t[at]! * 1e3), y(at));
        else c.moveTo(scale.x(t[at]! * 1e3), y(at));
        started = true;
      }
      c.stroke();
      c.fillStyle = colours.text;
      if (last - first < 60) for (let at = first; at < last; at++) if (Number.isFinite(value[at]!)) c.fillRect(scale.x(t[at]! * 1e3) - 2, y(at) - 2, 4, 4);
    }, from + 1, to);
  }
}
