import { bisectLeft } from "d3-array";
import { describe, expect, it } from "vitest";
import { MemoryIndex } from "../../src/memory/events.ts";
import { allocatedOf, CATEGORY_COUNT, RESERVED, TOTALS_WIDTH, WASTE } from "../../src/memory/lifetimes.ts";
import { timeline } from "../../src/memory/stacking.ts";
import { holesOf, stateAt } from "../../src/memory/state.ts";
import { FragmentationSeries } from "../../src/memory/fragmentation.ts";
import { arrivedBy, best, generator, type Simulated, simulate } from "./simulated.ts";

function indexed(data: Simulated): MemoryIndex {
  const index = new MemoryIndex();
  index.update(data.lifetimes, data.segments);
  return index;
}

/** Totals at `t`, by asking every block. */
function bruteTotals({ lifetimes: l, segments: s }: Simulated, t: number): number[] {
  const totals = new Array<number>(TOTALS_WIDTH).fill(0);
  for (let i = 0; i < l.used; i++) {
    if (!(l.start[i]! <= t && t < l.end[i]!)) continue;
    totals[l.category[i]!]! += l.requested[i]!;
    totals[WASTE]! += l.size[i]! - l.requested[i]!;
  }
  for (let i = 0; i < s.used; i++) if (s.start[i]! <= t && t < s.end[i]!) totals[RESERVED]! += s.size[i]!;
  return totals;
}

const sumOf = (totals: number[]): number => totals.slice(0, WASTE + 1).reduce((a, b) => a + b, 0);

function eventTimes({ lifetimes: l, segments: s }: Simulated): number[] {
  return [...l.start.subarray(0, l.used), ...l.end.subarray(0, l.used), ...s.start.subarray(0, s.used), ...s.end.subarray(0, s.used)]
    .filter(Number.isFinite)
    .sort((a, b) => a - b);
}

describe.each([
  ["distinct times", false],
  ["many events at one instant", true],
])("against brute force, %s", (_, ties) => {
  const data = simulate(3000, { seed: 7, ties });
  const index = indexed(data);

  it("gives the totals at any time", () => {
    const random = generator(9);
    for (let i = 0; i < 200; i++) {
      const t = ties ? Math.floor(random() * data.end) : random() * data.end * 1.05;
      expect([...index.totalsAt(t).totals]).toEqual(bruteTotals(data, t));
    }
  });

  it("shows the largest state of each pixel, adding up exactly", () => {
    for (const [from, to, pixels] of [[0, data.end, 97], [data.end * 0.4, data.end * 0.45, 211], [-5, data.end + 50, 40]] as const) {
      const line = timeline(index, from, to, pixels);
      const times = eventTimes(data);
      for (let k = 0; k < pixels; k++) {
        const a = from + ((to - from) * k) / pixels;
        const b = from + ((to - from) * (k + 1)) / pixels;
        // What is visible inside a pixel: its first moment and every distinct moment at which something changed.
        const moments = [a, ...times.slice(bisectLeft(times, a), bisectLeft(times, b))];
        const states = moments.map((t) => bruteTotals(data, t));
        expect(line.reserved[k]).toBe(Math.max(...states.map((s) => s[RESERVED]!)));
        const largest = Math.max(...states.map(sumOf));
        expect(line.allocated[k]).toBe(largest);
        const shown = [...line.totals.subarray(k * TOTALS_WIDTH, k * TOTALS_WIDTH + WASTE + 1)];
        expect(shown.reduce((x, y) => x + y, 0)).toBe(line.allocated[k]);
        expect(states.map((s) => s.slice(0, WASTE + 1))).toContainEqual(shown);
      }
    }
  });

  it("gives every segment its blocks in order", () => {
    const random = generator(11);
    for (let i = 0; i < 40; i++) {
      const t = random() * data.end;
      const state = stateAt(index, t);
      expect([...state.totals]).toEqual(bruteTotals(data, t));
      const l = data.lifetimes;
      const alive = [...l.id.keys()].filter((r) => l.start[r]! <= t && t < l.end[r]!);
      expect(state.segments.flatMap((s) => [...s.rows]).sort((a, b) => a - b)).toEqual(alive);
      for (const segment of state.segments) {
        const rows = [...segment.rows];
        expect(rows).toEqual(alive.filter((r) => l.segment[r] === segment.id).sort((a, b) => l.offset[a]! - l.offset[b]!));
        // Byte by byte in units of 64: what no block covers is free.
        const covered = new Array<boolean>(segment.size / 64).fill(false);
        for (const r of rows) covered.fill(true, l.offset[r]! / 64, (l.offset[r]! + l.size[r]!) / 64);
        const free = covered.filter((c) => !c).length * 64;
        const holes = holesOf(l, segment.rows, segment.size);
        expect(holes.filter((_, k) => k % 2 === 1).reduce((a, b) => a + b, 0)).toBe(free);
        expect(segment.used + free).toBe(segment.size);
        expect(segment.holes).toBe(covered.filter((c, k) => !c && (k === 0 || covered[k - 1])).length);
      }
    }
  });
});

describe("the stream", () => {
  it("gives the same index in many updates as in one", () => {
    const data = simulate(2500, { seed: 21 });
    const whole = indexed(data);
    const index = new MemoryIndex();
    const random = generator(4);
    for (let t = 0; t < data.end; t += random() * data.end * 0.02) {
      const part = arrivedBy(data, t);
      index.update(part.lifetimes, part.segments);
    }
    index.update(data.lifetimes, data.segments);
    expect(index.length).toBe(whole.length);
    expect(index.time.subarray(0, index.length)).toEqual(whole.time.subarray(0, whole.length));
    for (let e = 0; e <= index.length; e += 97) expect(index.totalsBefore(e)).toEqual(whole.totalsBefore(e));
  });

  it("takes events that arrive late, from another thread", () => {
    const data = simulate(1500, { seed: 22 });
    const { lifetimes: l } = data;
    // The second half of the rows first happened before the first half: nothing but the order of arrival changes.
    const order = [...Array(l.used).keys()].sort((a, b) => (a % 2) - (b % 2) || a - b);
    const shuffled = Object.fromEntries(
      Object.entries(l).map(([name, column]) => [name, typeof column === "number" ? column : (column as Float64Array).map((_, i) => column[order[i]!]!)]),
    ) as unknown as typeof l;
    const index = new MemoryIndex();
    index.update({ ...shuffled, used: 700 }, data.segments);
    const before = index.rewrites;
    stateAt(index, data.end);
    index.update(shuffled, data.segments);
    const rows = (from: MemoryIndex, t: number): unknown => stateAt(from, t).segments.map((segment) => [...segment.rows].map((row) => from.blocks.id[row]));
    for (let t = 0; t < data.end; t += data.end / 20) expect(rows(index, t)).toEqual(rows(indexed(data), t));
    expect(index.rewrites).toBeGreaterThan(before);
    for (let t = 0; t < data.end; t += data.end / 50) expect([...index.totalsAt(t).totals]).toEqual(bruteTotals(data, t));
  });

  it("starts again when the store has moved its rows", () => {
    const index = indexed(simulate(500, { seed: 1 }));
    const other = simulate(800, { seed: 2 });
    index.update(other.lifetimes, other.segments, 1);
    expect([...index.totalsAt(other.end / 2).totals]).toEqual(bruteTotals(other, other.end / 2));
  });

  it("leaves out blocks that lived no time", () => {
    const { lifetimes, segments } = simulate(3, { seed: 1 });
    const index = new MemoryIndex();
    index.update({ ...lifetimes, end: lifetimes.start }, segments);
    expect(allocatedOf(index.totalsAt(Infinity).totals)).toBe(0);
  });
});

describe("sampled totals", () => {
  it("hold until the next one, show where they are larger, and add up", () => {
    const index = new MemoryIndex();
    const column = (values: number[]): Float64Array => Float64Array.from(values);
    const categories = Array.from({ length: CATEGORY_COUNT }, (_, c) => column([c === 3 ? 70 : 0, c === 1 ? 20 : 0, 0]));
    const sampled = { length: 3, time: column([2.5, 4.5, 6]), reserved: column([128, 128, 64]), allocated: column([100, 20, 0]), categories, until: 9 };
    const line = timeline(index, 0, 10, 10, sampled);
    expect([...line.allocated]).toEqual([0, 0, 100, 100, 100, 20, 0, 0, 0, 0]);
    expect([...line.reserved]).toEqual([0, 0, 128, 128, 128, 128, 64, 64, 64, 0]);
    expect(line.totals[2 * TOTALS_WIDTH + 3]).toBe(70);
    expect(line.totals[2 * TOTALS_WIDTH + WASTE]).toBe(30);
  });

  it("change nothing where the lifetimes say it all", () => {
    const data = simulate(400, { seed: 5 });
    const index = indexed(data);
    const times = eventTimes(data);
    const states = times.map((t) => bruteTotals(data, t));
    const sampled = {
      length: times.length, time: times, reserved: states.map((s) => s[RESERVED]!), allocated: states.map(sumOf),
      categories: Array.from({ length: CATEGORY_COUNT }, (_, c) => states.map((s) => s[c]!)), until: Infinity,
    };
    expect(timeline(index, 0, data.end, 90, sampled)).toEqual(timeline(index, 0, data.end, 90));
  });
});

describe("speed", () => {
  it("scrubs 200,000 lifetimes in less than 50 ms and draws them at 30 frames a second", () => {
    const count = 200_000;
    const random = generator(5);
    const allocated = Float64Array.from({ length: count }, (_, i) => i * 1e-4);
    const column = (f: (i: number) => number): Float64Array => Float64Array.from({ length: count }, (_, i) => f(i));
    const lifetimes = {
      used: count,
      id: column((i) => i + 1),
      start: allocated,
      end: column((i) => allocated[i]! + random() * 0.05),
      segment: new Uint32Array(count).fill(1),
      offset: column((i) => (i % 1000) * 4096),
      size: column(() => 4096),
      requested: column(() => 4000),
      category: Uint8Array.from({ length: count }, (_, i) => i % 7),
    };
    const segments = { used: 1, id: Uint32Array.of(1), start: Float64Array.of(0), end: Float64Array.of(Infinity), size: Float64Array.of(4096 * 1000) };
    const index = new MemoryIndex();
    index.update(lifetimes, segments);
    stateAt(index, 20); // the lists of live blocks grow with the first question
    expect(best(() => void stateAt(index, random() * 20))).toBeLessThan(50);
    expect(best(() => void timeline(index, 5, 10, 800))).toBeLessThan(33); // 50,000 lifetimes in the window
    const series = new FragmentationSeries(index);
    series.curve(5, 10, 800, 8192);
    expect(best(() => void series.curve(5, 10, 800, 8192))).toBeLessThan(33);
  });
});
