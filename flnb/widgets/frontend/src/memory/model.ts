/** What all memory pictures share: the index over the store's lifetimes, kept up to date once a frame. */

import type { Range, Store } from "../store.ts";
import { FragmentationSeries, type FragmentationCurve, largestAllocation } from "./fragmentation.ts";
import {
  grown, MemoryIndex, type MemoryState, type SampledTotals, type Segments, stateAt, timeline, type Timeline,
} from "./lifetimes.ts";

/** The request that fragmentation is judged by is the largest allocation of this many last steps. */
export const REQUEST_STEPS = 8;
const SEGMENT_ROWS = 16384;

/** Segments as columns with stable rows; the store's map may forget old ones. */
export class SegmentTable implements Segments {
  used = 0;
  id = new Uint32Array(0);
  start = new Float64Array(0);
  end = new Float64Array(0);
  size = new Float64Array(0);
  address = new Float64Array(0);
  generation = 0;
  private rows = new Map<number, number>();

  update(segments: Iterable<{ id: number; address: number; size: number; start: number; end: number }>): void {
    if (this.used > SEGMENT_ROWS) this.clear();
    for (const segment of segments) {
      let row = this.rows.get(segment.id);
      if (row === undefined) {
        row = this.used++;
        if (row >= this.id.length) this.grow();
        this.id[row] = segment.id;
        this.start[row] = segment.start;
        this.size[row] = segment.size;
        this.address[row] = segment.address;
        this.rows.set(segment.id, row);
      } else if (this.size[row] !== segment.size) { // it grew: shown as large as it is now, from its beginning on
        this.size[row] = segment.size;
        this.generation++;
      }
      this.end[row] = segment.end;
    }
  }

  clear(): void {
    this.used = 0;
    this.rows.clear();
    this.generation++;
  }

  private grow(): void {
    const size = Math.max(64, this.id.length * 2);
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
  private requested: { version: number; request: Request } | null = null;
  private readonly cache = new Map<string, unknown>();
  private cachedVersion = -1;

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
    this.segments.update(store.memory.segments.values());
    const { lifetimes } = store.memory;
    this.index.update(lifetimes, this.segments, lifetimes.generation * 4096 + this.segments.generation);
  }

  timeline({ t0, t1 }: Range, pixels: number): Timeline {
    return this.cached(`line ${t0} ${t1} ${pixels}`, () => timeline(this.index, t0, t1, pixels, ...this.samples()));
  }

  state(t: number): MemoryState {
    return this.cached(`state ${t}`, () => stateAt(this.index, t));
  }

  curve({ t0, t1 }: Range, pixels: number): FragmentationCurve {
    const { bytes } = this.request();
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
    const { series, overview } = this.store.memory;
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
