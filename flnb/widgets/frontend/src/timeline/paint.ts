/** Draws the parts of a timeline: bands, axis, lanes with their bars, cursor. Owners draw over it with the same scale. */

import { fillBox, hatch, horizontal, label, strokeBox, tracePath, vertical } from "../canvas.ts";
import { joined } from "../format.ts";
import type { Moment } from "../protocol.ts";
import type { Theme } from "../theme.ts";
import { BAND, type Content, HEADER, HEADING, type Row, type Style } from "./lanes.ts";
import { type TimeScale, timeTicks } from "./scale.ts";

/** A drawing under way: what owners need to draw on the timeline's own axis. */
export interface Frame {
  c: CanvasRenderingContext2D;
  theme: Theme;
  scale: TimeScale;
  /** The lanes' place on the canvas: from `top` to `bottom`, scrolled. */
  top: number;
  bottom: number;
  width: number;
  height: number;
  /** Top of a row on the canvas. */
  row(lane: number, row: number): number;
  lane(lane: number): { top: number; bottom: number };
  /** Draw only what lies within the lanes and their times, or within other heights. */
  clipped(draw: () => void, top?: number, bottom?: number): void;
}

/** Bars narrower than this carry no label (pixels). */
const LABELLED = 14;

/** Bands and ticks; a note at the end of a band gives way to the cursor's handle. */
export function paintHeader({ c, theme, scale, width, height }: Frame, content: Content, cursor: number | null): void {
  const { colours } = theme;
  fillBox(c, colours.bg, 0, 0, width, HEADER);
  content.bands.forEach((band, at) => {
    const [x0, x1] = [Math.max(scale.left, scale.x(band.start)), Math.min(scale.right, scale.x(band.end))];
    if (x1 - x0 < 1) return;
    fillBox(c, at % 2 ? colours.hover : colours.soft, x0, 0, x1 - x0, BAND);
    vertical(c, x0, 0, BAND, colours.line);
    const font = theme.ui(11, band.strong ? 600 : "");
    if (x1 - x0 < theme.measure(band.label, font) + 10) return;
    label(c, band.label, x0 + 6, BAND / 2 + 0.5, band.strong ? colours.ink : colours.dim, font);
    const note = band.note ? theme.measure(band.note, theme.ui(11)) : 0;
    const under = cursor !== null && Math.abs(scale.x(cursor) - (x1 - 6 - note / 2)) < note / 2 + 6;
    if (band.note && !under && x1 - x0 > theme.measure(band.label, font) + note + 24) {
      label(c, band.note, x1 - 6, BAND / 2 + 0.5, colours.dim, theme.ui(11), "right");
    }
  });
  for (const tick of content.ticks?.(scale) ?? timeTicks(scale, content.origin)) {
    const x = scale.x(tick.t);
    if (x < scale.left - 0.5 || x > scale.right + 0.5) continue;
    vertical(c, x, HEADER - 4, HEADER, colours.dim);
    vertical(c, x, HEADER, height, colours.grid);
    const end = x + theme.measure(tick.label, theme.ui(10)) + 4;
    if (end <= width && !(cursor !== null && scale.x(cursor) > x && scale.x(cursor) < end)) label(c, tick.label, x + 3, HEADER - 8, colours.dim, theme.ui(10));
  }
  if (content.since) label(c, theme.fit(content.since, theme.ui(10), HEADING - 16), 12, HEADER - 8, colours.dim, theme.ui(10));
  horizontal(c, 0, width, HEADER, colours.line);
}

export function paintLanes(frame: Frame, content: Content): void {
  const { c, theme, top, bottom, width } = frame;
  const { colours } = theme;
  c.save();
  c.beginPath();
  c.rect(0, top, width, bottom - top);
  c.clip();
  content.lanes.forEach((lane, at) => {
    const place = frame.lane(at);
    if (place.bottom < top || place.top > bottom) return;
    if (at) horizontal(c, 0, width, place.top, colours.grid);
    label(c, theme.fit(lane.title, theme.ui(11, 500), HEADING - 16), 12, place.top + 11, colours.ink, theme.ui(11, 500));
    lane.notes.forEach((note, line) => {
      label(c, theme.fit(note, theme.ui(10), HEADING - 16), 12, place.top + 24 + 13 * line, colours.dim, theme.ui(10));
    });
  });
  c.restore();
  frame.clipped(() => content.lanes.forEach((lane, at) => {
    lane.rows.forEach((row, number) => {
      const y = frame.row(at, number);
      if (y + row.height >= top && y <= bottom) paintRow(frame, row, y, content.styles);
    });
  }));
}

/** The bars of a row that are in sight, each at least a pixel wide. */
export function paintRow({ c, theme, scale }: Frame, { bars, height, label: name, cut }: Row, y: number, styles: readonly Style[]): void {
  const font = theme.ui(10);
  bars.visit(scale.t0, scale.t1, scale.pixel, (start, end, kind, first, count) => {
    const style = styles[kind];
    if (!style) return;
    const left = scale.x(start);
    const wide = scale.x(end) - left;
    if (style.hatch) paintHatched(c, Math.max(left, scale.left - 2), Math.min(left + wide, scale.right + 2), y, height, style.fill, theme.colours.bg);
    else {
      fillBox(c, style.fill, left, y, Math.max(1, wide > 3 ? wide - 1 : wide), height);
    }
    if (count > 1 || wide < LABELLED || !name || !style.text) return;
    const from = Math.max(left, scale.left);
    const room = Math.min(left + wide, scale.right) - from - 6;
    const whole = room > 8 ? name(first) : "";
    const text = cut && room > 18 ? theme.fit(whole, font, room) : whole;
    if (text && theme.measure(text, font) <= room) label(c, text, from + 3.5, y + height / 2 + 0.5, style.text, font);
  });
}

/** Waiting: hatched with an outline, on the page's ground. */
export function paintHatched(c: CanvasRenderingContext2D, left: number, right: number, y: number, height: number, colour: string, ground: string): void {
  const x0 = Math.round(left);
  const x1 = Math.max(Math.round(right), x0 + 1);
  if (x1 - x0 < 3) {
    c.fillStyle = colour;
    c.globalAlpha = 0.5;
    c.fillRect(x0, y, x1 - x0, height);
    c.globalAlpha = 1;
    return;
  }
  fillBox(c, ground, x0, y, x1 - x0, height);
  fillBox(c, hatch(c, colour, 4), x0, y, x1 - x0, height);
  strokeBox(c, colour, x0 + 0.5, y + 0.5, x1 - x0 - 1, height - 1);
}

/** Lines whose words have no place of their own are told of together, at most so many; those nearer than so many pixels first. */
const [TOGETHER, NEAR] = [4, 40];

/**
 * Where the words of what happened at these places stand, between the lines: to the right of a line or to its left, whole,
 * without the kind of part or only with what is new; where none has room, together with those of the next line.
 */
export function placeWords(seen: readonly { at: number; text: string }[], { left, right }: { left: number; right: number }, measure: (words: string) => number): { words: string; x: number; wide: number }[] {
  const found: { words: string; x: number; wide: number }[] = [];
  let [free, first] = [left, 0];
  const placed = (last: number): boolean => {
    const whole = seen.slice(first, last + 1).map(({ text }) => text).join(", ");
    for (const words of [whole, whole.replace(/\w+ (\S+ →)/g, "$1"), whole.replace(/\w+ \S+ →/g, "→")]) {
      const wide = measure(words);
      const [before, after] = [seen[first]!.at - wide - 8, seen[last]!.at + 9];
      const x = after + wide < (seen[last + 1]?.at ?? right + 4) - 3 ? after : before;
      if (x === before && x < free) continue;
      found.push({ words, x, wide });
      free = Math.max(seen[last]!.at, x + wide) + 6;
      first = last + 1;
      return true;
    }
    return false;
  };
  while (first < seen.length) {
    const ends = seen.slice(first, first + TOGETHER).map((_, more) => first + more);
    const near = ends.find((end) => (seen[end + 1]?.at ?? Infinity) - seen[end]!.at >= NEAR) ?? ends.at(-1)!;
    if (![near, ...ends].some(placed)) free = Math.max(free, seen[first++]!.at + 6);
  }
  return found;
}

/** Things that happened at one time: lines with a wedge on top, and at the height `words` what happened, where there is room. `x` is the place of a time. */
export function paintMoments(c: CanvasRenderingContext2D, theme: Theme, moments: readonly Moment[], { left, right }: { left: number; right: number }, x: (t: number) => number, top: number, bottom: number, words: number): void {
  const seen = moments.map(({ t, text }) => ({ at: Math.round(x(t)), text })).filter(({ at }) => at >= left && at <= right);
  const { ink, bg } = theme.colours;
  const font = theme.ui(11, 500);
  for (const one of placeWords(seen, { left, right }, (text) => theme.measure(text, font))) {
    fillBox(c, bg, one.x - 2, words - 7, one.wide + 4, 14);
    label(c, one.words, one.x, words, ink, font);
  }
  c.fillStyle = ink;
  for (const { at } of seen) {
    vertical(c, at, top + 7, bottom, ink, [3, 3]);
    tracePath(c, at - 4, top, at + 5, top, at + 0.5, top + 7);
    c.fill();
  }
}

/** What happened within some pixels of a place, in words. */
export const momentsAt = (moments: readonly Moment[], at: number, x: (t: number) => number): string =>
  joined(moments.filter(({ t }) => Math.abs(x(t) - at) < 6).map(({ text }) => text));

/** The time cursor where it is in sight: brand blue, with a handle on top. */
export function paintCursor({ c, theme, scale, height }: Pick<Frame, "c" | "theme" | "scale" | "height">, t: number | null, handle = true): void {
  if (t === null || t < scale.t0 || t > scale.t1) return;
  const x = Math.round(scale.x(t));
  vertical(c, x, 0, height, theme.colours.brand);
  if (!handle) return;
  c.fillStyle = theme.colours.brand;
  tracePath(c, x - 4.5, 0, x + 5.5, 0, x + 0.5, 7);
  c.fill();
}
