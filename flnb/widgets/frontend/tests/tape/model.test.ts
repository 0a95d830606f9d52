import { describe, expect, it } from "vitest";
import { Simulation } from "../../src/dev/simulate.ts";
import { Store } from "../../src/store.ts";
import type { Theme } from "../../src/theme.ts";
import { compactMeasures, measuresOf } from "../../src/tape/measures.ts";
import { layoutTape, renewed } from "../../src/tape/layout.ts";
import { isGroup } from "../../src/tape/groups.ts";
import { normShare } from "../../src/tape/pen.ts";
import { nearest, type Target } from "../../src/tape/targets.ts";
import { nodeCount, TapeModel } from "../../src/tape/model.ts";

const run = (options: ConstructorParameters<typeof Simulation>[0], seconds: number): { store: Store; model: TapeModel; more: (seconds: number) => void } => {
  const simulation = new Simulation(options);
  const store = new Store();
  const model = new TapeModel(store);
  const more = (span: number): void => {
    for (let t = 0; t < span; t += 0.04) {
      simulation.advance(0.04);
      const { content, buffers } = simulation.frame();
      store.receive(structuredClone(content), buffers, t);
    }
    model.update();
  };
  more(seconds);
  return { store, model, more };
};

describe("boxes", () => {
  const theme = { code: () => "", ui: () => "", measure: (text: string) => 7 * text.length } as unknown as Theme;

  it("are as wide as their titles where the outermost of them leave room", () => {
    const { model } = run({ steps: 60 }, 1);
    const group = [...model.groups.values()][0]!;
    Object.assign(group, { name: "a module with a long name" });
    const [narrow, wide] = [300, 4000].map((width) => measuresOf(model, theme, width).moduleWidth);
    expect(narrow).toBe(156);
    expect(wide).toBeGreaterThan(7 * "▸ a module with a long name′".length);
  });

  it("of the overview hold their names where all fit, and share the width where not", () => {
    const { model } = run({ steps: 60 }, 1);
    const items = model.tree.root.level!.items;
    const name = Math.max(...items.filter(isGroup).map((group) => 7 * `▸ ${group.name}′`.length));
    const [narrow, wide] = [200, 4000].map((width) => compactMeasures(model, theme, width).moduleWidth);
    expect(wide).toBeGreaterThan(name);
    expect(narrow).toBe(60);
  });
});

describe("the model of a run", () => {
  it("keeps the last whole tape over the stump of an interrupted backward", () => {
    const { store, model } = run({ steps: 60 }, 1);
    const whole = store.tape!;
    const simulation = new Simulation({ steps: 60 });
    simulation.advance(0.04);
    const { content, buffers } = simulation.frame(true);
    const sent = (tape: typeof whole): void => {
      store.receive({ ...content, keyframe: true, run: store.run!, tape }, buffers, 2000);
      model.update();
    };
    sent({ ...whole, step: whole.step + 1, t: whole.t + 1, nodes: whole.nodes.slice(0, 1), count: 1, leaves: [] });
    expect([store.tape!.step, model.nodes.length]).toEqual([whole.step, 18]);
    sent({ ...whole, step: whole.step + 2, t: whole.t + 2, nodes: whole.nodes.slice(0, 1), count: 1, leaves: whole.leaves.slice(0, 1) });
    expect(store.tape!.step).toBe(whole.step + 2);
    expect([nodeCount(1), nodeCount(18)]).toEqual(["1 node", "18 nodes"]);
  });

  it("gives laid-out boxes the numbers of a new step", () => {
    const { model, more } = run({ steps: 60 }, 1);
    const before = layoutTape(model.tree, new Set());
    more(1);
    const after = renewed(before, model.groups);
    expect(after.boxes.map(({ key, x, d }) => [key, x, d])).toEqual(before.boxes.map(({ key, x, d }) => [key, x, d]));
    const norms = (layout: typeof before): unknown[] => layout.boxes.map((box) => box.group?.data?.norm);
    expect(norms(after)).toEqual(norms(layoutTape(model.tree, new Set())));
    expect(norms(after)).not.toEqual(norms(before));
  });

  it("names ops, scopes and parameters, with parents before their readers", () => {
    const { model, store } = run({ steps: 60 }, 1);
    expect(model.nodes).toHaveLength(18);
    expect(model.tree.root.level!.items).toHaveLength(5);
    const conv = model.nodes[0]!;
    expect([conv.op, conv.scope, conv.parameters.map((leaf) => model.leafName(leaf, false)), conv.inputs.map((leaf) => model.leafName(leaf, true))])
      .toEqual(["conv2d", "net.stem.conv", ["net.stem.conv.weight"], ["x"]]);
    for (const [index, info] of model.nodes.entries()) for (const parent of info.parents) expect(parent).toBeLessThan(index);
    expect(store.tape!.step).toBe(model.tape!.step);
  });

  it("keeps its structure over the steps of one program", () => {
    const { model, more } = run({ steps: 200 }, 1);
    const [structure, step] = [model.structure, model.tape!.step];
    more(1);
    expect(model.tape!.step).toBeGreaterThan(step);
    expect(model.structure).toBe(structure);
  });

  it("finds the op of a NaN", () => {
    const { model } = run({ steps: 40, nanStep: 40 }, 3);
    expect(model.tape!.step).toBe(40);
    expect(model.nodes.filter((info) => info.health === "origin").map((info) => info.scope)).toEqual(["net.stem.bn"]);
    expect(model.nodes[0]!.health).toBe("spread");
    expect(model.badOut(1)).toEqual({ bad: 49152, numel: 262144 });
    expect(model.tree.root.level!.items.map((item) => (isGroup(item) ? model.healthOf(item) : ""))).toEqual(["origin", "fine", "fine", "fine", "fine"]);
    expect(model.nodes.slice(3).every((info) => info.health === "fine")).toBe(true);
  });

  it("names where a NaN begins in the order of the backward", () => {
    const { store, model } = run({ steps: 60 }, 1);
    const whole = store.tape!;
    const nodes = whole.nodes.map((node) => ({ ...node, health: node.at === 3 || node.at === 9 ? 2 as const : 0 as const }));
    store.tape = { ...whole, nodes };
    store.versions.tape++;
    model.update();
    expect(model.origins.map((at) => model.nodes[at]!.node.at)).toEqual([9, 3]);
  });

  it("keeps a tape with NaN and goes on with the norms of later steps", () => {
    const { store } = run({ steps: 40, nanStep: 40 }, 3);
    const simulation = new Simulation({ steps: 40 });
    simulation.advance(0.04);
    const { content, buffers } = simulation.frame(true);
    const tape = store.tape!;
    const { context, plan } = tape.nodes[0]!;
    const norms = (step: number, norm: number) => ({ step, t: tape.t + step, gradient: norm, gradient_bad: 0, nodes: [{ context, plan, norm, bad: 0 }] });
    const sent = (more: object): void => {
      const { tape: _, ...head } = content;
      store.receive({ ...head, ...more, keyframe: true, run: store.run! }, buffers, 2000);
    };
    sent({ norms: norms(41, 2) });
    sent({ norms: norms(42, 3) });
    expect([store.tape, store.newest]).toEqual([tape, 42]);
    expect([store.norms.all.last("step"), store.norms.all.last("value")]).toEqual([42, 3]);
    expect(store.norms.of({ context, plan, norm: 0, bad: 0 })!.last("value")).toBe(3);
    sent({ tape: { ...tape, step: 43, t: tape.t + 43, gradient: 1, gradient_bad: 0 } });
    expect([store.tape!.step, store.newest]).toEqual([43, null]);
  });

  it("has one point a step of a backward that is told as it grows", () => {
    const { store } = run({ steps: 60 }, 1);
    const whole = store.tape!;
    const [first, second] = whole.nodes;
    const before = store.norms.of(first!)!.length;
    for (const nodes of [[first!], [first!, second!]]) store.norms.take({ ...whole, step: 1000, t: whole.t + nodes.length, gradient: null, nodes: nodes.map((node) => ({ ...node, norm: 7 })) });
    expect(store.norms.of(first!)!.length).toBe(before + 1);
  });

  it("is empty before the first backward", () => {
    const model = new TapeModel(new Store());
    model.update();
    expect([model.tape, model.nodes, model.tree.root.level!.items]).toEqual([null, [], []]);
  });
});

describe("the norm bar", () => {
  it("is logarithmic from 1e-4 to 10, and never quite empty", () => {
    expect(normShare(10)).toBe(1);
    expect(normShare(1e6)).toBe(1);
    expect(normShare(Math.sqrt(1e-3))).toBeCloseTo(0.5, 12);
    expect(normShare(1e-4)).toBe(0.02);
    expect(normShare(0)).toBe(0.02);
  });
});

describe("arrow keys", () => {
  const target = (key: string, row: Target["row"], x: number, y: number): Target => ({ kind: "op", key, row, index: 0, group: null, x, y, width: 80, height: 48 });
  const all = [target("a", "forward", 0, 0), target("b", "forward", 100, 0), target("c", "forward", 200, 60), target("p", "between", 105, 150), target("a", "backward", 0, 300), target("b", "backward", 100, 300)];

  it("lead to the neighbour in the row and to what stands above and below", () => {
    const go = (from: number, key: string): string | undefined => {
      const found = nearest(all, all[from]!, key);
      return found ? `${found.key} ${found.row}` : undefined;
    };
    expect(go(0, "ArrowRight")).toBe("b forward");
    expect(go(0, "ArrowLeft")).toBeUndefined();
    expect(go(1, "ArrowDown")).toBe("p between");
    expect(go(0, "ArrowDown")).toBe("a backward");
    expect(go(3, "ArrowDown")).toBe("b backward");
    expect(go(5, "ArrowUp")).toBe("p between");
    expect(go(5, "ArrowLeft")).toBe("a backward");
  });
});
