/** Does it converge, and at what speed? One small chart for every logged metric, the gradient norm and the steps a second. */

import { Chart, stepName, wantsLog, type Curve } from "./chart.ts";
import { h, nothing, setText } from "./dom.ts";
import { integer, plain, significant } from "./format.ts";
import { Panel } from "./panel.ts";
import type { Metric } from "./norms.ts";
import type { Steps, Store } from "./store.ts";
import { type Cell, type DataTable, type Measure, numberIn, type View, type ViewContext } from "./view.ts";

interface Series { name: string; /** What the value is, where it is not the newest. */ note?: string; curve: Curve; times: ArrayLike<number>; value: number | null; format: (value: number) => string }

const PANEL_CHARTS = 4;

/** Fractions named as accuracies read better in percent. */
function formatOf(name: string, metric: Metric): (value: number) => string {
  if (!/acc/i.test(name)) return significant;
  const values = metric.column("value");
  for (let row = 0; row < metric.length; row++) if (values[row]! < 0 || values[row]! > 1) return significant;
  return (value) => `${significant(value * 100)} %`;
}

/** Steps a second at each step: over the last `window` steps, so that one timer tick does not make a spike. */
export function stepRate(steps: Steps, window = 5): { steps: Float64Array; values: Float64Array; times: Float64Array } {
  const [index, begin, end] = [steps.column("index"), steps.column("t0"), steps.column("t1")];
  const length = Math.max(0, steps.length - 1);
  const result = { steps: new Float64Array(length), values: new Float64Array(length), times: new Float64Array(length) };
  for (let at = 0; at < length; at++) {
    const from = Math.max(0, at + 1 - window);
    const seconds = end[at + 1]! - end[from]!;
    result.steps[at] = index[at + 1]!;
    result.values[at] = seconds > 0 ? (at + 1 - from) / seconds : 0;
    result.times[at] = begin[at + 1]!;
  }
  return result;
}

/** What there is to show: loss first, the gradient norm, other metrics by name, steps a second last. */
export function listSeries(store: Store): Series[] {
  const logged = [...store.metrics.entries()].map(([name, metric]): Series => ({
    name, curve: { steps: metric.column("step"), values: metric.column("value"), length: metric.length }, times: metric.column("t"),
    value: metric.last("value") ?? null, format: formatOf(name, metric),
  }));
  const rank = (series: Series): number => (/^(train_?)?loss$/i.test(series.name) ? 0 : /loss/i.test(series.name) ? 1 : 2);
  logged.sort((one, two) => rank(one) - rank(two) || one.name.localeCompare(two.name));
  const gradientNorm = store.norms.all;
  if (gradientNorm.length && !store.metrics.has("gradient norm")) {
    logged.splice(logged.findIndex((series) => rank(series) > 0) < 0 ? logged.length : Math.min(1, logged.length), 0, {
      name: "gradient norm", curve: { steps: gradientNorm.column("step"), values: gradientNorm.column("value"), length: gradientNorm.length },
      times: gradientNorm.column("t"), value: gradientNorm.last("value") ?? null, format: significant,
    });
  }
  const rate = stepRate(store.steps);
  if (rate.values.length) {
    const recent = rate.values.subarray(-20);
    const all = store.run?.state === "recording" ? 0 : store.counters?.step_seconds; // of a run that has ended: the mean of all steps
    logged.push({
      name: "steps/s", ...(all && { note: "mean of all steps" }), curve: { steps: rate.steps, values: rate.values, length: rate.values.length }, times: rate.times,
      value: all ? 1 / all : recent.reduce((sum, value) => sum + value, 0) / recent.length, format: significant,
    });
  }
  return logged;
}

/** First and last step of the axis that all charts share; −1 twice where there are no steps. */
export function sharedSteps(curves: readonly Curve[], step: number | null): [number, number] {
  let [first, last] = [0, step ?? -1];
  for (const { steps, length } of curves) {
    if (!length) continue;
    first = Math.min(first, steps[0]!);
    last = Math.max(last, steps[length - 1]!);
  }
  return last < 0 ? [-1, -1] : [first, last];
}

/** What to say in place of charts that would be empty: nothing was logged, or there is no step to draw a curve over. */
export function hintOf(store: Store, shown: readonly Series[]): string {
  if (!shown.length) return "Nothing logged yet: flnb.log(loss=…) inside “with flnb.step():” draws its curve here.";
  if (store.steps.length || shown.some(({ curve }) => curve.length > 1)) return "";
  const values = shown.map(({ name, value, format }) => `${name} ${value === null ? "–" : format(value)}`).join(", ");
  return `${values}. No steps yet: put “with flnb.step():” around each, and curves are drawn here.`;
}

class Metrics implements View {
  readonly element: HTMLElement;
  private readonly context: ViewContext;
  private readonly panel: Panel;
  private readonly grid: HTMLElement;
  private readonly none: HTMLElement;
  private readonly charts = new Map<string, Chart>();
  private readonly limit: number;
  private shown: Series[] = [];
  private drawn = "";
  private drawnText = -1;
  private dirty = true;
  /** The charts have yet to be fitted to their places. */
  private sized = true;

  constructor(context: ViewContext, full: boolean) {
    this.context = context;
    this.limit = full ? Infinity : PANEL_CHARTS;
    this.panel = new Panel("Metrics", () => this.describe());
    this.grid = h("div", { class: "fl-charts", tabindex: full ? 0 : null });
    this.none = nothing("");
    this.panel.body.append(this.grid, this.none);
    this.element = this.panel.element;
    if (full) this.element.classList.add("fl-metricsview");
  }

  resize(): void {
    this.sized = this.dirty = true;
  }

  key(event: KeyboardEvent): boolean {
    return [...this.charts.values()].some((chart) => chart.key(event));
  }

  render(now: number): void {
    const { store, theme } = this.context;
    if (this.panel.update(now)) return;
    const { versions } = store;
    const key = `${versions.metrics} ${versions.steps} ${versions.view} ${theme.version}`;
    // New points alone wait for the next text: curves of a long run are redrawn whole, and their steps are the bar's.
    if (!this.dirty && ((key === this.drawn && !this.sized) || versions.text === this.drawnText)) return;
    this.drawn = key;
    this.drawnText = versions.text;
    this.dirty = false;
    this.shown = this.choose(listSeries(store));
    const { step } = store;
    this.panel.sub = step === null ? "" : `step ${integer(step)}`;
    const hint = hintOf(store, this.shown);
    setText(this.none, hint);
    this.none.hidden = !hint;
    this.grid.hidden = !!hint;
    this.arrange();
    const cursor = store.cursor === null ? null : store.stepAt(store.cursor);
    const [first, last] = sharedSteps(this.shown.map((series) => series.curve), step);
    let measured = true;
    for (const series of this.shown) {
      const chart = this.charts.get(series.name)!;
      if (this.sized && !chart.measure()) measured = false;
      chart.set(series.curve, {
        name: series.name, note: series.note, shown: series.value === null ? "–" : Number.isNaN(series.value) ? "NaN" : series.format(series.value),
        log: wantsLog(series.name, series.curve), first, last,
      });
      chart.render(cursor);
    }
    if (measured) this.sized = false;
  }

  describe(all = false): DataTable {
    const names = this.shown.map((series) => series.name);
    const rows = new Map<number, Cell[]>();
    this.shown.forEach((series, at) => {
      for (const [step, value] of this.charts.get(series.name)!.rows(all ? Infinity : undefined)) {
        const row = rows.get(step) ?? [step < 0 ? { value: step, text: stepName(step) } : step, ...names.map((): Measure => ({ value: NaN, text: "–" }))];
        row[at + 1] = value;
        rows.set(step, row);
      }
    });
    return { caption: "Metrics by step", columns: ["Step", ...names], rows: [...rows.values()].sort((one, two) => numberIn(two[0]!) - numberIn(one[0]!)) };
  }

  destroy(): void {
    this.charts.clear();
  }

  /** The compact panel keeps steps/s and leaves out the last of too many. */
  private choose(all: Series[]): Series[] {
    if (all.length <= this.limit) return all;
    return [...all.slice(0, this.limit - 1), all.at(-1)!];
  }

  /** Make the charts that are missing, drop those no longer shown, in order. */
  private arrange(): void {
    const names = this.shown.map((series) => series.name);
    if ([...this.charts.keys()].join("\0") === names.join("\0")) return;
    const old = new Map(this.charts);
    this.charts.clear();
    for (const series of this.shown) {
      let chart = old.get(series.name);
      if (!chart) {
        chart = new Chart(series.name, this.context.theme, series.format, series.format === significant ? plain : (value) => plain(value * 100));
        chart.onHover = () => {
          this.dirty = true;
          this.render(performance.now());
        };
        chart.onPick = (at) => {
          const now = this.shown.find(({ name }) => name === series.name);
          const [step, t] = [now?.curve.steps[at], now?.times[at]];
          if (step === undefined || t === undefined) return;
          this.context.actions.setCursor(t);
          if (step >= 0) this.context.actions.select({ kind: "step", label: stepName(step), step, t });
        };
      }
      this.charts.set(series.name, chart);
    }
    this.grid.replaceChildren(...[...this.charts.values()].map((chart) => chart.element));
    this.grid.dataset["count"] = String(names.length);
    this.sized = true;
  }
}

export const createMetricsPanel = (context: ViewContext): View => new Metrics(context, false);
export const createMetricsView = (context: ViewContext): View => new Metrics(context, true);
