/** The allocations and frees of a run in order of time: what was allocated after each of them, and which blocks lived. */

import { bisectRight } from "d3-array";
import { CATEGORY_COUNT, grown, type Lifetimes, RESERVED, type Segments, TOTALS_WIDTH, WASTE } from "./lifetimes.ts";

/** What an event does; the order settles events at one instant: a segment before its blocks, a free before a reuse. */
const Kind = { SegmentAlloc: 0, Free: 1, Alloc: 2, SegmentFree: 3 } as const;

const CHECKPOINT_EVERY = 1024;
/** Events between two lists of live blocks; more where more blocks live, so that the lists stay small. */
const LIVE_EVERY = 4096;

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
    while (this.live.length > 0 && this.live.at(-1)!.before > touched) this.live.pop();
    this.extendCheckpoints();
  }

  /** Rows alive before event `e`, in no particular order. */
  rowsBefore(e: number): Int32Array {
    let at = bisectRight(this.live.map((list) => list.before), e) - 1;
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
    const next = bisectRight(this.time, time, 0, this.length);
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
