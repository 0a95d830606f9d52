/** Numbers by step: what was logged, and the gradient norms of the sampled steps. */

import { Columns, entry } from "./columns.ts";
import type { Column, TapeNorms } from "./protocol.ts";
import type { Store } from "./store.ts";

export type Metric = Columns<"step" | "t" | "value">;

const newMetric = (): Metric => new Columns(["step", "t", "value"], 65536);

/** Take in what a frame tells of logged numbers; whether it tells any. */
export function takeMetrics(metrics: Map<string, Metric>, columns: Record<string, Column>, string: (id: number) => string): boolean {
  const { "metric.name": names, "metric.step": steps, "metric.t": times, "metric.value": values } = columns;
  if (!names || !steps || !times || !values) return false;
  for (let at = 0; at < names.length; at++) {
    const metric = entry(metrics, string(names[at]!), newMetric);
    if (times[at]! <= (metric.last("t") ?? -Infinity)) continue;
    metric.append({ step: steps[at]!, t: times[at]!, value: values[at]! });
  }
  return true;
}

/** Gradient norms of all parameters, and of each node by its scope and op. */
export class NormHistory {
  /** Of all parameters. */
  readonly all = newMetric();
  private readonly nodes = new Map<string, Metric>();

  constructor(private readonly store: Store) {}

  /** Of one node; the value is NaN where the gradient was bad. */
  of(node: TapeNorms["nodes"][number]): Metric | undefined {
    return this.nodes.get(this.key(node));
  }

  /** Take in the norms of a backward; whether one of all parameters is among them. One under way is told again. */
  take(tape: TapeNorms): boolean {
    const { step, t } = tape;
    for (const node of tape.nodes) {
      if (node.norm === null && !node.bad) continue;
      const value = node.bad ? NaN : node.norm ?? NaN;
      const metric = entry(this.nodes, this.key(node), newMetric);
      if (metric.last("step") !== step || !Object.is(metric.last("value"), value)) metric.append({ step, t, value });
    }
    const news = (tape.gradient !== null || tape.gradient_bad > 0) && t > (this.all.last("t") ?? -Infinity);
    if (news) this.all.append({ step, t, value: tape.gradient_bad ? NaN : tape.gradient! });
    return news;
  }

  clear(): void {
    this.all.clear();
    this.nodes.clear();
  }

  private key(node: TapeNorms["nodes"][number]): string {
    return `${this.store.context(node.context)?.scope ?? ""}\0${this.store.plan(node.plan)?.op ?? ""}`;
  }
}
