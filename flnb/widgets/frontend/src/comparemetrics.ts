/** The metrics of two recordings, the curves of each name over one another: A in ink, B in the brand's colour. */

import { Chart, type Curve, wantsLog } from "./chart.ts";
import { h, nothing } from "./dom.ts";
import { plain, significant, UNKNOWN } from "./format.ts";
import { listSeries, sharedSteps } from "./metrics.ts";
import type { Store } from "./store.ts";
import type { Theme } from "./theme.ts";
import type { DataTable } from "./view.ts";

const NOTHING: Curve = { steps: [], values: [], length: 0 };

/** The curves of each name in A and in B, in the order of A, then what only B has. */
export function pairedCurves(a: Store, b: Store): { name: string; curves: readonly [Curve, Curve]; shown: string; format: (value: number) => string }[] {
  const [first, second] = [listSeries(a), listSeries(b)];
  const names = [...new Set([...first, ...second].map(({ name }) => name))];
  return names.map((name) => {
    const [one, two] = [first, second].map((all) => all.find((series) => series.name === name));
    const { format } = (one ?? two)!;
    const shown = [one, two].map((series, at) => `${"AB"[at]} ${series?.value == null ? UNKNOWN : format(series.value)}`).join(" · ");
    return { name, curves: [one?.curve ?? NOTHING, two?.curve ?? NOTHING], shown, format };
  });
}

export class ComparedMetrics {
  readonly element: HTMLElement;
  private readonly grid = h("div", { class: "fl-charts", tabindex: 0 });
  private readonly none = nothing("Neither run has logged a metric or a step: flnb.log(loss=…) inside a step does.");
  private readonly charts = new Map<string, Chart>();

  constructor(private readonly theme: Theme) {
    this.element = h("div", { class: "fl-compared fl-metricsview", role: "region", "aria-label": "metrics of both recordings" }, this.grid, this.none);
  }

  /** The curves of both runs as one table: a row for each point. */
  describe(a: Store, b: Store): DataTable {
    const rows = pairedCurves(a, b).flatMap(({ name, curves }) => curves.flatMap(({ steps, values, length }, at) =>
      Array.from({ length }, (_, row) => [name, "AB"[at]!, steps[row]!, values[row]!])));
    return { caption: "Metrics of both recordings", columns: ["Metric", "Run", "Step", "Value"], rows };
  }

  key(event: KeyboardEvent): boolean {
    return [...this.charts.values()].some((chart) => chart.key(event));
  }

  draw(a: Store, b: Store): void {
    const pairs = pairedCurves(a, b);
    this.none.hidden = pairs.length > 0;
    const [from, to] = sharedSteps(pairs.flatMap(({ curves }) => [...curves]), null);
    for (const { name, format } of pairs) {
      if (this.charts.has(name)) continue;
      const chart = new Chart(name, this.theme, format, format === significant ? plain : (value) => plain(value * 100));
      chart.onHover = () => chart.render(null);
      this.charts.set(name, chart);
      this.grid.append(chart.element);
    }
    this.grid.dataset["count"] = String(pairs.length); // all are there before the first is fitted to its place
    for (const { name, curves, shown } of pairs) {
      const chart = this.charts.get(name)!;
      const log = curves.every((curve) => !curve.length || wantsLog(name, curve));
      chart.set(curves[0], { name, shown, log, first: from, last: to, beside: curves[1] });
      chart.measure();
      chart.render(null);
    }
  }
}
