import { describe, expect, it } from "vitest";
import { difference } from "../../src/compare.ts";
import { counterpartRow, counterpartTime, inWords, match } from "../../src/memory/counterpart.ts";
import { Store } from "../../src/store.ts";

/** A recording with blocks of `sizes` born at these times, and steps that begin at others. */
function recording(born: number[], begins: number[], { first = 0, sizes = born.map((_, at) => 64 * (at + 1)) } = {}): Store {
  const store = new Store();
  const { memory, steps } = store;
  memory.lifetimes.everything = true;
  born.forEach((t, at) => {
    const row = memory.lifetimes.insert(at + 1, t);
    memory.lifetimes.requested[row] = memory.lifetimes.size[row] = sizes[at]!;
    memory.series.append({ t, allocated: 1, reserved: 1, waste: 0, c0: 1, c1: 0, c2: 0, c3: 0, c4: 0, c5: 0, c6: 0 });
  });
  begins.forEach((t0, at) => steps.append({ index: first + at, t0, t1: begins[at + 1] ?? 10 }));
  return store;
}

describe("the counterpart of a moment", () => {
  const a = recording([0, 1, 4, 5], [0, 4]);
  const b = recording([2, 3, 3.5, 8], [2, 3.5]);

  it("is the same allocation where both make the same ones, and what lies between follows", () => {
    for (const [here, there] of [[0, 2], [1, 3], [4, 3.5], [5, 8]]) {
      expect(counterpartTime(a, b, here!)).toBe(there);
      expect(counterpartTime(b, a, there!)).toBe(here);
    }
    expect(counterpartTime(a, b, 0.5)).toBeCloseTo(2.5, 6);
    expect(counterpartTime(a, b, 2.5)).toBeCloseTo(3.25, 6);
    // just before an allocation it has not happened on either side
    expect(counterpartTime(a, b, 4 - 1e-12)).toBeLessThan(3.5);
  });

  it("keeps the order of moments, whatever the runs are", () => {
    const other = recording([0, 0.5, 6], [0, 5]);
    for (const [one, two] of [[a, b], [a, other], [other, a]] as const) {
      let last = -Infinity;
      for (let t = 0; t <= 10; t += 0.125) {
        const there = counterpartTime(one, two, t);
        expect(there).toBeGreaterThanOrEqual(last);
        last = there;
      }
    }
  });

  it("is the same part of the same step where the allocations differ, and of the run where there is no such step", () => {
    const other = recording([0, 0.5, 6], [0, 5]);
    expect(match(a, other, 1)).toMatchObject({ step: 0, same: true }); // two allocations in step 0 of both
    expect(match(a, other, 4.5)).toMatchObject({ step: 1, same: false });
    expect(counterpartTime(a, other, 7)).toBeCloseTo(7.5, 6); // the middle of 4..10 and of 5..10
    const later = recording([0, 5, 10], [0, 5], { first: 100 });
    expect(match(a, later, 1)).toMatchObject({ step: null, same: false });
    expect(counterpartTime(a, later, 5)).toBeCloseTo(5, 6);
  });

  it("says in words what it is", () => {
    expect(inWords(a, b, 1.5, String)).toBe("allocation 2 of the run, step 0");
    const other = recording([0, 0.5, 6], [0, 5]);
    expect(inWords(a, other, 1.5, String)).toBe("allocation 2 of step 0");
    expect(inWords(a, other, 4.5, String)).toBe("the same part of step 1");
    expect(inWords(a, recording([1, 2, 3], []), 4.5, String)).toBe("the same part of the run");
  });
});

describe("the counterpart of a block", () => {
  it("asked for the same bytes at the same place in the order", () => {
    const a = recording([0, 1, 4], []);
    expect([0, 1, 2].map((row) => counterpartRow(a, recording([5, 6, 7], []), row))).toEqual([0, 1, 2]);
    expect([0, 1, 2].map((row) => counterpartRow(a, recording([5, 6, 7], [], { sizes: [64, 1, 192] }), row))).toEqual([0, -1, 2]);
    expect(counterpartRow(a, recording([5, 6], []), 0)).toBe(-1);
  });
});

describe("a difference", () => {
  it("carries its sign; unknown is unknown", () => {
    const of = (kind: "bytes" | "ratio" | "share" | "count", ...values: number[]): string => difference({ name: "", kind, values });
    expect([of("bytes", 2 ** 20, 3 * 2 ** 20), of("bytes", 1024, 512), of("bytes", 5, 5)]).toEqual(["+2.00 MiB", "−512 B", "0"]);
    expect([of("ratio", 2, 1.5), of("share", 0.1, 0.35), of("count", 3, 12)]).toEqual(["−0.500", "+25.0 %", "+9"]);
    expect([of("ratio", 2, Infinity), of("share", NaN, 0.5)]).toEqual(["–", "–"]);
  });
});
