/** What was recorded, compiled and run when? A lane for each thread, over the steps that the run did last. */

import { h } from "../dom.ts";
import { duration, integer, text, UNKNOWN } from "../format.ts";
import { kernelParts } from "../kernelparts.ts";
import { ring } from "../canvas.ts";
import { familyLabels } from "../palette.ts";
import { Panel } from "../panel.ts";
import { type Selection, selectionOfKernel } from "../selection.ts";
import type { Mark } from "../timeline/lanes.ts";
import type { Frame } from "../timeline/paint.ts";
import { type Span, within } from "../timeline/scale.ts";
import { Timeline } from "../timeline/timeline.ts";
import type { DataTable, View, ViewContext } from "../view.ts";
import { type ActivityLanes, activityLanes, nameOf, NO_ITEM, RAN } from "./lanes.ts";
import type { ActivityModel } from "./model.ts";

const WORDS = { record: "recorded, computed later", compile: "a program was made", materialize: "values that had waited", kernel: "kernel", op: "op that ran alone" } as const;

class ActivityView implements View {
  readonly element: HTMLElement;
  private readonly panel = new Panel("Timeline", () => this.describe());
  private readonly timeline: Timeline;
  private readonly host = h("div", { class: "fl-callhost" });
  private readonly side = h("aside", { class: "fl-side", "aria-label": "Selected event" });
  private model: ActivityModel | null = null;
  private lanes: ActivityLanes | null = null;
  /** What is looked at; null follows the newest step. */
  private span: Span | null = null;
  private cursor: number | null = null;
  /** The selected row; -1: none. */
  private selected = -1;
  private drawn = "";
  private arranged = "";

  constructor(private readonly context: ViewContext) {
    this.timeline = new Timeline(context.theme, {
      range: (span) => this.look(span),
      cursor: (t) => { this.hold(); this.cursor = t; this.again(); },
      pick: (mark, t) => this.pick(mark, t),
      tip: (mark) => this.tip(mark),
      draw: (frame) => this.over(frame),
    }, "what threads recorded, compiled and ran");
    this.host.append(this.timeline.element);
    this.panel.body.append(this.host);
    this.element = h("div", { class: "fl-split fl-calls" }, this.panel.element, this.side);
  }

  resize(): void {
    this.timeline.resize(this.host.clientWidth, this.host.clientHeight);
    this.drawn = this.arranged = "";
  }

  render(now: number): void {
    const { store, theme } = this.context;
    const model = store.programs;
    if (!model) return;
    const key = `${store.versions.programs} ${store.versions.view} ${theme.version} ${this.span?.t0} ${this.span?.t1} ${this.cursor}`;
    if (key !== this.drawn) {
      this.drawn = key;
      if (model !== this.model) this.selected = -1; // rows are of one section
      this.model = model;
      this.arrange(model);
      this.write(model);
    }
    if (!this.panel.update(now)) this.timeline.render();
  }

  key(event: KeyboardEvent): boolean {
    if (event.key === "f" || event.key === "F") {
      this.span = this.cursor = null;
      this.again();
      return true;
    }
    if (event.key === "]" || event.key === "[") {
      this.step(event.key === "]" ? 1 : -1);
      return true;
    }
    if ((document.activeElement as Element | null)?.closest("table, .fl-data")) return false;
    return this.timeline.key(event);
  }

  probe(): unknown {
    const { model } = this;
    if (!model) return null;
    const box = this.timeline.surface.canvas.getBoundingClientRect();
    const kinds: Record<string, number> = {};
    for (let row = 0; row < model.rows; row++) kinds[model.kind(row)] = (kinds[model.kind(row)] ?? 0) + 1;
    return {
      rows: model.rows, kinds, lanes: this.lanes?.content.lanes.map(({ title }) => title), shown: this.timeline.shown,
      steps: model.steps.map(({ step }) => step), selected: this.selected < 0 ? null : nameOf(model, this.context.store, this.selected),
      place: { x: box.x, y: box.y, width: box.width, height: box.height },
    };
  }

  destroy(): void {
    this.element.remove();
  }

  describe(): DataTable {
    const { model, context: { store } } = this;
    const columns = ["Thread", "What", "Name", "Step", "Begins", "Takes", "Phase", "Scope", "Line"];
    const rows = Array.from({ length: model?.rows ?? 0 }, (_, row) => {
      const [start, end] = model!.span(row);
      const context = store.context(model!.context(row));
      return [
        model!.section.lanes[model!.lane(row)]!.thread, model!.kind(row), nameOf(model!, store, row), model!.stepAt(start)?.step ?? UNKNOWN, text(duration(start * 1e6)),
        text(duration((end - start) * 1e6)), context?.phase ?? "", context?.scope || UNKNOWN, context?.line ?? "",
      ];
    });
    return { caption: "What threads recorded, compiled and ran", columns, rows };
  }

  // ---- what is shown

  private stepOf(model: ActivityModel): { step: number; start: number; end: number } | undefined {
    const at = this.cursor ?? (this.selected >= 0 ? model.span(this.selected)[0] : null);
    return (at === null ? undefined : model.stepAt(at)) ?? model.steps.at(-1);
  }

  private followed(model: ActivityModel): Span {
    const step = model.steps.at(-1);
    if (!step) return model.limits;
    const length = (step.end - step.start) * 1.06;
    return within({ t0: step.start - 0.02 * length, t1: step.start + length }, model.limits);
  }

  private arrange(model: ActivityModel): void {
    const { theme, store } = this.context;
    const step = this.stepOf(model);
    const key = `${store.versions.programs} ${theme.version} ${step?.step}`;
    if (key !== this.arranged) {
      this.arranged = key;
      this.lanes = activityLanes(model, store, theme, step?.step ?? -1);
      this.timeline.set(this.lanes.content);
    }
    this.timeline.cursor = this.cursor;
    this.timeline.show(this.span ?? this.followed(model));
    this.timeline.redraw();
  }

  private over(frame: Frame): void {
    const { model, lanes, selected } = this;
    if (!model || !lanes || selected < 0) return;
    lanes.content.lanes.forEach((lane, at) => lane.rows.forEach(({ bars, height }, row) => {
      const index = bars.item.indexOf(selected);
      if (index < 0 || row > RAN) return;
      const [x0, x1] = [frame.scale.x(bars.start[index]!), frame.scale.x(bars.end[index]!)];
      frame.clipped(() => ring(frame.c, Math.round(x0) + 0.5, frame.row(at, row) + 0.5, Math.max(2, Math.round(x1 - x0) - 1), height - 1, this.context.theme.colours.ink, this.context.theme.colours.bg));
    }));
  }

  private write(model: ActivityModel): void {
    const { theme } = this.context;
    const step = this.stepOf(model);
    const { t0, t1 } = this.timeline.shown;
    this.panel.sub = [step ? `step ${integer(step.step)}` : "", `${text(duration((t1 - t0) * 1e6))} visible`].filter(Boolean).join(" · ");
    const found = new Set(this.lanes?.content.lanes.flatMap(({ rows }) => [rows[RAN]!, rows[4]!].flatMap(({ bars }) => [...new Set(bars.kind)])));
    const families = Object.keys(familyLabels).filter((_, at) => found.has(4 + at));
    this.panel.tools.replaceChildren(h("div", { class: "fl-calllegend" }, ...families.map((name) => h("span", { class: "fl-legenditem fl-wideonly" }, h("i", { class: "fl-swatch", style: `background:${theme.family(name)}` }), familyLabels[name] ?? name)),
      h("span", { class: "fl-legenditem fl-wideonly" }, "strip: ops inside, by estimated share")));
    this.side.replaceChildren(...(this.selected < 0 ? [h("div", { class: "fl-none" }, "Click a bar. In each lane, from above: phases, recorded ops, programs that were made and values that were computed, ops and kernels as they ran.")] : this.details(model, this.selected)));
  }

  private details(model: ActivityModel, row: number): HTMLElement[] {
    const { theme, store } = this.context;
    const [start, end] = model.span(row);
    const kind = model.kind(row);
    const context = store.context(model.context(row));
    const info = kind === "kernel" ? store.kernelInfos[model.number(row)] : undefined;
    const facts: [string, string][] = [
      ["Time", text(duration((end - start) * 1e6))], ["Begins", `${text(duration((start - (model.stepAt(start)?.start ?? model.limits.t0)) * 1e6))} into ${model.stepAt(start) ? `step ${integer(model.stepAt(start)!.step)}` : "the picture"}`],
      ...(kind === "compile" ? [["Values", integer(model.number(row))] as [string, string]] : []),
      ["Scope", [context?.scope, context && context.phase !== "other" ? context.phase : ""].filter(Boolean).join(", ") || UNKNOWN], ["Line", context?.line || UNKNOWN],
    ];
    return [
      h("div", { class: "fl-title" }, h("div", {}, h("b", {}, nameOf(model, store, row)), h("div", { class: "fl-sub" }, WORDS[kind]))),
      h("dl", { class: "fl-pairs" }, ...facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
      ...(info ? kernelParts(theme, store, info) : []),
    ];
  }

  private tip(mark: Mark): string {
    const { model, lanes } = this;
    if (!model || !lanes) return "";
    const name = lanes.name(mark.lane, mark.row, mark.index);
    if (mark.item === NO_ITEM) return name;
    const [start, end] = model.span(mark.item);
    return [name, mark.row > RAN ? "estimated" : text(duration((end - start) * 1e6)), this.context.store.context(model.context(mark.item))?.scope].filter(Boolean).join(" · ");
  }

  // ---- what the reader does

  private again(): void {
    this.drawn = "";
    this.context.store.notify();
  }

  /** The picture is paused: the steps that are kept soon are others. */
  private hold(): void {
    const { store, actions } = this.context;
    if (store.run?.state === "recording") actions.pause(true);
    this.span ??= this.timeline.shown;
  }

  private look(span: Span): void {
    this.hold();
    this.span = span;
    this.again();
  }

  private pick(mark: Mark | null, t: number): void {
    const { model, context: { store, actions } } = this;
    if (!model) return;
    this.hold();
    this.selected = mark && mark.item !== NO_ITEM ? mark.item : -1;
    if (this.selected < 0) this.cursor = t;
    else {
      const [row, context] = [this.selected, store.context(model.context(this.selected))];
      const info = model.kind(row) === "kernel" ? store.kernelInfos[model.number(row)] : undefined;
      const plan = store.plan(model.plan(row));
      const selection: Selection | null = info ? selectionOfKernel(store, info.name)
        : plan ? { kind: "op", label: plan.op, op: plan.op, ...(context ? { scope: context.scope, phase: context.phase } : {}) } : null;
      actions.select(selection);
    }
    this.again();
  }

  private step(by: number): void {
    const { model } = this;
    const now = model && this.stepOf(model);
    const next = model && now && model.steps[Math.min(Math.max(model.steps.indexOf(now) + by, 0), model.steps.length - 1)];
    if (!model || !next) return;
    this.hold();
    const length = (next.end - next.start) * 1.06;
    this.cursor = next.start;
    this.look(within({ t0: next.start - 0.02 * length, t1: next.start + length }, model.limits));
  }
}

export const createActivityView = (context: ViewContext): View => new ActivityView(context);
