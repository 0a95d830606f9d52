/** How large the boxes of a tape are. */

import { integer } from "../format.ts";
import type { Theme } from "../theme.ts";
import { MEASURES, type Measures } from "./layout.ts";
import type { TapeModel } from "./model.ts";

export const EDGE = 12;
/** Below this the picture scrolls instead of shrinking further when it is first shown. */
export const READABLE = 0.93;

/** Boxes as wide as the names in them, within reason, which is more where the outermost of them leave the width empty. */
export function measuresOf(model: TapeModel, theme: Theme, width: number): Measures {
  const { inputs, root } = model.tree;
  const share = width / Math.max(1, inputs.length + (root.level?.items.length ?? 0)) - 2 * MEASURES.gap;
  const most = (least: number, wide: number): number => Math.max(least, Math.min(wide, share));
  const [op, module] = [theme.code(10.5, 500), theme.ui(11, 600)];
  let [ops, modules] = [0, 0];
  for (const info of model.nodes) ops = Math.max(ops, theme.measure(`${info.op}′`, op));
  for (const group of model.groups.values()) modules = Math.max(modules, theme.measure(`▸ ${group.name}′${group.repeat ? ` ×${integer(group.repeat)}` : ""}`, module));
  // Text does not shrink with the picture, boxes do.
  const room = 1 / (READABLE * 0.86);
  return {
    ...MEASURES, opWidth: Math.min(most(110, 170), Math.max(MEASURES.opWidth, Math.ceil(ops * room) + 16)),
    moduleWidth: Math.min(most(156, 300), Math.max(MEASURES.moduleWidth, Math.ceil(modules * room) + 18)),
  };
}

/** The overview's boxes share the width. */
export function compactMeasures({ tree }: TapeModel, width: number): Measures {
  const inputs = tree.inputs.length > 0 ? 1 : 0;
  const count = Math.max(1, tree.root.level?.items.length ?? 0);
  const gap = 14;
  const inputWidth = 64;
  const room = width - 2 * EDGE - 4 - inputs * (inputWidth + gap) - (count - 1) * gap;
  const box = Math.min(112, Math.max(66, Math.floor(room / count)));
  return { ...MEASURES, height: 46, gap, inputWidth, moduleWidth: box, opWidth: Math.min(box, 92) };
}
