/**
 * Where everything on the tape stands. Each level of open modules is laid out by itself: longest-path ranks make the
 * columns, barycentre sweeps order what runs side by side, and connections that skip columns run above them on tracks.
 * An open module is then one wide box of the level around it, so frames never overlap.
 *
 * One layout serves both rows: distances `d` count from a baseline outwards, up for the forward row, down for the
 * backward row, so an op's backward always stands in its column.
 */

import { isGroup, isOpen, type Child, type Group, type Level, type Tree } from "./groups.ts";

export interface Measures {
  opWidth: number;
  moduleWidth: number;
  inputWidth: number;
  height: number;
  /** Between columns, and between boxes of one column. */
  gap: number;
  lane: number;
  /** Inside frames: sides and inner edge, and the outer edge with the title. */
  pad: number;
  title: number;
}

export const MEASURES: Measures = { opWidth: 84, moduleWidth: 98, inputWidth: 60, height: 48, gap: 17, lane: 12, pad: 9, title: 24 };

/** What a box, frame or end of a route is: "n" and a node's index, "i" and a leaf's, or the key of a group. */
export type Key = string;

export interface Box {
  readonly key: Key;
  readonly kind: "op" | "module" | "input";
  /** Node index, first node of the module, or leaf index. */
  readonly index: number;
  readonly group: Group | null;
  x: number;
  d: number;
  readonly width: number;
  readonly height: number;
}

export interface Frame {
  readonly group: Group;
  x: number;
  /** Inner and outer edge. */
  d: number;
  outer: number;
  readonly width: number;
}

/** A connection: corners as x, d, x, d ...; short ends at the frame's edge have no arrow. */
export interface Route {
  readonly points: number[];
  readonly arrow: boolean;
  /** What it connects; "" is the edge of the frame. */
  readonly from: Key;
  readonly to: Key;
  readonly straight: boolean;
}

/** Farthest left and right of a connection, to leave out what is not in sight. */
export function extentOf({ points }: Route): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (let at = 0; at < points.length; at += 2) {
    low = Math.min(low, points[at]!);
    high = Math.max(high, points[at]!);
  }
  return [low, high];
}

export interface Layout {
  readonly boxes: Box[];
  readonly frames: Frame[];
  readonly routes: Route[];
  readonly width: number;
  /** Extents on both sides of the baseline. */
  readonly above: number;
  readonly below: number;
}

interface Item {
  key: Key;
  child: Child | null;
  leaf: number;
  inner: Layout | null;
  width: number;
  above: number;
  below: number;
  parents: number[];
  children: number[];
  entered: boolean; // reads something from outside the frame
  left: boolean; // is read outside
  rank: number;
  x: number;
  d: number;
}

const TRACK = 7; // between two tracks
const TURN = 5; // room in a gap for one more line that turns in it

const NOTHING: Level = { items: [], edges: [], entered: new Set(), left: new Set() };

/** Lays out the tree with the groups in `open` open. */
export function layoutTape(tree: Tree, open: ReadonlySet<string>, measures: Measures = MEASURES): Layout {
  return level(tree.root, open, measures, tree);
}

/** The same places with what is told of the groups now: a new step of the same graph changes its numbers only. */
export function renewed(layout: Layout, groups: ReadonlyMap<string, Group>): Layout {
  const now = (group: Group): Group => groups.get(group.key) ?? group;
  const boxes = layout.boxes.map((box) => (box.group ? { ...box, group: now(box.group) } : box));
  return { ...layout, boxes, frames: layout.frames.map((frame) => ({ ...frame, group: now(frame.group) })) };
}

/** One level; the outermost one comes with its `tree`, which knows the inputs. */
function level(group: Group, open: ReadonlySet<string>, m: Measures, tree: Tree | null): Layout {
  const outermost = tree !== null;
  const items = itemsOf(group, open, m, tree);
  rankItems(items);
  const columns = orderColumns(items);
  return place(items, columns, m, outermost);
}

function itemsOf(group: Group, open: ReadonlySet<string>, m: Measures, tree: Tree | null): Item[] {
  const items: Item[] = [];
  const item = (part: Partial<Item>): void => {
    items.push({ key: "", child: null, leaf: -1, inner: null, width: 0, above: m.height, below: 0, parents: [], children: [], entered: false, left: false, rank: 0, x: 0, d: 0, ...part });
  };
  const { items: children, edges, entered, left } = group.level ?? NOTHING;
  const inputs = [...new Set(tree?.inputs.map(([leaf]) => leaf))];
  for (const leaf of inputs) item({ key: `i${leaf}`, leaf, width: m.inputWidth });
  for (const child of children) {
    if (!isGroup(child)) item({ key: `n${child}`, child, width: m.opWidth });
    else if (!isOpen(child, open)) item({ key: child.key, child, width: m.moduleWidth });
    else {
      const inner = level(child, open, m, null);
      item({ key: child.key, child, inner, width: inner.width + 2 * m.pad, above: inner.above + m.title, below: inner.below + m.pad });
    }
  }
  const connect = (from: number, to: number): void => {
    items[from]!.children.push(to);
    items[to]!.parents.push(from);
  };
  for (const [leaf, to] of tree?.inputs ?? []) connect(inputs.indexOf(leaf), inputs.length + to);
  for (const [from, to] of edges) connect(inputs.length + from, inputs.length + to);
  for (const at of entered) items[inputs.length + at]!.entered = true;
  for (const at of left) items[inputs.length + at]!.left = true;
  return items;
}

/** Longest path from the left. What reads nothing stands right before its first reader instead of far away. */
function rankItems(items: Item[]): void {
  for (const item of items) {
    // Items are in order of execution, so all parents are ranked.
    for (const parent of item.parents) item.rank = Math.max(item.rank, items[parent]!.rank + 1);
  }
  for (const item of items) {
    if (item.parents.length > 0 || item.entered || item.children.length === 0) continue;
    item.rank = Math.max(0, Math.min(...item.children.map((child) => items[child]!.rank)) - 1);
  }
}

/** Columns of item numbers, the first one nearest to the baseline. */
function orderColumns(items: Item[]): number[][] {
  const ahead = new Float64Array(items.length);
  for (let at = items.length - 1; at >= 0; at--) {
    const { child } = items[at]!;
    let longest = 0;
    for (const next of items[at]!.children) longest = Math.max(longest, ahead[next]!);
    ahead[at] = longest + (child !== null && isGroup(child) ? child.last - child.first : 1);
  }
  const columns: number[][] = [];
  items.forEach((item, at) => (columns[item.rank] ??= []).push(at));
  for (let rank = 0; rank < columns.length; rank++) (columns[rank] ??= []).sort((a, b) => ahead[b]! - ahead[a]!);
  const position = new Float64Array(items.length);
  const number = (column: number[]): void => column.forEach((at, lane) => (position[at] = lane));
  columns.forEach(number);
  for (let sweep = 0; sweep < 4; sweep++) {
    const right = sweep % 2 === 0;
    for (let k = 0; k < columns.length; k++) {
      const column = columns[right ? k : columns.length - 1 - k]!;
      if (column.length < 2) continue;
      const centre = new Map(column.map((at) => {
        const neighbours = right ? items[at]!.parents : items[at]!.children;
        return [at, neighbours.length === 0 ? position[at]! : neighbours.reduce((sum, next) => sum + position[next]!, 0) / neighbours.length];
      }));
      column.sort((a, b) => centre.get(a)! - centre.get(b)!);
      number(column);
    }
  }
  return columns;
}

/** Connections that skip columns, one line for each source; source -1 is the frame's left edge. */
interface Bus {
  from: number;
  start: number; // rank of the source; -1 at the edge
  end: number; // rank of the farthest target; the number of columns at the right edge
  targets: { to: number; rank: number }[];
  d: number;
}

function busesOf(items: Item[], columns: number): Bus[] {
  const buses = new Map<number, Bus>();
  const add = (from: number, start: number, to: number, rank: number): void => {
    if (rank - start < 2) return;
    const bus = buses.get(from) ?? { from, start, end: rank, targets: [], d: 0 };
    bus.end = Math.max(bus.end, rank);
    bus.targets.push({ to, rank });
    buses.set(from, bus);
  };
  items.forEach((item, at) => {
    if (item.entered) add(-1, -1, at, item.rank);
    for (const to of item.children) add(at, item.rank, to, items[to]!.rank);
    if (item.left) add(at, item.rank, -1, columns);
  });
  return [...buses.values()].sort((a, b) => a.end - a.start - (b.end - b.start) || a.start - b.start);
}

function place(items: Item[], columns: number[][], m: Measures, outermost: boolean): Layout {
  // Distances: items of a column stand on each other, all first ones on the baseline.
  const tops = columns.map((column) => {
    let top = 0;
    column.forEach((at, lane) => {
      const item = items[at]!;
      item.d = lane === 0 ? 0 : top + m.lane + item.below;
      top = item.d + item.above;
    });
    return top;
  });
  const buses = busesOf(items, columns.length);
  const placed: Bus[] = [];
  for (const bus of buses) {
    let d = 0;
    for (let rank = bus.start + 1; rank < bus.end; rank++) d = Math.max(d, tops[rank]!);
    d += m.lane;
    const beside = placed.filter((other) => other.start < bus.end && bus.start < other.end).sort((a, b) => a.d - b.d);
    for (const other of beside) if (Math.abs(other.d - d) < TRACK) d = other.d + TRACK;
    bus.d = d;
    placed.push(bus);
  }
  // Lines that turn in the gap before column r: those that end there and those that begin before it.
  const turns = new Array<number>(columns.length + 1).fill(0);
  for (const bus of buses) {
    turns[bus.start + 1]!++;
    for (const rank of new Set(bus.targets.map((target) => target.rank))) turns[rank]!++;
  }
  const gapAt: number[] = []; // left end of the gap before column r
  const gapWidth = turns.map((count, rank) => (rank === 0 || rank === columns.length ? 0 : m.gap) + count * TURN);
  let x = 0;
  columns.forEach((column, rank) => {
    gapAt.push(x);
    x += gapWidth[rank]!;
    const width = Math.max(...column.map((at) => items[at]!.width));
    for (const at of column) items[at]!.x = x + (width - items[at]!.width) / 2;
    x += width;
  });
  gapAt.push(x);
  x += gapWidth[columns.length]!;
  const layout: Layout = { boxes: [], frames: [], routes: [], width: x, above: Math.max(m.height, ...tops, ...buses.map((bus) => bus.d + 4)), below: Math.max(0, ...columns.map((column) => items[column[0]!]!.below)) };
  items.forEach((item) => emit(layout, item, m));
  directRoutes(layout, items, columns.length, m, outermost);
  busRoutes(layout, items, buses, { gapAt, gapWidth, turns: turns.map(() => 0), total: turns }, m);
  return layout;
}

function emit(layout: Layout, item: Item, m: Measures): void {
  const { child, inner, x, d } = item;
  if (inner !== null && child !== null && isGroup(child)) {
    layout.frames.push({ group: child, x, d: d - item.below, outer: d + item.above, width: item.width });
    const dx = x + m.pad;
    for (const box of inner.boxes) layout.boxes.push({ ...box, x: box.x + dx, d: box.d + d });
    for (const frame of inner.frames) layout.frames.push({ ...frame, x: frame.x + dx, d: frame.d + d, outer: frame.outer + d });
    for (const route of inner.routes) layout.routes.push({ ...route, points: route.points.map((value, at) => value + (at % 2 === 0 ? dx : d)) });
    return;
  }
  const kind = child === null ? "input" : isGroup(child) ? "module" : "op";
  const index = child === null ? item.leaf : isGroup(child) ? child.first : child;
  layout.boxes.push({ key: item.key, kind, index, group: child !== null && isGroup(child) ? child : null, x, d, width: item.width, height: m.height });
}

/** Lines to the next column; between unequal distances they are drawn as a curve. */
function directRoutes(layout: Layout, items: Item[], columns: number, m: Measures, outermost: boolean): void {
  const middle = m.height / 2;
  items.forEach((item) => {
    const y = item.d + middle;
    for (const to of item.children) {
      const target = items[to]!;
      if (target.rank !== item.rank + 1) continue;
      layout.routes.push({ points: [item.x + item.width, y, target.x, target.d + middle], arrow: true, from: item.key, to: target.key, straight: y === target.d + middle });
    }
    if (outermost) return;
    if (item.entered && item.rank === 0) layout.routes.push({ points: [-m.pad, y, item.x, y], arrow: false, from: "", to: item.key, straight: true });
    if (item.left && item.rank === columns - 1) layout.routes.push({ points: [item.x + item.width, y, layout.width + m.pad, y], arrow: false, from: item.key, to: "", straight: true });
  });
}

function busRoutes(layout: Layout, items: Item[], buses: Bus[], gaps: { gapAt: number[]; gapWidth: number[]; turns: number[]; total: number[] }, m: Measures): void {
  const turn = (rank: number): number => {
    const slot = ++gaps.turns[rank]!;
    return gaps.gapAt[rank]! + (gaps.gapWidth[rank]! * slot) / (gaps.total[rank]! + 1);
  };
  // Skipping lines leave and arrive above the middle, so that they do not run along the direct ones.
  const port = m.height * 0.75;
  for (const bus of buses) {
    const source = bus.from < 0 ? null : items[bus.from]!;
    const rise = turn(bus.start + 1);
    const begin = source === null ? [-m.pad, port, rise, port] : [source.x + source.width, source.d + port, rise, source.d + port];
    const drops = new Map<number, number>();
    for (const { to, rank } of bus.targets) {
      if (!drops.has(rank)) drops.set(rank, turn(rank));
      const drop = drops.get(rank)!;
      const target = to < 0 ? null : items[to]!;
      const end = target === null ? [drop, port, layout.width + m.pad, port] : [drop, target.d + port, target.x, target.d + port];
      layout.routes.push({ points: [...begin, rise, bus.d, drop, bus.d, ...end], arrow: target !== null, from: source?.key ?? "", to: target?.key ?? "", straight: true });
    }
  }
}
