/** What all memory pictures share: the index over the store's lifetimes, kept up to date once a frame. */

import type { Range, Store } from "../store.ts";
import { FragmentationSeries, type FragmentationCurve, largestAllocation } from "./fragmentation.ts";
import { MemoryIndex } from "./events.ts";
import { grown, type Segments } from "./lifetimes.ts";
import { type SampledTotals, timeline, type Timeline } from "./stacking.ts";
import { type MemoryState, stateAt } from "./state.ts";

/** The request that fragmentation is judged by is the largest allocation of this many last steps. */
export const REQUEST_STEPS = 8;

/** The sizes of segments as columns: a row for each size that one has had, in order. */
export class SegmentTable implements Segments {
  used = 0;
  id = new Uint32Array(0);
  start = new Float64Array(0);
  end = new Float64Array(0);
  size = new Float64Array(0);
  address = new Float64Array(0);

  /** Takes in what is new at the end of `sizes`, and what has ended. */
  update(sizes: readonly { id: number; address: number; size: number; start: number; end: number }[]): void {
    if (sizes.length < this.used) this.clear();
    this.grow(sizes.length);
    for (; this.used < sizes.length; this.used++) {
      const segment = sizes[this.used]!;
      this.id[this.used] = segment.id;
      this.start[this.used] = segment.start;
      this.size[this.used] = segment.size;
      this.address[this.used] = segment.address;
    }
    sizes.forEach((segment, row) => (this.end[row] = segment.end));
  }

  clear(): void {
    this.used = 0;
  }

  private grow(needed: number): void {
    if (needed <= this.id.length) return;
    const size = Math.max(64, needed, this.id.length * 2);
    const ids = new Uint32Array(size);
    ids.set(this.id);
    this.id = ids;
    this.start = grown(this.start, size);
    this.end = grown(this.end, size);
    this.size = grown(this.size, size);
    this.address = grown(this.address, size);
  }
}

/** The request that "unusable" is computed for, and where it comes from. */
export interface Request { readonly bytes: number; readonly row: number; readonly steps: number }

export class MemoryModel {
  readonly index = new MemoryIndex();
  readonly segments = new SegmentTable();
  private readonly series = new FragmentationSeries(this.index);
  private seen = -1;
  private run = -1;
  private generation = -1;
  private requested: { version: number; request: Request } | null = null;
  private readonly cache = new Map<string, unknown>();
  private cachedVersion = -1;
  private last: MemoryState | null = null;
  private lastVersion = -1;

  constructor(private readonly store: Store) {}

  /** Takes in what arrived; call before asking. */
  update(): void {
    const { store } = this;
    if (this.seen === store.versions.memory) return;
    this.seen = store.versions.memory;
    const run = store.run?.id ?? -1;
    if (run !== this.run) {
      this.run = run;
      this.segments.clear();
      this.requested = null;
    }
    const { lifetimes, sizes, generation } = store.memory;
    if (generation !== this.generation) this.segments.clear();
    this.generation = generation;
    this.segments.update(sizes);
    this.index.update(lifetimes, this.segments, lifetimes.generation * 4096 + generation);
  }

  timeline({ t0, t1 }: Range, pixels: number): Timeline {
    return this.cached(`line ${t0} ${t1} ${pixels}`, () => timeline(this.index, t0, t1, pixels, ...this.samples()));
  }

  state(t: number): MemoryState {
    // Beside the rest: a cursor that moves must not push out the pictures of the range, which cost more.
    if (this.last === null || this.last.time !== t || this.lastVersion !== this.seen) this.last = stateAt(this.index, t);
    this.lastVersion = this.seen;
    return this.last;
  }

  curve({ t0, t1 }: Range, pixels: number): FragmentationCurve {
    const { bytes } = this.request();
    // Of a recording that has ended everything is walked once; of a live one, what is looked at.
    if (this.store.memory.whole) this.series.ensure(-Infinity, bytes);
    return this.cached(`curve ${t0} ${t1} ${pixels} ${bytes}`, () => this.series.curve(t0, t1, pixels, bytes));
  }

  /** The largest allocation of the last steps; looked for again at most once a step. */
  request(): Request {
    const { steps, now } = this.store;
    const version = steps.length + steps.evicted;
    if (this.requested !== null && this.requested.version === version && this.requested.request.bytes > 0) return this.requested.request;
    const count = Math.min(REQUEST_STEPS, steps.length);
    const from = count > 0 ? steps.column("t0")[steps.length - count]! : -Infinity;
    const row = largestAllocation(this.index, from, now + 1);
    const request = { bytes: row < 0 ? 0 : this.index.blocks.size[row]!, row, steps: count };
    this.requested = { version, request };
    return request;
  }

  /** What is known of a time without lifetimes: the points of the event series, and the whole run in bins before them. */
  private samples(): SampledTotals[] {
    const { series, overview, whole } = this.store.memory;
    if (whole) return [];
    const names = ["c0", "c1", "c2", "c3", "c4", "c5", "c6"] as const;
    const begin = series.length > 0 ? series.column("t")[0]! : Infinity;
    const points: SampledTotals = {
      length: series.length, time: series.column("t"), allocated: series.column("allocated"), reserved: series.column("reserved"),
      categories: names.map((name) => series.column(name)), until: Infinity,
    };
    if (series.evicted === 0) return [points];
    const bins = Math.min(overview.count, Math.floor(begin / overview.width));
    return [points, {
      length: bins, time: Float64Array.from({ length: bins }, (_, bin) => bin * overview.width), allocated: overview.allocated,
      reserved: overview.reserved, categories: overview.byCategory, until: begin,
    }];
  }

  /** Several pictures ask the same in one frame; a few answers are kept until something arrives. */
  private cached<T>(key: string, make: () => T): T {
    if (this.cachedVersion !== this.seen || this.cache.size > 12) {
      this.cachedVersion = this.seen;
      this.cache.clear();
    }
    let value = this.cache.get(key) as T | undefined;
    if (value === undefined) this.cache.set(key, (value = make()));
    return value;
  }
}

const models = new WeakMap<Store, MemoryModel>();

/** The one model of a store. */
export function memoryOf(store: Store): MemoryModel {
  let model = models.get(store);
  if (model === undefined) models.set(store, (model = new MemoryModel(store)));
  return model;
}
