/** The free ranges of a segment: which blocks stand on either side, and since when each is free. */

import { bytesText } from "../format.ts";
import type { Selection } from "../selection.ts";
import type { Lifetimes } from "./lifetimes.ts";
import { holesOf, type SegmentState } from "./state.ts";

export interface Hole {
  readonly segment: number;
  readonly offset: number;
  readonly size: number;
  /** Rows of the blocks before and after it; -1 where the segment begins or ends. */
  readonly before: number;
  readonly after: number;
}

/** What one passes in a segment from its begin to its end: blocks, as their rows, and holes. */
export type Stop = number | Hole;

/** Blocks and holes of a segment in order of their offset. */
export function stopsOf(blocks: Lifetimes, segment: SegmentState): Stop[] {
  const holes = holesOf(blocks, segment.rows, segment.size);
  const stops: Stop[] = [];
  let next = 0;
  const holesBefore = (end: number, after: number): void => {
    for (; next < holes.length && holes[next]! < end; next += 2) {
      const last = stops.at(-1);
      stops.push({ segment: segment.id, offset: holes[next]!, size: holes[next + 1]!, before: typeof last === "number" ? last : -1, after });
    }
  };
  for (const row of segment.rows) {
    holesBefore(blocks.offset[row]!, row);
    stops.push(row);
  }
  holesBefore(Infinity, -1);
  return stops;
}

/** The hole of a segment at this offset, null where a block is. */
export function holeAt(blocks: Lifetimes, segment: SegmentState, offset: number): Hole | null {
  for (const stop of stopsOf(blocks, segment)) if (typeof stop !== "number" && offset >= stop.offset && offset < stop.offset + stop.size) return stop;
  return null;
}

export const selectionOfHole = ({ segment, offset, size }: Hole, t: number): Selection =>
  ({ kind: "hole", label: `free ${bytesText(size)}`, segment, offset, bytes: size, t });

/** Whether a selection is this hole, or what is left of the one that was selected. */
export const selectsHole = (selection: Selection | null, hole: Hole): boolean =>
  selection?.kind === "hole" && selection.segment === hole.segment && selection.offset! >= hole.offset && selection.offset! < hole.offset + hole.size;

/** When the last block that stood where the hole is had been freed; null if none is known. */
export function freeSince(blocks: Lifetimes, { segment, offset, size }: Hole, t: number): number | null {
  let since = -Infinity;
  for (let row = 0; row < blocks.used; row++) {
    const end = blocks.end[row]!;
    if (end > since && end <= t && blocks.segment[row] === segment && blocks.offset[row]! < offset + size && blocks.offset[row]! + blocks.size[row]! > offset) since = end;
  }
  return since === -Infinity ? null : since;
}
