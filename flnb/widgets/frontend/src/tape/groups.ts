/**
 * The tape as a tree of modules, folds of equal blocks and portions of long rows, and which of them stand open.
 *
 * The kernel makes the tree and tells levels as they are opened: a group whose `level` is null can be asked for.
 */

import type { TapeGroup } from "../protocol.ts";

/** Nodes first..last-1 of the tape. */
export interface Group {
  readonly key: string;
  readonly name: string;
  /** Path of the module; "" for folds and portions. */
  readonly path: string;
  readonly first: number;
  readonly last: number;
  readonly repeat: number;
  /** What is told of it as a whole; null for the root. */
  readonly data: TapeGroup | null;
  level: Level | null;
}

/** A group, or the index of a node that is known. */
export type Child = Group | number;

/** What stands side by side in an open group. Edges are pairs of places in `items`. */
export interface Level {
  readonly items: readonly Child[];
  readonly edges: readonly (readonly [from: number, to: number])[];
  /** Places that read something from outside, or are read there. */
  readonly entered: ReadonlySet<number>;
  readonly left: ReadonlySet<number>;
}

/** The root, and which inputs its items read: (leaf index, place). */
export interface Tree {
  readonly root: Group;
  readonly inputs: readonly (readonly [leaf: number, to: number])[];
}

export const emptyTree = (): Tree => ({
  root: { key: "", name: "", path: "", first: 0, last: 0, repeat: 0, data: null, level: { items: [], edges: [], entered: new Set(), left: new Set() } },
  inputs: [],
});

export const isGroup = (child: Child): child is Group => typeof child !== "number";

const inside = (group: Group): Group[] => (group.level?.items ?? []).filter(isGroup);

/** Whether a group is drawn open: it must be known what is in it. */
export const isOpen = (group: Group, open: ReadonlySet<string>): boolean => group.level !== null && open.has(group.key);

/** Number of boxes drawn when the groups in `open` are open. */
export function boxes(group: Group, open: ReadonlySet<string>): number {
  let count = 0;
  for (const child of group.level?.items ?? []) count += isGroup(child) && isOpen(child, open) ? boxes(child, open) : 1;
  return count;
}

/** Every known group below, outermost first. */
export function* allGroups(root: Group): Generator<Group> {
  const queue = inside(root);
  for (let at = 0; at < queue.length; at++) {
    yield queue[at]!;
    queue.push(...inside(queue[at]!));
  }
}

/** What a group weighs: a NaN that begins in it more than any time. */
const weigh = ({ data }: Group): number => (data === null ? 0 : data.health === 2 || data.failed ? Infinity : data.forward_ns + data.backward_ns);

/**
 * Which groups to show open at first: the one where a NaN begins, then the heaviest, as long as no more than `most`
 * boxes stand there and, but for the NaN, `fits` agrees. Equal blocks stay folded.
 */
export function openAtFirst(root: Group, most: number, fits: (open: ReadonlySet<string>) => boolean = () => true): Set<string> {
  const open = new Set<string>();
  const known = (group: Group): Group[] => inside(group).filter((child) => child.level !== null && (child.repeat === 0 || child.data?.health === 2 || child.data?.failed));
  const waiting = known(root);
  let count = boxes(root, open);
  while (waiting.length > 0) {
    waiting.sort((a, b) => weigh(a) - weigh(b) || b.first - a.first);
    const group = waiting.pop()!;
    const cost = group.level!.items.length - 1;
    open.add(group.key);
    if (count + cost > most || (weigh(group) < Infinity && !fits(open))) {
      open.delete(group.key);
      continue;
    }
    count += cost;
    waiting.push(...known(group));
  }
  return open;
}

/**
 * All groups open that fit into `most` boxes, outermost first; `unknown` are those among them that must be asked for.
 * A group that is not known counts with all its nodes, one that would not fit is left closed.
 */
export function openAll(root: Group, most: number): { open: Set<string>; unknown: string[] } {
  const open = new Set<string>();
  const unknown: string[] = [];
  let count = boxes(root, open);
  const queue = inside(root);
  for (let at = 0; at < queue.length; at++) {
    const group = queue[at]!;
    const cost = (group.level?.items.length ?? Math.min(60, group.last - group.first)) - 1;
    if (count + cost > most) continue;
    count += cost;
    if (group.level === null) unknown.push(group.key);
    else open.add(group.key);
    queue.push(...inside(group));
  }
  return { open, unknown };
}
