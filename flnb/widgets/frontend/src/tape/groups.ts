/**
 * The tape as a tree of modules, and which of them stand open.
 *
 * Nodes are in order of execution, so a module call is a run of neighbours with the same scope prefix. A module that is
 * called twice makes two groups: contracting runs of an executed program never makes a cycle.
 */

export interface GraphNode {
  /** Path of modules, outermost first. */
  readonly scope: readonly string[];
  /** Indices of earlier nodes that this one reads. */
  readonly parents: readonly number[];
  /** Indices of leaves that it reads. */
  readonly leaves: readonly number[];
  /** Nanoseconds, forward and backward; what is heavy opens first. */
  readonly time: number;
  /** Its backward made the first NaN or Inf. */
  readonly origin: boolean;
}

export interface TapeGraph {
  readonly nodes: readonly GraphNode[];
  /** Per leaf: whether it is a parameter (drawn between the rows) or an input (drawn as the first column). */
  readonly leaves: readonly { readonly parameter: boolean }[];
}

/** Nodes first..last-1. */
export interface Group {
  readonly key: string;
  readonly name: string;
  readonly path: string;
  readonly first: number;
  readonly last: number;
  readonly children: readonly Child[];
}

/** A module call, or the index of a node. */
export type Child = Group | number;

export const isGroup = (child: Child): child is Group => typeof child !== "number";

/** More children than this in one module are bundled, so that every level can be drawn. */
const WIDEST = 60;

/** The tree of module calls. The outermost module, which holds nearly everything, is left out: its parts are the picture. */
export function groupsOf(graph: TapeGraph): Group {
  const whole = build(graph, 0, graph.nodes.length, 0, "", []);
  let children = whole;
  for (;;) {
    const main = children.find((child): child is Group => isGroup(child) && child.last - child.first > graph.nodes.length / 2);
    if (main === undefined || main.children.length < 2) break;
    children = children.flatMap((child) => (child === main ? main.children : [child]));
  }
  return { key: "", name: "", path: "", first: 0, last: graph.nodes.length, children: bundled(children, "") };
}

function build(graph: TapeGraph, first: number, last: number, depth: number, prefix: string, path: readonly string[]): Child[] {
  const children: Child[] = [];
  const calls = new Map<string, number>();
  for (let at = first; at < last; ) {
    const name = graph.nodes[at]!.scope[depth];
    if (name === undefined) {
      children.push(at++);
      continue;
    }
    let end = at + 1;
    while (end < last && graph.nodes[end]!.scope[depth] === name) end++;
    const call = calls.get(name) ?? 0;
    calls.set(name, call + 1);
    const key = `${prefix}/${name}#${call}`;
    const inner = [...path, name];
    const parts = build(graph, at, end, depth + 1, key, inner);
    const only = parts[0]!;
    // "0" alone says nothing; a number goes with the name of its container.
    const shown = /^\d+$/.test(name) && path.length > 0 ? `${path[path.length - 1]!}.${name}` : name;
    if (parts.length > 1) children.push({ key, name: shown, path: inner.join("."), first: at, last: end, children: bundled(parts, key) });
    // A module with one part is that part: an op, or the inner module under the outer name.
    else children.push(isGroup(only) ? { ...only, name: shown } : only);
    at = end;
  }
  return children;
}

/** Runs of neighbours as groups of their own where there are too many to draw side by side. */
function bundled(children: readonly Child[], prefix: string): readonly Child[] {
  if (children.length <= WIDEST) return children;
  const size = Math.max(2, Math.ceil(children.length / Math.min(24, Math.ceil(Math.sqrt(children.length)))));
  const groups: Child[] = [];
  for (let at = 0; at < children.length; at += size) {
    const part = children.slice(at, at + size);
    if (part.length === 1) {
      groups.push(part[0]!);
      continue;
    }
    const [first, last] = [firstOf(part[0]!), lastOf(part[part.length - 1]!)];
    const key = `${prefix}/~${at}`;
    groups.push({ key, name: `${first + 1}–${last}`, path: "", first, last, children: bundled(part, key) });
  }
  return groups;
}

const firstOf = (child: Child): number => (isGroup(child) ? child.first : child);
const lastOf = (child: Child): number => (isGroup(child) ? child.last : child + 1);

/** Number of boxes drawn when the groups in `open` are open. */
export function boxes(children: readonly Child[], open: ReadonlySet<string>): number {
  let count = 0;
  for (const child of children) count += isGroup(child) && open.has(child.key) ? boxes(child.children, open) : 1;
  return count;
}

/** Every group below, outermost first. */
export function* allGroups(children: readonly Child[]): Generator<Group> {
  const queue = children.filter(isGroup);
  for (let at = 0; at < queue.length; at++) {
    yield queue[at]!;
    queue.push(...queue[at]!.children.filter(isGroup));
  }
}

/**
 * Which groups to show open at first: the one where a NaN begins, then the heaviest, as long as no more than `most`
 * boxes stand there and `fits` agrees.
 */
export function openAtFirst(graph: TapeGraph, root: Group, most: number, fits: (open: ReadonlySet<string>) => boolean = () => true): Set<string> {
  const open = new Set<string>();
  const weigh = (group: Group): number => {
    let time = 0;
    for (let at = group.first; at < group.last; at++) time += graph.nodes[at]!.origin ? Infinity : graph.nodes[at]!.time;
    return time;
  };
  const waiting = root.children.filter(isGroup).map((group) => ({ group, weight: weigh(group) }));
  let count = boxes(root.children, open);
  while (waiting.length > 0) {
    waiting.sort((a, b) => a.weight - b.weight || b.group.first - a.group.first);
    const { group } = waiting.pop()!;
    const cost = group.children.length - 1;
    open.add(group.key);
    if (count + cost > most || !fits(open)) {
      open.delete(group.key);
      continue;
    }
    count += cost;
    for (const child of group.children) if (isGroup(child)) waiting.push({ group: child, weight: weigh(child) });
  }
  return open;
}

/** All groups open that fit into `most` boxes, outermost first. */
export function openAll(root: Group, most: number): Set<string> {
  const open = new Set<string>();
  let count = boxes(root.children, open);
  const queue = root.children.filter(isGroup);
  for (let at = 0; at < queue.length; at++) {
    const group = queue[at]!;
    if (count + group.children.length - 1 > most) continue;
    open.add(group.key);
    count += group.children.length - 1;
    queue.push(...group.children.filter(isGroup));
  }
  return open;
}
