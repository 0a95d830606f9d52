/** The tables behind the pictures of memory. */

import { bytesText, count, measured, text } from "../format.ts";
import { categoryOrder } from "../palette.ts";
import type { Cell, DataTable, ViewContext } from "../view.ts";
import { nameOf } from "./bands.ts";
import { ratioText } from "./fragmentation-chart.ts";
import { fragmentationOf } from "./fragmentation.ts";
import { WASTE } from "./lifetimes.ts";
import type { MemoryModel } from "./model.ts";

const TABLE_STEPS = 200;
const TABLE_FRAGMENTATION = 40;
const TABLE_BLOCKS = 1500;

/** The largest moment of each of the last steps (at most so many), for the table behind the timeline. */
export function stepTable({ store }: Pick<ViewContext, "store">, model: MemoryModel, most = TABLE_STEPS): DataTable {
  const { steps } = store;
  const rows: Cell[][] = [];
  for (let at = steps.length - 1; at >= Math.max(0, steps.length - most); at--) {
    const line = model.timeline({ t0: steps.column("t0")[at]!, t1: Math.max(steps.column("t1")[at]!, steps.column("t0")[at]! + 1e-9) }, 1);
    const value = (column: number): Cell => measured.bytes(line.totals[column]!);
    rows.push([steps.column("index")[at]!, measured.bytes(line.allocated[0]!), measured.bytes(line.reserved[0]!), measured.ratio(line.allocated[0]! > 0 ? line.reserved[0]! / line.allocated[0]! : NaN),
      ...categoryOrder.map(value), value(WASTE)]);
  }
  return { caption: "Memory at the peak of each step", columns: ["Step", "Peak live", "Reserved", "Reserved / live", ...categoryOrder.map(nameOf), "waste"], rows, units: ["", "bytes", "bytes", "", ...categoryOrder.map(() => "bytes"), "bytes"] };
}

/** Fragmentation at the peak of each of the last steps (at most so many). */
export function fragmentationTable({ store }: Pick<ViewContext, "store">, model: MemoryModel, most = TABLE_FRAGMENTATION): DataTable {
  const { steps } = store;
  const request = model.request().bytes;
  const rows: Cell[][] = [];
  for (let at = steps.length - 1; at >= Math.max(0, steps.length - most); at--) {
    const line = model.timeline({ t0: steps.column("t0")[at]!, t1: steps.column("t1")[at]! }, 1);
    const found = fragmentationOf(model.index, model.state(line.time[0]!), request);
    rows.push([steps.column("index")[at]!, { value: found.ratio, text: ratioText(found.ratio) }, measured.percent(found.unusable), { value: found.internal, text: Number.isNaN(found.internal) ? "–" : `${(found.internal * 100).toFixed(2)} %` }, measured.bytes(found.largest), measured.bytes(found.free)]);
  }
  return { caption: `Fragmentation at the peak of each ${steps.length > most ? `of the last ${most} steps` : "step"}`, columns: ["Step", "reserved/live", `unusable(${bytesText(request)})`, "internal", "largest hole", "free"], rows, units: ["", "", "share", "share", "bytes", "bytes"] };
}

/** Every block at the cursor, or the first of them (at most so many). */
export function blockTable({ store }: Pick<ViewContext, "store">, model: MemoryModel, most = TABLE_BLOCKS): DataTable {
  const { lifetimes } = store.memory;
  const rows: Cell[][] = [];
  const { segments } = model.state(store.at);
  for (const segment of segments) {
    for (const row of segment.rows.slice(0, most - rows.length)) {
      const plan = store.plan(lifetimes.plan[row]!);
      rows.push([`S${segment.id}`, `0x${lifetimes.offset[row]!.toString(16)}`, `#${lifetimes.id[row]!}`, nameOf(Math.min(lifetimes.category[row]!, 6)), plan?.op ?? "–",
        store.context(lifetimes.context[row]!)?.scope ?? "–", measured.bytes(lifetimes.requested[row]!), measured.bytes(lifetimes.size[row]!)]);
    }
  }
  const every = segments.reduce((sum, segment) => sum + segment.rows.length, 0);
  return { caption: every > most ? `The first ${text(count(most))} of ${text(count(every))} blocks` : "Blocks of every segment", columns: ["Segment", "Offset", "Block", "Category", "Op", "Scope", "Requested", "Rounded"], rows, units: ["", "", "", "", "", "", "bytes", "bytes"] };
}
