/** The joined collectives as the views read them: typed rows, lateness within the clocks' bounds, where transfers began. */

import { bisectLeft } from "d3-array";
import { columnsOf, entry } from "../columns.ts";
import type { CollectivesSection, Column, LateReason } from "../protocol.ts";
import type { Span } from "../timeline/scale.ts";

/** Columns of a section, without their prefix. */
export type SectionColumns = Record<string, Column>;

/** How far back the worst is looked for: at least so many steps, at least so many milliseconds. */
export const RECENT_STEPS = 8;
const RECENT = 1000;
/** A call that is explained is told of before one that was this much worse and is not. */
const EXPLAINED = 0.5;
const PREFIX = "collectives.";
const NEEDED = [
  "seq", "group", "op", "dtype", "elements", "nbytes", "bucket", "holds", "step", "last", "late_rank", "late", "gb_s", "begin", "end",
  "span_rank", "span_start", "span_end", "span_kind", "span_name", "act_rank", "act_start", "act_end", "act_family",
] as const;

/** The columns that belong to the section; null where some have been let go of (a long pause). */
export const sectionColumns = (columns: Record<string, Column>): SectionColumns | null => columnsOf(columns, PREFIX, NEEDED);

export interface StepSpan { step: number; start: number; end: number; /** Index into the section's `steps`, or -1. */ at: number }

/** Times are milliseconds since the run began. */
export class CollectivesModel {
  readonly rows: number;
  readonly ranks: number;
  /** First and last time that the section tells of. */
  readonly limits: Span;
  readonly steps: readonly StepSpan[];
  /** Rows in order of the last rank's coming; those that somebody has not come to are at the end. */
  readonly order: readonly number[];
  /** Milliseconds by which the clocks of two ranks may differ. */
  readonly apart: number;
  /** Row of the call that hangs; -1: none does. */
  readonly hanging: number;
  private readonly reasons = new Map<number, LateReason>();
  private readonly known = new Map<number, readonly number[]>();

  constructor(readonly section: CollectivesSection, readonly columns: SectionColumns) {
    this.rows = section.rows;
    this.ranks = section.ranks.length;
    this.apart = 2 * Math.max(0, ...section.ranks.map(({ bound_ns: bound }) => bound / 1e6));
    for (const reason of section.reasons) this.reasons.set(reason.row, reason);
    const times = Float64Array.from({ length: this.rows }, (_, row) => this.last(row));
    this.order = Array.from({ length: this.rows }, (_, row) => row).sort((one, two) => order(times[one]!, times[two]!) || one - two);
    this.hanging = section.stuck ? this.find(section.stuck.group, section.stuck.seq) : -1;
    this.steps = this.stepSpans();
    this.limits = this.ends();
  }

  /** When a rank came to a call; NaN: it has not, or is not in its group. */
  begin(rank: number, row: number): number {
    return this.section.origin_ms + this.columns["begin"]![rank * this.rows + row]!;
  }

  end(rank: number, row: number): number {
    return this.section.origin_ms + this.columns["end"]![rank * this.rows + row]!;
  }

  /** When the last rank came; NaN: somebody has not come. */
  last(row: number): number {
    return this.section.origin_ms + this.columns["last"]![row]!;
  }

  /** The last end of the ranks that have ended it; NaN: none has. */
  exit(row: number): number {
    let exit = NaN;
    for (let rank = 0; rank < this.ranks; rank++) {
      const end = this.end(rank, row);
      if (!(end <= exit)) exit = Number.isNaN(end) ? exit : end;
    }
    return exit;
  }

  waiting(rank: number, row: number): number {
    return Math.max(0, this.last(row) - this.begin(rank, row));
  }

  transfer(rank: number, row: number): number {
    return this.end(rank, row) - Math.max(this.last(row), this.begin(rank, row));
  }

  /** Index of the rank that came last by more than the clocks may be apart; -1: nobody. */
  lateRank(row: number): number {
    return this.late(row) > this.apart && row !== this.hanging ? this.columns["late_rank"]![row]! : -1;
  }

  /** How much later the last rank came than the median of the others, ms. */
  late(row: number): number {
    return this.columns["late"]![row]!;
  }

  reason(row: number): LateReason | undefined {
    return this.reasons.get(row);
  }

  op(row: number): string {
    return this.section.ops[this.columns["op"]![row]!] ?? "collective";
  }

  group(row: number): string {
    return this.section.groups[this.columns["group"]![row]!] ?? "world";
  }

  seq(row: number): number {
    return this.columns["seq"]![row]!;
  }

  step(row: number): number {
    return this.columns["step"]![row]!;
  }

  bucket(row: number): number {
    return this.columns["bucket"]![row]!;
  }

  dtype(row: number): string {
    return this.section.dtypes[this.columns["dtype"]![row]!] ?? "";
  }

  elements(row: number): number {
    return this.columns["elements"]![row]!;
  }

  /** What is in the bucket, in a few words: "head.fc1, head.fc2 · 4 params". */
  holds(row: number): string {
    return this.section.names[this.columns["holds"]![row]!] ?? "";
  }

  bytes(row: number): number {
    return this.columns["nbytes"]![row]!;
  }

  /** Of two ranks: what their clocks may be apart, ms. */
  bound(rank: number): number {
    return (this.section.ranks[rank]?.bound_ns ?? 0) / 1e6;
  }

  /** The number that rank has in its program; lanes are indices. */
  number(rank: number): number {
    return this.section.ranks[rank]?.rank ?? rank;
  }

  /** The lane of a rank's number. */
  index(number: number): number {
    const at = this.section.ranks.findIndex(({ rank }) => rank === number);
    return at < 0 ? number : at;
  }

  /** Row of a call, which may have moved as the window did; -1: it is not there any longer. */
  find(group: string, seq: number): number {
    for (let row = 0; row < this.rows; row++) if (this.seq(row) === seq && this.group(row) === group) return row;
    return -1;
  }

  /** Ranks that have come to the call, or belong to its group as other calls show. */
  members(row: number): readonly number[] {
    const group = this.columns["group"]![row]!;
    return entry(this.known, group, () => {
      const came = (rank: number): boolean => {
        for (let other = this.rows - 1; other >= 0; other--) if (this.columns["group"]![other] === group && !Number.isNaN(this.begin(rank, other))) return true;
        return false;
      };
      return Array.from({ length: this.ranks }, (_, rank) => rank).filter(came);
    });
  }

  /** Whether a rank that belongs to it has not come, or has not ended it. */
  pending(row: number): boolean {
    return Number.isNaN(this.last(row)) || Number.isNaN(this.exit(row));
  }

  /**
   * The call where somebody was latest in the last steps, preferably one that a scope explains; of about equal ones the
   * first, where the delay arose. -1: nobody was late.
   */
  latest(steps = RECENT_STEPS, ms = RECENT): number {
    const recent = new Set(this.steps.filter(({ end }, at) => at >= this.steps.length - steps || end > this.limits.t1 - ms).map(({ step }) => step));
    const late = this.order.filter((row) => this.lateRank(row) >= 0 && this.late(row) > 0 && (!recent.size || recent.has(this.step(row))));
    const most = (rows: readonly number[]): number => Math.max(...rows.map((row) => this.late(row)));
    const explained = late.filter((row) => this.reasons.get(row)?.scope);
    const among = explained.length && most(explained) >= EXPLAINED * most(late) ? explained : late;
    return among.find((row) => this.late(row) >= 0.75 * most(among)) ?? -1;
  }

  /** The step that holds a time, or the nearest before it. */
  stepAt(t: number): StepSpan | undefined {
    const starts = this.steps.map(({ start }) => start);
    const at = bisectLeft(starts, t + 1e-9) - 1;
    return this.steps[Math.max(0, at)];
  }

  stepOf(row: number): StepSpan | undefined {
    return this.steps.find(({ step }) => step === this.step(row));
  }

  /** Spans of one kind; the name of a step is its index, that of a wait its number, of others a place among the section's names. */
  *spans(kind: number): Generator<{ rank: number; start: number; end: number; name: number }> {
    const { columns: { span_rank: rank, span_start: start, span_end: end, span_kind: kinds, span_name: name }, section } = this;
    for (let at = 0; at < rank!.length; at++) {
      if (kinds![at] !== kind) continue;
      const to = end![at]!;
      yield {
        rank: rank![at]!, start: section.origin_ms + start![at]!, end: Number.isNaN(to) ? section.now_ms : section.origin_ms + to,
        name: name![at]!,
      };
    }
  }

  /** Steps from the spans: from the first rank's begin of it to its end on the last one. */
  private stepSpans(): StepSpan[] {
    const found = new Map<number, StepSpan>();
    for (const span of this.spans(0)) {
      const step = span.name;
      const known = found.get(step);
      if (!known) found.set(step, { step, start: span.start, end: span.end, at: this.section.steps.findIndex((row) => row.step === step) });
      else {
        known.start = Math.min(known.start, span.start);
        known.end = Math.max(known.end, span.end);
      }
    }
    const steps = [...found.values()].sort((one, two) => one.start - two.start);
    // A band ends where the next begins.
    steps.forEach((step, at) => (step.end = Math.min(step.end, steps[at + 1]?.start ?? Infinity)));
    return steps;
  }

  private ends(): Span {
    let [t0, t1] = [Infinity, -Infinity];
    const { columns, section } = this;
    for (const name of ["begin", "end", "span_start", "span_end", "act_start", "act_end"] as const) {
      for (const value of columns[name]!) {
        if (value < t0) t0 = value;
        if (value > t1) t1 = value;
      }
    }
    if (section.stuck || !(t1 > t0)) t1 = Math.max(t1, section.now_ms - section.origin_ms);
    if (!(t0 < t1)) return { t0: section.origin_ms, t1: section.origin_ms + 1 };
    return { t0: section.origin_ms + t0, t1: section.origin_ms + t1 };
  }
}

const order = (one: number, two: number): number => (Number.isNaN(one) ? (Number.isNaN(two) ? 0 : 1) : Number.isNaN(two) ? -1 : one - two);
