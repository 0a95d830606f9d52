/**
 * Fragmentation of memory over time. The formulas, as the panel prints them:
 *
 *   reserved/live       what it costs: bytes of all segments over bytes of all live blocks
 *   unusable(request)   sum(free blocks smaller than the request) / sum(free blocks)
 *   internal            sum(size - requested) / sum(size) over live blocks
 *   largest hole        the largest free block
 *   time average        integral(reserved dt) / integral(live dt)
 *
 * A free block is a maximal free range of a segment.
 */

import {
  allocatedOf,
  grown,
  holesOf,
  lowerBound,
  type MemoryIndex,
  type MemoryState,
  RESERVED,
  stateAt,
  upperBound,
  WASTE,
} from "./lifetimes.ts";

export interface Fragmentation {
  readonly reserved: number;
  readonly live: number;
  readonly free: number;
  /** Infinity where nothing lives in what is reserved, NaN where nothing is reserved. */
  readonly ratio: number;
  /** NaN where nothing is free, or nothing was requested. */
  readonly unusable: number;
  /** NaN where nothing lives. */
  readonly internal: number;
  readonly largest: number;
}

/** All four figures of one moment, straight from the definitions. */
export function fragmentationOf(index: MemoryIndex, state: MemoryState, request: number): Fragmentation {
  let free = 0;
  let small = 0;
  let largest = 0;
  for (const segment of state.segments) {
    const holes = holesOf(index.blocks, segment.rows, segment.size);
    for (let i = 1; i < holes.length; i += 2) {
      const size = holes[i]!;
      free += size;
      if (size < request) small += size;
      largest = Math.max(largest, size);
    }
  }
  const live = allocatedOf(state.totals);
  const reserved = state.totals[RESERVED]!;
  return {
    reserved,
    live,
    free,
    ratio: ratioOf(reserved, live),
    unusable: request > 0 && free > 0 ? small / free : NaN,
    internal: live > 0 ? state.totals[WASTE]! / live : NaN,
    largest,
  };
}

function ratioOf(reserved: number, live: number): number {
  return live > 0 ? reserved / live : reserved > 0 ? Infinity : NaN;
}

/** The free blocks of one segment, between its live blocks. */
class SegmentHoles {
  private readonly offsets: number[] = [];
  private readonly sizes: number[] = [];

  constructor(
    readonly size: number,
    private readonly all: Holes,
  ) {
    all.add(size);
  }

  private hole(left: number, right: number): number {
    const end = left < 0 ? 0 : this.offsets[left]! + this.sizes[left]!;
    const start = right >= this.offsets.length ? this.size : this.offsets[right]!;
    return Math.max(0, start - end);
  }

  alloc(offset: number, size: number): void {
    const at = upperBound(this.offsets, offset);
    this.all.remove(this.hole(at - 1, at));
    this.offsets.splice(at, 0, offset);
    this.sizes.splice(at, 0, size);
    this.all.add(this.hole(at - 1, at));
    this.all.add(this.hole(at, at + 1));
  }

  free(offset: number, size: number): void {
    let at = lowerBound(this.offsets, offset);
    while (at < this.offsets.length && this.offsets[at] === offset && this.sizes[at] !== size) at++;
    if (this.offsets[at] !== offset) return; // its allocation came before the window
    this.all.remove(this.hole(at - 1, at));
    this.all.remove(this.hole(at, at + 1));
    this.offsets.splice(at, 1);
    this.sizes.splice(at, 1);
    this.all.add(this.hole(at - 1, at));
  }

  /** The segment goes back to the device with all that is in it. */
  clear(): void {
    for (let i = 0; i <= this.offsets.length; i++) this.all.remove(this.hole(i - 1, i));
  }
}

/** All free blocks as a sorted list of distinct sizes with their counts. */
class Holes {
  private readonly sizes: number[] = [];
  private readonly counts: number[] = [];
  free = 0;
  small = 0;

  constructor(private readonly request: number) {}

  get largest(): number {
    return this.sizes.length === 0 ? 0 : this.sizes[this.sizes.length - 1]!;
  }

  add(size: number): void {
    if (size <= 0) return;
    this.free += size;
    if (size < this.request) this.small += size;
    const at = lowerBound(this.sizes, size);
    if (this.sizes[at] === size) this.counts[at]!++;
    else {
      this.sizes.splice(at, 0, size);
      this.counts.splice(at, 0, 1);
    }
  }

  remove(size: number): void {
    if (size <= 0) return;
    this.free -= size;
    if (size < this.request) this.small -= size;
    const at = lowerBound(this.sizes, size);
    if (--this.counts[at]! === 0) {
      this.sizes.splice(at, 1);
      this.counts.splice(at, 1);
    }
  }
}

/**
 * Free bytes, unusable bytes and the largest hole after every event, kept as the stream grows. The first question
 * about an older window walks from its start; after that an update costs what is new.
 */
export class FragmentationSeries {
  private request = 0;
  private first = 0; // events [first, last) are known
  private last = 0;
  private rewrites = -1;
  private free = new Float64Array(0);
  private small = new Float64Array(0);
  private hole = new Float64Array(0);
  private holes = new Holes(0);
  private segments = new Map<number, SegmentHoles>();

  constructor(private readonly index: MemoryIndex) {}

  /** Makes all events from time `from` on known, for allocations of `request` bytes. */
  private ensure(from: number, request: number): void {
    const { index } = this;
    const start = upperBound(index.time, from, index.length);
    const rewritten = this.rewrites !== index.rewrites && index.rewrittenFrom < this.last;
    if (rewritten || request !== this.request || start < this.first || this.last === 0) this.restart(start, request);
    this.rewrites = index.rewrites;
    this.free = grown(this.free, index.length);
    this.small = grown(this.small, index.length);
    this.hole = grown(this.hole, index.length);
    for (let e = this.last; e < index.length; e++) {
      this.apply(e);
      this.free[e] = this.holes.free;
      this.small[e] = this.holes.small;
      this.hole[e] = this.holes.largest;
    }
    this.last = index.length;
  }

  /** Stands before event `start`, with the holes of the moment just before it. */
  private restart(start: number, request: number): void {
    this.request = request;
    this.holes = new Holes(request);
    this.segments = new Map();
    // One event earlier, so that there is always a state to begin a window with.
    this.first = this.last = Math.max(0, start - 1);
    if (this.first === 0) return;
    // Events at one instant stay together: begin before all of them.
    const time = this.index.time[this.first]!;
    this.first = this.last = lowerBound(this.index.time, time, this.index.length);
    if (this.first === 0) return;
    const state = stateAt(this.index, this.index.time[this.first - 1]!);
    for (const segment of state.segments) {
      const holes = new SegmentHoles(segment.size, this.holes);
      this.segments.set(segment.id, holes);
      for (const row of segment.rows) holes.alloc(this.index.blocks.offset[row]!, this.index.blocks.size[row]!);
    }
  }

  private apply(e: number): void {
    const { blocks, reservedSegments } = this.index;
    const { row, alloc } = this.index.blockOf(e);
    if (row >= 0) {
      const holes = this.segments.get(blocks.segment[row]!);
      if (holes === undefined) return; // a block of a segment that was never announced
      if (alloc) holes.alloc(blocks.offset[row]!, blocks.size[row]!);
      else holes.free(blocks.offset[row]!, blocks.size[row]!);
      return;
    }
    const segment = this.index.segmentOf(e);
    const id = reservedSegments.id[segment.row]!;
    if (segment.alloc) this.segments.set(id, new SegmentHoles(reservedSegments.size[segment.row]!, this.holes));
    else {
      this.segments.get(id)?.clear();
      this.segments.delete(id);
    }
  }

  /** The curve over [from, to) at `pixels` columns; a pixel shows the largest value that it holds. */
  curve(from: number, to: number, pixels: number, request: number): FragmentationCurve {
    this.ensure(from, request);
    const { index } = this;
    const ratio = new Float64Array(pixels);
    const unusable = new Float64Array(pixels);
    const largest = new Float64Array(pixels);
    const start = index.totalsAt(from);
    const totals = start.totals;
    let e = start.next;
    let nowRatio = ratioOf(totals[RESERVED]!, allocatedOf(totals));
    let nowUnusable = e > this.first ? this.unusableAfter(e - 1) : NaN;
    let nowLargest = e > this.first ? this.hole[e - 1]! : 0;
    let reservedTime = 0;
    let liveTime = 0;
    let since = from;
    let peak: FragmentationCurve["peak"] = { time: from, live: allocatedOf(totals), reserved: totals[RESERVED]!, ratio: nowRatio };
    const hold = (until: number): void => {
      reservedTime += totals[RESERVED]! * (until - since);
      liveTime += allocatedOf(totals) * (until - since);
      since = until;
    };
    const step = (): void => {
      hold(index.time[e]!);
      index.apply(e, totals);
      if (index.sameInstant(++e)) return;
      const live = allocatedOf(totals);
      nowRatio = ratioOf(totals[RESERVED]!, live);
      nowUnusable = this.unusableAfter(e - 1);
      nowLargest = this.hole[e - 1]!;
      if (live > peak.live) peak = { time: index.time[e - 1]!, live, reserved: totals[RESERVED]!, ratio: nowRatio };
    };
    for (let k = 0; k < pixels; k++) {
      const begin = from + ((to - from) * k) / pixels;
      while (e < index.length && index.time[e]! <= begin) step();
      const end = from + ((to - from) * (k + 1)) / pixels;
      let r = nowRatio;
      let u = nowUnusable;
      let h = nowLargest;
      while (e < index.length && index.time[e]! < end) {
        step();
        if (index.sameInstant(e)) continue;
        r = larger(r, nowRatio);
        u = larger(u, nowUnusable);
        h = Math.max(h, nowLargest);
      }
      ratio[k] = r;
      unusable[k] = u;
      largest[k] = h;
    }
    // Time past the last event is not part of the average: nothing is known of it.
    const known = index.length > 0 ? Math.min(to, index.time[index.length - 1]!) : from;
    if (known > since) hold(known);
    return { from, to, request, ratio, unusable, largest, peak, average: liveTime > 0 ? reservedTime / liveTime : NaN };
  }

  private unusableAfter(e: number): number {
    return this.request > 0 && this.free[e]! > 0 ? this.small[e]! / this.free[e]! : NaN;
  }
}

export interface FragmentationCurve {
  readonly from: number;
  readonly to: number;
  readonly request: number;
  readonly ratio: Float64Array;
  readonly unusable: Float64Array;
  readonly largest: Float64Array;
  /** Where most is live inside the window. */
  readonly peak: { readonly time: number; readonly live: number; readonly reserved: number; readonly ratio: number };
  /** Integral of reserved over integral of live bytes; NaN where nothing lived. */
  readonly average: number;
}

/** The larger of two values of which NaN says unknown. */
function larger(a: number, b: number): number {
  return Number.isNaN(a) ? b : Number.isNaN(b) ? a : Math.max(a, b);
}

/** The block with the most bytes among those allocated in [from, to); its row, or -1. That is the request to judge by. */
export function largestAllocation(index: MemoryIndex, from: number, to: number): number {
  const { start, size, used } = index.blocks;
  let best = -1;
  for (let row = 0; row < used; row++) {
    if (start[row]! < from || start[row]! >= to) continue;
    if (best < 0 || size[row]! > size[best]!) best = row;
  }
  return best;
}
