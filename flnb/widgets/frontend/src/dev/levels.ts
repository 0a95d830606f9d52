/** The tree of a small tape, as the kernel makes it of any: for the developer page and for tests. */

import type { Health, Tape, TapeGroup, TapeLeaf, TapeLevel, TapeNode } from "../protocol.ts";

/** A node without its place and health, and what the tree needs to know of it. */
export interface Flat { node: Omit<TapeNode, "at" | "health">; op: string; family: string; scope: string }

/** Where gradients are bad: see `Graph.health` of flnb_telemetry. */
function healthOf(nodes: readonly Flat[], leaves: readonly TapeLeaf[]): Health[] {
  const bad = new Set([...nodes.map(({ node }) => node), ...leaves].filter((thing) => thing.bad > 0).map((thing) => thing.id));
  const read = new Set(nodes.flatMap(({ node }) => node.parents));
  return nodes.map(({ node }) => (bad.has(node.id) ? (read.has(node.id) ? 1 : 2) : node.parents.some((id) => bad.has(id)) ? 2 : 0));
}

type Entry = number | { name: string; path: string; first: number; last: number; depth: number };

/** Levels of a tape whose `nodes` are in order of execution: modules, without folds or portions. */
export function tapeFrom(flat: readonly Flat[], leaves: readonly TapeLeaf[], head: { step: number; t: number }): Tape {
  const health = healthOf(flat, leaves);
  const nodes = flat.map(({ node }, at): TapeNode => ({ ...node, at, health: health[at]! }));
  const place = new Map(nodes.map((node, at) => [node.id, at]));
  const scopes = flat.map(({ scope }) => (scope === "" ? [] : scope.split(".")));
  const levels: TapeLevel[] = [];
  /** Of each node the last one that reads it. */
  const reader = new Map(nodes.flatMap((node, at) => node.parents.map((id) => [id, at] as const)));

  const calls = (first: number, last: number, depth: number): Entry[] => {
    const found: Entry[] = [];
    for (let at = first; at < last; ) {
      const name = scopes[at]![depth];
      if (name === undefined) {
        found.push(at++);
        continue;
      }
      let end = at + 1;
      while (end < last && scopes[end]![depth] === name) end++;
      if (end === at + 1) found.push(at);
      else {
        const path = scopes[at]!.slice(0, depth + 1);
        let inner = depth + 1;
        while (scopes[at]![inner] !== undefined && scopes.slice(at, end).every((scope) => scope[inner] === scopes[at]![inner])) inner++;
        found.push({ name: /^\d+$/.test(name) && depth > 0 ? path.slice(-2).join(".") : name, path: path.join("."), first: at, last: end, depth: inner });
      }
      at = end;
    }
    return found;
  };

  const level = (key: string, entries: readonly Entry[], first: number, last: number): void => {
    const owner = new Map<number, number>();
    entries.forEach((entry, item) => {
      for (let at = typeof entry === "number" ? entry : entry.first; at < (typeof entry === "number" ? entry + 1 : entry.last); at++) owner.set(at, item);
    });
    const edges = new Set<string>();
    const [entered, left] = [new Set<number>(), new Set<number>()];
    for (let at = first; at < last; at++) {
      const to = owner.get(at)!;
      for (const id of nodes[at]!.parents) {
        const from = owner.get(place.get(id) ?? -1);
        if (from !== undefined && from !== to) edges.add(`${from} ${to}`);
        if ((place.get(id) ?? Infinity) < first) entered.add(to);
      }
      if ((reader.get(nodes[at]!.id) ?? -1) >= last) left.add(to);
    }
    const names = new Map<string, number>();
    const items = entries.map((entry): number | TapeGroup => {
      if (typeof entry === "number") return entry;
      const call = (names.get(entry.name) ?? -1) + 1;
      names.set(entry.name, call);
      const group = groupOf(`${key}/${entry.name}#${call}`, entry);
      level(group.key, calls(entry.first, entry.last, entry.depth), entry.first, entry.last);
      return group;
    });
    levels.push({ key, items, edges: [...edges].flatMap((edge) => edge.split(" ").map(Number)), entered: [...entered], left: [...left] });
  };

  const groupOf = (key: string, { name, path, first, last }: Exclude<Entry, number>): TapeGroup => {
    const part = nodes.slice(first, last);
    const final = part[part.length - 1]!;
    const sum = (of: (node: TapeNode) => number): number => part.reduce((total, node) => total + of(node), 0);
    const tally = (of: (at: number) => [string, number]): [string, number][] => {
      const totals = new Map<string, number>();
      for (let at = first; at < last; at++) {
        const [kind, value] = of(at);
        totals.set(kind, (totals.get(kind) ?? 0) + value);
      }
      return [...totals].sort((a, b) => b[1] - a[1]);
    };
    const ops = tally((at) => [flat[at]!.op, 1]);
    return {
      key, name, path, first, last, ids: [part[0]!.id, final.id], repeat: 0, plan: final.plan, norm: final.norm, bad: final.bad,
      health: Math.max(...part.map((node) => node.health)) as Health, forward_ns: sum((node) => node.forward_ns), backward_ns: sum((node) => node.backward_ns),
      saved: sum((node) => node.saved), families: tally((at) => [flat[at]!.family, nodes[at]!.forward_ns]), ops, different: ops.length,
    };
  };

  let outer = calls(0, nodes.length, 0);
  for (;;) {
    const main = outer.find((entry) => typeof entry !== "number" && 2 * (entry.last - entry.first) > nodes.length);
    if (main === undefined || typeof main === "number") break;
    outer = outer.flatMap((entry) => (entry === main ? calls(main.first, main.last, main.depth) : [entry]));
  }
  level("", outer, 0, nodes.length);
  const inputs: [number, number][] = [];
  for (const leaf of leaves.filter((one) => !one.parameter).slice(0, 8)) {
    outer.forEach((entry, item) => {
      const [first, last] = typeof entry === "number" ? [entry, entry + 1] : [entry.first, entry.last];
      if (nodes.slice(first, last).some((node) => node.parents.includes(leaf.id))) inputs.push([leaf.id, item]);
    });
  }
  const parameters = leaves.filter((leaf) => leaf.parameter);
  const known = parameters.filter((leaf) => leaf.norm !== null);
  return {
    ...head, truncated: 0, count: nodes.length, nodes, leaves: [...leaves], levels, inputs,
    structure: flat.map(({ node, op, scope }, at) => `${op}@${scope}<${node.parents.map((id) => at - (place.get(id) ?? at + id))}`).join(";"),
    gradient: known.length > 0 ? Math.sqrt(known.reduce((total, leaf) => total + leaf.norm! ** 2, 0)) : null,
    gradient_bad: parameters.reduce((total, leaf) => total + leaf.bad, 0),
  };
}
