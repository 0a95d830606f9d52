/** The newest tape as a graph of named things: what every node is, where gradients went bad, and the tree of modules. */

import { integer } from "../format.ts";
import type { Plan, Tape, TapeLeaf, TapeNode } from "../protocol.ts";
import type { Store } from "../store.ts";
import { allGroups, type Group, type GraphNode, groupsOf, type TapeGraph } from "./groups.ts";

/** Gradients through one op: fine, bad before they arrived here, or made bad by this op's backward. */
export type Health = "fine" | "spread" | "origin";

export interface NodeInfo {
  readonly node: TapeNode;
  readonly plan: Plan | undefined;
  readonly op: string;
  readonly family: string;
  readonly scope: string;
  readonly health: Health;
  /** Leaf numbers of its parameters, and other leaves. */
  readonly parameters: readonly number[];
  readonly inputs: readonly number[];
  readonly parents: readonly number[];
  readonly consumers: number[];
}

const isBad = (thing: { bad: number; norm: number | null } | undefined): boolean => thing !== undefined && (thing.bad > 0 || Number.isNaN(thing.norm));

/**
 * Where gradients are bad. A node's norm is of the gradient that arrives at its output, so the op whose backward made
 * the first NaN is the one that got a good gradient and gave a bad one. A bad gradient that nothing on the tape made
 * began at the node it arrived at first.
 */
export function healthOf(nodes: readonly { bad: boolean; parents: readonly number[]; leavesBad: boolean }[]): Health[] {
  const consumed = new Array<boolean>(nodes.length).fill(false);
  for (const node of nodes) for (const parent of node.parents) consumed[parent] = true;
  return nodes.map((node, at) => {
    if (node.bad) return consumed[at] ? "spread" : "origin";
    return node.leavesBad || node.parents.some((parent) => nodes[parent]!.bad) ? "origin" : "fine";
  });
}

export class TapeModel {
  tape: Tape | null = null;
  nodes: NodeInfo[] = [];
  leaves: readonly TapeLeaf[] = [];
  graph: TapeGraph = { nodes: [], leaves: [] };
  root: Group = { key: "", name: "", path: "", first: 0, last: 0, children: [] };
  /** Changes when the graph does: other nodes, edges or scopes. A new step of the same program keeps it. */
  structure = 0;
  /** Nodes whose backward made the first bad gradient, as text: "" where all is fine. */
  origin = "";
  groups: ReadonlyMap<string, Group> = new Map();
  private signature = "";
  private seen = -1;

  constructor(private readonly store: Store) {}

  update(): void {
    const { store } = this;
    if (this.seen === store.versions.tape) return;
    this.seen = store.versions.tape;
    this.tape = store.tape;
    if (!this.tape) {
      this.nodes = [];
      this.leaves = [];
      this.graph = { nodes: [], leaves: [] };
      this.root = groupsOf(this.graph);
      this.groups = new Map();
      this.structure++;
      this.signature = "";
      return;
    }
    this.take(this.tape);
  }

  private take(tape: Tape): void {
    const { store } = this;
    const order = [...tape.nodes].sort((a, b) => a.id - b.id);
    const index = new Map(order.map((node, at) => [node.id, at]));
    const leafIndex = new Map(tape.leaves.map((leaf, at) => [leaf.id, at]));
    const parents = order.map((node, at) => [...new Set(node.parents.map((id) => index.get(id) ?? -1))].filter((parent) => parent >= 0 && parent < at));
    const leaves = order.map((node) => [...new Set(node.parents.map((id) => leafIndex.get(id) ?? -1))].filter((leaf) => leaf >= 0));
    const health = healthOf(order.map((node, at) => ({ bad: isBad(node), parents: parents[at]!, leavesBad: leaves[at]!.some((leaf) => isBad(tape.leaves[leaf])) })));
    this.leaves = tape.leaves;
    this.nodes = order.map((node, at): NodeInfo => {
      const plan = store.plan(node.plan);
      return {
        node, plan, op: plan?.op ?? "?", family: plan?.family ?? "movement", scope: store.context(node.context)?.scope ?? "", health: health[at]!,
        parameters: leaves[at]!.filter((leaf) => tape.leaves[leaf]!.parameter), inputs: leaves[at]!.filter((leaf) => !tape.leaves[leaf]!.parameter),
        parents: parents[at]!, consumers: [],
      };
    });
    this.nodes.forEach((info, at) => info.parents.forEach((parent) => this.nodes[parent]!.consumers.push(at)));
    this.graph = {
      nodes: this.nodes.map((info, at): GraphNode => ({
        scope: info.scope === "" ? [] : info.scope.split("."), parents: info.parents, leaves: leaves[at]!,
        time: info.node.forward_ns + info.node.backward_ns, origin: info.health === "origin",
      })),
      leaves: tape.leaves.map((leaf) => ({ parameter: leaf.parameter })),
    };
    const signature = this.nodes.map((info, at) => `${info.op}@${info.scope}<${info.parents.map((parent) => at - parent).join()}<${leaves[at]!.join()}`).join(";");
    this.origin = this.nodes.flatMap((info, at) => (info.health === "origin" ? [at] : [])).join();
    if (signature === this.signature) return;
    this.signature = signature;
    this.root = groupsOf(this.graph);
    this.groups = new Map([...allGroups(this.root.children)].map((group) => [group.key, group]));
    this.structure++;
  }

  /** Worst health of nodes first..last-1. */
  healthIn(first: number, last: number): Health {
    let worst: Health = "fine";
    for (let at = first; at < last; at++) {
      const { health } = this.nodes[at]!;
      if (health === "origin") return "origin";
      if (health === "spread") worst = "spread";
    }
    return worst;
  }

  /** Whether the gradient that arrives at node `at` is bad. */
  arrivesBad(at: number): boolean {
    return isBad(this.nodes[at]?.node);
  }

  leafBad(leaf: number): boolean {
    return isBad(this.leaves[leaf]);
  }

  /** What the backward of node `at` gave: bad values and elements of the worst thing it reads; null where all is fine. */
  badOut(at: number): { bad: number; numel: number | null } | null {
    const info = this.nodes[at]!;
    const things = [...info.parents.map((parent) => this.nodes[parent]!.node), ...[...info.parameters, ...info.inputs].map((leaf) => this.leaves[leaf]!)];
    const worst = things.filter(isBad).sort((a, b) => b.bad - a.bad)[0];
    if (!worst) return null;
    const numel = "numel" in worst ? worst.numel : this.store.plan(worst.plan)?.shape.reduce((product, dim) => product * dim, 1) ?? null;
    return { bad: worst.bad, numel };
  }

  /** Name of a leaf: "weight" short, "net.stem.conv.weight" in full. */
  leafName(leaf: number, short: boolean): string {
    const { name, id } = this.leaves[leaf]!;
    if (name === "") return `leaf ${-id}`;
    return short ? name.slice(name.lastIndexOf(".") + 1) : name;
  }
}

const models = new WeakMap<Store, TapeModel>();

export function tapeOf(store: Store): TapeModel {
  let model = models.get(store);
  if (model === undefined) models.set(store, (model = new TapeModel(store)));
  return model;
}

/** "1 node", "18 nodes". */
export const nodeCount = (nodes: number): string => `${integer(nodes)} ${nodes === 1 ? "node" : "nodes"}`;
