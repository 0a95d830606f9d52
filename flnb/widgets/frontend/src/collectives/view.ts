/** Who is late, why, what does it cost a step, is communication hidden? Ranks over time, and what follows from them. */

import { clamp } from "../clamp.ts";
import { writeLegend } from "../details.ts";
import { attribute, h, inTable, reveal } from "../dom.ts";
import { durationText, integer, joined } from "../format.ts";
import { familyLabels } from "../palette.ts";
import { Panel } from "../panel.ts";
import type { Selection } from "../selection.ts";
import { HEADER, type Mark } from "../timeline/lanes.ts";
import type { Frame } from "../timeline/paint.ts";
import { type Span, within } from "../timeline/scale.ts";
import { Timeline } from "../timeline/timeline.ts";
import type { DataTable, View, ViewContext } from "../view.ts";
import { type Buckets, bucketsHeight, bucketsOf, drawBuckets } from "./buckets.ts";
import { Details, whyLines } from "./details.ts";
import { Exposed } from "./exposed.ts";
import { HeatMap, latenessOf } from "./heatmap.ts";
import { CALLS, type RankLanes, rankLanes } from "./lanes.ts";
import { MANY, WhoIsLate } from "./late.ts";
import { type CollectivesModel, RECENT_STEPS } from "./model.ts";
import { drawOverlay } from "./overlay.ts";
import { Stuck, stuckTitle } from "./stuck.ts";
import { callTable } from "./tables.ts";

const SHOWN_FAMILIES = 4;
/** Steps that are looked at while following, if they hold a call. */
const FOLLOWED = 1.25;

export class CollectivesView implements View {
  readonly element: HTMLElement;
  private readonly panel: Panel;
  private readonly timeline: Timeline;
  private readonly host = h("div", "fl-callhost");
  private readonly legend = h("div", "fl-calllegend");
  private readonly details: Details;
  private readonly exposed: Exposed;
  private readonly late: WhoIsLate;
  private readonly stuck = new Stuck();
  private readonly heat: HeatMap;
  private readonly main: HTMLElement;
  private readonly lower: HTMLElement;
  private model: CollectivesModel | null = null;
  private lanes: RankLanes | null = null;
  private buckets: Buckets | null = null;
  /** The rank whose buckets are shown, and which has a lane where not all have one; null: the latest one. */
  private rank: number | null = null;
  private arranged = "";
  private drawn = "";
  private told = "";
  private wrote = -1;

  constructor(private readonly context: ViewContext) {
    this.panel = new Panel("Collectives", () => callTable(this.model));
    this.panel.tools.append(this.legend);
    this.timeline = new Timeline(context.theme, {
      range: (span) => {
        this.hold();
        this.look(span);
      },
      cursor: (t) => {
        this.hold();
        context.actions.setCursor(t / 1e3);
      },
      pick: (mark, t) => this.pick(mark, t),
      tip: (mark) => this.tip(mark),
      draw: (frame) => this.over(frame),
    }, "ranks over time, their phases and collectives");
    this.host.append(this.timeline.element);
    this.panel.body.append(this.host);
    this.details = new Details(context.theme, { previous: () => this.go(-1), next: () => this.go(1), late: () => this.goLate() });
    this.exposed = new Exposed(context, (step) => this.goStep(step));
    this.late = new WhoIsLate(context, (rank) => this.goRank(rank));
    this.heat = new HeatMap(context, (rank, step) => this.goRank(rank, step));
    this.lower = h("div", "fl-calllower", this.exposed.panel.element, this.late.panel.element, this.stuck.panel.element);
    this.main = h("div", "fl-callmain", this.heat.panel.element, this.panel.element, this.lower);
    this.element = h("div", "fl-split fl-calls", this.main, this.details.element);
    this.heat.panel.element.hidden = this.stuck.panel.element.hidden = true;
  }

  describe(): DataTable {
    return callTable(this.model);
  }

  resize(): void {
    this.timeline.resize(this.host.clientWidth, this.host.clientHeight);
    this.exposed.resize();
    this.heat.resize();
    this.drawn = this.told = "";
    this.wrote = -1;
  }

  render(now: number): void {
    const { store, theme } = this.context;
    const model = store.collectives;
    if (!model) return;
    const key = `${store.versions.collectives} ${store.versions.view} ${theme.version}`;
    if (key !== this.drawn) {
      this.drawn = key;
      this.model = model;
      this.arrange(model);
    }
    if (!this.panel.update(now)) this.timeline.render();
    if (this.told === key || (this.wrote === store.versions.text && this.told.split(" ")[1] === key.split(" ")[1])) return;
    this.wrote = store.versions.text;
    this.told = key;
    this.write(model, now);
  }

  key(event: KeyboardEvent): boolean {
    if (this.exposed.key(event)) return true;
    switch (event.key) {
      case "j": case "J": this.go(1); return true;
      case "k": case "K": this.go(-1); return true;
      case "r": case "R": this.goLate(); return true;
      default: return inTable() ? false : this.timeline.key(event);
    }
  }

  probe(): unknown {
    const { model } = this;
    if (!model) return null;
    const call = this.call(model);
    return {
      ranks: model.ranks, rows: model.rows, steps: model.steps.map(({ step }) => step), shown: this.timeline.shown, selected: this.selected(model),
      call: call < 0 ? null : { seq: model.seq(call), op: model.op(call), late: model.lateRank(call) < 0 ? null : model.number(model.lateRank(call)), why: whyLines(model, call) },
      stuck: model.section.stuck?.text ?? null, place: this.places(model),
    };
  }

  destroy(): void {
    this.element.remove();
  }

  // ---- what is shown

  /** The row that is selected: -1 where it is none of these. */
  private selected(model: CollectivesModel): number {
    const { selection } = this.context.store;
    if (selection?.kind !== "collective") return -1;
    return model.find(selection.communicator ?? "", selection.sequence ?? -1);
  }

  /** The row that the details tell of: the selected one, what hangs, where somebody was latest, or the newest. */
  private call(model: CollectivesModel): number {
    if (this.context.store.selection?.kind === "collective") return this.selected(model);
    if (model.section.stuck) return model.hanging;
    const ended = this.context.store.run?.state !== "recording";
    const latest = model.latest(ended ? Infinity : RECENT_STEPS);
    return latest >= 0 ? latest : model.order.findLast((row) => !model.pending(row)) ?? -1;
  }

  /** The step that the picture tells of. */
  private step(model: CollectivesModel): number {
    const { selection, cursor } = this.context.store;
    const selected = this.selected(model);
    if (selected >= 0) return model.step(selected);
    if (selection?.kind === "step" && selection.step !== undefined) return selection.step;
    if (cursor !== null) return model.stepAt(cursor * 1e3)?.step ?? -1;
    const whole = model.section.steps.at(-1);
    return whole?.step ?? model.steps.at(-1)?.step ?? -1;
  }

  private arrange(model: CollectivesModel): void {
    const { theme, store } = this.context;
    const step = this.step(model);
    const many = model.ranks > MANY;
    if (this.rank !== null && this.rank >= model.ranks) this.rank = null;
    const ranks = many ? this.pair(model) : Array.from({ length: model.ranks }, (_, rank) => rank);
    // Zooming and panning change neither lanes nor buckets.
    const key = `${store.versions.collectives} ${theme.version} ${ranks.join()} ${step} ${this.rank} ${this.host.clientHeight}`;
    if (key !== this.arranged) {
      this.arranged = key;
      this.buckets = bucketsOf(model, step, this.rank ?? ranks[0] ?? 0);
      this.lanes = rankLanes(model, theme, ranks, step, bucketsHeight(this.buckets), this.host.clientHeight - HEADER - bucketsHeight(this.buckets));
      this.timeline.set(this.lanes.content);
    }
    const { stuck } = model.section;
    this.show(this.heat.panel.element, many);
    this.show(this.stuck.panel.element, stuck !== null);
    this.show(this.exposed.panel.element, stuck === null);
    this.show(this.late.panel.element, stuck === null);
    this.main.classList.toggle("fl-callmany", many);
    this.timeline.cursor = store.cursor === null ? null : store.cursor * 1e3;
    this.timeline.show(store.following ? this.followed(model) : { t0: store.range.t0 * 1e3, t1: store.range.t1 * 1e3 });
  }

  private show(element: HTMLElement, shown: boolean): void {
    reveal(element, shown, () => this.resize());
  }

  /** The newest step and a bit of what was before it. */
  private followed(model: CollectivesModel): Span {
    const { limits } = model;
    const whole = model.section.steps.at(-1);
    const step = model.steps.find((one) => one.step === whole?.step) ?? model.steps.at(-1);
    if (!step) return { t0: Math.max(limits.t0, limits.t1 - Math.max(1, (limits.t1 - limits.t0) / 4)), t1: limits.t1 };
    if (model.section.stuck) {
      const begun = model.steps.at(-1)!.start;
      return within({ t0: begun - 0.3 * (limits.t1 - begun), t1: limits.t1 + 0.01 * (limits.t1 - begun) }, limits);
    }
    const length = (step.end - step.start) * FOLLOWED;
    return within({ t0: step.end + length * 0.08 - length, t1: step.end + length * 0.08 }, limits);
  }

  /** Of many ranks the one that is looked at, beside the median one. */
  private pair(model: CollectivesModel): number[] {
    const { worst } = latenessOf(model);
    const one = this.rank ?? worst[0] ?? 0;
    const median = worst[worst.length >> 1] ?? 0;
    return one === median ? [one] : [one, median];
  }

  private over(frame: Frame): void {
    const { model, lanes, buckets } = this;
    if (!model || !lanes) return;
    const selected = this.selected(model);
    drawOverlay(frame, { model, lanes, selected });
    if (buckets) drawBuckets(frame, model, buckets, selected);
  }

  /** Everything that is read rather than seen. */
  private write(model: CollectivesModel, now: number): void {
    const { section } = model;
    const step = this.step(model);
    const groups = section.groups.length > 1 ? `${section.groups.length} groups` : "";
    const kept = model.steps.length ? `steps ${integer(model.steps[0]!.step)} to ${integer(model.steps.at(-1)!.step)} are kept` : "";
    this.panel.sub = joined([section.stuck ? stuckTitle(section.stuck) : step >= 0 ? `step ${integer(step)}` : "", `${model.ranks} ranks`, groups, this.outside(model) ? kept : ""]);
    this.legends(model);
    const call = this.call(model);
    this.details.update(model, call, this.context.store.selection?.kind === "collective");
    if (section.stuck) this.stuck.update(section.stuck);
    if (!this.exposed.panel.update(now)) this.exposed.update(model, step);
    const late = call < 0 ? -1 : model.lateRank(call);
    this.late.panel.update(now);
    this.late.update(model, late);
    this.stuck.panel.update(now);
    if (model.ranks > MANY && !this.heat.panel.update(now)) this.heat.update(model, this.pair(model)[0]!);
    const said = call < 0 ? "" : `: ${whyLines(model, call).join(". ")}`;
    attribute(this.timeline.surface.canvas, "aria-label", `${model.ranks} ranks over time, their phases and collectives${said}`);
  }

  private outside(model: CollectivesModel): boolean {
    const { store } = this.context;
    return !store.following && (store.range.t1 * 1e3 < model.limits.t0 || store.range.t0 * 1e3 > model.limits.t1);
  }

  private legends(model: CollectivesModel): void {
    const { theme } = this.context;
    writeLegend(this.legend, theme, busiest(model), () => {
      const communication = theme.family("communication");
      const entry = (style: string, name: string): HTMLElement => h("span", "fl-legenditem", h("i", { class: "fl-callmark", style }), name);
      return [
        entry(`border:1px solid ${communication};background:repeating-linear-gradient(135deg,${communication} 0 1px,transparent 1px 3px)`, "waiting"),
        entry(`background:${communication}`, "transferring"),
      ];
    });
  }

  private tip(mark: Mark): string {
    const { model, lanes } = this;
    if (!model || !lanes) return "";
    const { bars } = lanes.content.lanes[mark.lane]!.rows[mark.row]!;
    const rank = lanes.ranks[mark.lane]!;
    if (mark.row < CALLS) return `${lanes.name(mark.lane, mark.row, mark.index)} · ${durationText((bars.end[mark.index]! - bars.start[mark.index]!) * 1e6)} · rank ${model.number(rank)}`;
    const call = mark.item;
    const transfer = model.transfer(rank, call);
    const waits = Number.isNaN(model.last(call)) ? "waits for who has not come" : `waits ${durationText(model.waiting(rank, call) * 1e6)}`;
    return joined([`#${integer(model.seq(call))} ${model.op(call)}`, `rank ${model.number(rank)}`, waits, Number.isNaN(transfer) ? "" : `transfers ${durationText(transfer * 1e6)}`]);
  }

  /** Where bars of the lanes stand on the page, for tests. */
  private places(model: CollectivesModel): unknown {
    const { lanes } = this;
    const call = this.call(model);
    if (!lanes || call < 0) return null;
    return { ...this.timeline.place, begins: lanes.ranks.map((rank) => model.begin(rank, call)), last: model.last(call) };
  }

  // ---- what the reader does

  /** Look at a time: the one range of all views. */
  private look(span: Span): void {
    this.context.actions.setRange(span.t0 / 1e3, span.t1 / 1e3);
  }

  /** Stop following at what is shown. The picture is paused: the steps that are kept soon are others. */
  private hold(): void {
    const { store, actions } = this.context;
    if (store.run?.state === "recording") actions.pause(true);
    if (store.following) this.look(this.timeline.shown);
  }

  private pick(mark: Mark | null, t: number): void {
    const { model, lanes } = this;
    if (!model || !lanes) return;
    if (mark) this.rank = lanes.ranks[mark.lane] ?? null;
    this.hold();
    if (mark && mark.row >= CALLS) this.select(mark.item);
    else this.context.actions.setCursor(t / 1e3);
  }

  /** Select a call, and bring it into sight. */
  private select(call: number): void {
    const { model } = this;
    if (!model) return;
    this.hold();
    const [last, exit] = [model.last(call), model.exit(call)];
    const { t0, t1 } = this.timeline.shown;
    if (last < t0 || (Number.isNaN(exit) ? last : exit) > t1) {
      const step = model.stepOf(call);
      const length = step ? (step.end - step.start) * FOLLOWED : t1 - t0;
      const middle = step ? (step.start + step.end) / 2 : last;
      this.look(within({ t0: middle - length / 2, t1: middle + length / 2 }, model.limits));
    }
    const selection: Selection = {
      kind: "collective", label: model.op(call), communicator: model.group(call), sequence: model.seq(call),
      ...(model.step(call) >= 0 ? { step: model.step(call) } : {}), ...(model.bucket(call) >= 0 ? { bucket: model.bucket(call) } : {}),
      ...(Number.isNaN(last) ? {} : { t: last / 1e3 }),
    };
    this.context.actions.select(selection);
  }

  private go(by: number): void {
    const { model } = this;
    if (!model || !model.rows) return;
    const at = model.order.indexOf(this.call(model));
    const next = this.context.store.selection?.kind === "collective" && at >= 0 ? at + by : at < 0 ? model.order.length - 1 : at;
    this.select(model.order[clamp(next, 0, model.order.length - 1)]!);
  }

  /** The late rank of what is told of, or of where somebody was latest. */
  private goLate(): void {
    const { model, lanes } = this;
    if (!model || !lanes) return;
    const told = this.call(model);
    const call = told >= 0 && model.lateRank(told) >= 0 ? told : model.latest(Infinity);
    if (call < 0) return this.context.actions.announce("Nobody was late");
    const rank = model.lateRank(call);
    if (model.ranks > MANY) this.rank = rank;
    this.select(call);
    this.timeline.reveal(Math.max(0, lanes.ranks.indexOf(rank)));
    this.context.actions.announce(whyLines(model, call).join(". "));
  }

  /** A rank: its lane, and the call to which it came latest (in one step, or in all that are kept). */
  private goRank(rank: number, step: number | null = null): void {
    const { model, lanes } = this;
    if (!model || !lanes) return;
    if (model.ranks > MANY) this.rank = rank;
    let found = -1;
    for (let row = 0; row < model.rows; row++) {
      if ((step !== null && model.step(row) !== step) || Number.isNaN(model.begin(rank, row))) continue;
      const delay = (one: number): number => (model.lateRank(one) === rank ? model.late(one) : -model.waiting(rank, one));
      if (found < 0 || delay(row) > delay(found)) found = row;
    }
    if (found >= 0) this.select(found);
    this.timeline.reveal(Math.max(0, lanes.ranks.indexOf(rank)));
  }

  private goStep(step: number): void {
    const { model } = this;
    const span = model?.steps.find((one) => one.step === step);
    if (!model || !span) return;
    this.look(within({ t0: span.start - (span.end - span.start) * 0.1, t1: span.end + (span.end - span.start) * 0.1 }, model.limits));
    this.context.actions.select({ kind: "step", label: `step ${integer(step)}`, step, t: span.start / 1e3 });
  }
}

/** Families of ops, those that take most of the time first, in the order in which they are always listed. */
function busiest({ section, columns: { act_family: family, act_start: start, act_end: end } }: CollectivesModel): string[] {
  const times = new Map<string, number>();
  for (let at = 0; at < family!.length; at++) {
    const name = section.families[family![at]!] ?? "";
    times.set(name, (times.get(name) ?? 0) + end![at]! - start![at]!);
  }
  const known = [...times.keys()].filter((name) => name in familyLabels && name !== "communication");
  const most = new Set(known.sort((one, two) => times.get(two)! - times.get(one)!).slice(0, SHOWN_FAMILIES));
  return Object.keys(familyLabels).filter((name) => most.has(name));
}
