/** The rows of the tables of ops and of modules, and what each cost a step lately. */

import { entry } from "./columns.ts";
import type { Column } from "./protocol.ts";

export interface OpRow {
  name: string;
  family: string;
  count: number;
  /** Nanoseconds. */
  total: number;
  p99: number;
  max: number;
  bytes: number;
  /** Share of the time of all rows, 0..1. */
  share: number;
  /** Nanoseconds a step over the recent past, oldest first; what the sparkline draws. */
  history: readonly number[];
}

/** What ops are added up by, beside their names. */
export type Grouping = "scope" | "kernel" | "line" | "shape";

const HISTORY = 48;

export class OpRows {
  private readonly histories = new Map<string, { count: number; total: number; steps: number; values: number[] }>();

  constructor(private readonly stringOf: (id: number) => string) {}

  clear(): void {
    this.histories.clear();
  }

  /** A frame's table; `steps` have been made by then. */
  rows(columns: Record<string, Column>, prefix: "op" | Grouping, steps: number): OpRow[] {
    const column = (name: string): Column => columns[`${prefix}.${name}`] ?? new Float64Array(0);
    const [names, families, counts, totals] = [column("name"), column("family"), column("count"), column("total")];
    const [p99, max, bytes] = [column("p99"), column("max"), column("bytes")];
    let all = 0;
    for (const total of totals) all += total;
    return Array.from(names, (id, at): OpRow => {
      const name = this.stringOf(id);
      const total = totals[at] ?? 0;
      const count = counts[at] ?? 0;
      return {
        name, family: this.stringOf(families[at] ?? 0), count, total, p99: p99[at] ?? 0, max: max[at] ?? 0, bytes: bytes[at] ?? 0,
        share: all > 0 ? total / all : 0, history: this.history(`${prefix}\0${name}`, count, total, steps),
      };
    });
  }

  /** What one row cost a step since its table came last. */
  private history(key: string, count: number, total: number, steps: number): readonly number[] {
    const known = entry(this.histories, key, () => ({ count: 0, total: 0, steps: 0, values: [] }));
    if (count > known.count && (steps > known.steps || steps === 0)) {
      // The first table has everything since the run began, warm-up included: it is the start, not a sample.
      if (known.count > 0) known.values.push((total - known.total) / (steps > known.steps ? steps - known.steps : count - known.count));
      if (known.values.length > HISTORY) known.values.shift();
      Object.assign(known, { count, total, steps });
    }
    return known.values;
  }
}
