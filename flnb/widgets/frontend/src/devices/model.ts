/** What devices did, as the view reads it: launches and copies on one axis, and the blocks at a moment. */

import { bisectLeft } from "d3-array";
import { clamp } from "../clamp.ts";
import { columnsOf, entry } from "../columns.ts";
import type { Column, DevicesSection } from "../protocol.ts";

export type DeviceColumns = Record<string, Column>;

const PREFIX = "devices.";
const NEEDED = [
  "seq", "route", "nbytes", "pinned", "device", "stream", "context", "plan", "kernel", "t0", "t1", "ran0", "ran1", "bound", "slot", "seen",
  "event_seq", "event_event", "event_awaited", "event_device", "event_stream", "event_t", "wait_t0", "wait_t1", "wait_event", "wait_device", "wait_stream",
  "op_t0", "op_t1", "op_plan", "op_context", "segment_id", "segment_size", "segment_device", "segment_begin", "segment_end",
  "block_id", "block_segment", "block_offset", "block_size", "block_category", "block_plan", "block_context", "block_streams", "block_begin",
  "block_end", "block_until", "block_event", "block_on", "use_seq", "use_block",
] as const;

/** The columns that belong to the section; null where some are missing. */
export const deviceColumns = (columns: Record<string, Column>): DeviceColumns | null => columnsOf(columns, PREFIX, NEEDED);

/** A stream of a device, by index in `devices`. */
export interface Stream { device: number; stream: number; /** Nothing but copies; some copies. */ copies: boolean; moves: boolean }
/** What the axis shows: times, or the places of tasks in the order in which they were asked for and ran. */
export type Axis = "time" | "order";
/** A step, in ms since the run began, and its tasks as rows from `first` to before `last`. */
export interface StepRows { step: number; start: number; end: number; first: number; last: number }
/** A mark in a stream: an event that is recorded after a task (row, -1: none), or awaited before the next one. */
export interface EventMark { event: number; awaited: boolean; device: number; stream: number; after: number; before: number; t: number }

/** Rows are launches and copies in the order in which the host asked for them. Times are ms since the run began. */
export class DevicesModel {
  readonly rows: number;
  readonly emulated: boolean;
  readonly streams: readonly Stream[];
  readonly steps: readonly StepRows[];
  readonly events: readonly EventMark[];
  private readonly order: Float64Array;

  constructor(readonly section: DevicesSection, readonly columns: DeviceColumns) {
    this.rows = section.rows;
    this.emulated = section.note !== "";
    this.streams = this.findStreams();
    this.steps = this.findSteps();
    this.order = this.places();
    this.events = this.findEvents();
  }

  private at(name: string, row: number): number {
    return this.columns[name]![row]!;
  }

  private time(name: string, row: number): number {
    return this.section.origin_ms + this.at(name, row);
  }

  seq(row: number): number { return this.at("seq", row); }
  /** 0: a launch. */
  route(row: number): number { return this.at("route", row); }
  bytes(row: number): number { return this.at("nbytes", row); }
  pinned(row: number): boolean { return this.at("pinned", row) > 0; }
  device(row: number): number { return this.at("device", row); }
  stream(row: number): number { return this.at("stream", row); }
  context(row: number): number { return this.at("context", row); }
  plan(row: number): number { return this.at("plan", row); }
  /** The host's call. */
  asked(row: number): readonly [number, number] { return [this.time("t0", row), this.time("t1", row)]; }
  /** When the device did it; NaN: not known (yet). */
  ran(row: number): readonly [number, number] { return [this.time("ran0", row), this.time("ran1", row)]; }
  /** Place in the order in which the tasks ended; -1: has not run, as far as is known. */
  ranAs(row: number): number { return this.order[row]!; }

  kernel(row: number): DevicesSection["kernels"][number] | undefined {
    return this.route(row) === 0 ? this.section.kernels[this.at("kernel", row)] : undefined;
  }

  /** How long it waited in its stream, ms; NaN where that is unknown. */
  queued(row: number): number {
    return this.at("bound", row) < 0 ? NaN : Math.max(0, this.ran(row)[0] - this.asked(row)[1]);
  }

  /** Where a task stands on an axis in the host's lane. */
  hostSpan(row: number, axis: Axis): readonly [number, number] {
    return axis === "order" ? [row, row + 1] : this.asked(row);
  }

  /** And in its stream's lane; null where it has not run. */
  deviceSpan(row: number, axis: Axis): readonly [number, number] | null {
    if (axis === "order") return this.ranAs(row) < 0 ? null : [this.ranAs(row), this.ranAs(row) + 1];
    const span = this.ran(row);
    return Number.isNaN(span[0] + span[1]) ? null : span;
  }

  /** A time of the host on an axis: among the tasks that it asked for, how far it had come. */
  place(t: number, axis: Axis): number {
    if (axis === "time") return t;
    if (t === Infinity) return Infinity;
    let [low, high] = [0, this.rows];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.asked(middle)[0] <= t) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The time of the host at a place of an axis: in the order, after it has asked for that task. */
  timeAt(place: number, axis: Axis): number {
    if (axis === "time") return place;
    const row = clamp(Math.floor(place), 0, this.rows - 1);
    return row < 0 ? this.section.now_ms : this.asked(row)[1];
  }

  limits(axis: Axis): { t0: number; t1: number } {
    if (axis === "order") return { t0: 0, t1: Math.max(1, this.rows) };
    let [t0, t1] = [Infinity, -Infinity];
    for (let row = 0; row < this.rows; row++) {
      t0 = Math.min(t0, this.asked(row)[0]);
      const end = this.ran(row)[1];
      t1 = Math.max(t1, this.asked(row)[1], Number.isNaN(end) ? -Infinity : end);
    }
    for (const { start, end } of this.steps) [t0, t1] = [Math.min(t0, start), Math.max(t1, end)];
    return t1 > t0 ? { t0, t1 } : { t0: this.section.origin_ms, t1: this.section.origin_ms + 1 };
  }

  find(seq: number): number {
    for (let row = 0; row < this.rows; row++) if (this.seq(row) === seq) return row;
    return -1;
  }

  /** The step that asked for a task. */
  stepOf(row: number): StepRows | undefined {
    return this.steps.find(({ first, last }) => row >= first && row < last);
  }

  /** Rows of blocks that a task got the addresses of. */
  blocksOf(row: number): number[] {
    const { use_seq: tasks, use_block: used, block_id: ids } = this.columns;
    const wanted = new Set<number>();
    const seq = this.seq(row);
    tasks!.forEach((one, at) => one === seq && wanted.add(used![at]!));
    const found: number[] = [];
    ids!.forEach((id, at) => wanted.has(id) && found.push(at));
    return found;
  }

  streamName({ device, stream }: { device: number; stream: number }): string {
    const place = this.section.devices.length > 1 ? `${this.section.devices[device]?.place ?? ""} ` : "";
    return `${place}stream ${stream}`;
  }

  private findStreams(): Stream[] {
    const found = new Map<string, Stream>();
    for (let row = 0; row < this.rows; row++) {
      const [device, stream] = [this.device(row), this.stream(row)];
      const key = `${device} ${stream}`;
      const copies = this.route(row) > 0;
      const known = found.get(key);
      if (!known) found.set(key, { device, stream, copies, moves: copies });
      else {
        known.copies &&= copies;
        known.moves ||= copies;
      }
    }
    return [...found.values()].sort((one, two) => one.device - two.device || Number(one.copies) - Number(two.copies) || one.stream - two.stream);
  }

  private findSteps(): StepRows[] {
    return this.section.steps.map(({ step, t0, t1 }) => {
      const [start, end] = [this.section.origin_ms + t0, this.section.origin_ms + t1];
      return { step, start, end, first: this.place(start - 1e-9, "order"), last: this.place(end - 1e-9, "order") };
    });
  }

  /** The order in which tasks ended: emulated devices tell it, of others the times do. */
  private places(): Float64Array {
    const order = new Float64Array(this.rows).fill(-1);
    const ended = this.emulated ? this.columns["slot"]! : this.columns["ran1"]!;
    const known = [...order.keys()].filter((row) => (this.emulated ? ended[row]! >= 0 : !Number.isNaN(ended[row]!)));
    known.sort((one, two) => ended[one]! - ended[two]!);
    // Of a window of tasks the first that ran stands where the first that was asked for does.
    known.forEach((row, at) => (order[row] = at));
    return order;
  }

  private findEvents(): EventMark[] {
    const { event_seq: seq, event_event: event, event_awaited: awaited, event_device: device, event_stream: stream, event_t: t } = this.columns;
    const found: EventMark[] = [];
    const streams = new Map<string, { rows: number[]; seqs: number[] }>();
    for (let row = 0; row < this.rows; row++) {
      const { rows, seqs } = entry(streams, `${this.device(row)} ${this.stream(row)}`, () => ({ rows: [], seqs: [] }));
      rows.push(row);
      seqs.push(this.seq(row));
    }
    for (let at = 0; at < seq!.length; at++) {
      const { rows, seqs } = streams.get(`${device![at]!} ${stream![at]!}`) ?? { rows: [], seqs: [] };
      const next = bisectLeft(seqs, seq![at]!);
      const [after, before] = [rows[next - 1] ?? -1, rows[next] ?? -1];
      found.push({ event: event![at]!, awaited: awaited![at]! > 0, device: device![at]!, stream: stream![at]!, after, before, t: this.section.origin_ms + t![at]! });
    }
    return found;
  }
}

/** A block at a moment. */
export interface BlockAt { row: number; waits: boolean }
export interface SegmentAt { id: number; size: number; device: number; blocks: BlockAt[] }

/** Segments of devices and pinned memory at a time (ms since the run began), with live blocks and those that wait for a stream. */
export function memoryAt({ columns, section }: DevicesModel, time: number): SegmentAt[] {
  const t = time - section.origin_ms;
  const { segment_id: ids, segment_size: sizes, segment_device: devices, segment_begin: begins, segment_end: ends } = columns;
  const found = new Map<number, SegmentAt>();
  ids!.forEach((id, at) => {
    if (begins![at]! <= t && ends![at]! > t) found.set(id, { id, size: sizes![at]!, device: devices![at]!, blocks: [] });
  });
  const { block_segment: home, block_begin: born, block_end: freed, block_until: until, block_offset: offset } = columns;
  home!.forEach((id, row) => {
    if (born![row]! > t) return;
    const waits = freed![row]! <= t;
    if (!waits || until![row]! > t) found.get(id)?.blocks.push({ row, waits });
  });
  const segments = [...found.values()].sort((one, two) => Number(one.device < 0) - Number(two.device < 0) || one.device - two.device || one.id - two.id);
  for (const { blocks } of segments) blocks.sort((one, two) => offset![one.row]! - offset![two.row]!);
  return segments;
}
