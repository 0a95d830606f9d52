/** The selected collective, or the one where somebody was latest: who was last and why, each rank's times, what it achieved. */

import { fillBox, horizontal, label, setPen, Surface, ticks, vertical } from "../canvas.ts";
import { Facts, keyButton, pane, title } from "../details.ts";
import { h, nothing, section, swatch } from "../dom.ts";
import { durationText, integer, joined, percentText, plain, significant } from "../format.ts";
import { paintHatched } from "../timeline/paint.ts";
import type { Theme } from "../theme.ts";
import type { CollectivesModel } from "./model.ts";
import { differs } from "./stuck.ts";

/** Ranks with a line of their own; of more, those that came last. */
const LINES = 10;
const LINE = 16;

export interface DetailActions {
  previous(): void;
  next(): void;
  /** Bring the late rank into sight. */
  late(): void;
}

export class Details {
  readonly element = pane("Selected collective", "fl-side fl-callside");
  private readonly dots: Surface;
  private readonly content = h("div");

  constructor(private readonly theme: Theme, private readonly actions: DetailActions) {
    this.dots = new Surface("enter and exit of each rank");
    this.element.append(this.content);
  }

  update(model: CollectivesModel, call: number, selected: boolean): void {
    if (call < 0) {
      this.content.replaceChildren(nothing(selected ? "The selected call has left the window of steps that is kept." : "No collective has been joined yet."));
      return;
    }
    this.content.replaceChildren(
      this.title(model, call, selected), this.why(model, call), this.facts(model, call), section("Enter and exit of each rank"),
      this.plot(model, call), ...this.achieved(model, call), this.links(model, call));
  }

  private title(model: CollectivesModel, call: number, selected: boolean): HTMLElement {
    const [bucket, step] = [model.bucket(call), model.step(call)];
    const parts = [selected ? "" : model.pending(call) ? "stuck" : model.lateRank(call) >= 0 ? "worst of the last steps" : "the newest", bucket >= 0 ? `bucket ${bucket}` : "", step >= 0 ? `step ${integer(step)}` : ""];
    return title(model.op(call), joined(parts), swatch(this.theme, "communication"));
  }

  private why(model: CollectivesModel, call: number): HTMLElement {
    return h("div", "fl-why", ...whyLines(model, call).map((line, at) => h(at ? "div" : "b", {}, line)));
  }

  private facts(model: CollectivesModel, call: number): HTMLElement {
    const members = model.members(call);
    const hosts = new Set(members.map((rank) => model.section.ranks[rank]?.host)).size;
    const facts = new Facts();
    if (model.bytes(call) > 0) { // else a barrier
      facts.add("Kind", model.op(call), model.dtype(call));
      facts.add("Elements", integer(model.elements(call)));
      if (model.holds(call)) facts.add("Holds", model.holds(call));
      facts.bytes("Bytes", model.bytes(call));
    }
    facts.add("Group", model.group(call).replaceAll(" ", "\u00a0"), `${members.length} ranks, ${hosts} ${hosts === 1 ? "host" : "hosts"}`);
    facts.add("Sequence", integer(model.seq(call)));
    return facts.list;
  }

  /** A line for each rank: where it came, waited, transferred and left. */
  private plot(model: CollectivesModel, call: number): HTMLElement {
    const shown = linesOf(model, call);
    const high = 18 + LINE * shown.length + 18;
    const host = h("div", { style: `position:relative;height:${high}px` }, this.dots.canvas);
    this.dots.resize(this.element.clientWidth || 284, high);
    const { theme } = this;
    const { colours } = theme;
    const c = this.dots.begin();
    const [left, right] = [64, this.dots.width - 84];
    const [from, to] = limits(model, call, shown);
    const origin = model.stepOf(call)?.start ?? from;
    const x = (t: number): number => left + ((t - from) / (to - from)) * (right - left);
    const marks = ticks(from - origin, to - origin, 3);
    marks.forEach((value, at) => {
      vertical(c, x(value + origin), 15, high - 20, colours.grid);
      label(c, at === marks.length - 1 ? `${plain(value)} ms` : plain(value), x(value + origin), 7, colours.dim, theme.ui(10), "center");
    });
    label(c, "late", this.dots.width - 12, 7, colours.dim, theme.ui(10), "right");
    const middle = medianBegin(model, call);
    shown.forEach((rank, at) => this.line(c, model, call, rank, 26 + LINE * at, x, middle));
    this.legend(c, high - 8);
    return host;
  }

  private line(c: CanvasRenderingContext2D, model: CollectivesModel, call: number, rank: number, y: number, x: (t: number) => number, middle: number): void {
    const { theme } = this;
    const { colours } = theme;
    const late = rank === model.lateRank(call);
    const font = theme.ui(11, late ? 600 : "");
    label(c, `rank ${model.number(rank)}`, 12, y, late ? colours.ink : colours.text, font);
    const [begin, end, last] = [model.begin(rank, call), model.end(rank, call), model.last(call)];
    const right = this.dots.width - 12;
    if (Number.isNaN(begin)) return label(c, "has not come", right, y, colours.error, theme.ui(10.5, 600), "right");
    const communication = theme.family("communication");
    const met = Number.isNaN(last) || call === model.hanging ? model.section.now_ms : Math.max(begin, last);
    if (x(met) - x(begin) > 2) paintHatched(c, x(begin), x(met), y - 2.5, 5, communication, colours.bg);
    if (end > met) {
      fillBox(c, communication, x(met), y - 2, x(end) - x(met), 4);
    }
    if (!Number.isNaN(end)) dot(c, x(end), y, colours.ink, colours.ink);
    dot(c, x(begin), y, colours.bg, colours.ink);
    const bound = model.bound(rank);
    if (bound > 0) horizontal(c, x(begin - bound) - 2, x(begin + bound) + 2, y + 6, colours.ink);
    const delay = begin - middle;
    const inside = !late && Math.abs(delay) <= Math.max(model.apart, 1e-3);
    label(c, call === model.hanging ? "" : inside ? (model.apart > 0 ? "in bound" : "median") : `${delay > 0 ? "+" : "−"}${durationText(Math.abs(delay) * 1e6)}`, right, y, late ? colours.ink : colours.dim, theme.ui(10.5, late ? 600 : ""), "right");
  }

  private legend(c: CanvasRenderingContext2D, y: number): void {
    const { theme } = this;
    const { colours } = theme;
    let x = 12;
    const entry = (name: string, mark: (x: number) => void): void => {
      mark(x);
      label(c, name, x + 12, y, colours.dim, theme.ui(10));
      x += theme.measure(name, theme.ui(10)) + 24;
    };
    entry("enter", (at) => dot(c, at + 4, y, colours.bg, colours.ink));
    entry("exit", (at) => dot(c, at + 4, y, colours.ink, colours.ink));
    entry("clock bound", (at) => horizontal(c, at, at + 8, y, colours.ink));
  }

  private achieved(model: CollectivesModel, call: number): HTMLElement[] {
    const rate = model.columns["gb_s"]![call]!;
    const peak = model.section.bandwidth.peak_gb_s;
    if (!Number.isFinite(rate) || !(peak > 0)) return [];
    const share = rate / peak;
    const colour = this.theme.family("communication");
    const [moved, factor] = MOVED[model.op(call)] ?? ["1", () => 1];
    const count = model.members(call).filter((rank) => !Number.isNaN(model.begin(rank, call))).length;
    const transfer = (factor(count) * model.bytes(call)) / rate; // ns
    return [
      section("Achieved"),
      h("div", "fl-achieved",
        h("div", { class: "fl-rate", title: "what passes each link of a ring; the peak is the best that was measured" },
          h("span", {}, h("b", {}, significant(rate)), h("span", "fl-dim", ` GB/s of ${significant(peak)} `, h("span", "fl-wideonly", "measured "), "peak")), h("span", {}, percentText(share))),
        h("div", "fl-achievedbar", h("i", { style: `width:${Math.min(100, 100 * share)}%;background:${colour}` })),
        h("div", "fl-dim fl-how", `${moved === "1" ? "" : `${moved} × `}bytes / transfer ${durationText(transfer)}`)),
    ];
  }

  private links(model: CollectivesModel, call: number): HTMLElement {
    const late = model.lateRank(call);
    return h("div", "fl-links", keyButton("Previous", "K", this.actions.previous), keyButton("Next", "J", this.actions.next),
      ...(late < 0 ? [] : [keyButton(`Rank ${model.number(late)}`, "R", this.actions.late)]));
  }
}

/** What passes each link of a ring, in buffers of n ranks, as `gb_s` counts it. */
const MOVED: Record<string, readonly [string, (n: number) => number]> = {
  all_reduce: ["2 (n − 1) / n", (n) => (2 * (n - 1)) / n], all_reduce_multiple: ["2 (n − 1) / n", (n) => (2 * (n - 1)) / n],
  reduce_scatter: ["(n − 1) / n", (n) => (n - 1) / n], all_gather: ["(n − 1)", (n) => n - 1],
};

const ranksText = (ranks: readonly number[]): string => `${ranks.length === 1 ? "Rank" : "Ranks"} ${ranks.join(", ")}`;

/** Lateness (ms) below which the kernel looks for no cause. */
const EXPLAINED = 0.1;

/** Who was last, by how much, and why: the first line is the answer. */
export function whyLines(model: CollectivesModel, call: number): string[] {
  const late = model.lateRank(call);
  const { stuck } = model.section;
  const said = stuck && call === model.hanging ? stuck.text : "";
  const other = said ? stuck!.rows.filter(({ state }) => differs(state)).map(({ rank }) => rank) : [];
  if (other.length) return [`${ranksText(other)} made another call`, said];
  if (Number.isNaN(model.last(call))) {
    const absent = model.members(call).filter((rank) => Number.isNaN(model.begin(rank, call))).map((rank) => model.number(rank));
    return [`${ranksText(absent)} ${absent.length === 1 ? "has" : "have"} not come`, said].filter(Boolean);
  }
  if (said) return ["It has not ended", said];
  if (late < 0) return ["Nobody was late", "The ranks came within what their clocks can tell apart."];
  const reason = model.reason(call);
  const because = reason?.text.replace(/^rank \d+ was last, by [^:]*: /, "") ?? (model.late(call) < EXPLAINED ? "So little needs no cause." : "Cause not seen.");
  return [`Rank ${model.number(late)} was last, by ${durationText(model.late(call) * 1e6)}`, because];
}

function linesOf(model: CollectivesModel, call: number): number[] {
  const members = [...model.members(call)];
  if (members.length <= LINES) return members;
  const value = (rank: number): number => (Number.isNaN(model.begin(rank, call)) ? Infinity : model.begin(rank, call));
  return members.sort((one, two) => value(two) - value(one)).slice(0, LINES);
}

function limits(model: CollectivesModel, call: number, ranks: readonly number[]): [number, number] {
  const now = model.section.now_ms;
  const begins = ranks.map((rank) => model.begin(rank, call)).filter((t) => !Number.isNaN(t));
  const ends = ranks.map((rank) => model.end(rank, call)).map((t) => (Number.isNaN(t) ? now : t));
  const [from, to] = [Math.min(...begins, now), Math.max(...ends, ...begins)];
  const air = Math.max((to - from) * 0.06, 1e-3);
  return [from - air, to + air];
}

export function medianBegin(model: CollectivesModel, call: number): number {
  const late = model.lateRank(call);
  const begins = model.members(call).filter((rank) => rank !== late).map((rank) => model.begin(rank, call)).filter((t) => !Number.isNaN(t)).sort((one, two) => one - two);
  return begins.length ? (begins[(begins.length - 1) >> 1]! + begins[begins.length >> 1]!) / 2 : NaN;
}

function dot(c: CanvasRenderingContext2D, x: number, y: number, fill: string, stroke: string): void {
  c.beginPath();
  c.arc(x, y, 3.2, 0, 7);
  c.fillStyle = fill;
  c.fill();
  setPen(c, stroke, 1.4);
  c.stroke();
}

