import { describe, expect, it } from "vitest";
import { generator } from "../../src/dev/program.ts";
import { Bars } from "../../src/timeline/bars.ts";

interface Seen { start: number; end: number; kind: number; first: number; count: number }

const visited = (bars: Bars, t0: number, t1: number, least: number): Seen[] => {
  const seen: Seen[] = [];
  bars.visit(t0, t1, least, (start, end, kind, first, count) => seen.push({ start, end, kind, first, count }));
  return seen;
};

/** Bars of chance lengths and gaps. */
function many(length: number, seed = 1): Bars {
  const random = generator(seed);
  const [start, end] = [new Float64Array(length), new Float64Array(length)];
  const kind = new Uint8Array(length);
  let t = 0;
  for (let at = 0; at < length; at++) {
    start[at] = t += random() < 0.1 ? random() * 5 : 0;
    end[at] = t += random() * random();
    kind[at] = Math.floor(random() * 4);
  }
  return new Bars(start, end, kind, Int32Array.from(start, (_, at) => at));
}

const row = (start: number, end: number, kind = 0, item = 0): { start: number; end: number; kind: number; item: number } => ({ start, end, kind, item });

describe("bars", () => {
  it("come one by one where there is room for each", () => {
    const bars = Bars.from([row(0, 1, 2), row(2, 4, 3), row(6, 7, 1)]);
    expect(visited(bars, 0, 10, 0.01)).toEqual([
      { start: 0, end: 1, kind: 2, first: 0, count: 1 }, { start: 2, end: 4, kind: 3, first: 1, count: 1 }, { start: 6, end: 7, kind: 1, first: 2, count: 1 },
    ]);
    expect(visited(bars, 1.5, 6, 0.01).map(({ first }) => first)).toEqual([1]);
    expect(visited(bars, 6.5, 6.6, 0.01).map(({ first }) => first)).toEqual([2]);
    expect(visited(Bars.from([]), 0, 1, 0.1)).toEqual([]);
  });

  it("are cut where they overlap, and left out where nothing remains", () => {
    const bars = Bars.from([row(5, 6, 0, 2), row(0, 4, 0, 0), row(1, 3, 0, 1), row(3, 5, 0, 3)]);
    expect([...bars.start]).toEqual([0, 4, 5]);
    expect([...bars.end]).toEqual([4, 5, 6]);
    expect([...bars.item]).toEqual([0, 3, 2]);
  });

  it("merge where they are narrower than a pixel, into the kind that takes most of the time", () => {
    const bars = Bars.from([row(0, 0.1, 1), row(0.2, 0.6, 2), row(0.7, 0.8, 1), row(5, 9, 3), row(9.1, 9.2, 1)]);
    expect(visited(bars, 0, 10, 1)).toEqual([
      { start: 0, end: 0.8, kind: 2, first: 0, count: 3 }, { start: 5, end: 9, kind: 3, first: 3, count: 1 }, { start: 9.1, end: 9.2, kind: 1, first: 4, count: 1 },
    ]);
  });

  it.each([1e-4, 0.01, 0.3, 5, 100, 1e4])("of a long row none vanishes and none is counted twice at %f a pixel", (least) => {
    const bars = many(20_000);
    const seen = visited(bars, -1, Infinity, least);
    expect(seen[0]!.first).toBe(0);
    const wrong = seen.filter((one, at) => one.first + one.count !== (seen[at + 1]?.first ?? bars.length)
      || one.start !== bars.start[one.first] || one.end !== bars.end[one.first + one.count - 1]
      || (one.count > 1 && one.end - one.start > least * (1 + 1e-9)));
    expect(wrong).toEqual([]);
  });

  it("of a million are drawn from about as many rectangles as there are pixels, also while panning", () => {
    const bars = many(1_000_000);
    const span = bars.end[bars.length - 1]!;
    for (const [t0, t1] of [[0, span], [span / 3, span / 2], [0.7 * span, 0.7 * span + 50]] as const) {
      const seen = visited(bars, t0, t1, (t1 - t0) / 1000);
      expect(seen.length).toBeGreaterThan(50);
      expect(seen.length).toBeLessThan(4000);
    }
    let least = Infinity; // the fastest of a few: the machine may be busy
    for (let turn = 0; turn < 20; turn++) {
      const began = performance.now();
      visited(bars, span * 0.01 * turn, span * (0.5 + 0.01 * turn), span / 2000);
      least = Math.min(least, performance.now() - began);
    }
    expect(least).toBeLessThan(16);
  });

  it("are found at a time, or a few pixels beside it", () => {
    const bars = Bars.from([row(0, 1), row(2, 2.001), row(4, 5)]);
    expect(bars.at(0.5)).toBe(0);
    expect(bars.at(1.4)).toBe(-1);
    expect(bars.at(1.9, 0.2)).toBe(1);
    expect(bars.at(2.1, 0.2)).toBe(1);
    expect(bars.at(3.9, 0.2)).toBe(2);
    expect(bars.at(9, 0.2)).toBe(-1);
    const long = many(5000);
    for (let at = 0; at < long.length; at += 97) {
      const middle = (long.start[at]! + long.end[at]!) / 2;
      if (long.end[at]! > long.start[at]!) expect(long.at(middle)).toBe(at);
    }
  });
});
