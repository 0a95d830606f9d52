// @vitest-environment jsdom
import { describe, expect, it } from "vitest";
import { pairedCurves } from "../src/comparemetrics.ts";
import { bound, ComparedOps, columnsOf, sortCompared } from "../src/compareops.ts";
import type { ComparedRow } from "../src/protocol.ts";
import { isComparison } from "../src/protocol.ts";
import { Columns } from "../src/columns.ts";
import { Store } from "../src/store.ts";

const row = (op: string, before: number, after: number, share = 0.5): ComparedRow => [op, "net", 1, before, before, 64, 2, after, after / 2, 128, 1000, 500, share, "slower 2.00×"];
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
    const content = { type: "comparison", per: "step", seconds: [1, 2], peaks: [1e12, 1e11], rows } as const;
    expect(isComparison(content)).toBe(true);
    expect(isComparison({ type: "comparison" })).toBe(false);
    view.set(content);
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
