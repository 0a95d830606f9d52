/** The newest tape as far as it is known: named nodes, where gradients went bad, and the tree of modules. */

import { integer } from "../format.ts";
import type { Plan, Tape, TapeGroup, TapeLeaf, TapeNode } from "../protocol.ts";
import type { Store } from "../store.ts";
import { allGroups, emptyTree, type Child, type Group, type Tree } from "./groups.ts";

/** Gradients through one op: fine, bad before they arrived here, or made bad by this op's backward. */
export type Health = "fine" | "spread" | "origin";
const HEALTH: readonly Health[] = ["fine", "spread", "origin"];

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
  /** What it reads and who reads it, among the nodes that are known. */
  readonly parents: readonly number[];
  readonly consumers: number[];
}

const isBad = (thing: { bad: number; norm: number | null } | undefined): boolean => thing !== undefined && (thing.bad > 0 || Number.isNaN(thing.norm));

export class TapeModel {
  tape: Tape | null = null;
  /** The nodes that are known, in order of execution. */
  nodes: NodeInfo[] = [];
  leaves: readonly TapeLeaf[] = [];
  tree: Tree = emptyTree();
  groups: ReadonlyMap<string, Group> = new Map();
  /** Changes when the graph does: other nodes, edges or scopes. A new step of the same program keeps it. */
  structure = 0;
  /** Changes when more of the same graph is known. */
  known = 0;
  /** Nodes whose backward made the first bad gradient, as text: "" where all is fine. */
  origin = "";
  private signature = "";
  private levels = "";
  private index: ReadonlyMap<number, number> = new Map();
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
      this.tree = emptyTree();
      this.groups = new Map();
      this.structure++;
      this.signature = this.levels = "";
      return;
    }
    this.take(this.tape);
  }

  private take(tape: Tape): void {
    const { store } = this;
    const order = [...tape.nodes].sort((a, b) => a.at - b.at);
    this.index = new Map(order.map((node, at) => [node.id, at]));
    const leafIndex = new Map(tape.leaves.map((leaf, at) => [leaf.id, at]));
    this.leaves = tape.leaves;
    this.nodes = order.map((node): NodeInfo => {
      const plan = store.plan(node.plan);
      const leaves = [...new Set(node.parents.map((id) => leafIndex.get(id) ?? -1))].filter((leaf) => leaf >= 0);
      return {
        node, plan, op: plan?.op ?? "?", family: plan?.family ?? "movement", scope: store.context(node.context)?.scope ?? "", health: HEALTH[node.health] ?? "fine",
        parameters: leaves.filter((leaf) => tape.leaves[leaf]!.parameter), inputs: leaves.filter((leaf) => !tape.leaves[leaf]!.parameter),
        parents: [...new Set(node.parents.map((id) => this.index.get(id) ?? -1))].filter((parent) => parent >= 0), consumers: [],
      };
    });
    this.nodes.forEach((info, at) => info.parents.forEach((parent) => this.nodes[parent]!.consumers.push(at)));
    this.origin = this.origins.map((at) => this.nodes[at]!.node.at).join();
    this.tree = treeOf(tape);
    this.groups = new Map([...allGroups(this.tree.root)].map((group) => [group.key, group]));
    const levels = tape.levels.map((level) => level.key).sort().join();
    if (tape.structure !== this.signature) this.structure++;
    if (levels !== this.levels) this.known++;
    this.signature = tape.structure;
    this.levels = levels;
  }

  /** Indices of the nodes where NaN or Inf begins, the first of the backward first. */
  get origins(): number[] {
    return this.nodes.flatMap((info, at) => (info.health === "origin" ? [at] : [])).reverse();
  }

  /** Index of the node that a picture opens at: where a NaN begins or the forward ended; -1 where all is well. */
  get alarm(): number {
    return this.origins[0] ?? this.nodes.findIndex(({ node }) => node.failed);
  }

  /** Index of a node by its id, -1 where it is not known. */
  indexOf(id: number | undefined): number {
    return id === undefined ? -1 : this.index.get(id) ?? -1;
  }

  /** Keys of the groups around a known node, outermost first. */
  wayTo(index: number): string[] {
    const { at } = this.nodes[index]!.node;
    return [...this.groups.values()].filter((group) => group.first <= at && at < group.last).map((group) => group.key);
  }

  /** Worst health of what a group holds. */
  healthOf(group: Group): Health {
    return HEALTH[group.data?.health ?? 0] ?? "fine";
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

  /** Whether the gradient that arrives at a group's last node is bad. */
  groupArrivesBad(group: Group | undefined): boolean {
    return isBad(group?.data ?? undefined);
  }

  /** Name of a leaf: "weight" short, "net.stem.conv.weight" in full. */
  leafName(leaf: number, short: boolean): string {
    const { name, id } = this.leaves[leaf]!;
    if (name === "") return `leaf ${-id}`;
    return short ? name.slice(name.lastIndexOf(".") + 1) : name;
  }
}

/** The levels of a tape, each in its group. */
export function treeOf(tape: Tape): Tree {
  const levels = new Map(tape.levels.map((level) => [level.key, level]));
  const at = new Map([...tape.nodes].sort((a, b) => a.at - b.at).map((node, index) => [node.at, index]));
  const leaves = new Map(tape.leaves.map((leaf, index) => [leaf.id, index]));
  const group = (data: TapeGroup): Group => {
    const { key, name, path, first, last, repeat } = data;
    const made: Group = { key, name, path, first, last, repeat, data, level: null };
    fill(made);
    return made;
  };
  const fill = (into: Group): void => {
    const level = levels.get(into.key);
    if (!level) return;
    const items = level.items.map((item): Child => (typeof item === "number" ? at.get(item) ?? -1 : group(item)));
    const edges = Array.from({ length: level.edges.length / 2 }, (_, k) => [level.edges[2 * k]!, level.edges[2 * k + 1]!] as const);
    into.level = { items, edges, entered: new Set(level.entered), left: new Set(level.left) };
  };
  const { root } = emptyTree();
  const whole: Group = { ...root, last: tape.count, level: null };
  fill(whole);
  return { root: whole, inputs: tape.inputs.flatMap(([id, to]) => (leaves.has(id) ? [[leaves.get(id)!, to] as const] : [])) };
}

const models = new WeakMap<Store, TapeModel>();

export function tapeOf(store: Store): TapeModel {
  let model = models.get(store);
  if (model === undefined) models.set(store, (model = new TapeModel(store)));
  return model;
}

/** "1 node", "18 nodes". */
export const nodeCount = (nodes: number): string => `${integer(nodes)} ${nodes === 1 ? "node" : "nodes"}`;
