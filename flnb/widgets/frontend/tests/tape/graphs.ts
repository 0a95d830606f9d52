/** Small tapes to lay out. */

import { tapeFrom } from "../../src/dev/levels.ts";
import type { Health, Tape, TapeLeaf } from "../../src/protocol.ts";
import type { Tree } from "../../src/tape/groups.ts";
import { treeOf } from "../../src/tape/model.ts";

export interface Spec { scope: string; parents: number[]; leaves: number[]; time: number; health: Health }
/** A tape as the kernel tells it, its tree, and for each node the nodes it reads. */
export interface Graph { specs: Spec[]; tape: Tape; tree: Tree }

export const node = (scope: string, parents: number[] = [], extra: Partial<Spec> = {}): Spec => ({ scope, parents, leaves: [], time: 1, health: 0, ...extra });

/** `leaves`: for each whether it is a parameter. */
export function graph(specs: Spec[], leaves: boolean[] = []): Graph {
  const told = leaves.map((parameter, at): TapeLeaf => ({ id: -1 - at, name: "", parameter, plan: 0, norm: null, bad: 0 }));
  const flat = specs.map((spec, at) => ({
    op: "add", family: "elementwise", scope: spec.scope,
    node: {
      id: at + 1, plan: 0, context: 0, parents: [...spec.parents.map((parent) => parent + 1), ...spec.leaves.map((leaf) => -1 - leaf)], forward_ns: spec.time, backward_ns: 0,
      saved: 0, norm: null, bad: 0, numel: 1,
    },
  }));
  const tape = tapeFrom(flat, told, { step: 0, t: 0 });
  return { specs, tape, tree: treeOf(tape) };
}

/** Nodes in a line, one scope each. */
export const chain = (...scopes: string[]): Graph => graph(scopes.map((scope, at) => node(scope, at === 0 ? [] : [at - 1])));

/** Linear layers of two ops with ReLUs between, then a loss. */
export const mlp = (layers: number): Graph =>
  chain(...Array.from({ length: layers }, (_, k) => [`net.${2 * k}`, `net.${2 * k}`, ...(k < layers - 1 ? [`net.${2 * k + 1}`] : [])]).flat(), "loss", "loss");

/** Residual blocks: conv, bn, relu, conv, bn, add with the block's input, and the same relu module again. */
export function residual(count: number, change: (spec: Spec, at: number) => Spec = (spec) => spec): Graph {
  const nodes: Spec[] = [node("net.stem.conv"), node("net.stem.bn", [0]), node("net.stem.relu", [1])];
  for (let k = 0; k < count; k++) {
    const input = nodes.length - 1;
    const scope = `net.layer${k + 1}`;
    const last = (): number => nodes.length - 1;
    for (const part of ["conv1", "bn1", "relu", "conv2", "bn2"]) nodes.push(node(`${scope}.${part}`, [last()]));
    nodes.push(node(scope, [last(), input]));
    nodes.push(node(`${scope}.relu`, [last()]));
  }
  nodes.push(node("net.head.fc", [nodes.length - 1]), node("net.head.fc", [nodes.length]));
  nodes.push(node("loss", [nodes.length - 1]), node("loss", [nodes.length]));
  return graph(nodes.map(change));
}
