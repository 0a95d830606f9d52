/** Where segments stand in the block map. */

import { clamp } from "../clamp.ts";
import type { Mark } from "./marks.ts";
import type { MemoryState, SegmentState } from "./state.ts";

export type SegmentOrder = "address" | "size" | "holes";

/** A segment's place on the canvas; y counts from the top of the content. */
export interface Place { segment: SegmentState; x: number; y: number; width: number; height: number; marks: Mark[] }
export const SIDE = 12;
const SMALL_ROW = 18;
const LARGE_ROW = 24;
const GAP = 8;
export const NAME = 72; // before a segment: its number and size, at least
export const FIGURES = 100; // after it: use and holes
/** From this many segments on several share a row. */
export const CROWD = 48;

/** Segments in the order the reader wants. */
export function ordered(state: MemoryState, order: SegmentOrder, address: (segment: SegmentState) => number): SegmentState[] {
  const segments = [...state.segments];
  if (order === "size") segments.sort((a, b) => b.size - a.size || a.id - b.id);
  else if (order === "holes") segments.sort((a, b) => b.size - b.used - (a.size - a.used) || b.holes - a.holes || a.id - b.id);
  else segments.sort((a, b) => address(a) - address(b) || a.id - b.id);
  return segments;
}

/** Segments of at most a quarter of the largest one, and the others. */
function bySize(segments: readonly SegmentState[]): [small: SegmentState[], large: SegmentState[]] {
  const largest = Math.max(...segments.map((segment) => segment.size));
  return [segments.filter((segment) => segment.size * 4 <= largest), segments.filter((segment) => segment.size * 4 > largest)];
}

/** Places of segments: small ones in two columns, large ones over the whole width, a crowd side by side in rows. */
export function placeSegments(segments: readonly SegmentState[], width: number, name: number, top = 4): { places: Omit<Place, "marks">[]; height: number } {
  const places: Omit<Place, "marks">[] = [];
  if (segments.length === 0) return { places, height: 0 };
  if (segments.length > CROWD) return crowd(segments, width, name, top);
  const [small, large] = bySize(segments);
  // Alike segments make two columns too, where there are many.
  const [halves, wholes] = small.length === 0 && large.length > 4 ? [large, small] : [small, large];
  let y = top;
  const half = (width - 3 * SIDE) / 2;
  const perColumn = Math.ceil(halves.length / 2);
  halves.forEach((segment, at) => {
    const x = SIDE + (at >= perColumn ? half + SIDE : 0) + name;
    places.push({ segment, x, y: y + (at % perColumn) * (SMALL_ROW + GAP), width: half - name - FIGURES, height: SMALL_ROW });
  });
  y += perColumn * (SMALL_ROW + GAP) + (halves.length > 0 && wholes.length > 0 ? 2 : 0);
  for (const segment of wholes) {
    places.push({ segment, x: SIDE + name, y, width: width - 2 * SIDE - name - FIGURES, height: LARGE_ROW });
    y += LARGE_ROW + GAP + 1;
  }
  return { places, height: y };
}

/** Of a view from one height on: where its last whole row ends, and how many segments lie below that. */
export function wholeRows(places: readonly Pick<Place, "y" | "height">[], from: number, height: number): { end: number; below: number } {
  const ends = places.map((place) => place.y + place.height + 4); // with the notches under it
  const whole = ends.filter((end) => end <= from + height);
  const below = ends.length - whole.length;
  return whole.length === 0 || below === 0 ? { end: from + height, below: 0 } : { end: Math.max(...whole), below };
}

/** Many segments: rows of about equal bytes, each segment to scale but at least three pixels wide. */
function crowd(segments: readonly SegmentState[], width: number, name: number, top: number): { places: Omit<Place, "marks">[]; height: number } {
  const places: Omit<Place, "marks">[] = [];
  const room = width - 2 * SIDE - name - FIGURES;
  const total = segments.reduce((sum, segment) => sum + segment.size, 0);
  const rows = clamp(Math.ceil(segments.length / Math.max(8, Math.floor(room / 24))), 4, 200);
  const scale = (room * rows * 0.9) / Math.max(1, total);
  let x = 0;
  let y = top;
  for (const segment of segments) {
    const wide = clamp(segment.size * scale, 3, room);
    if (x > 0 && x + wide > room) {
      x = 0;
      y += SMALL_ROW + GAP;
    }
    places.push({ segment, x: SIDE + name + x, y, width: wide, height: SMALL_ROW });
    x += wide + 2;
  }
  return { places, height: y + SMALL_ROW + GAP };
}

/** The overview's two rows: small segments side by side, then the large ones. */
export function placeCompact(segments: readonly SegmentState[], width: number): Omit<Place, "marks">[] {
  if (segments.length === 0) return [];
  const [small, large] = bySize(segments);
  const places: Omit<Place, "marks">[] = [];
  const row = (list: readonly SegmentState[], y: number, height: number): void => {
    const gap = list.length > 40 ? 1 : 4;
    const room = width - 2 * SIDE - gap * (list.length - 1);
    const total = list.reduce((sum, segment) => sum + segment.size, 0);
    let x = SIDE;
    for (const segment of list) {
      const wide = Math.max(1, (room * segment.size) / total);
      places.push({ segment, x, y, width: wide, height });
      x += wide + gap;
    }
  };
  if (small.length === 0) row(large, 10, 18);
  else {
    row(small, 2, 14);
    row(large, 24, 16);
  }
  return places;
}
