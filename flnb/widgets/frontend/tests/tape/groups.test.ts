import { describe, expect, it } from "vitest";
import { allGroups, boxes, type Child, type Group, isGroup, openAll, openAtFirst } from "../../src/tape/groups.ts";
import { treeOf } from "../../src/tape/model.ts";
import { chain, graph, mlp, node, residual } from "./graphs.ts";

const names = (children: readonly Child[]): string[] => children.map((child) => (isGroup(child) ? child.name : `#${child}`));
const items = (group: Group): readonly Child[] => group.level!.items;

describe("modules", () => {
  it("are the parts of the outermost one; a fold of equal blocks and portions arrive from the kernel as groups too", () => {
    const { tree } = chain("net.stem.conv", "net.stem.bn", "net.body.conv", "net.body.bn", "loss", "loss");
    expect(names(items(tree.root))).toEqual(["stem", "body", "loss"]);
    expect(names(items(items(tree.root)[0] as Group))).toEqual(["#0", "#1"]);
  });

  it("keep what enters and leaves them", () => {
    const { tree } = residual(1);
    const block = [...allGroups(tree.root)].find((group) => group.name === "layer1")!;
    expect(items(block)).toHaveLength(7);
    expect([...block.level!.entered]).toEqual([0, 5]);
    expect([...block.level!.left]).toEqual([6]);
    expect(block.level!.edges).toHaveLength(6);
  });
});

describe("what stands open", () => {
  it("counts boxes as they are drawn", () => {
    const { root } = mlp(4).tree;
    expect(boxes(root, new Set())).toBe(items(root).length);
    expect(boxes(root, openAll(root, 1500).open)).toBe(13);
  });

  it("begins with what is heavy, within the number of boxes", () => {
    const scopes = ["a", "a", "a", "b", "b", "b", "c", "c", "c"];
    const { root } = graph(scopes.map((scope, at) => node(scope, at ? [at - 1] : [], { time: at === 4 ? 100 : 1 }))).tree;
    const open = openAtFirst(root, 5);
    expect([...open]).toEqual(["/b#0"]);
    expect(boxes(root, open)).toBe(5);
  });

  it("begins with the module in which a NaN arose", () => {
    const told = residual(6).tape;
    for (const level of told.levels) for (const item of level.items) if (typeof item !== "number" && item.first <= 20 && 20 < item.last) item.health = 2;
    const { root } = treeOf(told);
    const open = openAtFirst(root, 20);
    const group = [...allGroups(root)].find((g) => g.first <= 20 && 20 < g.last)!;
    expect(open.has(group.key)).toBe(true);
  });

  it("leaves equal blocks folded, unless a NaN begins in one of them", () => {
    const told = residual(2).tape;
    const layer = told.levels.flatMap((level) => level.items).find((item) => typeof item !== "number" && item.name === "layer1");
    if (typeof layer !== "object") throw new Error("no layer1");
    layer.repeat = 7;
    const opened = (): boolean => openAtFirst(treeOf(told).root, 60).has(layer.key);
    expect(opened()).toBe(false);
    layer.health = 2;
    expect(opened()).toBe(true);
  });

  it("asks whether it still fits", () => {
    expect(openAtFirst(residual(3).tree.root, 60, (open) => open.size < 2).size).toBe(1);
  });

  it("never exceeds the limit, and never lies inside something closed", () => {
    const { root } = residual(300).tree;
    for (const most of [70, 400, 20_000]) {
      const { open } = openAll(root, most);
      expect(boxes(root, open)).toBeLessThanOrEqual(Math.max(most, items(root).length));
      for (const group of allGroups(root)) if (!open.has(group.key)) for (const inner of allGroups(group)) expect(open.has(inner.key)).toBe(false);
    }
  });

  it("asks for what it does not know, as far as it fits", () => {
    const told = residual(5).tape;
    const partly = { ...told, levels: told.levels.filter((level) => level.key !== "/layer2#0" && level.key !== "/layer4#0") };
    const { open, unknown } = openAll(treeOf(partly).root, 1500);
    expect(unknown).toEqual(["/layer2#0", "/layer4#0"]);
    expect(open.has("/layer1#0")).toBe(true);
    expect(openAll(treeOf(partly).root, 10).unknown).toEqual([]);
  });
});
