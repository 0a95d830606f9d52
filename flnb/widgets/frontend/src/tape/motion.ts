/** Boxes move to their new places instead of jumping there, and stay where the reader dragged them. */

import type { Box, Frame, Key, Layout } from "./layout.ts";
import type { Rows } from "./rows.ts";

const DURATION = 180;
/** More boxes than this stand at their new places at once. */
const MOST = 3000;

export interface Picture { readonly layout: Layout; readonly rows: Rows }

interface Place { x: number; d: number; outer: number; width: number }

const placeOf = (box: Box): Place => ({ x: box.x, d: box.d, outer: box.d + box.height, width: box.width });
const between = (from: number, to: number, part: number): number => from + (to - from) * part;

/** The way from one picture to the next. */
export class Motion {
  private began = -Infinity;
  private places: ReadonlyMap<Key, Place> = new Map();
  private rows: Rows | null = null;
  private origin: Key = "";

  /** From `before`, whose world is `shift` to the right in the new one; what is new comes out of the box `origin`. */
  begin(before: Picture, shift: number, origin: Key, now: number): void {
    if (before.layout.boxes.length > MOST || (typeof matchMedia === "function" && matchMedia("(prefers-reduced-motion: reduce)").matches)) return;
    const places = new Map<Key, Place>();
    const put = (key: Key, place: Place): void => void places.set(key, { ...place, x: place.x + shift });
    for (const box of before.layout.boxes) put(box.key, placeOf(box));
    for (const frame of before.layout.frames) put(frame.group.key, { x: frame.x, d: frame.d, outer: frame.outer, width: frame.width });
    this.places = places;
    this.rows = before.rows;
    this.origin = origin;
    this.began = now;
  }

  stop(): void {
    this.began = -Infinity;
  }

  running(now: number): boolean {
    return now - this.began < DURATION;
  }

  /** The picture on the way to `after`, and how much of its lines is seen (0..1). */
  at(after: Picture, now: number): { picture: Picture; lines: number } {
    if (!this.running(now) || this.rows === null || after.layout.boxes.length > MOST) return { picture: after, lines: 1 };
    const time = Math.max(0, (now - this.began) / DURATION);
    const part = 1 - (1 - time) ** 3;
    const { places, rows } = this;
    const source = places.get(this.origin);
    const from = (key: Key): Place | undefined => places.get(key) ?? source;
    const boxes = after.layout.boxes.map((box): Box => {
      const old = from(box.key);
      return old ? { ...box, x: between(old.x, box.x, part), d: between(old.d, box.d, part) } : box;
    });
    const frames = after.layout.frames.map((frame): Frame => {
      const old = from(frame.group.key);
      if (!old) return frame;
      return {
        ...frame, x: between(old.x, frame.x, part), d: between(old.d, frame.d, part), outer: between(old.outer, frame.outer, part),
        width: between(old.width, frame.width, part),
      };
    });
    const row = (name: keyof Rows): number => between(rows[name], after.rows[name], part);
    return {
      picture: { layout: { ...after.layout, boxes, frames }, rows: { forward: row("forward"), backward: row("backward"), middle: row("middle"), height: row("height"), edge: row("edge") } },
      lines: Math.max(0, 2 * time - 1),
    };
  }
}

/** How far boxes were dragged from where the layout puts them. */
export type Shifts = Map<Key, { x: number; d: number }>;

/** The layout with dragged boxes where they were left; lines to them become curves. */
export function dragged(layout: Layout, shifts: Shifts): Layout {
  if (shifts.size === 0) return layout;
  let { width, above, below } = layout;
  const boxes = layout.boxes.map((box): Box => {
    const shift = shifts.get(box.key);
    if (!shift) return box;
    const moved = { ...box, x: Math.max(0, box.x + shift.x), d: box.d + shift.d };
    width = Math.max(width, moved.x + moved.width);
    above = Math.max(above, moved.d + moved.height);
    below = Math.max(below, -moved.d);
    return moved;
  });
  const moved = new Map(boxes.map((box) => [box.key, box]));
  const routes = layout.routes.map((route) => {
    if (!shifts.has(route.from) && !shifts.has(route.to)) return route;
    const { points } = route;
    const [from, to] = [shifts.has(route.from) ? moved.get(route.from) : undefined, shifts.has(route.to) ? moved.get(route.to) : undefined];
    const start = from ? [from.x + from.width, from.d + from.height / 2] : points.slice(0, 2);
    const end = to ? [to.x, to.d + to.height / 2] : points.slice(-2);
    return { ...route, points: [...start, ...end], straight: false };
  });
  return { ...layout, boxes, routes, width, above, below };
}
