/** A small simulated device: random allocations and frees with first fit, as columns. */

import type { Lifetimes, Segments } from "../../src/memory/lifetimes.ts";

/** Mulberry32: the same numbers on every machine. */
export function generator(seed: number): () => number {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

export interface Simulated {
  lifetimes: Lifetimes;
  segments: Segments;
  end: number;
}

interface Row { id: number; t0: number; t1: number; segment: number; offset: number; size: number; requested: number; category: number }
interface SegmentRow { id: number; t0: number; t1: number; size: number; rows: Row[] }

/** `count` allocations; about `alive` of them live at a time. With `ties`, many events share one instant; with `grow`, segments
 * often become larger in place. */
export function simulate(count: number, { seed = 1, alive = 40, ties = false, grow = false } = {}): Simulated {
  const random = generator(seed);
  const rows: Row[] = [];
  const segments: SegmentRow[] = [];
  const live: Row[] = [];
  let t = 0;
  const tick = (): number => (ties ? (t += random() < 0.5 ? 0 : 1) : (t += 0.01 + random()));
  const release = (row: Row): void => {
    row.t1 = tick();
    const segment = segments.findLast((s) => s.id === row.segment)!;
    segment.rows = segment.rows.filter((r) => r !== row);
    if (segment.rows.length === 0 && random() < 0.1) segment.t1 = ties ? t : t + 0.001;
  };
  while (rows.length < count) {
    if (live.length > 0 && random() < live.length / (2 * alive)) {
      release(live.splice(Math.floor(random() * live.length), 1)[0]!);
      continue;
    }
    const requested = 1 + Math.floor(random() * (random() < 0.1 ? 6000 : 800));
    const size = Math.ceil(requested / 64) * 64;
    tick();
    const place = findPlace(segments, size, t);
    const larger = !place && grow && random() < 0.7 ? segments.findLast((s) => s.t1 === Infinity) : undefined;
    if (larger) larger.t1 = t;
    const segment: SegmentRow = place?.segment ?? { id: larger?.id ?? segments.length + 1, t0: t, t1: Infinity, size: (larger?.size ?? 0) + Math.max(grow ? 2048 : 8192, size), rows: larger?.rows ?? [] };
    if (!place) segments.push(segment);
    const row: Row = { id: rows.length + 1, t0: t, t1: Infinity, segment: segment.id, offset: place?.offset ?? larger?.size ?? 0, size, requested, category: Math.floor(random() * 7) };
    segment.rows.push(row);
    segment.rows.sort((a, b) => a.offset - b.offset);
    rows.push(row);
    live.push(row);
  }
  return { ...columns(rows, segments), end: t };
}

function findPlace(segments: SegmentRow[], size: number, t: number): { segment: SegmentRow; offset: number } | null {
  for (const segment of segments) {
    if (segment.t1 !== Infinity || segment.t0 > t) continue;
    let end = 0;
    for (const row of segment.rows) {
      if (row.offset - end >= size) return { segment, offset: end };
      end = row.offset + row.size;
    }
    if (segment.size - end >= size) return { segment, offset: end };
  }
  return null;
}

function columns(rows: Row[], segments: SegmentRow[]): { lifetimes: Lifetimes; segments: Segments } {
  return {
    lifetimes: {
      used: rows.length,
      id: Float64Array.from(rows, (r) => r.id),
      start: Float64Array.from(rows, (r) => r.t0),
      end: Float64Array.from(rows, (r) => r.t1),
      segment: Uint32Array.from(rows, (r) => r.segment),
      offset: Float64Array.from(rows, (r) => r.offset),
      size: Float64Array.from(rows, (r) => r.size),
      requested: Float64Array.from(rows, (r) => r.requested),
      category: Uint8Array.from(rows, (r) => r.category),
    },
    segments: {
      used: segments.length,
      id: Uint32Array.from(segments, (s) => s.id),
      start: Float64Array.from(segments, (s) => s.t0),
      end: Float64Array.from(segments, (s) => s.t1),
      size: Float64Array.from(segments, (s) => s.size),
    },
  };
}

/** What had arrived by time `t`: later allocations are missing, later frees not yet known. */
export function arrivedBy(all: Simulated, t: number): Simulated {
  const { lifetimes: l, segments: s } = all;
  const cut = (start: Float64Array): number => start.findIndex((x) => x > t);
  const n = cut(l.start) < 0 ? l.used : cut(l.start);
  const m = cut(s.start) < 0 ? s.used : cut(s.start);
  const ended = (column: Float64Array): Float64Array => column.map((x) => (x > t ? Infinity : x));
  return {
    lifetimes: { ...l, used: n, end: ended(l.end) },
    segments: { ...s, used: m, end: ended(s.end) },
    end: t,
  };
}

/** Least milliseconds of processor time that `f` took in three runs: other work on the machine does not count. */
export function best(f: () => void): number {
  return Math.min(...[1, 2, 3].map(() => {
    const before = process.cpuUsage();
    f();
    const { user, system } = process.cpuUsage(before);
    return (user + system) / 1000;
  }));
}
