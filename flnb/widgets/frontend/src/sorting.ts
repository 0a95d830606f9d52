/** Order of the ops table, and how it holds still under the pointer. */

import type { OpRow } from "./oprows.ts";
import type { Order } from "./table.ts";

export type SortKey = "name" | "count" | "total" | "mean" | "p99" | "max" | "share" | "bytes";

export const mean = (row: OpRow): number => (row.count ? row.total / row.count : 0);

/** A sorted copy; equal rows stay in alphabetical order, so that they never flicker. */
export function sortRows(rows: readonly OpRow[], order: Order<SortKey>): OpRow[] {
  const sign = order.descending ? -1 : 1;
  const value = (row: OpRow): number => {
    switch (order.key) {
      case "mean": return mean(row);
      case "name": return 0;
      default: return row[order.key];
    }
  };
  const byName = (one: OpRow, two: OpRow): number => one.name.localeCompare(two.name);
  return [...rows].sort((one, two) => (order.key === "name" ? sign * byName(one, two) : sign * (value(one) - value(two)) || byName(one, two)));
}

/** The rows in the order that is on screen, new ones at the end: for refreshing while the pointer is over them. */
export function keepOrder(rows: readonly OpRow[], names: readonly string[]): OpRow[] {
  const place = new Map(names.map((name, at) => [name, at]));
  const known = rows.filter((row) => place.has(row.name)).sort((one, two) => place.get(one.name)! - place.get(two.name)!);
  return [...known, ...rows.filter((row) => !place.has(row.name))];
}
