/** Who waits, host or device; what did this launch do to memory? What the host asked for over what its devices ran. */

import { clamp } from "../clamp.ts";
import { writeLegend } from "../details.ts";
import { attribute, h, inTable, reveal, setText } from "../dom.ts";
import { bytesText, durationText, integer, joined } from "../format.ts";
import { familyLabels } from "../palette.ts";
import { Panel, segmented } from "../panel.ts";
import { namesOf } from "../selection.ts";
import { HEADING, type Mark } from "../timeline/lanes.ts";
import type { Frame } from "../timeline/paint.ts";
import { type Span, within } from "../timeline/scale.ts";
import { Timeline } from "../timeline/timeline.ts";
import type { DataTable, View, ViewContext } from "../view.ts";
import { DeviceBlocks } from "./blockmap.ts";
import { TaskDetails, turn } from "./details.ts";
import { type DeviceLanes, deviceLanes, lanesHeight, NO_ITEM } from "./lanes.ts";
import { drawTrack, type MemoryTrack, memoryTrack, TRACK, TRACK_MOST } from "./memory.ts";
import type { Axis, DevicesModel, StepRows } from "./model.ts";
import { askedName, blockName, family, taskName, waitsFor } from "./names.ts";
import { drawOverlay, drawUnder } from "./overlay.ts";
import { taskTable } from "./tables.ts";

/** Pixels of a slot that is looked at first, so that it carries a name; and how many slots at least. */
const SLOT = 42;
const LEAST_SLOTS = 12;
const LEAST_HEIGHT = 260;
/** Least and most height of the block map. */
const LOWER = [92, 172] as const;

export class DevicesView implements View {
  readonly element: HTMLElement;
  private readonly panel: Panel;
  private readonly timeline: Timeline;
  private readonly host = h("div", "fl-callhost");
  private readonly legend = h("div", "fl-calllegend");
  private readonly how = h("span", "fl-sub");
  private readonly badge = h("b", "fl-badge");
  private readonly note = h("div", { class: "fl-devicenote", hidden: true }, this.badge, this.how);
  private readonly main: HTMLElement;
  private readonly details: TaskDetails;
  private readonly blocks: DeviceBlocks;
  private readonly choice: HTMLElement;
  private chosen: Axis = "time";
  private model: DevicesModel | null = null;
  private lanes: DeviceLanes | null = null;
  private track: MemoryTrack | null = null;
  /** What is looked at on the axis; null follows the newest step. */
  private span: Span | null = null;
  /** A place on the axis; null: the end of what is looked at. */
  private cursor: number | null = null;
  private arranged = "";
  private drawn = "";
  private told = "";

  constructor(private readonly context: ViewContext) {
    this.panel = new Panel("Devices", () => taskTable(this.model, context.store));
    this.choice = segmented<Axis>("Axis", [["time", "Time"], ["order", "Order"]], "time", (axis) => this.choose(axis));
    this.panel.tools.append(this.legend, this.choice);
    this.timeline = new Timeline(context.theme, {
      range: (span) => this.look(span),
      cursor: (at) => this.put(at),
      pick: (mark, at) => this.pick(mark, at),
      tip: (mark) => this.tip(mark),
      under: (frame) => this.under(frame),
      draw: (frame) => this.over(frame),
    }, "what the host asked for and what the devices ran");
    this.host.append(this.timeline.element);
    this.panel.element.insertBefore(this.note, this.panel.body);
    this.panel.body.append(this.host);
    this.details = new TaskDetails(context, { go: (by) => this.go(by), gap: () => this.goGap() });
    this.blocks = new DeviceBlocks(context);
    this.main = h("div", "fl-devicemain", this.panel.element, this.blocks.panel.element);
    this.element = h("div", "fl-split fl-calls", this.main, this.details.element);
  }

  describe(): DataTable {
    return taskTable(this.model, this.context.store);
  }

  resize(): void {
    this.timeline.resize(this.host.clientWidth, this.host.clientHeight);
    this.blocks.resize();
    this.arranged = this.drawn = this.told = "";
  }

  render(now: number): void {
    const { store, theme } = this.context;
    const model = store.devices;
    if (!model) return;
    const key = `${store.versions.devices} ${store.versions.view} ${theme.version} ${this.chosen} ${this.span?.t0} ${this.span?.t1} ${this.cursor}`;
    if (key !== this.drawn) {
      this.drawn = key;
      this.model = model;
      this.arrange(model);
    }
    if (!this.panel.update(now)) this.timeline.render();
    const read = `${store.versions.text} ${store.versions.view} ${theme.version} ${this.chosen} ${this.cursor} ${this.span?.t0}`;
    if (read === this.told) return;
    this.told = read;
    this.write(model, now);
  }

  key(event: KeyboardEvent): boolean {
    if (this.blocks.key(event)) return true;
    switch (event.key) {
      case "]": this.go(1); return true;
      case "[": this.go(-1); return true;
      case "g": case "G": this.goGap(); return true;
      case "f": case "F": this.follow(); return true;
      case "Escape": if (this.context.store.selection || this.cursor === null) return false; this.cursor = null; this.again(); return true;
      default: return inTable() ? false : this.timeline.key(event);
    }
  }

  probe(): unknown {
    const { model } = this;
    if (!model) return null;
    const task = this.selected(model);
    return {
      axis: this.axis(model), rows: model.rows, steps: model.steps.map(({ step }) => step), streams: model.streams.length, shown: this.timeline.shown, note: model.section.note,
      task: task < 0 ? null : { seq: model.seq(task), name: taskName(model, task), asked: task, ran: model.ranAs(task) }, waiting: this.blocks.waiting, blocks: this.blocks.shown.length,
      events: model.events.map(({ event, awaited }) => ({ event, awaited })), place: this.timeline.place,
    };
  }

  destroy(): void {
    this.element.remove();
  }

  // ---- what is shown

  /** Of an emulated device there is no time. */
  private axis(model: DevicesModel): Axis {
    return model.emulated ? "order" : this.chosen;
  }

  private selected(model: DevicesModel): number {
    const { selection } = this.context.store;
    return selection?.kind === "task" ? model.find(selection.task ?? -1) : -1;
  }

  /** The step that is told of: that of the selected task, of the cursor, or the newest of which most has run. */
  private step(model: DevicesModel): StepRows | undefined {
    const selected = this.selected(model);
    if (selected >= 0) return model.stepOf(selected);
    const axis = this.axis(model);
    if (this.cursor !== null) {
      const time = model.timeAt(this.cursor, axis);
      const under = model.steps.find(({ start, end }) => time >= start && time <= end);
      if (under) return under;
    }
    return model.steps.findLast(({ first, last }) => last > first && model.ranAs(last - 1) >= 0) ?? model.steps.at(-1);
  }

  private followed(model: DevicesModel): Span {
    const axis = this.axis(model);
    const limits = model.limits(axis);
    const step = this.step(model);
    if (axis === "order") {
      const most = Math.max(LEAST_SLOTS, Math.floor((this.host.clientWidth - HEADING) / SLOT));
      const first = step ? step.first : Math.max(0, model.rows - most);
      const last = Math.min(step ? step.last : model.rows, first + most);
      let end = last;
      for (let row = first; row < last; row++) end = Math.max(end, model.ranAs(row) + 1);
      return within({ t0: first, t1: Math.max(first + 8, Math.min(end, first + most)) }, { t0: 0, t1: Math.max(limits.t1, 8) });
    }
    if (!step) return limits;
    let end = step.end;
    for (let row = step.first; row < step.last; row++) end = Math.max(end, model.ran(row)[1] || 0);
    const length = (end - step.start) * 1.06;
    return within({ t0: step.start - 0.02 * length, t1: step.start + length }, limits);
  }

  private arrange(model: DevicesModel): void {
    const { theme, store } = this.context;
    const axis = this.axis(model);
    const step = this.step(model);
    const high = this.host.clientHeight;
    const footer = high >= LEAST_HEIGHT ? clamp(high - lanesHeight(model.streams), TRACK, TRACK_MOST) : 0;
    const key = `${store.versions.devices} ${theme.version} ${axis} ${step?.step} ${high}`;
    if (key !== this.arranged) {
      this.arranged = key;
      this.track = footer ? memoryTrack(model, axis) : null;
      this.lanes = deviceLanes(model, store, theme, axis, step?.step ?? -1, footer, high);
      this.timeline.set(this.lanes.content);
    }
    this.timeline.cursor = this.cursor;
    this.timeline.show(this.span ?? this.followed(model));
    const task = this.selected(model);
    const [when, time] = this.moment(model, task);
    this.blocks.update(model, time, when, task < 0 ? [] : model.blocksOf(task));
    const rows = `minmax(200px,1fr) ${clamp(this.blocks.height, LOWER[0], LOWER[1])}px`;
    if (this.main.style.gridTemplateRows === rows) return;
    this.main.style.gridTemplateRows = rows;
    requestAnimationFrame(() => this.resize());
  }

  /** The moment of the block map: at the cursor, at the selected task, or now. */
  private moment(model: DevicesModel, task: number): [string, number] {
    const axis = this.axis(model);
    const origin = this.step(model)?.start ?? model.section.origin_ms;
    if (this.cursor !== null) {
      const time = model.timeAt(this.cursor, axis);
      return [axis === "order" ? `when the host had asked for ${integer(Math.floor(this.cursor) + 1)}` : `at the cursor, ${durationText((time - origin) * 1e6)}`, time];
    }
    if (task >= 0) return ["when the host asked for the selected task", model.asked(task)[1]];
    const step = this.step(model);
    return step ? [`at the end of step ${integer(step.step)}`, step.end] : ["now", model.section.now_ms];
  }

  private show(element: HTMLElement, shown: boolean): void {
    reveal(element, shown, () => this.resize());
  }

  private under(frame: Frame): void {
    const { model, lanes } = this;
    if (model && lanes) drawUnder(frame, { model, lanes, store: this.context.store, selected: this.selected(model) });
  }

  private over(frame: Frame): void {
    const { model, lanes, track } = this;
    if (!model || !lanes) return;
    drawOverlay(frame, { model, lanes, store: this.context.store, selected: this.selected(model) });
    if (track) drawTrack(frame, track, lanes.content.footer, (row) => `${blockName(model, this.context.store, row)}, freed, ${waitsFor(model, row)}`);
  }

  /** Everything that is read rather than seen. */
  private write(model: DevicesModel, now: number): void {
    const [axis, step] = [this.axis(model), this.step(model)];
    const device = model.section.devices.find(({ emulated }) => emulated);
    const { t0, t1 } = this.timeline.shown;
    const part = step && axis === "order" && step.last - step.first > t1 - t0 ? `${integer(Math.max(1, Math.floor(t0) - step.first + 1))} to ${integer(Math.min(Math.ceil(t1), step.last) - step.first)} of ${integer(step.last - step.first)} tasks` : "";
    this.panel.sub = joined([step ? `step ${integer(step.step)}` : "", part || (axis === "order" ? "order of running" : "times from events")]);
    this.show(this.note, device !== undefined);
    setText(this.badge, model.section.note);
    setText(this.how, device ? `equal slots · ${device.order} order${device.order === "random" ? `, seed ${device.seed}` : ""}` : "");
    this.choice.hidden = model.emulated;
    this.legends(model);
    this.blocks.panel.update(now);
    const task = this.selected(model);
    this.details.update(model, task, step?.step ?? -1, axis);
    const said = task < 0 ? "" : `: ${taskName(model, task)}, ${turn(model.ranAs(task) - task)}`;
    attribute(this.timeline.surface.canvas, "aria-label", `what the host asked for and ${model.streams.length} streams of ${model.section.devices.length} devices${model.section.note ? `; ${model.section.note}` : ""}${said}`);
  }

  private legends(model: DevicesModel): void {
    const { theme, store } = this.context;
    const found = new Set(Array.from({ length: Math.min(model.rows, 400) }, (_, at) => family(model, store, model.rows - 1 - at)));
    const families = Object.keys(familyLabels).filter((name) => found.has(name));
    writeLegend(this.legend, theme, families);
  }

  private tip(mark: Mark): string {
    const { model, lanes } = this;
    if (!model || !lanes) return "";
    const name = lanes.name(mark.lane, mark.row, mark.index);
    if (mark.item === NO_ITEM) return name;
    const task = mark.item;
    const parts = [mark.lane ? name : `${askedName(model, this.context.store, task)} asks for ${taskName(model, task)}`];
    if (model.route(task)) parts.push(bytesText(model.bytes(task)));
    if (this.axis(model) === "order") parts.push(model.ranAs(task) < 0 ? "has not run" : `ran ${turn(model.ranAs(task) - task)}`);
    else {
      const [begin, end] = model.ran(task);
      if (!Number.isNaN(end)) parts.push(durationText((end - begin) * 1e6), `queued ${durationText(model.queued(task) * 1e6)}`);
    }
    return parts.join(" · ");
  }

  // ---- what the reader does

  private again(): void {
    this.drawn = this.told = "";
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

  private put(at: number): void {
    this.hold();
    this.cursor = at;
    this.again();
  }

  private follow(): void {
    this.span = this.cursor = null;
    this.again();
  }

  private choose(axis: Axis): void {
    this.chosen = axis;
    this.arranged = "";
    this.follow();
  }

  private pick(mark: Mark | null, at: number): void {
    const { model } = this;
    if (!model) return;
    if (mark && mark.item !== NO_ITEM) this.select(mark.item);
    else this.put(at);
  }

  /** Select a task, and bring it into sight in both lanes. */
  private select(task: number): void {
    const { model, context: { store, actions } } = this;
    if (!model) return;
    this.hold();
    this.cursor = null;
    const axis = this.axis(model);
    const [host, device] = [model.hostSpan(task, axis), model.deviceSpan(task, axis)];
    const shown = this.timeline.shown;
    const length = shown.t1 - shown.t0;
    const both = [Math.min(host[0], device?.[0] ?? Infinity), Math.max(host[1], device?.[1] ?? -Infinity)] as const;
    const [t0, t1] = both[1] - both[0] < length ? both : host; // no further than needed
    const by = t0 < shown.t0 ? t0 - shown.t0 : t1 > shown.t1 ? t1 - shown.t1 : 0;
    if (by) this.span = within({ t0: shown.t0 + by, t1: shown.t1 + by }, model.limits(axis));
    const step = model.stepOf(task);
    actions.select({
      kind: "task", label: taskName(model, task), task: model.seq(task), ...namesOf(store, model.plan(task), model.context(task)), ...(step ? { step: step.step } : {}),
    });
  }

  private go(by: number): void {
    const { model } = this;
    if (!model || !model.rows) return;
    const at = this.selected(model);
    const first = this.step(model)?.first ?? 0;
    this.select(at < 0 ? first : clamp(at + by, 0, model.rows - 1));
  }

  private goGap(): void {
    const { model } = this;
    if (!model) return;
    const { gaps, origin_ms: origin } = model.section;
    if (!gaps.length) return this.context.actions.announce(model.emulated ? "An emulated device has no idle time" : "No device was idle");
    const now = this.cursor ?? -Infinity;
    const next = gaps.find(({ t0 }) => origin + t0 > now) ?? gaps[0]!;
    const length = this.timeline.shown.t1 - this.timeline.shown.t0;
    this.put(origin + next.t0);
    const middle = origin + (next.t0 + next.t1) / 2;
    this.look(within({ t0: middle - length / 2, t1: middle + length / 2 }, model.limits(this.axis(model))));
    this.context.actions.announce(`device idle ${durationText((next.t1 - next.t0) * 1e6)}, ${next.cause || "cause not seen"}`);
  }
}
