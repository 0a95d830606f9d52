/** The memory of devices under the lanes, on their axis: live bytes by category, and freed ones that wait for a stream. */

import { fillBox, horizontal, label, ticks } from "../canvas.ts";
import { bytesText } from "../format.ts";
import { categoryLabels, categoryOrder } from "../palette.ts";
import type { Frame } from "../timeline/paint.ts";
import type { Axis, DevicesModel } from "./model.ts";

export const [TRACK, TRACK_MOST] = [92, 170] as const;
/** The bands: categories by number, then what waits. */
const WAITS = 7;

/** Bytes at the moments at which they change, on an axis; the last row holds to the end. */
export interface MemoryTrack { places: Float64Array; bands: Float64Array[]; most: number; waiting: readonly Waiting[] }
/** A freed block that waits, between places of the axis. */
interface Waiting { from: number; to: number; row: number }

export function memoryTrack(model: DevicesModel, axis: Axis): MemoryTrack {
  const { columns, section } = model;
  const { block_segment: home, block_size: size, block_category: category, block_begin: born, block_end: freed, block_until: until, segment_id: ids, segment_device: devices } = columns;
  const host = new Set<number>();
  ids!.forEach((id, at) => devices![at]! < 0 && host.add(id));
  const changes: [number, number, number][] = [];
  const waiting: Waiting[] = [];
  home!.forEach((segment, row) => {
    if (host.has(segment)) return;
    const on = (t: number): number => model.place(section.origin_ms + t, axis);
    const [begin, end] = [on(Math.max(born![row]!, -1e9)), freed![row]! === Infinity ? Infinity : on(freed![row]!)];
    changes.push([begin, category![row]!, size![row]!], [end, category![row]!, -size![row]!]);
    if (!(until![row]! > freed![row]!)) return;
    const over = until![row]! === Infinity ? Infinity : on(until![row]!);
    changes.push([end, WAITS, size![row]!], [over, WAITS, -size![row]!]);
    if (over > end) waiting.push({ from: end, to: over, row });
  });
  changes.sort((one, two) => one[0] - two[0]);
  const moments = [...new Set(changes.map(([place]) => place))].filter((place) => place < Infinity);
  const bands = Array.from({ length: WAITS + 1 }, () => new Float64Array(moments.length));
  const held = new Float64Array(WAITS + 1);
  let [next, most] = [0, 0];
  moments.forEach((place, at) => {
    while (next < changes.length && changes[next]![0] <= place) {
      const [, band, by] = changes[next++]!;
      held[band] = held[band]! + by;
    }
    held.forEach((value, band) => (bands[band]![at] = value));
    most = Math.max(most, held.reduce((sum, value) => sum + value, 0));
  });
  return { places: Float64Array.from(moments), bands, most, waiting };
}

/** `name` says which block waits, and for what. */
export function drawTrack(frame: Frame, track: MemoryTrack, footer: number, name: (row: number) => string): void {
  const { c, theme, scale, width, height } = frame;
  const { colours } = theme;
  const [top, bottom] = [height - footer, height - 6];
  fillBox(c, colours.bg, 0, top, width, footer);
  horizontal(c, 0, width, top, colours.line);
  label(c, "memory", 12, top + 11, colours.ink, theme.ui(11, 500));
  label(c, "live", 12, top + 24, colours.dim, theme.ui(10));
  legend(frame, track, top + 10);
  if (track.most <= 0) {
    label(c, "no blocks", scale.left + 6, top + 24, colours.dim, theme.ui(10));
    return;
  }
  const high = bottom - top - 20;
  const y = (value: number): number => bottom - (value / (1.05 * track.most)) * high;
  for (const value of ticks(0, track.most, 2, true)) {
    if (value === 0) continue;
    horizontal(c, scale.left, scale.right, y(value), colours.grid);
    label(c, bytesText(value), scale.left - 6, y(value), colours.dim, theme.ui(10), "right");
  }
  const { places } = track;
  const end = (at: number): number => places[at + 1] ?? Infinity;
  frame.clipped(() => {
    for (let at = 0; at < places.length; at++) {
      if (!scale.shows(places[at]!, end(at))) continue;
      const [x0, x1] = [Math.max(scale.left, scale.x(places[at]!)), Math.min(scale.right, scale.x(end(at)))];
      let under = 0;
      for (const band of [...categoryOrder, WAITS]) {
        const value = track.bands[band]![at]!;
        if (value <= 0) continue;
        const [low, up] = [y(under), y(under + value)];
        fillBox(c, band === WAITS ? colours.bg : theme.category(band), x0, up, x1 - x0 + 0.5, Math.max(0.5, low - up - (low - up > 3 ? 1 : 0)));
        if (band === WAITS) dotted(c, x0, up, x1 - x0, low - up, colours.ink);
        under += value;
      }
    }
    names(frame, track, y, name);
  }, top, height);
  horizontal(c, scale.left, scale.right, bottom, colours.line);
}

/** The largest blocks that wait, named beside their dots. */
function names({ c, theme, scale }: Frame, track: MemoryTrack, y: (value: number) => number, name: (row: number) => string): void {
  const font = theme.ui(10.5);
  let reached = -Infinity;
  for (const { from, row } of [...track.waiting].sort((one, two) => one.from - two.from)) {
    if (from < scale.t0 || from > scale.t1) continue;
    const at = track.places.findLastIndex((place) => place <= from);
    const total = track.bands.reduce((sum, band) => sum + (band[at] ?? 0), 0);
    const said = name(row);
    const wide = theme.measure(said, font) + 8;
    const left = Math.min(scale.x(from) + 3, scale.right - wide - 2);
    if (left < reached) continue;
    const middle = Math.max(y(total) - 8, y(track.most) - 2);
    fillBox(c, theme.colours.bg, left, middle - 7, wide, 14);
    label(c, said, left + 4, middle + 0.5, theme.colours.ink, font);
    reached = left + wide + 4;
  }
}

/** From the right: the categories that are in view, and what dots are. */
function legend({ c, theme, scale, width }: Frame, track: MemoryTrack, y: number): void {
  const font = theme.ui(10.5);
  let x = width - 12;
  const seen = (at: number): boolean => scale.shows(track.places[at]!, track.places[at + 1] ?? Infinity);
  const there = [...categoryOrder].filter((band) => track.bands[band]!.some((value, at) => value > 0 && seen(at)));
  for (const band of [...(track.waiting.length ? [WAITS] : []), ...there.reverse()]) {
    const said = band === WAITS ? "freed, waits" : categoryLabels[band]!;
    const wide = theme.measure(said, font) + 16;
    if (x - wide < scale.left + 60) return;
    label(c, said, x, y, theme.colours.dim, font, "right");
    x -= wide;
    fillBox(c, band === WAITS ? theme.colours.bg : theme.category(band), x + 2, y - 4.5, 9, 9);
    if (band === WAITS) dotted(c, x - 3, y - 4.5, 14, 9, theme.colours.ink);
    x -= 8;
  }
}

/** Freed, and waits for a stream: dots. */
export function dotted(c: CanvasRenderingContext2D, x: number, y: number, width: number, height: number, ink: string): void {
  c.fillStyle = ink;
  const [from, to] = [Math.ceil(x / 5) * 5, x + width];
  for (let line = 0, at = y + 2; at < y + height - 0.5; at += 3, line++) {
    for (let dot = from + (line % 2 ? 2.5 : 0); dot < to - 1; dot += 5) c.fillRect(dot, at, 1.3, 1.3);
  }
}
