/** How large the boxes of a tape are. */

import { clamp } from "../clamp.ts";
import { integer } from "../format.ts";
import type { Theme } from "../theme.ts";
import { type Group, isGroup } from "./groups.ts";
import { MEASURES, type Measures } from "./layout.ts";
import type { TapeModel } from "./model.ts";

export const EDGE = 12;
/** Below this the picture scrolls instead of shrinking further when it is first shown. */
export const READABLE = 0.93;

/** Width of the longest name of an op, and of a closed module, as both rows of the tape write them. */
function longest(theme: Theme, ops: Iterable<string>, modules: Iterable<Group>): [number, number] {
  const widest = (names: Iterable<string>, font: string): number => {
    let most = 0;
    for (const name of names) most = Math.max(most, theme.measure(`${name}′`, font));
    return most;
  };
  const titles = Array.from(modules, ({ name, repeat }) => `▸ ${name}${repeat ? ` ×${integer(repeat)}` : ""}`);
  return [widest(ops, theme.code(10.5, 500)), widest(titles, theme.ui(11, 600))];
}

/** Boxes as wide as the names in them, within reason, which is more where the outermost of them leave the width empty, and less than usual where they would not fit into it. */
export function measuresOf(model: TapeModel, theme: Theme, width: number): Measures {
  const { inputs, root } = model.tree;
  const count = Math.max(1, inputs.length + (root.level?.items.length ?? 0));
  const share = width / count - 2 * MEASURES.gap;
  const most = (least: number, wide: number): number => Math.max(least, Math.min(wide, share));
  const least = (usual: number): number => Math.min(usual, (width - 2 * EDGE - (count - 1) * MEASURES.gap) / count);
  const [ops, modules] = longest(theme, model.nodes.map(({ op }) => op), model.groups.values());
  // Text does not shrink with the picture, boxes do.
  const room = 1 / (READABLE * 0.86);
  return {
    ...MEASURES, opWidth: clamp(Math.ceil(ops * room) + 16, least(MEASURES.opWidth), most(110, 170)),
    moduleWidth: clamp(Math.ceil(modules * room) + 18, least(MEASURES.moduleWidth), most(156, 300)),
  };
}

/** The overview's boxes share the width: each as wide as its names where that fits, else narrower. */
export function compactMeasures({ tree, nodes }: TapeModel, theme: Theme, width: number): Measures {
  const inputs = tree.inputs.length > 0 ? 1 : 0;
  const items = tree.root.level?.items ?? [];
  const modules = items.filter(isGroup);
  const ops = items.filter((child): child is number => !isGroup(child));
  const names = longest(theme, ops.map((node) => nodes[node]!.op), modules);
  const [op, module] = [Math.min(170, Math.ceil(names[0]) + 16), Math.min(170, Math.ceil(names[1]) + 18)];
  const needed = ops.length * op + modules.length * module;
  const inputWidth = 64;
  const roomOf = (gap: number): number => width - 2 * EDGE - 4 - inputs * (inputWidth + gap) - (items.length - 1) * gap;
  const gap = roomOf(14) >= needed ? 14 : 9;
  const share = roomOf(gap) / Math.max(1, needed);
  const wide = (wish: number, usual: number): number => (share < 1 ? Math.max(60, Math.floor(wish * share)) : Math.max(wish, Math.min(usual, Math.floor(wish * share))));
  return { ...MEASURES, height: 46, gap, inputWidth, moduleWidth: wide(module, 112), opWidth: wide(op, 92) };
}
