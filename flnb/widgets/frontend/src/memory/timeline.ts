/** Allocated bytes by category over time: a stacked, stepped area in which every pixel shows its largest moment. */

import { clamp } from "../clamp.ts";
import { attribute } from "../dom.ts";
import { fillBox, hatch, horizontal, label, setPen, Surface, ticks } from "../canvas.ts";
import { bytesText, clock, inUnitOf, integer, joined } from "../format.ts";
import { type Selection, selectsBlock } from "../selection.ts";
import type { Moment } from "../protocol.ts";
import { momentsAt, paintCursor, paintMoments } from "../timeline/paint.ts";
import type { ViewContext } from "../view.ts";
import { bindAxis, drawSteps, LEFT, stepCursor, TimeAxis } from "./axis.ts";
import { categoryStack, drawBands, paintMissing, type Places, type Stack, strokeSteps } from "./bands.ts";
import type { CapacityLine } from "./capacity.ts";
import type { Groups } from "./grouping.ts";
import { allocatedOf, RESERVED } from "./lifetimes.ts";
import type { Timeline } from "./stacking.ts";
import type { MemoryModel } from "./model.ts";
import { Tip } from "../tip.ts";

const TOP = 8;
const BOTTOM = 18;
/** Pixels for the words of what happened at one time. */
const STRIP = 16;
/** Lines above the areas are drawn while they leave the areas this share of the height; else a word says where they are. */
const RESERVED_FACTOR = 3;
const CAPACITY_FACTOR = 2.5;

/** Upper end of the axis in bytes, and which of the lines above the areas lie on it. The areas always do. */
export function axisTop(allocated: number, reserved: number, capacity: number | null): { top: number; reserved: boolean; capacity: boolean } {
  const least = Math.max(allocated, 1024);
  const withReserved = reserved <= least * RESERVED_FACTOR;
  const data = withReserved ? Math.max(least, reserved) : least;
  if (withReserved && capacity !== null && capacity > 0 && capacity <= data * CAPACITY_FACTOR) return { top: Math.max(capacity, data) * 1.06, reserved: true, capacity: true };
  return { top: data * 1.22, reserved: withReserved, capacity: false };
}

/** Where the label of a line stands that ends at y: above it, and below the words on top, which are so many pixels high. */
export function labelAt(y: number, words: number): number {
  return Math.max(y - 8, TOP + 6 + words);
}

/** Bytes that the selection holds, by pixel, and the times its blocks live. */
export interface Held { readonly bytes: Float64Array; readonly spans: readonly (readonly [number, number])[]; readonly blocks: number }

export class TimelineChart {
  readonly surface: Surface;
  /** What the scale has room for, whatever is drawn: the same for the picture beside this one. */
  least = { allocated: 0, reserved: 0, top: 0 };
  private readonly tip: Tip;
  private axis: TimeAxis | null = null;
  private line: Timeline | null = null;
  private stack: Stack | null = null;
  private readonly places: Places = { left: LEFT, y: (value) => this.y(value) };
  /** The capacity that can be moved; without one it is only drawn. */
  capacityLine: CapacityLine | null = null;
  /** What the areas stand for, where not for categories. */
  groups: Groups | null = null;
  private top = 1;
  private hover: { x: number; y: number } | null = null;
  private held: { key: string; value: Held } | null = null;

  constructor(private readonly context: ViewContext, private readonly model: MemoryModel, host: HTMLElement) {
    this.surface = new Surface("allocated memory by category over time");
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

  draw(): void {
    const { store, theme } = this.context;
    const { width, height } = this.surface;
    if (width < 120 || height < 60) return;
    const axis = (this.axis = new TimeAxis(store.range, width));
    const line = (this.line = this.model.timeline(axis.range, axis.pixels));
    const c = this.surface.begin();
    const capacity = store.run?.capacity ?? null;
    // The peak of the run as well: the axis does not jump while the picture moves.
    let allocated = store.memory.peak.allocated;
    for (const value of line.allocated) allocated = Math.max(allocated, value);
    let reserved = 0;
    for (const value of line.reserved) reserved = Math.max(reserved, value);
    const scale = axisTop(Math.max(allocated, this.least.allocated), Math.max(reserved, this.least.reserved), capacity);
    const above = [...(scale.reserved ? [] : [`reserved ${bytesText(reserved)}`]), ...(scale.capacity || capacity === null ? [] : [`capacity ${bytesText(capacity)}`])];
    const corner = above.length ? STRIP : 0;
    const words = store.exchanges.length + store.memory.locks.given.length ? STRIP : 0; // those of moments stand over the areas
    const room = height - TOP - BOTTOM;
    this.top = Math.max(words ? (scale.top * room) / (room - words - corner) : scale.top, this.least.top);
    this.grid(c, axis, scale.capacity ? capacity! : null);
    drawBands(c, this.places, (this.stack = this.groups?.stack(line, theme) ?? categoryStack(line, theme)), theme);
    paintMissing(c, theme, store.memory.gaps, (t) => clamp(axis.x(t), axis.left, axis.right), TOP, height - BOTTOM);
    this.selection(c, axis);
    if (scale.reserved) this.reserved(c, axis, line, corner + words);
    if (scale.capacity) this.capacity(c, axis, capacity!, store.limit !== null);
    if (store.limit !== null) this.limit(c, axis, store.limit);
    this.capacityLine?.place({ top: TOP, bottom: height - BOTTOM, most: this.top, own: scale.capacity ? capacity : null });
    paintCursor({ c, theme, scale: axis, height: height - BOTTOM + 5 }, store.cursor);
    paintMoments(c, theme, this.moments(axis), axis, (t) => axis.x(t), TOP + corner, height - BOTTOM, TOP + corner + 6);
    drawSteps(c, axis, store, theme, height - BOTTOM);
    horizontal(c, axis.left, axis.right, height - BOTTOM, theme.colours.mark);
    if (this.hover && axis.inside(this.hover.x)) {
      fillBox(c, theme.colours.dim, Math.floor(this.hover.x), TOP, 1, height - TOP - BOTTOM);
    }
    if (above.length > 0) this.note(c, `↑ ${above.join(" · ")}`, axis.right - 2, TOP + 6, true); // over the cursor's line, not under it
  }

  private y(value: number): number {
    const { height } = this.surface;
    return height - BOTTOM - (value / this.top) * (height - TOP - BOTTOM);
  }

  private grid(c: CanvasRenderingContext2D, axis: TimeAxis, capacity: number | null): void {
    const { theme } = this.context;
    const { unit, number } = inUnitOf(capacity ?? this.top);
    const values = ticks(0, this.top, clamp(this.surface.height / 50, 2, 4), true).filter((value) => capacity === null || Math.abs(this.y(value) - this.y(capacity)) > 13);
    const font = theme.ui(10.5);
    values.forEach((value, at) => {
      const y = this.y(value);
      if (value > 0) horizontal(c, axis.left, axis.right, y, theme.colours.grid);
      const named = capacity === null && at === values.length - 1 && value > 0;
      label(c, `${number(value)}${named ? ` ${unit}` : ""}`, axis.left - 6, y, theme.colours.dim, font, "right");
    });
    if (capacity !== null) label(c, `${number(capacity)} ${unit}`, axis.left - 6, this.y(capacity), theme.colours.dim, font, "right");
  }

  private reserved(c: CanvasRenderingContext2D, axis: TimeAxis, line: Timeline, words: number): void {
    const { theme } = this.context;
    const last = line.reserved[line.pixels - 1]!;
    if (last === 0) return;
    setPen(c, theme.colours.ink, 1.5);
    strokeSteps(c, this.places, line.reserved);
    this.note(c, `reserved ${bytesText(last)}`, axis.right - 2, labelAt(this.y(last), words));
  }

  private capacity(c: CanvasRenderingContext2D, axis: TimeAxis, capacity: number, faint: boolean): void {
    const { colours } = this.context.theme;
    const y = this.y(capacity);
    horizontal(c, axis.left, axis.right, y, faint ? colours.mark : colours.ink, [5, 4]);
    if (!faint) this.note(c, `capacity ${bytesText(capacity)}`, axis.right - 2, y + 9);
  }

  /** The capacity that the reader asks about; what does not fit below it is hatched. */
  private limit(c: CanvasRenderingContext2D, axis: TimeAxis, limit: number): void {
    const { colours } = this.context.theme;
    const y = this.y(limit);
    const { line } = this;
    c.fillStyle = hatch(c, colours.error, 8);
    c.globalAlpha = 0.45; // what holds the bytes stays to be seen
    for (let k = 0; k < (line?.pixels ?? 0); k++) {
      const over = line!.reserved[k]!;
      if (over > limit) c.fillRect(axis.left + k, this.y(over), 1, y - this.y(over));
    }
    c.globalAlpha = 1;
    horizontal(c, axis.left, axis.right, y, colours.ink, [5, 4], 2);
    // On the left: what is reserved is told on the right.
    const what = `what if ${bytesText(limit)}`;
    this.note(c, what, axis.left + 8 + this.context.theme.measure(what, this.context.theme.ui(11, 500)), y < TOP + 20 ? y + 10 : y - 9);
  }

  /** What happened at one time in sight: parts that were exchanged, and cached memory that a program gave back, where its lines stand apart. */
  private moments(axis: TimeAxis): Moment[] {
    const { store } = this.context;
    const seen = ({ t }: { t: number }): boolean => axis.inside(axis.x(t));
    let last = -Infinity;
    const given = store.memory.locks.given.filter((one) => seen(one) && axis.x(one.t) - last > 2 && ((last = axis.x(one.t)), true));
    return [...store.exchanges.filter(seen), ...given.map(({ t, bytes: size }) => ({ t, text: `released ${bytesText(size)}` }))].sort((one, other) => one.t - other.t);
  }

  /** A label that stays readable over whatever is drawn. */
  private note(c: CanvasRenderingContext2D, what: string, x: number, y: number, dim = false): void {
    const { theme } = this.context;
    const font = theme.ui(11, 500);
    const width = theme.measure(what, font);
    fillBox(c, theme.colours.bg, x - width - 2, y - 7, width + 4, 14);
    label(c, what, x, y, dim ? theme.colours.dim : theme.colours.ink, font, "right");
  }

  /** What the selection holds, by pixel; computed again only when something changes. */
  private heldBy(selection: Selection, axis: TimeAxis): Held {
    const { store } = this.context;
    const key = `${store.versions.memory} ${JSON.stringify(selection)} ${axis.range.t0} ${axis.range.t1} ${axis.pixels}`;
    if (this.held?.key === key) return this.held.value;
    const { lifetimes } = store.memory;
    const value = heldBytes(lifetimes, axis.range, axis.pixels, (row) => selectsBlock(store, row, selection));
    this.held = { key, value };
    return value;
  }

  /** A bracket over the life of what is selected, and the bytes it holds as a line from the bottom. */
  private selection(c: CanvasRenderingContext2D, axis: TimeAxis): void {
    const { store, theme } = this.context;
    const { selection } = store;
    if (!selection || selection.kind === "segment") return;
    const bottom = this.surface.height - BOTTOM;
    let spans: readonly (readonly [number, number])[];
    if (selection.kind === "step") {
      const at = store.steps.after("t0", selection.t ?? 0) - 1;
      spans = at < 0 ? [] : [[store.steps.column("t0")[at]!, store.steps.column("t1")[at]!]];
    } else {
      const held = this.heldBy(selection, axis);
      spans = held.spans;
      if (selection.kind !== "block" && held.blocks > 0) {
        setPen(c, theme.colours.ink, 1.25);
        strokeSteps(c, this.places, held.bytes);
      }
    }
    c.lineWidth = 1.5;
    for (const [from, to] of spans) {
      const [x0, x1] = [Math.max(axis.left, axis.x(from)), Math.min(axis.right, axis.x(to))];
      if (x1 < axis.left || x0 > axis.right) continue;
      if (selection.kind === "block" || selection.kind === "step") {
        c.fillStyle = theme.colours.ink;
        c.globalAlpha = 0.07;
        c.fillRect(x0, TOP, x1 - x0, bottom - TOP);
        c.globalAlpha = 1;
      }
      c.strokeStyle = theme.colours.ink;
      c.beginPath();
      // A life that begins or ends outside has no foot there.
      if (axis.x(from) >= axis.left) c.moveTo(x0, TOP + 4);
      else c.moveTo(x0, TOP - 1.5);
      c.lineTo(x0, TOP - 1.5);
      c.lineTo(Math.max(x1, x0 + 1.5), TOP - 1.5);
      if (axis.x(to) <= axis.right) c.lineTo(Math.max(x1, x0 + 1.5), TOP + 4);
      c.stroke();
    }
  }

  private showTip(): void {
    const { axis, line, hover } = this;
    if (!axis || !line || !hover || !axis.inside(hover.x)) {
      this.tip.hide();
      return;
    }
    const { store } = this.context;
    const k = clamp(Math.floor(hover.x - axis.left), 0, line.pixels - 1);
    const value = ((this.surface.height - BOTTOM - hover.y) / (this.surface.height - TOP - BOTTOM)) * this.top;
    let name = "";
    let sum = 0;
    for (const band of this.stack?.bands ?? []) {
      const size = this.stack!.totals[k * this.stack!.width + band.column]!;
      if (name === "" && value >= sum && value < sum + size) name = `${band.name} ${bytesText(size)} of `;
      sum += size;
    }
    const t = line.time[k]!;
    const step = store.stepAt(t);
    const when = step === null ? clock(t) : `step ${integer(step)}`;
    const near = momentsAt(this.moments(axis), hover.x, (at) => axis.x(at));
    this.tip.show(joined([`${name || "allocated "}${bytesText(line.allocated[k]!)}`, when, near]), hover.x, hover.y, this.surface.width);
  }

  /** Totals at the cursor, for the legend. */
  totals(): Float64Array {
    return this.model.index.totalsAt(this.context.store.at).totals;
  }

  label(): void {
    const totals = this.totals();
    const { canvas } = this.surface;
    const said = `allocated ${bytesText(allocatedOf(totals))} of ${bytesText(totals[RESERVED]!)} reserved`;
    const name = `Memory by category: ${said} at the cursor. Arrow keys move the cursor from event to event.`;
    if (canvas.getAttribute("aria-label") !== name) attribute(canvas, "aria-label", name);
  }
}

/** Bytes held by the rows that `chosen` picks, at their largest in each pixel, and up to 400 merged spans of life. */
export function heldBytes(
  blocks: { readonly used: number; readonly start: Float64Array; readonly end: Float64Array; readonly size: Float64Array },
  { t0, t1 }: { t0: number; t1: number }, pixels: number, chosen: (row: number) => boolean,
): Held {
  const events: [number, number][] = [];
  for (let row = 0; row < blocks.used; row++) {
    if (blocks.end[row]! <= t0 || blocks.start[row]! >= t1 || !chosen(row)) continue;
    events.push([blocks.start[row]!, blocks.size[row]!], [blocks.end[row]!, -blocks.size[row]!]);
  }
  // Frees first where both happen at one instant.
  events.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const bytes = new Float64Array(pixels);
  const spans: [number, number][] = [];
  let [live, count, next] = [0, 0, 0];
  for (let k = 0; k < pixels; k++) {
    const begin = t0 + ((t1 - t0) * k) / pixels;
    const end = t0 + ((t1 - t0) * (k + 1)) / pixels;
    const apply = (): void => {
      const [time, change] = events[next++]!;
      live += change;
      if (change > 0) {
        if (count++ === 0) {
          const before = spans.at(-1);
          // Lives that touch within a pixel are one bracket.
          if (before && time - before[1] < (t1 - t0) / pixels) before[1] = Infinity;
          else if (spans.length < 400) spans.push([time, Infinity]);
        }
      } else if (--count === 0) spans.at(-1)![1] = time;
    };
    while (next < events.length && events[next]![0] <= begin) apply();
    let most = live;
    while (next < events.length && events[next]![0] < end) {
      apply();
      most = Math.max(most, live);
    }
    bytes[k] = most;
  }
  while (next < events.length && count > 0) {
    const [time, change] = events[next++]!;
    if (change < 0 && --count === 0) spans.at(-1)![1] = time;
    else if (change > 0) count++;
  }
  return { bytes, spans, blocks: events.length / 2 };
}
