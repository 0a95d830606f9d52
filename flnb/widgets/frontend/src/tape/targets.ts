/** What on the tape can be pointed at, and where the arrow keys lead from there. */

import { type Selection, selectionOfNode } from "../selection.ts";
import type { Store } from "../store.ts";
import type { Group } from "./groups.ts";
import type { TapeModel } from "./model.ts";

/** Something that can be pointed at, selected and reached with arrow keys. */
export interface Target {
  readonly kind: "op" | "module" | "input" | "parameter" | "frame";
  readonly key: string;
  readonly row: "forward" | "backward" | "between";
  readonly index: number; // of a known node or of a leaf; of a module its first node's place
  readonly group: Group | null;
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

/** The target that the arrow leads to: sideways within the row, up and down by distance with a preference for the same column. */
export function nearest(all: readonly Target[], from: Target, key: string): Target | null {
  const [x, y] = [from.x + from.width / 2, from.y + from.height / 2];
  let best: Target | null = null;
  let least = Infinity;
  for (const target of all) {
    if (target === from) continue;
    const [dx, dy] = [target.x + target.width / 2 - x, target.y + target.height / 2 - y];
    const sideways = key === "ArrowLeft" || key === "ArrowRight";
    if (sideways && (target.row !== from.row || (key === "ArrowRight" ? dx <= 0 : dx >= 0))) continue;
    if (!sideways && (key === "ArrowDown" ? dy <= 0 : dy >= 0)) continue;
    const cost = sideways ? Math.abs(dx) + 4 * Math.abs(dy) : Math.abs(dy) + 4 * Math.abs(dx);
    if (cost < least) [best, least] = [target, cost];
  }
  return best;
}

/** What is selected when a target is clicked; null where nothing is known of it. */
export function selectionOfTarget(target: Target, model: TapeModel, store: Store): Selection | null {
  const tape = model.tape!;
  if (target.kind === "input" || target.kind === "parameter") return { kind: "leaf", label: model.leafName(target.index, false), node: model.leaves[target.index]!.id };
  if (target.group) {
    const { path, data, key, name } = target.group;
    if (path) return { kind: "scope", label: path, scope: path, group: key, step: tape.step };
    return data && { kind: "nodes", label: data.repeat ? `${name} ×${data.repeat}` : name, nodes: data.ids, group: key, step: tape.step };
  }
  const selection = selectionOfNode(store, model.nodes[target.index]!.node, tape);
  return target.row === "backward" ? { ...selection, label: `${selection.label}′`, phase: "backward" } : selection;
}
