/** Blocks of a segment as marks of a row of pixels: what is wide stands alone, what is narrow merges but never vanishes. */

import { clamp } from "../clamp.ts";
import { CATEGORY_COUNT, type Lifetimes } from "./lifetimes.ts";

/** Blocks `rows[first..last)` of the segment, drawn from x0 to x1; `used` ends where rounding waste begins. */
export interface Mark {
  readonly x0: number;
  readonly x1: number;
  readonly used: number;
  readonly category: number;
  readonly first: number;
  readonly last: number;
}

/** Blocks narrower than this share pixels. */
const NARROW = 2;

/** Marks of `rows` (in order of offset) for a segment of `size` bytes drawn `width` pixels wide. */
export function marksOf(blocks: Lifetimes, rows: Int32Array, size: number, width: number): Mark[] {
  const marks: Mark[] = [];
  if (size <= 0) return marks;
  const scale = width / size;
  let filled = 0; // right end of the last mark
  for (let at = 0; at < rows.length; ) {
    const row = rows[at]!;
    const begin = blocks.offset[row]! * scale;
    const end = begin + blocks.size[row]! * scale;
    if (end - begin >= NARROW) {
      const x0 = clamp(begin, filled, end - 1);
      marks.push({ x0, x1: end, used: begin + blocks.requested[row]! * scale, category: blocks.category[row]!, first: at, last: at + 1 });
      filled = end;
      at++;
      continue;
    }
    // All narrow blocks that begin in one pixel are one mark, in the colour of the category with most bytes.
    const x0 = clamp(Math.floor(begin), Math.ceil(filled - 0.01), Math.max(0, Math.floor(width) - 1));
    const first = at;
    const bytes = new Float64Array(CATEGORY_COUNT);
    do {
      const next = rows[at++]!;
      bytes[Math.min(blocks.category[next]!, CATEGORY_COUNT - 1)]! += blocks.size[next]!;
    } while (at < rows.length && blocks.size[rows[at]!]! * scale < NARROW && blocks.offset[rows[at]!]! * scale < x0 + 1);
    marks.push({ x0, x1: x0 + 1, used: x0 + 1, category: bytes.indexOf(Math.max(...bytes)), first, last: at });
    filled = x0 + 1;
  }
  return marks;
}

/** Number in `marks` of the one at x, or -1. */
export function markAt(marks: readonly Mark[], x: number): number {
  let best = -1;
  for (let at = 0; at < marks.length; at++) {
    const mark = marks[at]!;
    if (x >= mark.x0 && x < mark.x1) return at;
    // A mark of one pixel can be hit from beside it.
    if (mark.x1 - mark.x0 < 4 && x >= mark.x0 - 2 && x < mark.x1 + 2) best = at;
  }
  return best;
}
