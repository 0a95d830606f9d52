import { bisectLeft } from "d3-array";
import { describe, expect, it } from "vitest";
import { FragmentationSeries, fragmentationOf, largestAllocation } from "../../src/memory/fragmentation.ts";
import { MemoryIndex } from "../../src/memory/events.ts";
import { stateAt } from "../../src/memory/state.ts";
import { arrivedBy, generator, type Simulated, simulate } from "./simulated.ts";

const REQUEST = 1500;

/** The four figures at `t` from the definitions, over units of 64 bytes. */
function brute({ lifetimes: l, segments: s }: Simulated, t: number, request: number) {
  let [reserved, live, requested, free, small, largest] = [0, 0, 0, 0, 0, 0];
  for (let k = 0; k < s.used; k++) {
    if (!(s.start[k]! <= t && t < s.end[k]!)) continue;
    reserved += s.size[k]!;
    const covered = new Uint8Array(s.size[k]! / 64);
    for (let i = 0; i < l.used; i++) {
      if (l.segment[i] !== s.id[k] || !(l.start[i]! <= t && t < l.end[i]!)) continue;
      covered.fill(1, l.offset[i]! / 64, (l.offset[i]! + l.size[i]!) / 64);
      live += l.size[i]!;
      requested += l.requested[i]!;
    }
    let run = 0;
    for (let u = 0; u <= covered.length; u++) {
      if (u < covered.length && covered[u] === 0) run += 64;
      else {
        free += run;
        if (run < request) small += run;
        largest = Math.max(largest, run);
        run = 0;
      }
    }
  }
  return { reserved, live, free, ratio: live > 0 ? reserved / live : reserved > 0 ? Infinity : NaN, unusable: free > 0 ? small / free : NaN, internal: live > 0 ? (live - requested) / live : NaN, largest };
}

describe.each([{ grow: false }, { grow: true }])("fragmentation, segments that grow: $grow,", ({ grow }) => {
  const data = simulate(900, { seed: 31, alive: 25, grow });
  const indexed = (): MemoryIndex => {
    const index = new MemoryIndex();
    index.update(data.lifetimes, data.segments);
    return index;
  };

  it("has segments of several sizes where they grow", () => {
    expect(new Set(data.segments.id).size < data.segments.used).toBe(grow);
  });

  it("of one moment follows its formulas", () => {
    const random = generator(5);
    const index = indexed();
    for (let i = 0; i < 60; i++) {
      const t = random() * data.end;
      expect(fragmentationOf(index, stateAt(index, t), REQUEST)).toEqual(brute(data, t, REQUEST));
    }
  });

  it.each([[0, 1, 60], [0.5, 0.6, 100], [0.9, 1.1, 30], [-0.1, 0.05, 20]])("over %d to %d shows the largest of each pixel", (a, b, pixels) => {
    const index = indexed();
    const [from, to] = [a * data.end, b * data.end];
    const curve = new FragmentationSeries(index).curve(from, to, pixels, REQUEST);
    const times = [...index.time.subarray(0, index.length)];
    for (let k = 0; k < pixels; k++) {
      const start = from + ((to - from) * k) / pixels;
      const end = from + ((to - from) * (k + 1)) / pixels;
      const moments = [start, ...times.slice(bisectLeft(times, start), bisectLeft(times, end))].map((t) => brute(data, t, REQUEST));
      const largest = (values: number[]): number => values.filter((v) => !Number.isNaN(v)).reduce((x, y) => Math.max(x, y), -Infinity);
      expect(curve.largest[k]).toBe(largest(moments.map((m) => m.largest)));
      const ratio = largest(moments.map((m) => m.ratio));
      expect(curve.ratio[k]).toBe(ratio === -Infinity ? NaN : ratio);
      const unusable = largest(moments.map((m) => m.unusable));
      expect(curve.unusable[k]).toBe(unusable === -Infinity ? NaN : unusable);
    }
  });

  it("averages reserved/live over time and finds the peak", () => {
    const index = indexed();
    const [from, to] = [data.end * 0.3, data.end * 0.7];
    const curve = new FragmentationSeries(index).curve(from, to, 50, REQUEST);
    const moments = [from, ...[...index.time.subarray(0, index.length)].filter((t) => t > from && t < to), to];
    let [reserved, live, peak] = [0, 0, { live: -1, time: 0, ratio: 0 }];
    for (let i = 0; i + 1 < moments.length; i++) {
      const state = brute(data, moments[i]!, REQUEST);
      if (state.live > peak.live) peak = { live: state.live, time: moments[i]!, ratio: state.ratio };
      reserved += state.reserved * (moments[i + 1]! - moments[i]!);
      live += state.live * (moments[i + 1]! - moments[i]!);
    }
    expect(curve.average).toBeCloseTo(reserved / live, 9);
    expect(curve.peak).toMatchObject(peak);
  });

  it("grows with the stream as if it had been whole", () => {
    const whole = new FragmentationSeries(indexed()).curve(data.end * 0.2, data.end, 80, REQUEST);
    const index = new MemoryIndex();
    const series = new FragmentationSeries(index);
    for (let t = data.end * 0.1; t < data.end; t += data.end * 0.037) {
      const part = arrivedBy(data, t);
      index.update(part.lifetimes, part.segments);
      series.curve(t - data.end * 0.1, t, 10, REQUEST);
    }
    index.update(data.lifetimes, data.segments);
    const { average, ...rest } = series.curve(data.end * 0.2, data.end, 80, REQUEST);
    expect({ ...rest, average: whole.average }).toEqual(whole);
    expect(average).toBeCloseTo(whole.average, 9);
  });

  it("answers anew for another request", () => {
    const index = indexed();
    const series = new FragmentationSeries(index);
    series.curve(0, data.end, 10, 100);
    expect(series.curve(0, data.end, 40, REQUEST)).toEqual(new FragmentationSeries(index).curve(0, data.end, 40, REQUEST));
  });

  it("is unknown, not zero, where there is nothing", () => {
    const empty = new MemoryIndex();
    const curve = new FragmentationSeries(empty).curve(0, 1, 3, REQUEST);
    expect([...curve.ratio, ...curve.unusable, curve.average]).toEqual(Array(7).fill(NaN));
    expect(fragmentationOf(empty, stateAt(empty, 0), REQUEST)).toMatchObject({ ratio: NaN, unusable: NaN, internal: NaN, largest: 0 });
  });

  it("names the largest allocation of a window", () => {
    const index = indexed();
    const [from, to] = [data.end * 0.25, data.end * 0.5];
    const inside = [...data.lifetimes.size.keys()].filter((r) => data.lifetimes.start[r]! >= from && data.lifetimes.start[r]! < to);
    const row = largestAllocation(index, from, to);
    expect(data.lifetimes.size[row]).toBe(Math.max(...inside.map((r) => data.lifetimes.size[r]!)));
    expect(inside).toContain(row);
    expect(largestAllocation(index, -2, -1)).toBe(-1);
  });
});
