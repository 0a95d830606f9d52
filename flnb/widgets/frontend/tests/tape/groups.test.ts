import { describe, expect, it } from "vitest";
import { allGroups, boxes, type Child, type Group, groupsOf, isGroup, openAll, openAtFirst } from "../../src/tape/groups.ts";
import { generator } from "../memory/simulated.ts";
import { chain, graph, mlp, node, residual } from "./graphs.ts";

const names = (children: readonly Child[]): string[] => children.map((child) => (isGroup(child) ? child.name : `#${child}`));

function leavesOf(children: readonly Child[]): number[] {
  return children.flatMap((child) => (isGroup(child) ? leavesOf(child.children) : [child]));
}

describe("modules", () => {
  it("are the parts of the outermost one", () => {
    const root = groupsOf(chain("net.stem.conv", "net.stem.bn", "net.body.conv", "net.body.bn", "loss", "loss"));
    expect(names(root.children)).toEqual(["stem", "body", "loss"]);
    expect(names((root.children[0] as Group).children)).toEqual(["#0", "#1"]);
  });

  it("of one op are that op, and a chain of single modules is one", () => {
    expect(names(groupsOf(chain("a.relu", "b.only.conv", "b.only.conv", "c", "c")).children)).toEqual(["#0", "b", "c"]);
  });

  it("called twice are two, so that no cycle arises", () => {
    const root = groupsOf(residual(1));
    const block = [...allGroups(root.children)].find((group) => group.name === "layer1")!;
    expect(block.children).toEqual([3, 4, 5, 6, 7, 8, 9]);
    const twice = groupsOf(chain("m.relu", "m.relu", "m.conv", "m.relu", "m.relu", "z", "y", "x", "w", "v", "u"));
    expect(names((twice.children[0] as Group).children)).toEqual(["relu", "#2", "relu"]);
    expect(new Set([...allGroups(twice.children)].map((group) => group.key)).size).toBe([...allGroups(twice.children)].length);
  });

  it("named by a number carry their container's name", () => {
    expect(names(groupsOf(chain("net.0", "net.0", "net.1", "net.2", "net.2")).children)).toEqual(["net.0", "#2", "net.2"]);
  });

  it("hold every node once, whatever the scopes", () => {
    const random = generator(8);
    const part = (): string => "abc"[Math.floor(random() * 3)]!;
    for (let round = 0; round < 30; round++) {
      const nodes = Array.from({ length: 1 + Math.floor(random() * 300) }, () => node(Array.from({ length: Math.floor(random() * 4) }, part).join(".")));
      expect(leavesOf(groupsOf(graph(nodes)).children)).toEqual(nodes.map((_, at) => at));
    }
  });

  it("are made up where hundreds of ops stand side by side", () => {
    const root = groupsOf(chain(...Array<string>(1000).fill("")));
    expect(root.children.length).toBeLessThanOrEqual(60);
    expect(leavesOf(root.children)).toHaveLength(1000);
    for (const group of allGroups(root.children)) expect(group.children.length).toBeLessThanOrEqual(60);
  });
});

describe("what stands open", () => {
  it("counts boxes as they are drawn", () => {
    const root = groupsOf(mlp(4));
    expect(boxes(root.children, new Set())).toBe(root.children.length);
    expect(boxes(root.children, openAll(root, 1500))).toBe(13);
  });

  it("begins with what is heavy, within the number of boxes", () => {
    const tape = chain("a", "a", "a", "b", "b", "b", "c", "c", "c");
    const heavy = graph(tape.nodes.map((n, at) => ({ ...n, time: at === 4 ? 100 : 1 })));
    const root = groupsOf(heavy);
    const open = openAtFirst(heavy, root, 5);
    expect([...open]).toEqual(["/b#0"]);
    expect(boxes(root.children, open)).toBe(5);
  });

  it("begins with the module in which a NaN arose", () => {
    const tape = residual(6);
    const sick = graph(tape.nodes.map((n, at) => ({ ...n, origin: at === 20 })));
    const root = groupsOf(sick);
    const open = openAtFirst(sick, root, 20);
    const group = [...allGroups(root.children)].find((g) => g.first <= 20 && 20 < g.last)!;
    expect(open.has(group.key)).toBe(true);
  });

  it("asks whether it still fits", () => {
    const tape = residual(3);
    const root = groupsOf(tape);
    expect(openAtFirst(tape, root, 60, (open) => open.size < 2).size).toBe(1);
  });

  it("never exceeds the limit, and never lies inside something closed", () => {
    const tape = residual(300);
    const root = groupsOf(tape);
    for (const most of [70, 200, 1500]) {
      const open = openAll(root, most);
      expect(boxes(root.children, open)).toBeLessThanOrEqual(most);
      for (const group of allGroups(root.children)) {
        if (!open.has(group.key)) for (const inner of allGroups(group.children)) expect(open.has(inner.key)).toBe(false);
      }
    }
  });
});
