/** What ran when? A lane for each thread: phases, scopes as flames, ops; memory and metrics under them. */

import { fillBox, label, ring } from "../canvas.ts";
import { h, inTable, nothing } from "../dom.ts";
import { durationText, integer, joined, measured, UNKNOWN } from "../format.ts";
import { memoryOf } from "../memory/model.ts";
import { familyLabels } from "../palette.ts";
import { Panel } from "../panel.ts";
import type { TimelineEvent, TimelineMeasure, TimelineMessage } from "../protocol.ts";
import type { Mark } from "../timeline/lanes.ts";
import { type Frame, momentsAt, paintMoments } from "../timeline/paint.ts";
import type { Span } from "../timeline/scale.ts";
import { HEADER, HEADING, Timeline } from "../timeline/timeline.ts";
import type { Cell, DataTable, View, ViewContext } from "../view.ts";
import { allocationsIn, drawArrows } from "./arrows.ts";
import { stepBands } from "./bands.ts";
import { pane, writeLegend } from "../details.ts";
import { aboutEvent, aboutMeasure, HELP, selectionOfEvent } from "./details.ts";
import { FAINT, litOf, markedBy, nameOf, ThreadLanes } from "./lanes.ts";
import { keyOf, type Piece, Windows } from "./model.ts";
import { Tracks } from "./tracks.ts";

/** A window is asked for with so many of its lengths on each side: panning stays within it. */
const MARGIN = 1;
/** Pixels under the lanes. */
const SLACK = 8;

class ThreadsView implements View {
  readonly element: HTMLElement;
  private readonly panel = new Panel("Timeline", () => this.describe());
  private readonly timeline: Timeline;
  private readonly tracks: Tracks;
  private readonly host = h("div", "fl-callhost");
  private readonly legend = h("div", "fl-calllegend");
  private readonly side = pane("Selected event");
  private readonly windows = new Windows();
  /** Requests about events, ranges and searches, by id, newest last. */
  private questions = 1 << 20;
  private lanes: ThreadLanes | null = null;
  private event: (TimelineEvent & { related?: TimelineEvent[] }) | null = null;
  /** Events that the selected bar stands for, and whether the kernel has told more of it. */
  private count = 1;
  private asked = 0;
  /** The measured range (ms): from where, to where (null: to the cursor); what is in it, once it is known. */
  private range: { from: number; to: number | null; found: TimelineMeasure | null } | null = null;
  private finding = 0;
  private drawn = "";
  private arranged = "";
  private wrote = "";
  private answer: TimelineMessage | null = null;
  /** The group of tape nodes whose ops were asked for. */
  private marked = "";
  private late = false;
  private saved = false;
  private retry: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly context: ViewContext) {
    this.tracks = new Tracks(context.store, memoryOf(context.store));
    this.timeline = new Timeline(context.theme, {
      range: ({ t0, t1 }) => context.actions.setRange(t0 / 1e3, t1 / 1e3),
      cursor: (t) => context.actions.setCursor(t / 1e3),
      pick: (mark, t) => this.pick(mark, t),
      tip: (mark) => this.tip(mark),
      near: (x, scale) => momentsAt(context.store.exchanges, x, (t) => scale.x(t * 1e3)),
      draw: (frame) => this.over(frame),
      words: (frame) => this.words(frame),
    }, "what threads did when, with memory and metrics");
    this.host.append(this.timeline.element);
    this.panel.body.append(this.host);
    this.panel.tools.append(this.legend);
    this.element = h("div", "fl-split fl-calls fl-threads", this.panel.element, this.side);
  }

  resize(): void {
    this.timeline.resize(this.host.clientWidth, this.host.clientHeight);
    this.drawn = this.arranged = "";
  }

  render(now: number): void {
    const { store, theme } = this.context;
    if (!store.timeline) return;
    if (this.event && (litOf(store) || (store.selection === null && this.event.kind !== "phase"))) this.event = null; // chosen or cleared elsewhere
    if (store.timelineAnswer !== this.answer) this.hear((this.answer = store.timelineAnswer));
    const lit = litOf(store);
    if (lit?.kind === "nodes" && lit.group !== this.marked) this.context.actions.ask({ type: "tape", marks: (this.marked = lit.group!) });
    if (this.windows.late(performance.now()) !== this.late) {
      this.late = !this.late;
      this.drawn = "";
    }
    const { t0, t1 } = store.range;
    const key = `${store.versions.timeline} ${store.versions.memory} ${store.versions.metrics} ${store.versions.view} ${theme.version} ${t0} ${t1}`;
    if (key !== this.drawn) {
      this.drawn = key;
      this.arrange();
      this.write();
    }
    if (!this.panel.update(now)) this.timeline.render();
  }

  key(event: KeyboardEvent): boolean {
    const { alone, actions, store } = this.context;
    if (inTable()) return false;
    switch (event.key) {
      case "m": case "M": this.mark(); return true;
      case "Escape":
        if (!this.range) return false;
        this.range = null;
        this.again();
        return true;
      case "ArrowUp": case "ArrowDown": case "PageUp": case "PageDown": return this.timeline.key(event);
      case "Enter": this.find(); return this.context.store.search !== "";
      case "f": case "F":
        if (alone) actions.setRange(0, store.now);
        return alone;
      default: return alone && this.timeline.key(event); // else the dashboard moves the range of all views
    }
  }

  /** Go to the next event that matches the search. */
  find(): void {
    const { store, actions } = this.context;
    if (!store.search) return;
    const after = this.event && this.finding === -1 ? this.event.t0 : (store.cursor ?? store.range.t0) * 1e3;
    this.finding = ++this.questions;
    actions.ask({ type: "timeline", id: this.finding, search: store.search, after });
  }

  probe(): unknown {
    const { lanes, event, context: { store } } = this;
    const rows = lanes?.rows.flat() ?? [];
    return {
      rows: rows.map((row) => ({ ...row, bars: lanes!.columns(row).start.length, events: Array.from(lanes!.columns(row).count).reduce((sum, value) => sum + value, 0) })),
      lanes: lanes?.content.lanes.map(({ title }) => title), shown: this.timeline.shown, pixel: lanes?.piece.pixel, coarse: this.late,
      steps: lanes?.content.bands.map(({ label: text }) => text), selected: event ? { ...event, name: nameOf(this.context.store, event) } : null, measure: this.range,
      said: this.panel.element.querySelector(".fl-sub")?.textContent, place: this.timeline.place,
      tops: lanes?.content.lanes.map((_, lane) => lanes.content.lanes[lane]!.rows.map((_, row) => this.timeline.placeOf(lane, row))),
      faint: lanes?.content.lanes.flatMap(({ rows: own }) => own.map(({ bars }) => bars.kind.filter((kind) => kind === FAINT).length)), allocations: event ? allocationsIn(store, event).length : 0,
    };
  }

  destroy(): void {
    clearTimeout(this.retry);
    this.element.remove();
  }

  describe(all = false): DataTable {
    const { lanes, context: { store } } = this;
    const columns = ["Thread", "What", "Name", "Events", "Step", "Begins", "Takes", "Phase", "Scope", "Line"];
    const { t0, t1 } = this.timeline.shown;
    const most = all ? Infinity : 4000;
    const rows: Cell[][] = [];
    for (const row of lanes?.rows.flat() ?? []) {
      const found = lanes!.columns(row);
      for (let at = 0; at < found.start.length && rows.length < most; at++) {
        const [start, end] = [found.start[at]!, found.end[at]!];
        if (end < t0 || start > t1 || (row.kind === "phase" && !found.what[at])) continue;
        const context = store.context(found.context[at]!);
        rows.push([row.kind === "task" ? `${row.name} stream ${row.depth}` : row.thread, row.kind, lanes!.name(row, at), found.count[at]!, store.stepAt(start / 1e3) ?? UNKNOWN, measured.duration(Math.round(start * 1e6)),
          measured.duration(Math.round((end - start) * 1e6)), context?.phase ?? "", context?.scope || UNKNOWN, context?.line ?? ""]);
      }
    }
    return { caption: "What threads did in the time that is shown", columns, rows, units: ["", "", "", "", "", "ns", "ns"] };
  }

  // ---- what is shown

  /** The span that is looked at, ms. */
  private get span(): Span {
    const { t0, t1 } = this.context.store.range;
    return { t0: t0 * 1e3, t1: Math.max(t1, t0 + 1e-6) * 1e3 };
  }

  private arrange(): void {
    const { store } = this.context;
    const model = store.timeline!;
    const pixels = Math.max(50, this.timeline.surface.width - HEADING - 12);
    const span = this.span;
    const pixel = (span.t1 - span.t0) / pixels;
    const piece = model.best(span, pixel);
    if (piece) this.adopt(piece);
    this.wish(piece, span, pixel, pixels);
    const { lanes } = this;
    if (!lanes) return;
    lanes.content.limits = { t0: Math.min(0, model.limits.t0), t1: Math.max(model.limits.t1, store.now * 1e3, span.t1) };
    const room = this.host.clientHeight;
    const footer = this.tracks.height(room, HEADER + lanes.natural + SLACK);
    const higher = lanes.stretch((room - HEADER - SLACK - footer) / lanes.natural);
    if (higher) this.timeline.set(lanes.content);
    if (higher || footer !== lanes.content.footer) {
      lanes.content.footer = footer;
      this.timeline.resize(this.host.clientWidth, room); // the lanes have another height
    }
    Object.assign(lanes.content, stepBands(store, span));
    this.timeline.cursor = store.cursor === null ? null : store.cursor * 1e3;
    this.timeline.show(span);
    this.timeline.redraw();
  }

  /** Draw another piece from now on. */
  private adopt(piece: Piece): void {
    const { store, theme } = this.context;
    const key = `${store.timeline!.version} ${theme.version} ${markedBy(store)} ${store.plans.length} ${store.kernelInfos.length} ${this.host.clientHeight} ${piece.t0} ${piece.t1} ${piece.pixel}`;
    if (key === this.arranged && this.lanes) return;
    this.arranged = key;
    if (this.lanes?.piece === piece && this.lanes.marked === markedBy(store) && this.lanes.themed === theme.version && this.lanes.plans === store.plans.length) return;
    this.lanes = new ThreadLanes(store, theme, store.timeline!, piece, litOf(store));
    this.timeline.set(this.lanes.content);
  }

  /** Ask for a finer window where what is there is too coarse. */
  private wish(piece: Piece | null, span: Span, pixel: number, pixels: number): void {
    const { store, actions } = this.context;
    const { limits } = store.timeline!;
    const [t0, t1] = [Math.max(span.t0, limits.t0), Math.min(span.t1, limits.t1)];
    const reading = piece?.lacks(t0)?.reading;
    const fits = piece !== null && !reading && piece.pixel <= pixel * 1.01 && piece.t0 <= t0 && piece.t1 >= t1 - pixel;
    if (fits || t1 <= t0 || this.saved) return this.windows.forget();
    const length = span.t1 - span.t0;
    const follows = store.following && store.run?.state === "recording";
    const key = `${span.t0} ${span.t1} ${pixels}`;
    const id = this.windows.next(key, performance.now(), follows ? `${length.toPrecision(6)} ${pixels}` : reading ? key : "");
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.again(), (reading ? Windows.READ : Windows.SLOW) + 20); // by then it has come, or the reader is told; what was not asked is
    if (id !== null) actions.ask({ type: "timeline", id, older: !follows, window: [span.t0 - MARGIN * length, span.t1 + MARGIN * length, Math.ceil(pixels * (1 + 2 * MARGIN))] });
  }

  private over(frame: Frame): void {
    const { lanes, context: { store, theme } } = this;
    if (!lanes) return;
    this.tracks.draw(frame, lanes.content.footer);
    this.mine(frame);
    this.shade(frame);
    if (this.late && !lanes.content.lanes.length) label(frame.c, "coarse: the kernel is busy", frame.scale.left + 8, frame.top + 14, theme.colours.dim, theme.ui(11));
    if (this.event) drawArrows(frame, store, this.event, lanes, (value) => this.tracks.y(value), frame.height - lanes.content.footer);
  }

  /** What parts were exchanged, over the cursor's line. */
  private words({ c, scale, height }: Frame): void {
    const { store, theme } = this.context;
    const footer = this.lanes?.content.footer ?? 0;
    paintMoments(c, theme, store.exchanges, scale, (t) => scale.x(t * 1e3), HEADER, height, (this.tracks.remembers ? height - footer : HEADER) + 9);
  }

  /** Rings around the selected event and those of its tape node. */
  private mine(frame: Frame): void {
    const { lanes, event, context: { theme: { colours } } } = this;
    if (!lanes || !event) return;
    frame.clipped(() => [event, ...(event.related ?? [])].forEach((one, at) => {
      const place = lanes.find(keyOf({ ...one, rank: null }), one.number, one.t0);
      if (!place || (at && one.t1 - one.t0 < frame.scale.pixel)) return;
      const [x0, x1] = [frame.scale.x(one.t0), frame.scale.x(one.t1)];
      ring(frame.c, Math.round(x0) + 0.5, frame.row(place.lane, place.row) + 0.5, Math.max(2, Math.round(x1 - x0) - 1), lanes.content.lanes[place.lane]!.rows[place.row]!.height - 1, colours.ink, colours.bg);
    }));
  }

  /** The range that is measured. */
  private shade(frame: Frame): void {
    const { range, context: { theme, store } } = this;
    if (!range) return;
    const to = range.to ?? (store.cursor ?? range.from / 1e3) * 1e3;
    const [x0, x1] = [frame.scale.x(Math.min(range.from, to)), frame.scale.x(Math.max(range.from, to))];
    frame.clipped(() => fillBox(frame.c, theme.colours.range, x0, frame.top, Math.max(1, x1 - x0), frame.height), frame.top, frame.height);
    const said = durationText(Math.abs(to - range.from) * 1e6);
    if (x1 - x0 > theme.measure(said, theme.ui(11, 600)) + 8) label(frame.c, said, (x0 + x1) / 2, frame.top + 8, theme.colours.ink, theme.ui(11, 600), "center");
  }

  private write(): void {
    const { theme, store } = this.context;
    const { t0, t1 } = this.timeline.shown;
    const merged = this.lanes?.merged({ t0, t1 });
    const lacks = this.lanes?.piece.lacks(t0);
    const said = this.late ? "coarse: the kernel is busy" : lacks && (merged || lacks.reading) ? lacks.note : merged && this.saved ? "merged: a saved page has no more detail" : merged ? "merged below a pixel" : "every event drawn";
    this.panel.sub = `${durationText((t1 - t0) * 1e6)} visible · ${said}`;
    const families = Object.keys(familyLabels).filter((name) => this.lanes?.families.has(name));
    writeLegend(this.legend, theme, families);
    const lit = litOf(store)?.label;
    const key = JSON.stringify([lit, this.event, this.count, this.range, this.range && !this.range.to ? store.cursor : 0, theme.version, store.versions.text && 0]);
    if (key === this.wrote) return;
    this.wrote = key;
    this.side.replaceChildren(...(this.range ? aboutMeasure(this.context, { ...this.range, to: this.range.to ?? (store.cursor ?? this.range.from / 1e3) * 1e3 }) : []),
      ...(this.event ? aboutEvent(this.context, this.event, this.count, nameOf(this.context.store, this.event), (one) => this.follow(one)) : this.range ? [] : [nothing(lit ? `The bars of ${lit} stand out. ${HELP}` : HELP)]));
  }

  private tip(mark: Mark): string {
    const { lanes, context: { store } } = this;
    const row = lanes?.rows[mark.lane]?.[mark.row];
    if (!lanes || !row) return "";
    const found = lanes.columns(row);
    const [count, name] = [found.count[mark.index]!, lanes.name(row, mark.index)];
    const spent = durationText((found.end[mark.index]! - found.start[mark.index]!) * 1e6);
    if (count > 1) return `${integer(count)} in ${spent}, the longest: ${name} ${durationText(found.longest[mark.index]! * 1e6)}`;
    return joined([name, row.kind === "part" && store.kernelInfos.length ? `≈ ${spent}` : spent, row.kind === "scope" ? "" : store.context(found.context[mark.index]!)?.scope]);
  }

  // ---- what the reader does

  private again(): void {
    this.drawn = this.wrote = "";
    this.context.store.notify();
  }

  private pick(mark: Mark | null, t: number): void {
    const { lanes, context: { actions } } = this;
    const row = mark && lanes?.rows[mark.lane]?.[mark.row];
    if (!mark || !row || !lanes) {
      this.event = null;
      actions.select(null);
      actions.setCursor(t / 1e3);
      return this.again();
    }
    const found = lanes.columns(row);
    const at = mark.index;
    this.count = found.count[at]!;
    this.choose({
      thread: row.thread, kind: row.kind, depth: row.depth, number: found.number[at]!, t0: found.start[at]!, t1: found.end[at]!, what: found.what[at]!,
      context: found.context[at]!, node: 0, block: 0,
    }, false);
  }

  /** Go to an event that is told of beside the lanes; what was pressed there is gone by then. */
  private follow(event: TimelineEvent): void {
    this.timeline.surface.canvas.focus();
    this.choose(event, true);
  }

  /** Select an event, everywhere, and ask the kernel what else is known of it; `show`: bring it into sight. */
  private choose(event: TimelineEvent, show: boolean): void {
    const { store, actions } = this.context;
    this.event = event;
    if (show) this.count = 1;
    actions.select(selectionOfEvent(this.context.store, event));
    const { t0, t1 } = this.span;
    const outside = event.t0 < t0 || event.t1 > t1;
    if (show && outside) {
      const length = Math.max(t1 - t0, 1.5 * (event.t1 - event.t0));
      const begin = Math.max(0, (event.t0 + event.t1) / 2 - length / 2);
      actions.setRange(begin / 1e3, (begin + length) / 1e3);
    } else if (store.following) actions.setRange(t0 / 1e3, t1 / 1e3);
    if (event.number >= 0) this.inquire(event);
    this.again();
  }

  private inquire({ thread, kind, depth, number, t0 }: TimelineEvent): void {
    this.context.actions.ask({ type: "timeline", id: (this.asked = ++this.questions), event: [thread, kind, depth, number, t0] });
  }

  /** M: from here, then to here, then no more. The selected event is measured whole. */
  private mark(): void {
    const { store, actions } = this.context;
    const cursor = store.cursor === null ? null : store.cursor * 1e3;
    if (!this.range) this.range = this.event ? { from: this.event.t0, to: this.event.t1, found: null } : { from: cursor ?? this.span.t0, to: null, found: null };
    else if (this.range.to === null) this.range = { ...this.range, to: cursor ?? this.span.t1 };
    else this.range = null;
    if (this.range && this.range.to !== null) {
      const { from, to } = this.range;
      this.asked = ++this.questions;
      actions.ask({ type: "timeline", id: this.asked, measure: [Math.min(from, to), Math.max(from, to)] });
    }
    this.again();
  }

  private hear(message: TimelineMessage | null): void {
    if (!message) return;
    if (message.saved) {
      [this.saved, this.drawn] = [true, ""];
      if (message.id === this.finding) this.context.actions.announce("a saved page cannot search its events: open the recording with flnb.view");
    }
    if (message.pieces && this.windows.came(message.id)) this.drawn = "";
    if (message.reading && message.id === this.asked) setTimeout(() => this.event && message.id === this.asked && this.inquire(this.event), Windows.READ);
    if (message.event && message.id === this.asked && this.event) {
      this.event = { ...message.event, ...(this.count > 1 ? { t0: message.event.t0, t1: message.event.t1 } : {}) };
      if (message.event.node > 0 && this.context.store.selection?.kind === "op") this.context.actions.select(selectionOfEvent(this.context.store, this.event));
      this.again();
    }
    if (message.measure && this.range) {
      this.range = { ...this.range, found: message.measure };
      this.again();
    }
    if (message.search && message.id === this.finding) this.arrive(message.search);
  }

  private arrive({ count, at, next, text: what }: NonNullable<TimelineMessage["search"]>): void {
    this.finding = -1;
    this.context.actions.announce(next ? `${integer(at + 1)} of ${integer(count)}: ${nameOf(this.context.store, next)}` : `no event matches ${what}`);
    if (next) this.choose(next, true);
  }
}

export const createThreadsView = (context: ViewContext): View => new ThreadsView(context);
