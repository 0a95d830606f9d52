/** What every thread did when, as far as the browser has it: pieces of the timeline, each a stretch of time at one resolution. */

import { bisectLeft } from "d3-array";
import type { Column, Lacking, TimelineEvent, TimelineMessage, TimelinePart, TimelineRow, TimelineSection } from "../protocol.ts";
import type { Span } from "../timeline/scale.ts";

const NAMES = ["row", "t0", "t1", "what", "context", "count", "number", "longest"] as const;
type Columns = Record<(typeof NAMES)[number], Column>;
/** Answered windows that are kept: the one in sight, and those before it, for the way back. */
const KEPT = 6;

export const keyOf = (row: TimelineRow): string => `${row.thread} ${row.kind} ${row.depth}`;

/** The bars of one row in one piece, as columns; times are ms of the run. */
export interface RowColumns {
  readonly start: Float64Array;
  readonly end: Float64Array;
  /** Plan, phase or number of values, as the row's kind says; of a merged bar that of its longest event. */
  readonly what: Column;
  readonly context: Column;
  /** How many events a bar stands for, and the number of the longest of them; -1: it has not ended. */
  readonly count: Column;
  readonly number: Column;
  /** Duration of the longest, ms. */
  readonly longest: Column;
}

export class Piece implements Span {
  constructor(readonly t0: number, readonly t1: number, readonly pixel: number, readonly rows: ReadonlyMap<string, RowColumns>, readonly lacking: Partial<Lacking> = {}) {}

  /** What is missing of the time after t0, and why; null: nothing. */
  lacks(t0: number): Lacking | null {
    return this.lacking.until! > t0 ? this.lacking as Lacking : null;
  }
}

export class ThreadsModel {
  rows: readonly TimelineRow[] = [];
  /** The first and the last time of which something is known. */
  limits: Span = { t0: 0, t1: 1e-3 };
  /** Increases when there are other pieces. */
  version = 0;
  private whole: Piece | null = null;
  private newest: Piece | null = null;
  private answered: Piece[] = [];
  /** Older pieces that go on with the newest steps, made for the pieces of this version. */
  private joined: { version: number; pieces: Piece[] } = { version: -1, pieces: [] };

  /** The section of a frame: the whole run coarsely, and the newest steps. */
  take(section: TimelineSection, columns: Record<string, Column>): void {
    const found = timelineColumns(columns, "timeline.");
    if (!found) return;
    this.rows = section.rows;
    this.limits = { t0: section.t0, t1: Math.max(section.t1, section.t0 + 1e-3) };
    const pieces = piecesOf(section, found);
    section.pieces.forEach(({ name }, at) => {
      if (name === "whole") this.whole = pieces[at]!;
      else this.newest = pieces[at]!;
    });
    this.version++;
  }

  /** The answer about a window. */
  answer(part: TimelinePart, columns: Record<string, Column>): void {
    const found = timelineColumns(columns, "");
    if (!found) return;
    this.rows = part.rows;
    this.answered = [...piecesOf(part, found), ...this.answered].slice(0, KEPT);
    this.version++;
  }

  /** The finest piece that has all of a span, but none that is finer than needed where one is enough; null: nothing at all. */
  best(span: Span, pixel: number): Piece | null {
    const [t0, t1] = [Math.max(span.t0, this.limits.t0), Math.min(span.t1, this.limits.t1)];
    const told = [this.newest, this.whole].filter((piece) => piece !== null);
    const all = [...this.answered, ...told, ...this.goingOn()].filter((piece) => piece.t0 <= t0 && piece.t1 >= t1 - pixel);
    const enough = all.filter((piece) => piece.pixel <= pixel * 1.01);
    if (enough.length) return enough.reduce((one, other) => (other.pixel > one.pixel ? other : one));
    return all.length ? all.reduce((one, other) => (other.pixel < one.pixel ? other : one)) : this.newest && this.newest.t0 <= t0 ? this.newest : this.whole;
  }

  /** The last answer and the coarse piece, with the newest steps after them: a view that follows a run need not ask at every frame. */
  private goingOn(): Piece[] {
    const { newest } = this;
    if (this.joined.version !== this.version) {
      const older = [this.answered[0], this.whole].filter((piece) => piece && newest && piece.t0 < newest.t0 && piece.t1 >= newest.t0 && piece.t1 < newest.t1);
      this.joined = { version: this.version, pieces: older.map((piece) => joined(piece!, newest!)) };
    }
    return this.joined.pieces;
  }
}

/** One piece until the other one begins, then that one. A merged bar in which it begins is cut there. */
function joined(older: Piece, newer: Piece): Piece {
  const rows = new Map(newer.rows);
  for (const [key, before] of older.rows) {
    const after = newer.rows.get(key);
    const until = Math.min(newer.t0, after?.start[0] ?? Infinity);
    const length = bisectLeft(before.start, until);
    const names = Object.keys(before) as (keyof RowColumns)[];
    const cut = Object.fromEntries(names.map((name) => {
      const column = new Float64Array(length + (after?.[name].length ?? 0));
      column.set(before[name].subarray(0, length));
      if (after) column.set(after[name], length);
      return [name, column];
    })) as unknown as RowColumns & { end: Float64Array };
    if (length) cut.end[length - 1] = Math.min(cut.end[length - 1]!, until);
    rows.set(key, cut);
  }
  return new Piece(older.t0, newer.t1, older.pixel, rows, older.lacking);
}

function piecesOf({ rows, pieces }: TimelinePart, columns: Columns): Piece[] {
  let at = 0;
  return pieces.map(({ t0, t1, pixel, count, ...lacking }) => {
    const found = new Map<string, RowColumns>();
    const end = at + count;
    while (at < end) {
      const [from, row] = [at, columns.row[at]!];
      while (at < end && columns.row[at] === row) at++;
      const cut = (name: (typeof NAMES)[number]): Column => columns[name].subarray(from, at) as Column;
      found.set(keyOf(rows[row]!), {
        start: cut("t0") as Float64Array, end: cut("t1") as Float64Array, what: cut("what"), context: cut("context"), count: cut("count"),
        number: cut("number"), longest: cut("longest"),
      });
    }
    return new Piece(t0, t1, pixel, found, lacking);
  });
}

function timelineColumns(columns: Record<string, Column>, prefix: string): Columns | null {
  const found = Object.fromEntries(NAMES.map((name) => [name, columns[prefix + name]]));
  return NAMES.every((name) => found[name]) ? found as Columns : null;
}

/** What is asked of the kernel, one window at a time: the newest wish replaces one that has not been sent. */
export class Windows {
  /** The kernel has not answered for so long (ms) that the reader is told. */
  static readonly SLOW = 400;
  /** It is asked again after this. */
  static readonly AGAIN = 2000;
  /** A view that follows a run asks for the same stretch, moved on, no sooner than this after the last time. */
  static readonly FOLLOW = 1000;
  /** What the kernel is reading is asked for again after this. */
  static readonly READ = 200;
  private id = 0;
  private asked: { id: number; key: string; at: number } | null = null;
  /** When the first question was asked that nothing has answered yet. */
  private since: number | null = null;
  /** The stretch that was asked for last, and when. */
  private last = { stretch: "", at: -Infinity };

  /** Whether the kernel owes an answer for longer than it should. */
  late(now: number): boolean {
    return this.since !== null && now - this.since > Windows.SLOW;
  }

  /** The id to ask with, or null where the same or another question is under way; `stretch` names one that moves with a run, or one that is being read. */
  next(key: string, now: number, stretch = ""): number | null {
    if (stretch && stretch === this.last.stretch && now - this.last.at < (stretch === key ? Windows.READ : Windows.FOLLOW)) return null;
    if (this.asked && (this.asked.key === key || now - this.asked.at < Windows.SLOW) && now - this.asked.at < Windows.AGAIN) return null;
    this.asked = { id: ++this.id, key, at: now };
    this.last = { stretch, at: now };
    this.since ??= now;
    return this.id;
  }

  /** Nothing is wanted any more. */
  forget(): void {
    this.asked = this.since = null;
  }

  /** An answer has come; whether it is that to the last question. */
  came(id: number): boolean {
    this.since = null;
    if (this.asked?.id !== id) return false;
    this.asked = null;
    return true;
  }
}

export type { TimelineEvent, TimelineMessage };
