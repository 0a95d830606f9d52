import { describe, expect, it } from "vitest";
import { ranAt, selectsNode } from "../src/selection.ts";
import { selectionParts } from "../src/states.ts";
import { Store } from "../src/store.ts";
import type { TapeNode } from "../src/protocol.ts";

function store(): Store {
  const made = new Store();
  const plan = (shape: number[]) => ({ op: "add", family: "elementwise", shape, dtype: "float32", nbytes: 4 });
  made.plans = [plan([]), plan([8, 4]), plan([])];
  made.contexts = [{ scope: "", phase: "other" }, { scope: "net", phase: "forward", line: "In [5]:14: y = x * w" }, { scope: "net", phase: "forward" }];
  return made;
}

describe("ops of a line or of a shape", () => {
  it("are those with this line in their context; of no line, those without one", () => {
    const made = store();
    const line = { kind: "line", label: "In [5]:14", line: "In [5]:14: y = x * w" } as const;
    expect([1, 2].map((context) => ranAt(made, 1, context, line))).toEqual([true, false]);
    expect([0, 1, 2].map((context) => ranAt(made, 1, context, { ...line, line: "" }))).toEqual([true, false, true]);
  });

  it("are those with results of this shape, as the table names it", () => {
    const made = store();
    const shapes = ["8×4", "scalar"].map((shape) => ({ kind: "shape", label: shape, shape } as const));
    expect(shapes.map((one) => [1, 2].map((plan) => ranAt(made, plan, 1, one)))).toEqual([[true, false], [false, true]]);
    expect(ranAt(made, 0, 1, shapes[1]!)).toBe(false); // no plan has no shape
  });

  it("are selected on the tape, and named in the line below", () => {
    const made = store();
    const node = (plan: number, context: number): TapeNode => ({ id: 1, plan, context } as TapeNode);
    made.select({ kind: "line", label: "In [5]:14", line: "In [5]:14: y = x * w" });
    expect([node(1, 1), node(1, 2)].map((one) => selectsNode(made, one))).toEqual([true, false]);
    expect(selectionParts(made)).toEqual([{ text: "In [5]:14", code: true }]);
    made.select({ kind: "shape", label: "scalar", shape: "scalar" });
    expect([node(1, 1), node(2, 2)].map((one) => selectsNode(made, one))).toEqual([false, true]);
  });
});
