/** Small tapes to lay out. */

import type { GraphNode, TapeGraph } from "../../src/tape/groups.ts";

export const node = (scope: string, parents: number[] = [], extra: Partial<GraphNode> = {}): GraphNode => ({
  scope: scope === "" ? [] : scope.split("."), parents, leaves: [], time: 1, origin: false, ...extra,
});

export const graph = (nodes: GraphNode[], leaves: boolean[] = []): TapeGraph => ({ nodes, leaves: leaves.map((parameter) => ({ parameter })) });

/** Nodes in a line, one scope each. */
export const chain = (...scopes: string[]): TapeGraph => graph(scopes.map((scope, at) => node(scope, at === 0 ? [] : [at - 1])));

/** Linear layers of two ops with ReLUs between, then a loss. */
export const mlp = (layers: number): TapeGraph =>
  chain(...Array.from({ length: layers }, (_, k) => [`net.${2 * k}`, `net.${2 * k}`, ...(k < layers - 1 ? [`net.${2 * k + 1}`] : [])]).flat(), "loss", "loss");

/** Residual blocks: conv, bn, relu, conv, bn, add with the block's input, and the same relu module again. */
export function residual(count: number): TapeGraph {
  const nodes: GraphNode[] = [node("net.stem.conv"), node("net.stem.bn", [0]), node("net.stem.relu", [1])];
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
  return graph(nodes);
}
