import { describe, expect, it } from "vitest";
import { allGroups, type Group, isGroup, openAll } from "../../src/tape/groups.ts";
import { type Box, type Layout, layoutTape, MEASURES } from "../../src/tape/layout.ts";
import { best, generator } from "../memory/simulated.ts";
import { chain, type Graph, graph, mlp, node, residual } from "./graphs.ts";

const opened = ({ tree }: Graph, most = 20_000): Layout => layoutTape(tree, openAll(tree.root, most).open);
const closed = ({ tree }: Graph): Layout => layoutTape(tree, new Set());
const byIndex = (layout: Layout): Box[] => layout.boxes.filter((box) => box.kind !== "input").sort((a, b) => a.index - b.index);

/** What must hold of every picture. */
function check(tape: Graph, layout: Layout): void {
  const { boxes, frames } = layout;
  const wrong: string[] = [];
  for (let a = 0; a < boxes.length; a++) {
    for (let b = a + 1; b < boxes.length; b++) {
      const [one, two] = [boxes[a]!, boxes[b]!];
      const apart = one.x + one.width <= two.x || two.x + two.width <= one.x || one.d + one.height <= two.d || two.d + two.height <= one.d;
      if (!apart) wrong.push(`${one.key} and ${two.key} overlap`);
    }
  }
  for (const box of boxes) {
    expect(box.x).toBeGreaterThanOrEqual(0);
    expect(box.x + box.width).toBeLessThanOrEqual(layout.width);
    expect(box.d).toBeGreaterThanOrEqual(-layout.below);
    expect(box.d + box.height).toBeLessThanOrEqual(layout.above);
    for (const frame of frames) {
      const member = box.kind !== "input" && frame.group.first <= box.index && box.index < frame.group.last;
      const inside = box.x > frame.x && box.x + box.width < frame.x + frame.width && box.d > frame.d && box.d + box.height < frame.outer;
      const outside = box.x + box.width <= frame.x || box.x >= frame.x + frame.width || box.d + box.height <= frame.d || box.d >= frame.outer;
      if (!(member ? inside : outside)) wrong.push(`${box.key} and the frame ${frame.group.key}`);
    }
  }
  expect(wrong).toEqual([]);
  // Every connection goes to the right, inside and between frames.
  const place = new Map<number, Box>();
  for (const box of boxes) {
    if (box.kind === "input") continue;
    const last = box.group === null ? box.index + 1 : box.group.last;
    for (let at = box.index; at < last; at++) place.set(at, box);
  }
  tape.specs.forEach((n, at) => {
    for (const parent of n.parents) {
      const [from, to] = [place.get(parent)!, place.get(at)!];
      if (from !== to) expect(from.x + from.width).toBeLessThanOrEqual(to.x);
    }
  });
  for (const { points } of layout.routes) expect(points.every(Number.isFinite)).toBe(true);
}

/** Whether the stretch from (x0, d) to (x1, d) crosses a box. */
const crosses = (layout: Layout, x0: number, x1: number, d: number): boolean =>
  layout.boxes.some((box) => Math.max(x0, box.x + 1) < Math.min(x1, box.x + box.width - 1) && box.d < d && d < box.d + box.height);

describe("a chain", () => {
  it("stands in one row, in order, joined by straight arrows", () => {
    const layout = opened(chain("", "", "", ""));
    expect(layout.boxes.map((box) => box.d)).toEqual([0, 0, 0, 0]);
    expect(layout.boxes.map((box) => box.x)).toEqual([0, 1, 2, 3].map((k) => k * (MEASURES.opWidth + MEASURES.gap)));
    expect(layout.routes).toHaveLength(3);
    expect(layout.routes.every((route) => route.straight && route.arrow)).toBe(true);
    check(chain("", "", "", ""), layout);
  });

  it("of modules keeps all ops on one line, open or closed", () => {
    for (const layout of [opened(mlp(5)), closed(mlp(5))]) {
      expect(new Set(layout.boxes.map((box) => box.d))).toEqual(new Set([0]));
      check(mlp(5), layout);
    }
  });
});

describe("a residual net", () => {
  const tape = residual(3);

  it("keeps its main path straight and leads every skip over the boxes between", () => {
    const layout = opened(tape);
    check(tape, layout);
    expect(new Set(layout.boxes.map((box) => box.d))).toEqual(new Set([0]));
    const skips = layout.routes.filter((route) => route.points.length === 12);
    expect(skips).toHaveLength(3);
    for (const { points: p } of skips) {
      const [x0, d, x1] = [p[4]!, p[5]!, p[6]!];
      expect(x1).toBeGreaterThan(x0);
      expect(crosses(layout, x0, x1, d)).toBe(false);
      const frame = layout.frames.find((f) => f.x <= x0 && x1 <= f.x + f.width)!;
      expect(d).toBeLessThan(frame.outer - MEASURES.title + 6); // inside its block, under the title
    }
  });

  it("shows one box for each block when closed", () => {
    const layout = closed(tape);
    expect(layout.boxes.map((box) => box.group?.name ?? "op")).toEqual(["stem", "layer1", "layer2", "layer3", "head", "loss"]);
    expect(layout.routes).toHaveLength(5);
  });
});

describe("branches", () => {
  it("stand on each other in one column, and come together again", () => {
    const tape = graph([node(""), node("a.x", [0]), node("a.y", [1]), node("b.x", [0]), node("b.y", [3]), node("", [2, 4])]);
    const layout = opened(tape);
    check(tape, layout);
    const rows = byIndex(layout);
    expect(new Set([rows[2]!.d, rows[4]!.d]).size).toBe(2);
    check(tape, closed(tape));
  });

  it("keep their order over columns, by barycentre", () => {
    // Three branches of unequal weight: no lines cross.
    const tape = graph([node(""), node("", [0]), node("", [0]), node("", [0]), node("", [1]), node("", [2]), node("", [3]), node("", [4, 5, 6])]);
    const rows = byIndex(opened(tape));
    const order = (indices: number[]): number[] => indices.map((at) => rows[at]!.d);
    const [first, second] = [order([1, 2, 3]), order([4, 5, 6])];
    for (let a = 0; a < 3; a++) for (let b = 0; b < 3; b++) if (first[a]! < first[b]!) expect(second[a]!).toBeLessThan(second[b]!);
  });

  it("share one line where one source is read again and again", () => {
    const tape = graph([node(""), ...Array.from({ length: 5 }, (_, k) => node("", k === 0 ? [0] : [k, 0]))]);
    const layout = opened(tape);
    check(tape, layout);
    const tracks = new Set(layout.routes.filter((route) => route.points.length === 12).map((route) => route.points[5]));
    expect(tracks.size).toBe(1);
  });
});

describe("sources", () => {
  it("stand right before what reads them", () => {
    const tape = graph([node(""), node("", [0]), node("", [1]), node(""), node("", [2, 3])]);
    const rows = byIndex(opened(tape));
    expect(rows[3]!.x).toBe(rows[2]!.x);
  });

  it("that are inputs make the first column; parameters make none", () => {
    const tape = graph([node("", [], { leaves: [0, 1] }), node("", [0], { leaves: [2] })], [false, true, true]);
    const layout = opened(tape);
    expect(layout.boxes.map((box) => box.kind)).toEqual(["input", "op", "op"]);
    expect(layout.boxes[0]!.x).toBeLessThan(layout.boxes[1]!.x);
    expect(layout.routes).toHaveLength(2);
  });
});

describe("ranks", () => {
  it("are the longest path, on random graphs, and nothing overlaps", () => {
    const random = generator(17);
    for (let round = 0; round < 25; round++) {
      const scope = (): string => Array.from({ length: Math.floor(random() * 3) }, () => "pqr"[Math.floor(random() * 3)]!).join(".");
      const nodes = Array.from({ length: 2 + Math.floor(random() * 40) }, (_, at) =>
        node(scope(), at === 0 ? [] : [...new Set(Array.from({ length: 1 + Math.floor(random() * 2) }, () => Math.floor(at * (random() < 0.6 ? 0.999 : random()))))]));
      const tape = graph(nodes);
      check(tape, opened(tape));
      check(tape, closed(tape));
      const flat = graph(nodes.map((n) => ({ ...n, scope: "" })));
      const layout = opened(flat);
      check(flat, layout);
      const longest: number[] = [];
      flat.specs.forEach((n, at) => (longest[at] = Math.max(0, ...n.parents.map((p) => longest[p]! + 1))));
      const columns = [...new Set(byIndex(layout).map((box) => box.x))].sort((a, b) => a - b);
      expect(byIndex(layout).map((box) => columns.indexOf(box.x))).toEqual(longest);
    }
  });

  it("of an empty tape make an empty picture", () => {
    expect(layoutTape(graph([]).tree, new Set())).toMatchObject({ boxes: [], frames: [], routes: [], width: 0 });
  });
});

describe("what stood there stays", () => {
  it("when a module opens: order and places of all that is left of it, order of all the rest", () => {
    const { tree } = residual(8);
    const before = layoutTape(tree, new Set());
    const middle = tree.root.level!.items[4] as Group;
    const after = layoutTape(tree, new Set([middle.key]));
    const at = before.boxes.findIndex((box) => box.key === middle.key);
    for (const box of before.boxes.slice(0, at)) expect(after.boxes.find((other) => other.key === box.key)).toMatchObject({ x: box.x, d: box.d });
    const frame = after.frames.find((one) => one.group.key === middle.key)!;
    expect(frame.x).toBe(before.boxes[at]!.x);
    const grown = frame.width - before.boxes[at]!.width;
    for (const box of before.boxes.slice(at + 1)) expect(after.boxes.find((other) => other.key === box.key)).toMatchObject({ x: box.x + grown, d: box.d });
  });

  it("whatever is opened, in whatever order, the nodes of a level keep their order", () => {
    const random = generator(3);
    for (let round = 0; round < 10; round++) {
      const { tree } = residual(4);
      const open = new Set<string>();
      const keys = [...allGroups(tree.root)].map((group) => group.key);
      let order: string[] = [];
      for (let k = 0; k < 6; k++) {
        open.add(keys[Math.floor(random() * keys.length)]!);
        const { boxes, frames } = layoutTape(tree, open);
        const places = new Map([...boxes.map((box) => [box.key, box.x] as const), ...frames.map((frame) => [frame.group.key, frame.x] as const)]);
        const now = [...tree.root.level!.items].map((item) => (isGroup(item) ? item.key : `n${item}`)).sort((a, b) => places.get(a)! - places.get(b)!);
        if (order.length > 0) expect(now).toEqual(order);
        order = now;
      }
    }
  });
});

describe("speed", () => {
  it("lays out 10,000 nodes in less than 200 ms, all of them open", () => {
    const { tree, specs } = residual(1430);
    expect(specs.length).toBeGreaterThan(10_000);
    const { open, unknown } = openAll(tree.root, 20_000);
    expect(unknown).toEqual([]);
    expect(best(() => void layoutTape(tree, new Set()))).toBeLessThan(200);
    expect(best(() => void layoutTape(tree, open))).toBeLessThan(200);
    expect(layoutTape(tree, open).boxes.length).toBe(specs.length);
  });
});
