/**
 * Pure functions over the lifetimes of blocks: what was allocated when, by category, and what every segment held.
 *
 * A lifetime is the half-open interval [start, end) of one block; `end` is Infinity while it lives. All byte
 * counts are integers in float64, so sums are exact and the categories add up to what is allocated, bit for bit.
 */

/** Blocks as columns. Rows may stand in any order; row numbers are stable within one generation of the store. */
export interface Lifetimes {
  readonly used: number; // rows in use
  readonly id: Float64Array;
  readonly start: Float64Array; // seconds since the start of the run
  readonly end: Float64Array; // seconds; Infinity while the block lives
  readonly segment: Uint32Array;
  readonly offset: Float64Array; // bytes from the start of the segment
  readonly size: Float64Array; // bytes, as the manager rounded them
  readonly requested: Float64Array; // bytes, as the tensor asked for them
  readonly category: Uint8Array;
}

/** Segments as columns; `end` is Infinity while the device has not got it back. */
export interface Segments {
  readonly used: number; // rows in use
  readonly id: Uint32Array;
  readonly start: Float64Array;
  readonly end: Float64Array;
  readonly size: Float64Array;
}

/**
 * Totals known at single times, each holding until the next: what remains of a time whose lifetimes have left, and
 * of ticks with too many events to send them all. Here a category's bytes include its rounding waste.
 */
export interface SampledTotals {
  readonly length: number;
  readonly time: ArrayLike<number>;
  readonly allocated: ArrayLike<number>;
  readonly reserved: ArrayLike<number>;
  readonly categories: readonly ArrayLike<number>[]; // one column per category
  /** The last one holds until this time. */
  readonly until: number;
}

export const CATEGORY_COUNT = 7;
/** Columns of a row of totals: requested bytes by category, then these. */
export const WASTE = CATEGORY_COUNT; // size - requested, summed over live blocks
export const RESERVED = CATEGORY_COUNT + 1;
export const TOTALS_WIDTH = CATEGORY_COUNT + 2;

/** What an event does; the order settles events at one instant: a segment before its blocks, a free before a reuse. */
const Kind = { SegmentAlloc: 0, Free: 1, Alloc: 2, SegmentFree: 3 } as const;

const CHECKPOINT_EVERY = 1024;
/** Events between two lists of live blocks; more where more blocks live, so that the lists stay small. */
const LIVE_EVERY = 4096;

/** Index of the first element of a sorted `array[0..length)` that is greater than `value`. */
export function upperBound(array: ArrayLike<number>, value: number, length: number = array.length): number {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (array[middle]! <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Index of the first element of a sorted `array[0..length)` that is at least `value`. */
export function lowerBound(array: ArrayLike<number>, value: number, length: number = array.length): number {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (array[middle]! < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Bytes allocated: the sum of the categories and of the rounding waste. */
export function allocatedOf(totals: Float64Array, at = 0): number {
  let sum = 0;
  for (let k = 0; k <= WASTE; k++) sum += totals[at + k]!;
  return sum;
}

/**
 * Every allocation and free in order of time, with the running totals at regular places. Grows with the stream:
 * an update costs what is new, plus a look at each block that was still alive.
 */
export class MemoryIndex {
  /** Number of events. */
  length = 0;
  /** Time of each event, ascending. */
  time = new Float64Array(1024);
  /** row * 4 + kind of each event. */
  private code = new Int32Array(1024);
  private checkpoints = new Float64Array(TOTALS_WIDTH * 64); // totals before event k * CHECKPOINT_EVERY
  private checkpointCount = 0;
  private lifetimes: Lifetimes = NO_LIFETIMES;
  private segments: Segments = NO_SEGMENTS;
  private live: { before: number; rows: Int32Array }[] = []; // rows alive before some events, in order
  private openBlocks: number[] = []; // rows seen alive
  private openSegments: number[] = [];
  private seenBlocks = 0;
  private seenSegments = 0;
  private generation = -1;
  /** The first event whose place or neighbours changed, for each time that history was rewritten. */
  private readonly rewritten: number[] = [];

  get blocks(): Lifetimes {
    return this.lifetimes;
  }

  get reservedSegments(): Segments {
    return this.segments;
  }

  /** How often history was rewritten: who keeps something per event asks `rewrittenSince` this number later. */
  get rewrites(): number {
    return this.rewritten.length;
  }

  /** The first event that changed since then; Infinity where none did. */
  rewrittenSince(rewrites: number): number {
    let first = Infinity;
    for (let at = Math.max(0, rewrites); at < this.rewritten.length; at++) first = Math.min(first, this.rewritten[at]!);
    return first;
  }

  /** Takes in what is new. A changed `generation` says that row numbers have moved: everything is sorted again. */
  update(lifetimes: Lifetimes, segments: Segments, generation = 0): void {
    this.lifetimes = lifetimes;
    this.segments = segments;
    if (generation !== this.generation || lifetimes.used < this.seenBlocks || segments.used < this.seenSegments) {
      this.generation = generation;
      this.length = 0;
      this.seenBlocks = this.seenSegments = this.checkpointCount = 0;
      this.openBlocks = [];
      this.openSegments = [];
      this.live = [];
      this.rewritten.push(0);
    }
    const fresh: number[] = [];
    this.openBlocks = collect(fresh, this.openBlocks, this.seenBlocks, lifetimes, Kind.Alloc, Kind.Free);
    this.openSegments = collect(fresh, this.openSegments, this.seenSegments, segments, Kind.SegmentAlloc, Kind.SegmentFree);
    this.seenBlocks = lifetimes.used;
    this.seenSegments = segments.used;
    if (fresh.length > 0) this.merge(fresh);
  }

  private timeOf(code: number): number {
    const row = code >> 2;
    switch (code & 3) {
      case Kind.SegmentAlloc:
        return this.segments.start[row]!;
      case Kind.Free:
        return this.lifetimes.end[row]!;
      case Kind.Alloc:
        return this.lifetimes.start[row]!;
      default:
        return this.segments.end[row]!;
    }
  }

  private merge(fresh: number[]): void {
    const codes = Int32Array.from(fresh);
    const times = new Float64Array(codes.length);
    for (let i = 0; i < codes.length; i++) times[i] = this.timeOf(codes[i]!);
    const order = new Uint32Array(codes.length).map((_, i) => i);
    order.sort((a, b) => times[a]! - times[b]! || (codes[a]! & 3) - (codes[b]! & 3));
    const total = this.length + codes.length;
    this.time = grown(this.time, total);
    this.code = grown(this.code, total);
    // From the back: two sorted runs merge in place, and what is already in order is not touched.
    let old = this.length - 1;
    let fill = total - 1;
    let next = codes.length - 1;
    while (next >= 0) {
      const from = order[next]!;
      const time = times[from]!;
      const code = codes[from]!;
      const oldTime = old < 0 ? -Infinity : this.time[old]!;
      if (oldTime > time || (oldTime === time && (this.code[old]! & 3) > (code & 3))) {
        this.time[fill] = oldTime;
        this.code[fill--] = this.code[old--]!;
      } else {
        this.time[fill] = time;
        this.code[fill--] = code;
        next--;
      }
    }
    const touched = fill + 1; // first event whose neighbours changed
    if (touched < this.length) this.rewritten.push(touched);
    this.length = total;
    this.checkpointCount = Math.min(this.checkpointCount, Math.floor(touched / CHECKPOINT_EVERY) + 1);
    while (this.live.length > 0 && this.live[this.live.length - 1]!.before > touched) this.live.pop();
    this.extendCheckpoints();
  }

  /** Rows alive before event `e`, in no particular order. */
  rowsBefore(e: number): Int32Array {
    let at = upperBound(this.live.map((list) => list.before), e) - 1;
    let from = at < 0 ? 0 : this.live[at]!.before;
    const rows = new Set<number>(at < 0 ? [] : this.live[at]!.rows);
    for (let next = from; next < e; next++) {
      // On the way, what was walked is kept where the lists end, so that the next question starts from there.
      if (at === this.live.length - 1 && next - from >= Math.max(LIVE_EVERY, rows.size)) {
        this.live.push({ before: next, rows: Int32Array.from(rows) });
        at++;
        from = next;
      }
      const code = this.code[next]!;
      if ((code & 3) === Kind.Alloc) rows.add(code >> 2);
      else if ((code & 3) === Kind.Free) rows.delete(code >> 2);
    }
    return Int32Array.from(rows);
  }

  private extendCheckpoints(): void {
    const needed = Math.floor(this.length / CHECKPOINT_EVERY) + 1;
    this.checkpoints = grown(this.checkpoints, needed * TOTALS_WIDTH);
    const totals = new Float64Array(TOTALS_WIDTH);
    if (this.checkpointCount === 0) {
      this.checkpoints.fill(0, 0, TOTALS_WIDTH);
      this.checkpointCount = 1;
    }
    for (let k = this.checkpointCount; k < needed; k++) {
      const before = (k - 1) * TOTALS_WIDTH;
      totals.set(this.checkpoints.subarray(before, before + TOTALS_WIDTH));
      for (let e = (k - 1) * CHECKPOINT_EVERY; e < k * CHECKPOINT_EVERY; e++) this.apply(e, totals);
      this.checkpoints.set(totals, k * TOTALS_WIDTH);
    }
    this.checkpointCount = needed;
  }

  /** Adds event `e` to `totals`. */
  apply(e: number, totals: Float64Array): void {
    const code = this.code[e]!;
    const row = code >> 2;
    const kind = code & 3;
    if (kind === Kind.Alloc || kind === Kind.Free) {
      const sign = kind === Kind.Alloc ? 1 : -1;
      const requested = this.lifetimes.requested[row]!;
      const category = this.lifetimes.category[row]!;
      const column = category < CATEGORY_COUNT ? category : 0;
      totals[column] = totals[column]! + sign * requested;
      totals[WASTE] = totals[WASTE]! + sign * (this.lifetimes.size[row]! - requested);
    } else {
      const sign = kind === Kind.SegmentAlloc ? 1 : -1;
      totals[RESERVED] = totals[RESERVED]! + sign * this.segments.size[row]!;
    }
  }

  /** Whether event `e` happens at the very time of the one before. */
  sameInstant(e: number): boolean {
    return e > 0 && e < this.length && this.time[e] === this.time[e - 1];
  }

  /** Totals after all events at or before `time`; the next event's number comes back too. */
  totalsAt(time: number): { totals: Float64Array; next: number } {
    const next = upperBound(this.time, time, this.length);
    return { totals: this.totalsBefore(next), next };
  }

  /** Totals before event `e`. */
  totalsBefore(e: number): Float64Array {
    const totals = new Float64Array(TOTALS_WIDTH);
    if (this.length === 0) return totals;
    const k = Math.min(Math.floor(e / CHECKPOINT_EVERY), this.checkpointCount - 1);
    totals.set(this.checkpoints.subarray(k * TOTALS_WIDTH, (k + 1) * TOTALS_WIDTH));
    for (let i = k * CHECKPOINT_EVERY; i < e; i++) this.apply(i, totals);
    return totals;
  }

  /** What event `e` is: the row of its block, or -1 where a segment comes or goes. */
  blockOf(e: number): { row: number; alloc: boolean } {
    const code = this.code[e]!;
    const kind = code & 3;
    return kind === Kind.Alloc || kind === Kind.Free ? { row: code >> 2, alloc: kind === Kind.Alloc } : { row: -1, alloc: false };
  }

  /** The same for segments. */
  segmentOf(e: number): { row: number; alloc: boolean } {
    const code = this.code[e]!;
    const kind = code & 3;
    return kind === Kind.SegmentAlloc || kind === Kind.SegmentFree ? { row: code >> 2, alloc: kind === Kind.SegmentAlloc } : { row: -1, alloc: false };
  }
}

const NO_LIFETIMES: Lifetimes = {
  used: 0,
  id: new Float64Array(0),
  start: new Float64Array(0),
  end: new Float64Array(0),
  segment: new Uint32Array(0),
  offset: new Float64Array(0),
  size: new Float64Array(0),
  requested: new Float64Array(0),
  category: new Uint8Array(0),
};
const NO_SEGMENTS: Segments = {
  used: 0,
  id: new Uint32Array(0),
  start: new Float64Array(0),
  end: new Float64Array(0),
  size: new Float64Array(0),
};

/** Pushes the event codes of what began or ended since the last look; returns the rows still open. */
function collect(out: number[], open: number[], seen: number, table: Lifetimes | Segments, alloc: number, free: number): number[] {
  const { start, end, used } = table;
  const still: number[] = [];
  for (const row of open) {
    if (end[row] === Infinity) still.push(row);
    else out.push(row * 4 + free);
  }
  for (let row = seen; row < used; row++) {
    // A lifetime that is over as it begins is at no time alive.
    if (end[row]! <= start[row]!) continue;
    out.push(row * 4 + alloc);
    if (end[row] === Infinity) still.push(row);
    else out.push(row * 4 + free);
  }
  return still;
}

/** The same values with room for at least `needed`. */
export function grown<T extends Float64Array | Int32Array>(array: T, needed: number): T {
  if (needed <= array.length) return array;
  const larger = new (array.constructor as new (n: number) => T)(Math.max(needed, array.length * 2));
  larger.set(array);
  return larger;
}

/** A stacked timeline, one column of totals for each pixel. */
export interface Timeline {
  readonly from: number;
  readonly to: number;
  readonly pixels: number;
  /** (pixels, TOTALS_WIDTH): the state with the largest allocated bytes in each pixel; its columns add up to `allocated`. */
  readonly totals: Float64Array;
  readonly allocated: Float64Array;
  /** Largest reserved bytes in each pixel. */
  readonly reserved: Float64Array;
  /** When the state that the pixel shows was reached (at least `from` of the pixel). */
  readonly time: Float64Array;
  /** Events inside the window. */
  readonly events: number;
}

/** The timeline over [from, to) at `pixels` columns. A pixel shows the largest state that it holds, so no peak is lost. */
export function timeline(index: MemoryIndex, from: number, to: number, pixels: number, ...sampled: readonly SampledTotals[]): Timeline {
  const totals = new Float64Array(pixels * TOTALS_WIDTH);
  const allocated = new Float64Array(pixels);
  const reserved = new Float64Array(pixels);
  const time = new Float64Array(pixels);
  const start = index.totalsAt(from);
  const now = start.totals;
  let live = 0;
  let e = start.next;
  for (let k = 0; k < pixels; k++) {
    const begin = from + ((to - from) * k) / pixels;
    const end = from + ((to - from) * (k + 1)) / pixels;
    const at = k * TOTALS_WIDTH;
    while (e < index.length && index.time[e]! <= begin) index.apply(e++, now);
    live = allocatedOf(now);
    let best = live;
    let largestReserved = now[RESERVED]!;
    time[k] = begin;
    totals.set(now, at);
    while (e < index.length && index.time[e]! < end) {
      index.apply(e++, now);
      if (index.sameInstant(e)) continue; // what stands between two events of one instant was never there
      live = allocatedOf(now);
      if (live > best) {
        best = live;
        totals.set(now, at);
        time[k] = index.time[e - 1]!;
      }
      if (now[RESERVED]! > largestReserved) largestReserved = now[RESERVED]!;
    }
    allocated[k] = best;
    reserved[k] = largestReserved;
  }
  const result: Timeline = { from, to, pixels, totals, allocated, reserved, time, events: e - start.next };
  for (const samples of sampled) if (samples.length > 0) overlay(result, samples);
  return result;
}

/** Puts sampled totals where they show more than the lifetimes do. */
function overlay(line: Timeline, sampled: SampledTotals): void {
  let i = Math.max(0, upperBound(sampled.time, line.from, sampled.length) - 1);
  const show = (k: number): void => {
    if (sampled.reserved[i]! > line.reserved[k]!) line.reserved[k] = sampled.reserved[i]!;
    if (sampled.allocated[i]! <= line.allocated[k]!) return;
    const at = k * TOTALS_WIDTH;
    let rest = sampled.allocated[i]!;
    for (let c = 0; c < CATEGORY_COUNT; c++) {
      line.totals[at + c] = sampled.categories[c]![i]!;
      rest -= sampled.categories[c]![i]!;
    }
    line.totals[at + WASTE] = rest;
    line.allocated[k] = sampled.allocated[i]!;
    line.time[k] = Math.max(line.time[k]!, sampled.time[i]!);
  };
  for (let k = 0; k < line.pixels; k++) {
    const begin = line.from + ((line.to - line.from) * k) / line.pixels;
    const end = line.from + ((line.to - line.from) * (k + 1)) / line.pixels;
    while (i + 1 < sampled.length && sampled.time[i + 1]! <= begin) i++;
    if (begin >= sampled.until) break;
    if (sampled.time[i]! < end) show(k);
    while (i + 1 < sampled.length && sampled.time[i + 1]! < end) {
      i++;
      show(k);
    }
  }
}

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
    const last = rows.length === 0 ? 0 : offset[rows[rows.length - 1]!]! + size[rows[rows.length - 1]!]!;
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
