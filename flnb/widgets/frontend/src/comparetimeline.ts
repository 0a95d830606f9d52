/** The timelines of two recordings under each other on one axis, which counts from the same step in both, or from their beginnings. */

import { ring, vertical } from "./canvas.ts";
import { clamp } from "./clamp.ts";
import { Half, stepSpan } from "./comparehalf.ts";
import { type Chosen, Counterparts, type Place } from "./counterparts.ts";
import { h, on } from "./dom.ts";
import { durationText, integer, measured, significant, UNKNOWN } from "./format.ts";
import { memoryOf } from "./memory/model.ts";
import { markOption, Panel, segmented } from "./panel.ts";
import type { TimelineMessage, ToKernel } from "./protocol.ts";
import type { Store } from "./store.ts";
import type { Theme } from "./theme.ts";
import { Windows } from "./threads/model.ts";
import { Tracks } from "./threads/tracks.ts";
import type { Band, Mark } from "./timeline/lanes.ts";
import type { Frame } from "./timeline/paint.ts";
import { type Span, TimeScale, within } from "./timeline/scale.ts";
import { HEADER, HEADING, Timeline } from "./timeline/timeline.ts";
import type { Cell, DataTable } from "./view.ts";

/** Memory is drawn under the lanes where so many pixels are free, and takes this share of them. */
const [FREE, SHARE] = [160, 0.6];
/** Pixels under the lanes. */
const SLACK = 8;
const HELP = "Click a bar: the same op of the same step is marked in the other recording. [ and ] go through the steps, W S A D zoom and pan, F shows all.";

/** The numbers of the steps that both recordings have, ascending. */
export function sharedIndices(a: Store, b: Store): number[] {
  const [one, two] = [a, b].map(({ steps }) => Array.from(steps.column("index").subarray(0, steps.length))) as [number[], number[]];
  const other = new Set(two);
  return [...new Set(one.filter((index) => other.has(index)))].sort((first, second) => first - second);
}

/** "A 12 ms · B 24 ms · B/A 2.00×". */
export function inBoth(a: number, b: number): string {
  const took = (ms: number): string => (Number.isFinite(ms) ? durationText(ms * 1e6) : UNKNOWN);
  return `A ${took(a)} · B ${took(b)} · B/A ${a > 0 && Number.isFinite(b) ? `${significant(b / a)}×` : UNKNOWN}`;
}

export class ComparedTimelines {
  readonly element: HTMLElement;
  private readonly panel = new Panel("Timelines", () => this.describe());
  private words = "";
  private readonly number = h("input", { type: "number", class: "fl-stepnumber", "aria-label": "Step at which both are aligned", step: 1 });
  private readonly choice: HTMLElement;
  private readonly host = h("div", "fl-callhost");
  private readonly tracks: readonly Tracks[];
  /** Pixels that memory has under the lanes. */
  private footer = 0;
  private readonly timeline: Timeline;
  private readonly halves: readonly [Half, Half];
  private shared: number[] = [];
  /** The step at which the axis begins; null: the beginning of both runs. */
  private step: number | null = null;
  private span: Span | null = null;
  private aligned = false;
  private chosen: readonly Chosen[] = [];
  private readonly counterparts: Counterparts;
  /** What was picked, while the kernel looks for its counterpart. */
  private pending: { place: Place; name: string } | null = null;
  private said = "";
  /** A saved page has no kernel to ask for more detail. */
  private saved = false;
  private retry: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly theme: Theme, stores: readonly [Store, Store], private readonly send: (message: ToKernel) => void, private readonly schedule: () => void) {
    this.halves = [new Half(0, "A", stores[0]), new Half(1, "B", stores[1])];
    this.counterparts = new Counterparts(this.halves, send, (found) => this.told(found));
    this.timeline = new Timeline(theme, {
      range: (span) => this.look(span),
      cursor: (t) => {
        this.timeline.cursor = t;
        this.schedule();
      },
      pick: (mark, t) => this.pick(mark, t),
      tip: (mark) => this.tip(mark),
      under: (frame) => this.steps(frame),
      draw: (frame) => {
        this.memory(frame);
        this.rings(frame);
      },
    }, "what the threads of both recordings did when");
    this.tracks = stores.map((store, side) => new Tracks(store, memoryOf(store), `${"AB"[side]} · memory`, stores[1 - side]!));
    this.host.append(this.timeline.element);
    this.panel.body.append(this.host);
    this.choice = segmented<"step" | "beginning">("Where both are aligned", [["step", "Step"], ["beginning", "Beginning"]], "step", (where) => this.align(where === "step" ? this.nearest(Number(this.number.value)) : null));
    on(this.number, "change", () => this.align(this.nearest(Number(this.number.value))));
    this.panel.tools.append("Align at", this.choice, this.number);
    this.element = h("div", { class: "fl-compared fl-comparedtimeline", role: "region", "aria-label": "timelines of both recordings" }, this.panel.element);
  }

  /** One line for the status: what is selected, in both recordings. */
  get status(): string {
    return this.said || HELP;
  }

  draw(): void {
    const { halves: [a, b] } = this;
    if (!a.store.timeline || !b.store.timeline) {
      this.panel.sub = `${a.store.timeline ? "B" : "A"} has no timeline: nothing ran in it`;
      return;
    }
    if (!this.aligned) {
      this.shared = sharedIndices(a.store, b.store);
      this.number.disabled = !this.shared.length;
      this.align(this.shared[Math.min(1, this.shared.length - 1)] ?? null); // the first step often makes what later ones find
    }
    this.timeline.resize(this.host.clientWidth, this.host.clientHeight);
    const pixels = Math.max(50, this.timeline.surface.width - HEADING - 12);
    const span = this.span!;
    const pixel = (span.t1 - span.t0) / pixels;
    const fresh = this.halves.map((half) => half.arrange(span, pixel, this.theme));
    if (this.fill() || fresh.some(Boolean)) this.unite();
    if (!this.saved) for (const message of this.halves.map((half) => half.wish(span, pixel, pixels))) if (message) this.send(message);
    clearTimeout(this.retry);
    if (this.halves.some(({ windows }) => windows.late(performance.now() + Windows.SLOW))) this.retry = setTimeout(this.schedule, Windows.SLOW + 20);
    this.timeline.show(span);
    if (!this.panel.update(performance.now())) this.timeline.redraw();
  }

  /** A message about one side's timeline has come and its store has it. */
  heard(side: 0 | 1, message: TimelineMessage): void {
    if (this.counterparts.heard(message)) return;
    const { id, saved } = message;
    this.halves[side].windows.came(id);
    if (saved) {
      this.saved = true; // to ask again would be to ask at every frame
      for (const { windows } of this.halves) windows.forget();
      if (this.pending) this.unfound();
    }
    this.schedule();
  }

  key(event: KeyboardEvent): boolean {
    if (!this.span || this.panel.tableShown) return false;
    if (event.key === "[" || event.key === "]") {
      const at = this.step === null ? 0 : this.shared.indexOf(this.step) + (event.key === "]" ? 1 : -1);
      if (this.shared.length) this.align(this.shared[clamp(at, 0, this.shared.length - 1)]!);
      return true;
    }
    if (event.key.toLowerCase() === "f") this.look(this.limits);
    else if (event.key === "Escape") this.forget();
    else return this.timeline.key(event);
    return true;
  }

  /** What is in sight, as a table: a row for each bar. */
  describe(): DataTable {
    const span = this.span ?? { t0: 0, t1: 0 };
    const rows = this.halves.flatMap(({ lanes, letter, store }) => (lanes?.rows ?? []).flat().flatMap((row) => {
      const { start, end, count, context } = lanes!.columns(row);
      return Array.from(start, (_, at) => at).filter((at) => end[at]! >= span.t0 && start[at]! <= span.t1).map((at): Cell[] => [
        letter, row.thread, row.kind, lanes!.name(row, at), store.context(context[at]!)?.scope || UNKNOWN, count[at]!,
        measured.duration(Math.round(start[at]! * 1e6)), measured.duration(Math.round((end[at]! - start[at]!) * 1e6)),
      ]);
    }));
    const from = this.step === null ? "the beginning of its run" : `the beginning of step ${integer(this.step)}`;
    return { caption: `Timelines of both recordings, counted from ${from}`, columns: ["Run", "Thread", "What", "Name", "Scope", "Events", "Begins", "Takes"], rows, units: ["", "", "", "", "", "", "ns", "ns"] };
  }

  /** For browser tests. */
  get testState(): unknown {
    return {
      step: this.step, said: this.words, span: this.span, chosen: this.chosen, place: this.timeline.place,
      sides: this.halves.map(({ lanes, zero }) => ({ zero, pixel: lanes?.piece.pixel, lanes: lanes?.content.lanes.map(({ title }) => title), rows: lanes?.rows.map((rows) => rows.map((row) => row.kind)) })),
      tops: this.halves.flatMap(({ lanes }, side) => lanes?.content.lanes.map((lane, at) => lane.rows.map((_, row) => this.timeline.placeOf(at + (side ? this.first : 0), row))) ?? []),
    };
  }

  destroy(): void {
    clearTimeout(this.retry);
  }

  // ---- alignment

  private get limits(): Span {
    const [a, b] = this.halves.map(({ limits }) => limits) as [Span, Span];
    return { t0: Math.min(a.t0, b.t0), t1: Math.max(a.t1, b.t1) };
  }

  private nearest(step: number): number | null {
    return this.shared.length ? this.shared.reduce((one, other) => (Math.abs(other - step) < Math.abs(one - step) ? other : one)) : null;
  }

  /** Let the axis count from the start of a step in both recordings; null: from their beginnings. */
  private align(step: number | null): void {
    const { halves: [a, b] } = this;
    this.aligned = true;
    this.step = step;
    this.timeline.cursor = null;
    this.forget();
    const spans = [a, b].map(({ store }) => (step === null ? null : stepSpan(store, step)));
    [a.zero, b.zero] = [spans[0]?.t0 ?? 0, spans[1]?.t0 ?? 0];
    const [one, two] = [a, b].map((half, at) => (spans[at] ? spans[at].t1 - spans[at].t0 : half.limits.t1)) as [number, number];
    markOption(this.choice, step === null ? 1 : 0);
    if (step !== null) this.number.value = String(step);
    this.panel.sub = this.words = `${step === null ? this.shared.length ? "whole runs" : "whole runs (no step is in both)" : `step ${integer(step)}`}: ${inBoth(one, two)}`;
    const most = Math.max(one, two);
    this.look(step === null ? this.limits : { t0: -0.02 * most, t1: 1.05 * most });
  }

  private look(span: Span): void {
    this.span = within(span, this.limits);
    this.schedule();
  }

  /** The lanes of both under each other. */
  private unite(): void {
    const [a, b] = this.halves.map(({ lanes }) => lanes);
    if (!a || !b) return;
    const { styles } = a.content;
    this.timeline.set({ lanes: [...a.content.lanes, ...b.content.lanes], styles, bands: this.band, origin: 0, limits: this.limits, footer: this.footer });
  }

  /** The step at which the axis begins, as long as the longer of both. */
  private get band(): Band[] {
    const ends = this.step === null ? [] : this.halves.map(({ store, zero }) => (stepSpan(store, this.step!)?.t1 ?? zero) - zero);
    return ends.length ? [{ start: 0, end: Math.max(...ends), label: `step ${integer(this.step!)}`, strong: true }] : [];
  }

  /** Let lanes and memory fill the height; whether that changes anything. */
  private fill(): boolean {
    const both = this.halves.map(({ lanes }) => lanes);
    const natural = both.reduce((sum, lanes) => sum + (lanes?.natural ?? 0), 0);
    const free = this.host.clientHeight - HEADER - SLACK - natural;
    const footer = free < FREE ? 0 : 2 * Math.round(Math.max(free * SHARE, free - natural) / 2);
    const stretched = both.map((lanes) => lanes?.stretch((natural + free - footer) / natural)).some(Boolean);
    const changed = stretched || footer !== this.footer;
    this.footer = footer;
    return changed;
  }

  /** The number of A's lanes, which come first. */
  private get first(): number {
    return this.halves[0].lanes?.content.lanes.length ?? 0;
  }

  // ---- over the lanes

  /** A line where each step begins, in the lanes of its recording. */
  private steps(frame: Frame): void {
    const { colours } = this.theme;
    frame.clipped(() => this.halves.forEach(({ store: { steps }, zero, lanes }, side) => {
      if (!lanes?.content.lanes.length) return;
      const [from, to] = [frame.lane(side ? this.first : 0).top, frame.lane((side ? this.first : 0) + lanes.content.lanes.length - 1).bottom];
      for (let at = Math.max(0, steps.after("t0", (frame.scale.t0 + zero) / 1e3)); at < steps.length; at++) {
        const t = steps.column("t0")[at]! * 1e3 - zero;
        if (t > frame.scale.t1) break;
        vertical(frame.c, frame.scale.x(t), Math.max(from, frame.top), Math.min(to, frame.bottom), colours.dim, [2, 2]);
      }
    }));
  }

  /** Live memory of both under each other, each on its own time, on one scale of bytes. */
  private memory(frame: Frame): void {
    if (!this.footer) return;
    const { t0, t1, left, right } = frame.scale;
    this.halves.forEach(({ zero }, side) => this.tracks[side]!.draw(
      { ...frame, scale: new TimeScale({ t0: t0 + zero, t1: t1 + zero }, left, right), height: frame.height - (side ? 0 : this.footer / 2) }, this.footer / 2));
  }

  private rings(frame: Frame): void {
    const { colours } = this.theme;
    frame.clipped(() => this.chosen.forEach(({ side, lane, row, t0, t1 }) => {
      const { lanes } = this.halves[side]!;
      const [x0, x1] = [frame.scale.x(t0), frame.scale.x(t1)];
      const at = lane + (side ? this.first : 0);
      ring(frame.c, Math.round(x0) + 0.5, frame.row(at, row) + 0.5, Math.max(2, Math.round(x1 - x0) - 1), lanes!.content.lanes[lane]!.rows[row]!.height - 1, colours.ink, colours.bg);
    }));
  }

  // ---- what the reader does

  private placeOf({ lane, row, index }: Mark): Place {
    const side = lane >= this.first ? 1 : 0;
    return { side, lane: lane - (side ? this.first : 0), row, index };
  }

  private tip(mark: Mark): string {
    const place = this.placeOf(mark);
    const { lanes, letter } = this.halves[place.side]!;
    const { start, end, count } = lanes!.columns(this.counterparts.rowOf(place));
    const spent = durationText((end[mark.index]! - start[mark.index]!) * 1e6);
    return count[mark.index]! > 1 ? `${letter}: ${integer(count[mark.index]!)} in ${spent}` : `${letter}: ${this.counterparts.nameOf(place)} · ${spent}`;
  }

  private forget(): void {
    [this.chosen, this.said, this.pending] = [[], "", null];
    this.counterparts.forget();
    this.schedule();
  }

  private pick(mark: Mark | null, t: number): void {
    this.forget();
    if (!mark) {
      this.timeline.cursor = t;
      return;
    }
    const place = this.placeOf(mark);
    const { count } = this.halves[place.side]!.lanes!.columns(this.counterparts.rowOf(place));
    if (count[place.index]! > 1) {
      this.choose(null, this.saved ? "several events, merged; a saved page has no more detail" : "several events, merged: zoom in to compare one", place);
      return;
    }
    const [name, other] = [this.counterparts.nameOf(place), this.halves[1 - place.side]!.letter];
    const drawn = this.counterparts.drawn(place, this.step);
    this.choose(drawn, name, place);
    if (drawn) return;
    this.pending = { place, name };
    if (!this.saved && this.counterparts.ask(place, this.step)) this.said += ` (looking for it in ${other})`;
    else this.unfound();
  }

  /** Nobody can be asked for what is not drawn. */
  private unfound(): void {
    const { place, name } = this.pending!;
    this.choose(null, name, place);
    this.said += ` (no such event is drawn alone in ${this.halves[1 - place.side]!.letter}${this.saved ? ", and a saved page has no more detail" : ""})`;
  }

  /** The kernel has looked for the counterpart of what was picked. */
  private told(counterpart: Chosen | null): void {
    if (!this.pending) return;
    const { place, name } = this.pending;
    this.choose(counterpart, name, place);
    if (!counterpart) this.said += ` (the same step of ${this.halves[1 - place.side]!.letter} has no such event)`;
    this.schedule();
  }

  private choose(counterpart: Chosen | null, name: string, place: Place): void {
    const own = this.counterparts.chosen(place);
    this.chosen = counterpart ? [own, counterpart] : [own];
    const took = [0, 1].map((side) => this.chosen.find((one) => one.side === side)).map((one) => (one ? one.t1 - one.t0 : NaN)) as [number, number];
    this.said = `${name}: ${inBoth(...took)}`;
    this.pending = null;
  }
}
