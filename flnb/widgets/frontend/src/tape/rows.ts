/** What stands between the two rows: plates of parameters, and how far apart the rows are. */

import { bisector } from "d3-array";
import type { Layout } from "./layout.ts";
import type { TapeModel } from "./model.ts";

/** Height of a plate, and the distance from one to the next. */
export const PARAMETER = 26;
export const PARAMETER_PITCH = 30;
export const PARAMETERS = 4; // drawn of one op; the rest is counted
const MARGIN = { compact: 20, full: 28 }; // for "forward" and "backward"

/** World positions of the two rows. */
export interface Rows { forward: number; backward: number; middle: number; height: number; /** Inner edges of the outermost frames, from the baselines. */ edge: number }

/**
 * Parameters by the box under which their plates stand: those of an op farther out (the bias that a convolution adds
 * through a reshape) stand with the op on the baseline of the same column.
 */
export function platesOf(layout: Layout, model: TapeModel): Map<string, number[]> {
  const plates = new Map<string, number[]>();
  const ops = layout.boxes.filter((box) => box.kind === "op");
  const base = ops.filter((box) => box.d === 0).sort((a, b) => a.x - b.x);
  for (const box of ops) {
    const parameters = model.nodes[box.index]?.parameters ?? [];
    if (parameters.length === 0) continue;
    const under = box.d === 0 ? box : base[lastBefore(base, box.x + box.width)];
    const below = under && box.x < under.x + under.width ? under : undefined;
    const key = (below ?? box).key;
    plates.set(key, [...new Set([...(plates.get(key) ?? []), ...parameters])]);
  }
  return plates;
}

/** Index of the last box that begins to the left of x, -1 for none. */
const lastBefore = (base: readonly { x: number }[], x: number): number => bisector((box: { x: number }) => box.x).left(base, x) - 1;

/** Rows for a picture of `height` world units: what remains goes between the rows. `above` is room kept for what stands on the forward row. */
export function rowsOf(layout: Layout, plates: ReadonlyMap<string, readonly number[]>, height: number, compact: boolean, above = layout.above): Rows {
  let most = 0;
  if (!compact) for (const leaves of plates.values()) most = Math.max(most, Math.min(PARAMETERS + 1, leaves.length));
  const least = Math.max(compact ? 40 : 80, most * PARAMETER_PITCH + 60);
  const margin = compact ? MARGIN.compact : MARGIN.full;
  const rest = height - 2 * margin - 2 * above - 2 * layout.below;
  const middle = Math.max(least, rest);
  const forward = margin + above;
  const backward = forward + layout.below + middle + layout.below;
  return { forward, backward, middle: (forward + backward) / 2, height: backward + above + margin, edge: layout.below };
}
