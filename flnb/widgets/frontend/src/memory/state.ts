/** What every segment held at one moment. */

import type { MemoryIndex } from "./events.ts";
import type { Lifetimes } from "./lifetimes.ts";

/** One segment with the blocks that it holds, in order of their offset. */
export interface SegmentState {
  readonly id: number;
  readonly row: number; // in Segments; -1 where only its blocks are known
  readonly size: number;
  readonly rows: Int32Array; // of Lifetimes
  readonly used: number;
  readonly holes: number;
  readonly largestHole: number;
}

export interface MemoryState {
  readonly time: number;
  readonly totals: Float64Array;
  readonly segments: readonly SegmentState[]; // by id
  readonly blocks: number;
}

/** All segments and blocks at `time`. A scrub walks a few thousand events from the nearest list of live blocks. */
export function stateAt(index: MemoryIndex, time: number): MemoryState {
  const { blocks, reservedSegments } = index;
  const bySegment = new Map<number, number[]>();
  const rowOfSegment = new Map<number, number>();
  for (let s = 0; s < reservedSegments.used; s++) {
    if (reservedSegments.start[s]! <= time && reservedSegments.end[s]! > time) {
      rowOfSegment.set(reservedSegments.id[s]!, s);
      bySegment.set(reservedSegments.id[s]!, []);
    }
  }
  const { next, totals } = index.totalsAt(time);
  const alive = index.rowsBefore(next);
  const { segment, offset, size } = blocks;
  for (const row of alive) {
    const rows = bySegment.get(segment[row]!);
    if (rows === undefined) bySegment.set(segment[row]!, [row]);
    else rows.push(row);
  }
  const segments: SegmentState[] = [];
  for (const [id, list] of bySegment) {
    const rows = Int32Array.from(list).sort((a, b) => offset[a]! - offset[b]!);
    const row = rowOfSegment.get(id) ?? -1;
    const last = rows.length === 0 ? 0 : offset[rows.at(-1)!]! + size[rows.at(-1)!]!;
    const total = row < 0 ? last : reservedSegments.size[row]!;
    const holes = holesOf(blocks, rows, total);
    let used = 0;
    for (const r of rows) used += size[r]!;
    let largestHole = 0;
    for (let i = 1; i < holes.length; i += 2) largestHole = Math.max(largestHole, holes[i]!);
    segments.push({ id, row, size: total, rows, used, holes: holes.length / 2, largestHole });
  }
  segments.sort((a, b) => a.id - b.id);
  return { time, totals, segments, blocks: alive.length };
}

/** Free ranges of a segment as offset, size, offset, size ...; `rows` in order of offset. */
export function holesOf(blocks: Lifetimes, rows: Int32Array, segmentSize: number): number[] {
  const holes: number[] = [];
  let end = 0;
  for (const row of rows) {
    const start = blocks.offset[row]!;
    if (start > end) holes.push(end, start - end);
    end = Math.max(end, start + blocks.size[row]!);
  }
  if (segmentSize > end) holes.push(end, segmentSize - end);
  return holes;
}
