/** The bars of one row of a timeline, at every level of detail: narrow ones merge when the picture is too coarse for them, none vanishes. */

import { bisectLeft, bisectRight } from "d3-array";

/** Takes a bar from `start` to `end`: of the row's bars it stands for `count`, from `first` on; `kind` is what most of it is. */
export type Emit = (start: number, end: number, kind: number, first: number, count: number) => void;

/** Below this many bars the next coarser level is not worth having. */
const FEW = 256;

/** Bars of one resolution, in order of time. */
class Level {
  length = 0;
  constructor(
    readonly resolution: number, readonly start: Float64Array, readonly end: Float64Array,
    readonly kind: Uint8Array, readonly first: Uint32Array,
  ) {}
}

/**
 * Bars that do not overlap, sorted by start, with a kind (below 256: an index into the timeline's styles) and the item
 * that each belongs to. A row of a million bars is drawn from about as many rectangles as there are pixels.
 */
export class Bars {
  readonly length: number;
  private readonly levels: Level[];

  constructor(readonly start: Float64Array, readonly end: Float64Array, readonly kind: Uint8Array, readonly item: Int32Array) {
    this.length = start.length;
    const finest = new Level(0, start, end, kind, new Uint32Array(0));
    finest.length = start.length;
    this.levels = [finest];
  }

  /** Of rows in any order. Where two overlap the later one is cut, or left out where nothing of it remains. */
  static from(rows: readonly { start: number; end: number; kind: number; item: number }[]): Bars {
    const sorted = [...rows].filter((row) => row.end >= row.start).sort((one, two) => one.start - two.start || two.end - one.end);
    const kept: { start: number; end: number; kind: number; item: number }[] = [];
    let reached = -Infinity;
    for (const row of sorted) {
      if (row.end <= reached) continue;
      kept.push({ ...row, start: Math.max(row.start, reached) });
      reached = row.end;
    }
    return new Bars(Float64Array.from(kept, (row) => row.start), Float64Array.from(kept, (row) => row.end),
      Uint8Array.from(kept, (row) => row.kind), Int32Array.from(kept, (row) => row.item));
  }

  /** The bars between t0 and t1; those narrower than `least` come merged with their neighbours. */
  visit(t0: number, t1: number, least: number, emit: Emit): void {
    const level = this.level(least);
    const begin = bisectRight(level.end, t0, 0, level.length);
    let end = begin;
    // Ends are sorted as starts are, so a binary search finds the last bar as well.
    end = Math.max(begin, bisectLeft(level.start, t1, 0, level.length));
    merge(level, begin, end, least, this.length, emit);
  }

  /** The index of the bar at t, or of the nearest one at most `slack` away; -1: none. */
  at(t: number, slack = 0): number {
    const after = bisectRight(this.end, t, 0, this.length);
    if (after < this.length && this.start[after]! <= t) return after;
    const [left, right] = [after - 1, after];
    const before = left >= 0 ? t - this.end[left]! : Infinity;
    const behind = right < this.length ? this.start[right]! - t : Infinity;
    if (Math.min(before, behind) > slack) return -1;
    return before <= behind ? left : right;
  }

  /** The coarsest level that is fine enough, made when it is first needed, each from the one below. */
  private level(least: number): Level {
    let found = this.levels[0]!;
    if (found.length < FEW || !(least > 0)) return found;
    const span = found.end[found.length - 1]! - found.start[0]!;
    for (let at = 1; ; at++) {
      let next = this.levels[at];
      if (!next) {
        const resolution = (span / this.length) * 2 ** (at - 1);
        if (resolution > least || found.length < FEW) return found;
        next = this.coarser(found, resolution);
        this.levels.push(next);
      }
      if (next.resolution > least) return found;
      found = next;
    }
  }

  private coarser(from: Level, resolution: number): Level {
    const rows = new Level(resolution, new Float64Array(from.length), new Float64Array(from.length), new Uint8Array(from.length), new Uint32Array(from.length));
    merge(from, 0, from.length, resolution, this.length, (start, end, kind, first) => {
      const at = rows.length++;
      rows.start[at] = start;
      rows.end[at] = end;
      rows.kind[at] = kind;
      rows.first[at] = first;
    });
    const { length } = rows;
    const kept = new Level(resolution, rows.start.slice(0, length), rows.end.slice(0, length), rows.kind.slice(0, length), rows.first.slice(0, length));
    kept.length = length;
    return kept;
  }
}

const times = new Float64Array(256);

/** Emit the level's rows begin..end; runs of narrow ones close together become one, at most `least` long. */
function merge(level: Level, begin: number, end: number, least: number, total: number, emit: Emit): void {
  const { start, end: ends, kind } = level;
  const raw = level.first.length === 0;
  const firstOf = (at: number): number => (raw ? at : at < level.length ? level.first[at]! : total);
  let at = begin;
  while (at < end) {
    const from = at;
    const [left, edge] = [start[at]!, start[at]! + least];
    let right = ends[at++]!;
    if (right < edge) {
      while (at < end && ends[at]! <= edge && start[at]! - right < least) right = ends[at++]!;
    }
    let most = kind[from]!;
    if (at - from > 1) {
      for (let one = from; one < at; one++) times[kind[one]!]! += ends[one]! - start[one]!;
      for (let one = from; one < at; one++) if (times[kind[one]!]! > times[most]!) most = kind[one]!;
      for (let one = from; one < at; one++) times[kind[one]!] = 0;
    }
    const first = firstOf(from);
    emit(left, right, most, first, firstOf(at) - first);
  }
}
