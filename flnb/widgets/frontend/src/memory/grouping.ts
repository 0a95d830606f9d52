/**
 * Who holds memory, other than by category: the parts of the model, or the ops. The largest by area (bytes times how
 * long they are held) have a band of their own; the rest are one. Large parts are taken apart while there is room.
 */

import { bisectRight } from "d3-array";
import { placeOf } from "../format.ts";
import { categoryLabels, css, over, parseColour, rgb } from "../palette.ts";
import type { Store } from "../store.ts";
import type { Theme } from "../theme.ts";
import type { Band, Stack } from "./bands.ts";
import type { MemoryModel } from "./model.ts";
import type { Timeline } from "./stacking.ts";

export type Grouping = "category" | "scope" | "op" | "line";

/** Bands beside the rest, and columns: those, the rest, and what is held by blocks that have left the page. */
const MOST = 7;
export const REST = MOST;
const GONE = MOST + 1;
const WIDTH = MOST + 2;
/** A part that holds more than this share is shown as its own parts. */
const LARGE = 0.15;
const HUES = ["elementwise", "matmul", "reduction", "norm", "optimizer", "memory", "communication"] as const;

/** The scope as far as it is shown: its first part, and below those that are `open` one more. */
export function partOf(scope: string, open: ReadonlySet<string>): string {
  let end = scope.indexOf(".");
  while (end >= 0 && open.has(scope.slice(0, end))) end = scope.indexOf(".", end + 1);
  return end < 0 ? scope : scope.slice(0, end);
}

export class Groups {
  private open = new Set<string>();
  private slots: string[] = [];
  private ranked = -1;
  /** Column of each context or plan by its id. */
  private columns = new Map<number, number>();

  constructor(private readonly store: Store, private readonly model: MemoryModel, private readonly by: Exclude<Grouping, "category">) {}

  /** The bands with bytes by pixel: the moments are those of the line, so they add up to what was allocated. */
  stack(line: Timeline, theme: Theme): Stack {
    this.rank();
    const { index } = this.model;
    const { size } = index.blocks;
    const totals = new Float64Array(line.pixels * WIDTH);
    const now = new Float64Array(WIDTH);
    let e = bisectRight(index.time, line.from, 0, index.length);
    for (const row of index.rowsBefore(e)) now[this.columnOf(row)]! += size[row]!;
    for (let k = 0; k < line.pixels; k++) {
      for (; e < index.length && index.time[e]! <= line.time[k]!; e++) {
        const { row, alloc } = index.blockOf(e);
        if (row >= 0) now[this.columnOf(row)]! += alloc ? size[row]! : -size[row]!;
      }
      let known = 0;
      for (let column = 0; column <= REST; column++) known += totals[k * WIDTH + column] = now[column]!;
      totals[k * WIDTH + GONE] = Math.max(0, line.allocated[k]! - known);
    }
    return { bands: this.bands(theme), width: WIDTH, totals };
  }

  /** Bytes that each band holds at a time, by column. */
  at(t: number): Float64Array {
    this.rank();
    const held = new Float64Array(WIDTH);
    for (const { rows } of this.model.state(t).segments) for (const row of rows) held[this.columnOf(row)]! += this.model.index.blocks.size[row]!;
    return held;
  }

  /** The colour of the band of each block. */
  fills(theme: Theme): (row: number) => string {
    this.rank();
    const fills = new Map(this.bands(theme).map(({ column, fill }) => [column, fill]));
    return (row) => fills.get(this.columnOf(row)) ?? "";
  }

  /** From the bottom up. An op has the colour of its family, the second of a family a paler one. */
  bands(theme: Theme): Band[] {
    const used = new Map<string, number>();
    const bands = this.slots.map((name, column): Band => {
      if (name === "") return { name: "", column, fill: "" };
      const family = this.by === "op" ? this.familyOf(name) : HUES[column]!;
      const times = used.get(family) ?? 0;
      used.set(family, times + 1);
      return { name, column, fill: paler(theme.family(family), theme, times) };
    }).filter(({ name }) => name !== "");
    return [...bands, { name: "the rest", column: REST, fill: theme.category(0) }, { name: "no longer known", column: GONE, fill: "" }];
  }

  private familyOf(op: string): string {
    return this.store.plans.find((plan) => plan?.op === op)?.family ?? "movement";
  }

  private nameOf(row: number): string {
    const { lifetimes } = this.store.memory;
    if (this.by === "op") return this.store.plan(lifetimes.plan[row]!)?.op || `(${categoryLabels[Math.min(lifetimes.category[row]!, 6)]!})`;
    const context = this.store.context(lifetimes.context[row]!);
    if (this.by === "line") return placeOf(context?.line ?? "") || "no line";
    if (context?.scope) return partOf(context.scope, this.open);
    return !context || context.phase === "other" || context.phase === "forward" ? "no module" : context.phase;
  }

  private columnOf(row: number): number {
    const { lifetimes } = this.store.memory;
    const plan = lifetimes.plan[row]!;
    const id = this.by !== "op" ? lifetimes.context[row]! : plan > 0 ? plan : -1 - lifetimes.category[row]!;
    let column = this.columns.get(id);
    if (column === undefined) {
      column = this.slots.indexOf(this.nameOf(row));
      if (column < 0) column = REST;
      this.columns.set(id, column);
    }
    return column;
  }

  /** Which have a band: looked at again at most once a step. Who has one keeps its colour. */
  private rank(): void {
    const { steps, memory } = this.store;
    const version = (steps.length + steps.evicted) * 2 + (memory.lifetimes.used > 0 ? 1 : 0);
    if (version === this.ranked) return;
    this.ranked = version;
    this.columns = new Map();
    let areas = this.areas();
    for (let opened = this.by === "scope"; opened;) {
      opened = false;
      const all = [...areas.values()].reduce((sum, area) => sum + area, 0);
      for (const [name, area] of [...areas].sort((a, b) => b[1] - a[1])) {
        if (area < LARGE * all || this.open.has(name)) continue;
        this.open.add(name);
        const finer = this.areas();
        // Small parts of parts do not push others out of the picture.
        opened = finer.size > areas.size && [...finer.values()].filter((one) => one > 0.02 * all).length <= MOST;
        if (opened) areas = finer;
        else if (finer.size > areas.size) this.open.delete(name);
        if (opened) break;
      }
    }
    const largest = [...areas].sort((a, b) => b[1] - a[1]).slice(0, MOST).map(([name]) => name);
    const slots = this.slots.map((name) => (largest.includes(name) ? name : ""));
    for (const name of largest) {
      if (slots.includes(name)) continue;
      const free = slots.indexOf("");
      if (free >= 0) slots[free] = name;
      else slots.push(name);
    }
    this.slots = slots;
  }

  private areas(): Map<string, number> {
    const { lifetimes } = this.store.memory;
    const { now } = this.store;
    const areas = new Map<string, number>();
    for (let row = 0; row < lifetimes.used; row++) {
      const name = this.nameOf(row);
      const span = Math.max(1e-9, Math.min(lifetimes.end[row]!, now) - lifetimes.start[row]!);
      areas.set(name, (areas.get(name) ?? 0) + span * lifetimes.size[row]!);
    }
    return areas;
  }
}

/** Whether nothing but their lines says what blocks are: no block has a category, as in PyTorch's snapshots. */
export function onlyLines({ memory: { lifetimes }, contexts }: Store): boolean {
  let lines = false;
  for (let row = 0; row < lifetimes.used; row++) {
    if (lifetimes.category[row]) return false;
    lines ||= !!contexts[lifetimes.context[row]!]?.line;
  }
  return lines;
}

/** A colour mixed with the background, the more often the paler. */
function paler(colour: string, theme: Theme, times: number): string {
  const back = parseColour(theme.colours.bg);
  if (times === 0 || back === null) return colour;
  return css(over([...rgb(colour), 1], [back[0], back[1], back[2]], Math.max(0.35, 1 - 0.35 * times)));
}
