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

import { bisectLeft, bisectRight } from "d3-array";
import type { MemoryIndex } from "./events.ts";
import { allocatedOf, grown, RESERVED, TOTALS_WIDTH, WASTE } from "./lifetimes.ts";
import { holesOf, type MemoryState, stateAt } from "./state.ts";

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
    private size: number,
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
    const at = bisectRight(this.offsets, offset);
    this.all.remove(this.hole(at - 1, at));
    this.offsets.splice(at, 0, offset);
    this.sizes.splice(at, 0, size);
    this.all.add(this.hole(at - 1, at));
    this.all.add(this.hole(at, at + 1));
  }

  free(offset: number, size: number): void {
    let at = bisectLeft(this.offsets, offset);
    while (at < this.offsets.length && this.offsets[at] === offset && this.sizes[at] !== size) at++;
    if (this.offsets[at] !== offset) return; // its allocation came before the window
    this.all.remove(this.hole(at - 1, at));
    this.all.remove(this.hole(at, at + 1));
    this.offsets.splice(at, 1);
    this.sizes.splice(at, 1);
    this.all.add(this.hole(at - 1, at));
  }

  /** The segment grows or shrinks at its end. */
  resize(size: number): void {
    this.all.remove(this.hole(this.offsets.length - 1, this.offsets.length));
    this.size = size;
    this.all.add(this.hole(this.offsets.length - 1, this.offsets.length));
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
    return this.sizes.length === 0 ? 0 : this.sizes.at(-1)!;
  }

  add(size: number): void {
    if (size <= 0) return;
    this.free += size;
    if (size < this.request) this.small += size;
    const at = bisectLeft(this.sizes, size);
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
    const at = bisectLeft(this.sizes, size);
    if (--this.counts[at]! === 0) {
      this.sizes.splice(at, 1);
      this.counts.splice(at, 1);
    }
  }
}

/** After each event: bytes, and the integrals of reserved and live over the time since the first known event. */
const COLUMNS = ["free", "small", "hole", "reserved", "live", "reservedTime", "liveTime"] as const;
type Series = Record<(typeof COLUMNS)[number], Float64Array>;

/**
 * Free bytes, unusable bytes and the largest hole after every event, kept as the stream grows. The first question
 * about an older window walks from its start; after that an update costs what is new.
 */
export class FragmentationSeries {
  private request = 0;
  private first = 0; // events [first, last) are known
  private last = 0;
  private rewrites = 0;
  private readonly at = Object.fromEntries(COLUMNS.map((name) => [name, new Float64Array(0)])) as Series;
  private totals: Float64Array = new Float64Array(TOTALS_WIDTH);
  private holes = new Holes(0);
  /** By id: the row of its present size. */
  private segments = new Map<number, { row: number; holes: SegmentHoles }>();

  constructor(private readonly index: MemoryIndex) {}

  /** Makes all events from time `from` on known, for allocations of `request` bytes. */
  ensure(from: number, request: number): void {
    const { index, at } = this;
    const start = bisectRight(index.time, from, 0, index.length);
    const rewritten = index.rewrittenSince(this.rewrites) < this.last;
    // One event earlier than asked, so that there is always a state to begin a window with.
    if (rewritten || request !== this.request || Math.max(0, start - 1) < this.first || this.last === 0) this.restart(Math.max(0, start - 1), request);
    this.rewrites = index.rewrites;
    for (const name of COLUMNS) at[name] = grown(at[name], index.length);
    for (let e = this.last; e < index.length; e++) {
      const before = e - 1;
      const span = e > this.first ? index.time[e]! - index.time[before]! : 0;
      at.reservedTime[e] = e > this.first ? at.reservedTime[before]! + at.reserved[before]! * span : 0;
      at.liveTime[e] = e > this.first ? at.liveTime[before]! + at.live[before]! * span : 0;
      this.apply(e);
      index.apply(e, this.totals);
      at.free[e] = this.holes.free;
      at.small[e] = this.holes.small;
      at.hole[e] = this.holes.largest;
      at.reserved[e] = this.totals[RESERVED]!;
      at.live[e] = allocatedOf(this.totals);
    }
    this.last = index.length;
  }

  /** Stands before event `start`, with the holes of the moment just before it. */
  private restart(start: number, request: number): void {
    const { index } = this;
    this.request = request;
    this.holes = new Holes(request);
    this.segments = new Map();
    // Events at one instant stay together: begin before all of them.
    const first = start < index.length ? bisectLeft(index.time, index.time[start]!, 0, index.length) : start;
    this.first = this.last = first;
    this.totals = index.totalsBefore(first);
    if (first === 0) return;
    const state = stateAt(index, index.time[first - 1]!);
    for (const segment of state.segments) {
      const holes = new SegmentHoles(segment.size, this.holes);
      this.segments.set(segment.id, { row: segment.row, holes });
      for (const row of segment.rows) holes.alloc(index.blocks.offset[row]!, index.blocks.size[row]!);
    }
  }

  private apply(e: number): void {
    const { blocks, reservedSegments } = this.index;
    const { row, alloc } = this.index.blockOf(e);
    if (row >= 0) {
      const holes = this.segments.get(blocks.segment[row]!)?.holes;
      if (holes === undefined) return; // a block of a segment that was never announced
      if (alloc) holes.alloc(blocks.offset[row]!, blocks.size[row]!);
      else holes.free(blocks.offset[row]!, blocks.size[row]!);
      return;
    }
    const segment = this.index.segmentOf(e);
    const id = reservedSegments.id[segment.row]!;
    const known = this.segments.get(id);
    if (segment.alloc) {
      const size = reservedSegments.size[segment.row]!;
      if (known === undefined) this.segments.set(id, { row: segment.row, holes: new SegmentHoles(size, this.holes) });
      else {
        known.holes.resize(size);
        known.row = segment.row;
      }
    } else if (known?.row === segment.row) { // not the end of a size that another one has followed
      known.holes.clear();
      this.segments.delete(id);
    }
  }

  /** The curve over [from, to) at `pixels` columns; a pixel shows the largest value that it holds. */
  curve(from: number, to: number, pixels: number, request: number): FragmentationCurve {
    this.ensure(from, request);
    const { index, at } = this;
    const ratio = new Float64Array(pixels);
    const unusable = new Float64Array(pixels);
    const largest = new Float64Array(pixels);
    let e = bisectRight(index.time, from, 0, index.length); // the next event
    let peak = e - 1; // the event after which most is live; -1 where nothing is known yet
    const start = peak;
    for (let k = 0; k < pixels; k++) {
      const begin = from + ((to - from) * k) / pixels;
      const end = from + ((to - from) * (k + 1)) / pixels;
      while (e < index.length && index.time[e]! <= begin) e++;
      let r = this.ratioAfter(e - 1);
      let u = this.unusableAfter(e - 1);
      let h = e > 0 ? at.hole[e - 1]! : 0;
      for (; e < index.length && index.time[e]! < end; e++) {
        if (index.sameInstant(e + 1)) continue; // what stands between two events of one instant was never there
        r = larger(r, this.ratioAfter(e));
        u = larger(u, this.unusableAfter(e));
        if (at.hole[e]! > h) h = at.hole[e]!;
      }
      ratio[k] = r;
      unusable[k] = u;
      largest[k] = h;
    }
    for (let x = start + 1; x < e; x++) if ((peak < 0 || at.live[x]! > at.live[peak]!) && !index.sameInstant(x + 1)) peak = x;
    // Time past the last event is not part of the average: nothing is known of it.
    const known = index.length > 0 ? Math.max(from, Math.min(to, index.time[index.length - 1]!)) : from;
    const live = this.integral("live", known) - this.integral("live", from);
    const reserved = this.integral("reserved", known) - this.integral("reserved", from);
    return {
      from, to, request, ratio, unusable, largest,
      peak: peak < 0 ? { time: from, live: 0, reserved: 0, ratio: NaN }
        : { time: Math.max(from, index.time[peak]!), live: at.live[peak]!, reserved: at.reserved[peak]!, ratio: this.ratioAfter(peak) },
      average: live > 0 ? reserved / live : NaN,
    };
  }

  private integral(name: "reserved" | "live", t: number): number {
    const e = bisectRight(this.index.time, t, 0, this.index.length) - 1;
    if (e < this.first) return 0;
    return this.at[`${name}Time`][e]! + this.at[name][e]! * (t - this.index.time[e]!);
  }

  private ratioAfter(e: number): number {
    return e < 0 ? NaN : ratioOf(this.at.reserved[e]!, this.at.live[e]!);
  }

  private unusableAfter(e: number): number {
    return e >= 0 && this.request > 0 && this.at.free[e]! > 0 ? this.at.small[e]! / this.at.free[e]! : NaN;
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
