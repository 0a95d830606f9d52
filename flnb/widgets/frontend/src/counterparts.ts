/** The event in the other recording that stands for one: of the same row, name and scope, with as many such events before it. */

import { type Half, stepSpan } from "./comparehalf.ts";
import { joined } from "./format.ts";
import type { TimelineMessage, TimelineRow, ToKernel } from "./protocol.ts";
import type { RowColumns } from "./threads/model.ts";

/** A bar that is drawn: its recording, and its lane, row and index there. */
export interface Place { side: number; lane: number; row: number; index: number }
/** An event that is selected, with its times on the axis (ms); it may be too short to be drawn alone. */
export interface Chosen { side: number; lane: number; row: number; t0: number; t1: number }
type Target = Omit<Place, "index">;

/** The indices of the events that begin in [begin, end), until the first merged bar; none of a piece that is drawn from a later time on: what came before is not known. */
export function countable({ start, end: ends, count }: RowColumns, drawnFrom: number, begin: number, end: number): number[] {
  const found: number[] = [];
  if (drawnFrom > begin + 1e-6) return found;
  for (let index = 0; index < start.length && start[index]! < end; index++) {
    if (count[index]! > 1 && ends[index]! > begin) break;
    if (start[index]! >= begin) found.push(index);
  }
  return found;
}

export class Counterparts {
  private asked: { id: number; target: Target; step: number | null } | null = null;
  private id = 0;

  /** `found`: the kernel has told of the counterpart that was asked for; null: there is none. */
  constructor(private readonly halves: readonly [Half, Half], private readonly send: (message: ToKernel) => void, private readonly found: (chosen: Chosen | null) => void) {}

  rowOf({ side, lane, row }: Target): TimelineRow {
    return this.halves[side]!.lanes!.rows[lane]![row]!;
  }

  /** Name and scope of a bar: what its counterpart has, too. */
  nameOf(place: Place): string {
    const { lanes, store } = this.halves[place.side]!;
    const row = this.rowOf(place);
    const scope = store.context(lanes!.columns(row).context[place.index]!)?.scope;
    return joined([lanes!.name(row, place.index), row.kind === "scope" ? "" : scope]);
  }

  chosen({ index, ...target }: Place): Chosen {
    const { start, end } = this.halves[target.side]!.lanes!.columns(this.rowOf(target));
    return { ...target, t0: start[index]!, t1: end[index]! };
  }

  /** The counterpart among what is drawn, counted from the step (or from the beginning of both runs) on; null: not among that. */
  drawn(place: Place, step: number | null): Chosen | null {
    const [target, name] = [this.target(place), this.nameOf(place)];
    const before = this.alike(place, name, step).findIndex(({ index }) => index === place.index);
    const other = target && before >= 0 ? this.alike({ ...target, index: 0 }, name, step)[before] : undefined;
    return other ? this.chosen(other) : null;
  }

  /** Ask the kernel, which knows every event, for the counterpart of one; whether it can be asked about it. */
  ask(place: Place, step: number | null): boolean {
    const target = this.target(place);
    const number = this.halves[place.side]!.lanes!.columns(this.rowOf(place)).number[place.index]!;
    if (!target || number < 0) return false; // it has not ended
    this.asked = { id: ++this.id, target, step };
    const { thread, kind, depth } = this.rowOf(place);
    this.send({ type: "timeline", side: place.side as 0 | 1, id: this.id, ordinal: [thread, kind, depth, number, this.since(place.side, step)] });
    return true;
  }

  forget(): void {
    this.asked = null;
  }

  /** Whether a message is about a counterpart, and not about a window. */
  heard({ id, ordinal, nth }: TimelineMessage): boolean {
    if (ordinal === undefined && nth === undefined) return false;
    if (id !== this.asked?.id) return true; // another one was asked for since
    const { target, step } = this.asked;
    if (ordinal) {
      const { thread, kind, depth } = this.rowOf(target);
      this.send({ type: "timeline", side: target.side as 0 | 1, id, nth: [thread, kind, depth, ordinal.name, ordinal.scope, ordinal.before, this.since(target.side, step)] });
      return true;
    }
    const { zero, store } = this.halves[target.side]!;
    const end = step === null ? Infinity : stepSpan(store, step)?.t1 ?? Infinity;
    this.asked = null;
    this.found(nth && nth.t0 < end ? { ...target, t0: nth.t0 - zero, t1: nth.t1 - zero } : null);
    return true;
  }

  /** The row of the other recording that stands for a bar's. */
  private target(place: Place): Target | null {
    const { kind, depth } = this.rowOf(place);
    const rows = this.halves[1 - place.side]!.lanes?.rows ?? [];
    const lane = Math.min(place.lane, rows.length - 1);
    const row = rows[lane]?.findIndex((one) => one.kind === kind && one.depth === depth) ?? -1;
    return row < 0 ? null : { side: 1 - place.side, lane, row };
  }

  /** From when on (ms of the run) events are counted. */
  private since(side: number, step: number | null): number {
    const { store } = this.halves[side]!;
    return (step === null ? null : stepSpan(store, step)?.t0) ?? store.timeline!.limits.t0;
  }

  /** The events of a row with a name that can be counted. */
  private alike(place: Place, name: string, step: number | null): Place[] {
    const { lanes, store, zero } = this.halves[place.side]!;
    const span = step === null ? null : stepSpan(store, step);
    const events = countable(lanes!.columns(this.rowOf(place)), lanes!.piece.t0, this.since(place.side, step) - zero, span ? span.t1 - zero : Infinity);
    return events.map((index) => ({ ...place, index })).filter((one) => this.nameOf(one) === name);
  }
}
