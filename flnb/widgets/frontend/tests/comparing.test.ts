// @vitest-environment jsdom
import { shifted, stepSpan } from "../src/comparehalf.ts";
import { inBoth, sharedIndices } from "../src/comparetimeline.ts";
import { countable } from "../src/counterparts.ts";
import { Piece } from "../src/threads/model.ts";
import { describe, expect, it } from "vitest";
import { pairedCurves } from "../src/comparemetrics.ts";
import { bound, ComparedOps, columnsOf, sortCompared } from "../src/compareops.ts";
import type { ComparedRow } from "../src/protocol.ts";
import { isComparison } from "../src/protocol.ts";
import { Columns } from "../src/columns.ts";
import { Store } from "../src/store.ts";

const row = (op: string, before: number, after: number, share = 0.5): ComparedRow => [op, "net", 1, before, 64, 2, after, 128, 1000, 500, share, "slower 2.00×"];
const rows = [row("add", 100, 110), row("mul", 500, 200), row("exp", 100, 200, 0.75)];

describe("compared ops", () => {
  const columns = columnsOf([1e12, 1e11]);

  it("are in the order of the size of the difference", () => {
    expect(sortCompared(rows, columns[6]!, true).map(([op]) => op)).toEqual(["mul", "exp", "add"]);
    expect(sortCompared(rows, columns[0]!, false).map(([op]) => op)).toEqual(["add", "exp", "mul"]);
  });

  it("say differences with their sign, bounds, and rates beside the peaks", () => {
    const said = columns.map(({ show }) => show(rows[1]!));
    expect(said[6]).toBe("−300 ns");
    expect(bound(0.75)).toBe(4);
    expect(columns[10]!.show(rows[2]!)).toBe("4.00×");
    expect(said[11]).toMatch(/^5\.00 GFLOP\/s · 0\.5 %$/); // 1000 FLOPs in 200 ns of 1e12
    expect(said[12]).toMatch(/^2\.50 GB\/s · 2\.5 %$/);
  });

  it("are a table whose ops select in both recordings and whose columns sort", () => {
    const chosen: string[] = [];
    const view = new ComparedOps((op) => chosen.push(op));
    const content = { type: "comparison", summary: "A: 1 s, B: 2 s", peaks: [1e12, 1e11], rows } as const;
    expect(isComparison(content)).toBe(true);
    expect(isComparison({ type: "comparison" })).toBe(false);
    view.set(content);
    expect(view.element.querySelector(".fl-comparedwords")?.textContent).toBe("A: 1 s, B: 2 s");
    const ops = (): (string | null)[] => [...view.element.querySelectorAll("tbody tr td:first-child")].map((cell) => cell.textContent);
    expect(ops()).toEqual(["mul", "exp", "add"]);
    (view.element.querySelectorAll("tbody button")[1] as HTMLElement).click();
    expect(chosen).toEqual(["exp"]);
    (view.element.querySelector("thead button") as HTMLElement).click();
    expect(ops()).toEqual(["add", "exp", "mul"]);
    view.select("exp");
    expect(view.element.querySelector(".fl-chosen")?.textContent).toContain("exp");
  });
});

describe("compared metrics", () => {
  it("pair the curves of a name; what one run lacks is empty", () => {
    const [a, b] = [new Store(), new Store()];
    const metric = (...values: number[]) => {
      const made = new Columns(["step", "t", "value"], 16);
      values.forEach((value, step) => made.append({ step, t: step, value }));
      return made;
    };
    a.metrics.set("loss", metric(2, 1));
    b.metrics.set("loss", metric(3, 2, 1));
    b.metrics.set("speed", metric(7));
    expect(pairedCurves(a, b).map(({ name, curves }) => [name, ...curves.map(({ length }) => length)])).toEqual([["loss", 2, 3], ["speed", 0, 1]]);
  });
});

describe("timelines under each other", () => {
  const withSteps = (...rows: [index: number, t0: number, t1: number][]): Store => {
    const store = new Store();
    for (const [index, t0, t1] of rows) store.steps.append({ index, t0, t1 });
    return store;
  };

  it("finds the steps that both have, and where each stands", () => {
    const [a, b] = [withSteps([0, 0, 1], [1, 1, 3], [2, 3, 4]), withSteps([1, 0.5, 1], [2, 1, 5], [7, 6, 8])];
    expect(sharedIndices(a, b)).toEqual([1, 2]);
    expect(stepSpan(a, 1)).toEqual({ t0: 1000, t1: 3000 });
    expect(stepSpan(b, 2)).toEqual({ t0: 1000, t1: 5000 });
    expect(stepSpan(b, 3)).toBeNull();
    expect(sharedIndices(a, withSteps())).toEqual([]);
  });

  it("names both durations and the ratio, none where one is unknown", () => {
    expect(inBoth(12.5, 25)).toBe("A 12.5 ms · B 25.0 ms · B/A 2.00×");
    expect(inBoth(NaN, 25)).toBe("A – · B 25.0 ms · B/A –");
    expect(inBoth(0, 25)).toContain("B/A –");
  });

  it("counts events from the beginning of the step, and none where that is not drawn or behind a merged bar", () => {
    const row = {
      start: Float64Array.of(-3, -1, 0, 2, 4, 6, 9), end: Float64Array.of(-2, 0, 1, 3, 5, 8, 10), count: Uint32Array.of(5, 1, 1, 1, 1, 3, 1),
      what: Uint32Array.of(), context: Uint32Array.of(), number: Float64Array.of(), longest: Float64Array.of(),
    };
    expect(countable(row, -5, 0, 100)).toEqual([2, 3, 4]); // those behind the three that are merged have no number
    expect(countable(row, 0, 0, 4)).toEqual([2, 3]);
    expect(countable(row, 1, 0, 100)).toEqual([]); // a window in the middle of the step
  });

  it("moves all times of a piece and nothing else", () => {
    const row = { start: Float64Array.of(5, 7), end: Float64Array.of(6, 9), what: Uint32Array.of(1, 2), context: Uint32Array.of(3, 4), count: Uint32Array.of(1, 8), number: Float64Array.of(0, 3), longest: Float64Array.of(1, 2) };
    const moved = shifted(new Piece(4, 10, 0.5, new Map([["1 op 0", row]])), -5);
    expect([moved.t0, moved.t1, moved.pixel]).toEqual([-1, 5, 0.5]);
    expect(moved.rows.get("1 op 0")).toEqual({ ...row, start: Float64Array.of(0, 2), end: Float64Array.of(1, 4) });
    expect(row.start[0]).toBe(5);
  });
});
