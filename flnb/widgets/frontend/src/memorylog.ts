/**
 * Memory as the browser knows it: the lifetimes of blocks, the segments, and the running sums by category after every
 * event. Frames bring deltas; a keyframe repairs everything.
 */

import { Columns } from "./columns.ts";
import { Lifetimes } from "./lifetimes.ts";
import { Locks } from "./locks.ts";
import { CATEGORIES, Overview } from "./overview.ts";
import type { Column, Frame } from "./protocol.ts";

/** A keyframe repeats this many finished lifetimes at most. */
const KEYFRAME_FINISHED = 4096;
/** Sizes of segments that are kept of a run that goes on. */
const SIZES = 16384;
/** Seconds in a bin of the overview at first, of a recording that is told whole: however short it was, it fills them. */
const WHOLE_BIN = 2 ** -24;

const seriesNames = ["t", "allocated", "reserved", "waste", "c0", "c1", "c2", "c3", "c4", "c5", "c6"] as const;
export type SeriesName = (typeof seriesNames)[number];
/** c0..c6 by category number. They add up exactly to `allocated`; `waste` (size minus requested) is a part of it. */
export type MemorySeries = Columns<SeriesName>;

export interface Segment { id: number; address: number; size: number; start: number; end: number }

/** Order of events at one instant: a segment before its blocks, a free before its bytes are used again. */
const enum Kind { Segment, Free, Alloc, Release }

export class MemoryLog {
  readonly lifetimes: Lifetimes;
  /** The present size of each segment, by its id. */
  readonly segments = new Map<number, Segment>();
  /** All sizes that segments have had, in order, each from when to when. */
  sizes: Segment[] = [];
  /** Increases when some of `sizes` have left. */
  generation = 0;
  /** State after every event, sorted by time. */
  readonly series: MemorySeries;
  readonly overview = new Overview();
  readonly locks = new Locks();
  /** The largest allocation of the run so far and what was reserved then. */
  peak = { t: 0, allocated: 0, reserved: 0 };
  /** Spans (start, end) of which no events are known. */
  readonly gaps: [number, number][] = [];
  private readonly sums = new Float64Array(CATEGORIES);
  private waste = 0;
  private reserved = 0;

  constructor(lifetimes = 65536, points = 131072) {
    this.lifetimes = new Lifetimes(lifetimes);
    this.series = new Columns(seriesNames, points);
  }

  /** Bytes in blocks now. */
  get allocated(): number {
    return this.sums.reduce((sum, value) => sum + value, 0);
  }

  /** The run's live sums by category now. */
  get byCategory(): ArrayLike<number> {
    return this.sums;
  }

  /** The lives of all blocks are known, from the beginning of the run. */
  get whole(): boolean {
    return this.lifetimes.everything;
  }

  get reservedNow(): number {
    return this.reserved;
  }

  clear(): void {
    this.lifetimes.clear();
    this.segments.clear();
    this.sizes = [];
    this.generation++;
    this.series.clear();
    this.overview.clear();
    this.locks.clear();
    this.peak = { t: 0, allocated: 0, reserved: 0 };
    this.gaps.length = 0;
    this.sums.fill(0);
    this.waste = this.reserved = 0;
  }

  apply(frame: Frame): void {
    const { keyframe, run } = frame.head;
    if (run.whole && keyframe) {
      this.clear();
      this.overview.width = WHOLE_BIN;
    }
    this.lifetimes.everything = run.whole ?? false;
    this.locks.apply(frame.columns);
    if (keyframe && !run.whole) this.applyKeyframe(frame);
    else this.applyEvents(frame, -Infinity);
  }

  private applyKeyframe(frame: Frame): void {
    const column = (name: string): Column => frame.columns[name] ?? new Float64Array(0);
    const [freed, freedAt] = [column("free.id"), column("free.t")];
    const now = frame.head.counters.t;
    let since = -Infinity;
    if (freed.length >= KEYFRAME_FINISHED) {
      since = Infinity;
      for (const t of freedAt) since = Math.min(since, t);
    }
    const known = this.series.last("t") ?? -Infinity;
    const from = Math.max(since, known);
    for (let at = 0; at < column("segment.id").length; at++) this.insertSegment(frame, at, now);
    const ids = column("alloc.id");
    const present = new Set<number>();
    for (let at = 0; at < ids.length; at++) {
      present.add(ids[at]!);
      this.insertBlock(frame, at);
    }
    for (let at = 0; at < freed.length; at++) {
      const row = this.lifetimes.row(freed[at]!);
      if (row < 0) continue;
      this.lifetimes.finish(row, freedAt[at]!);
      this.asked(frame, row, at);
    }
    const released = column("release.id");
    const releasedAt = column("release.t");
    for (let at = 0; at < released.length; at++) this.release(released[at]!, releasedAt[at]!);
    // What the kernel no longer mentions ended before the finished lifetimes that it still does.
    const { lifetimes } = this;
    for (let row = 0; row < lifetimes.used; row++) {
      if (lifetimes.end[row] === Infinity && !present.has(lifetimes.id[row]!)) {
        lifetimes.finish(row, Math.max(lifetimes.start[row]!, Number.isFinite(since) ? since : now));
      }
    }
    const segmentIds = new Set<number>(column("segment.id"));
    for (const segment of this.segments.values()) {
      if (segment.end === Infinity && !segmentIds.has(segment.id)) segment.end = Math.max(segment.start, Number.isFinite(since) ? since : now);
    }
    if (since > known && known > -Infinity) this.gaps.push([known, since]);
    if (since > lifetimes.completeSince) lifetimes.completeSince = since;
    this.recount(from);
    if (since > known) this.point(since);
    this.applyEvents(frame, from);
  }

  private asked({ columns }: Frame, row: number, at: number): void {
    const t = columns["free.asked"]?.[at];
    if (t !== undefined) this.lifetimes.asked[row] = t;
  }

  /** The sums at time t, from the lifetimes: exact wherever they are complete. */
  private recount(t: number): void {
    const { lifetimes } = this;
    this.sums.fill(0);
    this.waste = this.reserved = 0;
    for (let row = 0; row < lifetimes.used; row++) if (lifetimes.isLive(row, t)) this.add(row, 1);
    for (const segment of this.sizes) if (segment.start <= t && segment.end > t) this.reserved += segment.size;
  }

  private add(row: number, sign: 1 | -1): void {
    const { category, size, requested } = this.lifetimes;
    const index = Math.min(category[row]!, CATEGORIES - 1);
    this.sums[index] = this.sums[index]! + sign * size[row]!;
    this.waste += sign * (size[row]! - requested[row]!);
  }

  private point(t: number): void {
    const { series, sums, waste, reserved } = this;
    const last = series.last("t");
    const at = last !== undefined && t < last ? last : t;
    const allocated = this.allocated;
    if (last !== undefined && at === last) series.length--;
    series.append({
      t: at, allocated, reserved, waste,
      c0: sums[0]!, c1: sums[1]!, c2: sums[2]!, c3: sums[3]!, c4: sums[4]!, c5: sums[5]!, c6: sums[6]!,
    });
    this.overview.add(at, allocated, reserved, sums);
    if (allocated > this.peak.allocated) this.peak = { t: at, allocated, reserved };
  }

  /** A new segment, or one told again at time t because its size changed; by how many bytes it grew. */
  private insertSegment(frame: Frame, at: number, t: number): number {
    const { "segment.id": ids, "segment.t": times, "segment.size": sizes, "segment.address": addresses } = frame.columns;
    const [id, size] = [ids![at]!, sizes![at]!];
    const known = this.segments.get(id);
    const lives = known !== undefined && known.end === Infinity;
    if (lives) {
      if (known.size === size) return 0;
      known.end = Math.max(known.start, t);
    }
    const segment = { id, address: addresses?.[at] ?? 0, size, start: lives ? known.end : times![at]!, end: Infinity };
    this.segments.set(id, segment);
    this.sizes.push(segment);
    if (this.sizes.length > SIZES && !this.whole) this.forgetSegments();
    return lives ? size - known.size : size;
  }

  /** The older half of what segments were, and are no longer, leaves. */
  private forgetSegments(): void {
    const half = this.sizes.length >> 1;
    this.sizes = this.sizes.filter((segment, at) => at >= half || segment.end === Infinity);
    this.generation++;
    for (const segment of this.segments.values()) if (segment.end !== Infinity) this.segments.delete(segment.id);
    for (const segment of this.sizes) this.segments.set(segment.id, segment);
  }

  private release(id: number, t: number): Segment | undefined {
    const segment = this.segments.get(id);
    if (!segment || segment.end !== Infinity) return undefined;
    segment.end = t;
    return segment;
  }

  /** The row of a frame's allocation, inserted where new. */
  private insertBlock(frame: Frame, at: number): number {
    const value = (name: string): number => frame.columns[name]?.[at] ?? 0;
    const id = value("alloc.id");
    const known = this.lifetimes.row(id);
    if (known >= 0) return known;
    const { lifetimes } = this;
    const row = lifetimes.insert(id, value("alloc.t"));
    lifetimes.segment[row] = value("alloc.segment");
    lifetimes.offset[row] = value("alloc.offset");
    lifetimes.size[row] = value("alloc.size");
    lifetimes.requested[row] = value("alloc.requested");
    lifetimes.category[row] = value("alloc.category");
    lifetimes.plan[row] = value("alloc.plan");
    lifetimes.context[row] = value("alloc.context");
    lifetimes.node[row] = value("alloc.node");
    return row;
  }

  /** Replay a frame's events later than `from` in order of time, a point of the series after each. */
  private applyEvents(frame: Frame, from: number): void {
    const { columns, head } = frame;
    const order: { t: number; kind: Kind; at: number }[] = [];
    const collect = (name: string, kind: Kind): void => {
      const times = columns[`${name}.t`];
      for (let at = 0; at < (times?.length ?? 0); at++) if (times![at]! > from) order.push({ t: times![at]!, kind, at });
    };
    collect("segment", Kind.Segment);
    collect("alloc", Kind.Alloc);
    collect("free", Kind.Free);
    collect("release", Kind.Release);
    order.sort((one, two) => one.t - two.t || one.kind - two.kind);
    /** Blocks freed at the very instant of their allocation. */
    const instant = new Set<number>();
    const thinned = columns["memory.t"];
    for (const { t, kind, at } of order) {
      if (kind === Kind.Segment) this.reserved += head.keyframe ? columns["segment.size"]![at]! : this.insertSegment(frame, at, t);
      else if (kind === Kind.Alloc) {
        const row = this.insertBlock(frame, at);
        if (instant.has(this.lifetimes.id[row]!)) this.lifetimes.finish(row, t);
        else this.add(row, 1);
      } else if (kind === Kind.Free) {
        const row = this.lifetimes.row(columns["free.id"]![at]!);
        if (row < 0) instant.add(columns["free.id"]![at]!);
        if (row < 0 || (!head.keyframe && this.lifetimes.end[row] !== Infinity)) continue;
        this.lifetimes.finish(row, t);
        this.asked(frame, row, at);
        this.add(row, -1);
      } else {
        const id = columns["release.id"]![at]!;
        const segment = head.keyframe ? this.segments.get(id) : this.release(id, t);
        if (segment) this.reserved -= segment.size;
      }
      // A thinned tick leaves out blocks that came and went within it: only its points know the sums in between.
      if (!thinned) this.point(t);
    }
    for (let at = 0; at < (thinned?.length ?? 0); at++) this.thinnedPoint(frame, at);
  }

  private thinnedPoint(frame: Frame, at: number): void {
    for (let category = 0; category < CATEGORIES; category++) this.sums[category] = frame.columns[`memory.c${category}`]?.[at] ?? 0;
    this.reserved = frame.columns["memory.reserved"]?.[at] ?? this.reserved;
    this.point(frame.columns["memory.t"]![at]!);
  }
}
