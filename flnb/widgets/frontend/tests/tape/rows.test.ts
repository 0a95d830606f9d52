import { describe, expect, it } from "vitest";
import { layoutTape } from "../../src/tape/layout.ts";
import type { TapeModel } from "../../src/tape/model.ts";
import { platesOf, rowsOf } from "../../src/tape/rows.ts";
import { graph, node } from "./graphs.ts";

// A convolution whose bias goes through a reshape, as it is recorded: reshape stands above conv2d, add joins them.
const tape = graph([node("", [], { leaves: [0] }), node("", [], { leaves: [1] }), node("", [0, 1])], [true, true]);
const layout = layoutTape(tape.tree, new Set());
const model = { nodes: [{ parameters: [0] }, { parameters: [1] }, { parameters: [] }] } as unknown as TapeModel;

describe("plates of parameters", () => {
  it("of one column stand together, under the op on the baseline", () => {
    const place = (index: number) => layout.boxes.find((box) => box.index === index)!;
    const [low, high] = [place(0), place(1)].sort((a, b) => a.d - b.d);
    expect(high!.d).toBeGreaterThan(0);
    const plates = platesOf(layout, model);
    expect([...plates.keys()]).toEqual([low!.key]);
    expect([...plates.get(low!.key)!].sort()).toEqual([0, 1]);
  });
});

describe("the rows", () => {
  it("use the height there is, and keep room for the plates where there is too little", () => {
    const plates = platesOf(layout, model);
    const wide = rowsOf(layout, plates, 900, false);
    expect(wide.height).toBe(900);
    expect(wide.backward - wide.forward).toBeGreaterThan(500);
    expect(wide.middle).toBe((wide.forward + wide.backward) / 2);
    const tight = rowsOf(layout, plates, 10, false);
    expect(tight.backward - tight.forward).toBeGreaterThanOrEqual(2 * 30 + 60);
    expect(tight.height).toBeGreaterThan(10);
  });
});
