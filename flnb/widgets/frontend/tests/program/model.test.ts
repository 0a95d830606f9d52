import { describe, expect, it } from "vitest";
import { costsOf, familyOf, type Launch, liveOf, runsOf, spansOf, type Stored, stripOf } from "../../src/program/model.ts";

const stored = (name: string, bytes: number, offset: number | null, last: number): Stored => ({ name, bytes, offset, last, shape: "", dtype: "float32", where: "", category: 3 });
const launch = (name: string, more: Partial<Launch> = {}): Launch =>
  ({ kind: "kernel", name, phase: "forward", scope: "", parts: [], reads: [], stored: [], own: false, loops: "", ns: null, ...more });
const part = (op: string, family: string, share: number): Launch["parts"][number] => ({ op, family, share, shape: "", dtype: "", scope: "" });

describe("the memory of a program", () => {
  const launches = [
    launch("a", { stored: [stored("%1", 64, 0, 2)] }),
    launch("b", { stored: [stored("%2", 64, 64, 2), stored("out", 8, null, 3)] }),
    launch("c", { stored: [stored("%3", 64, 0, 3)] }), // in the place of %1, which it is the last to read
    launch("d"),
  ];

  it("counts a value until its last reader, and one that is replaced until then", () => {
    expect(spansOf(launches).map(({ begin, end }) => [begin, end])).toEqual([[0, 2], [1, 3], [2, 4]]);
    expect(liveOf(spansOf(launches), launches.length)).toEqual([64, 128, 128, 64]);
  });
});

describe("launches", () => {
  it("that follow each other in a scope and phase are together", () => {
    const launches = [launch("a"), launch("b"), launch("c", { scope: "net" }), launch("d", { scope: "net", phase: "backward" })];
    expect(runsOf(launches).map(({ first, last }) => [first, last])).toEqual([[0, 1], [2, 2], [3, 3]]);
  });

  it("of one name are added up, the slowest first; without times the most frequent", () => {
    const timed = [launch("a", { ns: 5 }), launch("b", { ns: 8 }), launch("a", { ns: 5 })];
    expect(costsOf(timed).map(({ name, count, ns }) => [name, count, ns])).toEqual([["a", 2, 10], ["b", 1, 8]]);
    expect(costsOf([launch("b"), launch("a"), launch("a")]).map(({ name, ns }) => [name, ns])).toEqual([["a", null], ["b", null]]);
  });

  it("have the colour of the largest part, and a strip of all families", () => {
    const both = launch("x", { parts: [part("add", "elementwise", 0.3), part("sum", "reduction", 0.4), part("mul", "elementwise", 0.3)] });
    expect(familyOf(both)).toBe("reduction");
    expect(stripOf(both)).toEqual([["elementwise", 0.6], ["reduction", 0.4]]);
    expect(familyOf(launch("copy"))).toBe("movement");
  });
});
