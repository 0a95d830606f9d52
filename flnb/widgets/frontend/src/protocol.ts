/**
 * The frame protocol between kernel and browser, version 1.
 *
 * One anywidget custom message a tick: a JSON head and one binary buffer that holds all arrays, each aligned to
 * eight bytes. Heads and arrays are deltas, except in a keyframe, which repeats everything that is still live.
 */

import type { ExportRequest } from "./exporting.ts";
import type { CodeRequest } from "./cell.ts";

export const PROTOCOL = 1;

export type Phase = "forward" | "backward" | "optimizer" | "other";
export type RunState = "waiting" | "recording" | "finished" | "failed";
export type Family =
  | "elementwise" | "matmul" | "reduction" | "movement" | "norm" | "memory" | "communication" | "optimizer";

export interface RunInfo {
  id: number;
  name: string;
  state: RunState;
  error: string | null;
  backend: string;
  /** What the backend computes with: versions, instruction set, threads. */
  libraries?: string;
  manager: string;
  device: string;
  capacity: number | null;
  min_block: number;
  /** What of its events is stored, and where; empty if that is not known. */
  settings?: string;
  /** A recording that has ended, told once and from its beginning: nothing of it leaves the page. */
  whole?: boolean;
  /** Whole call stacks of its blocks can be asked for. */
  stacks?: boolean;
  /** What is told of it where that is not everything. */
  note?: string;
}

export interface Counters {
  /** Seconds since the run began. */
  t: number;
  step: number | null;
  steps_total: number | null;
  events: number;
  events_per_s: number;
  dropped: number;
  dropped_first_step: number | null;
  dropped_last_step: number | null;
  /** Share of the wall time that telemetry costs, 0..1. */
  telemetry_share: number;
  buffer_used: number;
  buffer_capacity: number;
  tick_hz: number;
  step_seconds: number | null;
  /** Cumulative bytes of op outputs that live outside blocks. */
  small_bytes: number;
  /** True in a tick whose middle was thinned to `memory.*` points. */
  memory_thinned?: boolean;
}

export interface Plan { op: string; family: string; shape: number[]; dtype: string; nbytes: number }
/** `line`: the user's line, where it is known: "train.py:12: y = x * w". */
export interface Context { scope: string; phase: Phase; line?: string }
/** A kernel that computes several ops: those with plan, context and estimated share of its time. */
export interface KernelInfo { name: string; plan: number; context: number; parts: [plan: number, context: number, share: number][] }

/** Something that happened at one time, in the unit of its axis. */
export interface Moment { t: number; text: string }

/** A piece of an append-only intern table: `items[0]` has id `first`. */
export interface TableDelta<T> { first: number; items: T[] }

/** Gradients: fine, bad before they arrived, or made bad here. */
export type Health = 0 | 1 | 2;

export interface TapeNode {
  id: number;
  plan: number;
  context: number;
  /** Ids of the nodes this one reads; negative ids are leaves. */
  parents: number[];
  forward_ns: number;
  backward_ns: number;
  saved: number;
  norm: number | null;
  /** Count of NaN and Inf in the gradient. */
  bad: number;
  numel: number;
  /** Place in the order of execution. */
  at: number;
  health: Health;
  /** The line of the program that made it, where its backward was sampled: "train.py:12: y = f(x)". */
  line?: string;
  /** The op raised: what it got, what it would have given (null: unknown), and its error. */
  failed?: { op: string; got: number[][]; expected: number[] | null; message: string };
}
export interface TapeLeaf { id: number; name: string; parameter: boolean; plan: number; norm: number | null; bad: number }
/** Nodes first..last-1 as one box: a module call, a fold of `repeat` equal blocks, or a portion of a long row. */
export interface TapeGroup {
  key: string;
  name: string;
  path: string;
  first: number;
  last: number;
  /** Ids of the first and the last node. */
  ids: [number, number];
  repeat: number;
  /** Of the last node: its plan, the norm of the gradient that arrives there, and how many of its values are bad. */
  plan: number;
  norm: number | null;
  bad: number;
  /** The worst inside. */
  health: Health;
  /** The op with which the forward ended in an error is inside. */
  failed?: boolean;
  forward_ns: number;
  backward_ns: number;
  saved: number;
  /** Forward time by family, and number of nodes by op, the largest first. */
  families: [string, number][];
  ops: [string, number][];
  /** Different ops in all. */
  different: number;
}
/** What an open group shows: groups and places (`at`) of nodes; edges are pairs of places in `items`, one after the other. */
export interface TapeLevel { key: string; items: (number | TapeGroup)[]; edges: number[]; entered: number[]; left: number[] }
export interface TapePart { levels: TapeLevel[]; nodes: TapeNode[]; leaves: TapeLeaf[] }
/** The gradients of one measured backward. */
export interface TapeNorms {
  step: number;
  t: number;
  /** Norm of the gradient of all parameters, and its bad values. */
  gradient: number | null;
  gradient_bad: number;
  nodes: readonly Pick<TapeNode, "context" | "plan" | "norm" | "bad">[];
}
/** A tape, or of a long one as much as is needed at first. */
export interface Tape extends TapePart, TapeNorms {
  nodes: TapeNode[];
  truncated: number;
  /** Nodes in all. */
  count: number;
  /** The same for the same program: plans, scopes and edges. */
  structure: string;
  /** (leaf id, place on the outermost level). */
  inputs: [number, number][];
}
/** Asks for more of the tape: levels to open, the way to a node, the next node that a text matches after another; for the newest in place of one with NaN, (`at`) for the tape of a step, or (`marks`) for what the nodes of a group ran. */
export interface TapeRequest { type: "tape"; open?: string[]; reveal?: number; search?: string; after?: number; newest?: true; at?: number; marks?: string; op?: string; scope?: string; nth?: number }
export interface TapeAnswer extends TapePart {
  type: "tape";
  structure: string;
  step: number;
  reveal?: { id: number; open: string[] };
  /** The node that was asked for by op, scope and place among the nodes with both; null if there is none. */
  named?: number | null;
  search?: { text: string; count: number; next: number | null; at: number };
  /** Of the nodes of a group: contexts, and names of ops. */
  marks?: { group: string; contexts: number[]; ops: string[] };
}
/** The tape of the step that was asked for, or why there is none. */
export interface StepTapeAnswer { type: "tape"; at: number; tape?: Tape; missing?: string }

/** Asks for the call stack of a block, by its context. */
export interface StackRequest { type: "stack"; context: number }
/** Its lines, the innermost first. */
export interface StackAnswer { type: "stack"; context: number; lines: string[] }

/** Asks what would make the recorded step fit into a capacity (bytes), or runs it so where the kernel has the step. */
export interface FitRequest { type: "fit" | "apply"; capacity: number }
/** What is done to what one module keeps for backward; `seconds` is what that costs. */
export interface Choice { scope: string; what: "keep" | "recompute" | "offload"; bytes: number | null; seconds: number | null }
/** Bytes. `peak` would be reserved at most; `before` is without the plan. */
export interface Proposal {
  type: "fit";
  capacity: number;
  /** "working", "running" (the step, under the plan), or "": done. */
  state: "working" | "running" | "";
  /** Why there is no plan, or what went wrong as it was applied. */
  error?: string;
  fits?: boolean;
  peak?: number;
  peak_live?: number;
  before?: { peak: number; live: number };
  seconds?: number;
  choices?: Choice[];
  /** Code that does the same in a cell. */
  code?: string;
  /** The kernel has the step and can run it under the plan. */
  runs?: boolean;
  /** What the step needed under the plan. */
  measured?: { peak: number; live: number; seconds: number };
}

/** What a bar of a rank is: a step, a phase of it, a block named by the program, or standing still for a call. */
export const SPAN_KINDS = ["step", "forward", "backward", "optimizer", "scope", "wait"] as const;
/** A row of "who is late". */
export interface LateRank { rank: number; host: string; last: number; lost_ms_per_step: number; scope: string }
/** Why a rank was the last to come to a call: its time in a scope since the ranks last met, against the median rank. */
export interface LateReason { row: number; rank: number; scope: string; ms: number; median_ms: number; text: string }
/** A call that not all ranks have joined, and what each of them does. */
export interface StuckCall {
  seq: number;
  group: string;
  text: string;
  seconds: number;
  rows: { rank: number; state: string; call: string; last: string; seconds: number }[];
}
/**
 * The collective calls of the last steps on all ranks; whole each time it changes. Its arrays are the frame's columns
 * `collectives.*`; times are ms since `origin_ms` on the clock of the first rank, NaN where there is none (yet).
 *
 * Of each call (`rows`): seq, group, op, dtype, elements, nbytes, bucket (-1: none), step (-1: none), last (when the last
 * rank came), late_rank (-1: nobody), late (ms behind the median of the others), gb_s (bus bandwidth; NaN: unknown);
 * group, op and dtype are indices, holds (what is in the bucket) is one of `names`, 0: unknown.
 * Of each rank and call, rank by rank: begin, end.
 * Bars: span_rank, span_start, span_end, span_kind (of `SPAN_KINDS`), span_name (of `names`);
 * act_rank, act_start, act_end, act_family (of `families`): ops, merged. The name of a step is its index, that of a
 * wait its seq. In columns a rank is an index of `ranks`, late_rank too; in the head it is the rank's number.
 */
export interface CollectivesSection {
  origin_ms: number;
  now_ms: number;
  rows: number;
  ranks: { rank: number; host: string; process: number; bound_ns: number; seen_ms: number }[];
  ops: string[];
  groups: string[];
  /** "dtypes differ" where ranks gave different ones. */
  dtypes: string[];
  names: string[];
  families: string[];
  reasons: LateReason[];
  late: LateRank[];
  /** Means over the ranks: time in which the program stood still, its share of the step, what share of it was hidden. */
  steps: { step: number; ms: number; exposed_ms: number; share: number; overlap: number | null }[];
  /** Bus bandwidth: the best that was measured, and the median of each op. */
  bandwidth: { peak_gb_s: number; ops: { op: string; gb_s: number; share: number }[] };
  stuck: StuckCall | null;
}

/**
 * The launches and copies of the last steps on CUDA devices; whole each time it changes. Its arrays are the frame's columns
 * `devices.*`; times are ms since `origin_ms` on the host's clock, NaN where unknown, infinite for never.
 *
 * Tasks, in the order of the host's calls: seq, route (0: a launch, else one of `ROUTES`), nbytes, pinned, device, stream,
 * context, plan (of the op that asked for it), kernel (of `kernels`), t0 and t1 (the call), ran0 and ran1 (the device), bound
 * (ns; -1: emulated), slot (place in the order of emulated devices, -1: has not run), seen.
 * Events: event_seq, event_event (its number), event_awaited, event_device, event_stream, event_t. The host stood still:
 * wait_t0, wait_t1, wait_event, wait_device, wait_stream (-1: all). Ops of the host: op_t0, op_t1, op_plan, op_context.
 * Memory: segment_id, segment_size, segment_device (-1: pinned memory of the host), segment_begin, segment_end; block_id,
 * block_segment, block_offset, block_size, block_category, block_plan, block_context, block_streams (bits), block_begin,
 * block_end, block_until (freed, and used by a stream until then; else NaN), block_event and block_on (the event and stream
 * that this is about); use_seq, use_block: which task used which block.
 */
export interface DevicesSection {
  origin_ms: number;
  now_ms: number;
  rows: number;
  devices: { place: string; name: string; emulated: boolean; order: string; seed: number; bound_ns: number }[];
  kernels: { name: string; grid: number[]; block: number[]; shared: number; registers: number; static: number; /** Blocks that a multiprocessor holds at once, threads that it holds at most, what keeps further blocks out: -1 and "" where no driver tells. */ resident: number; most: number; limit: string; /** Requests, sectors, shared requests, conflicts of all its launches, where a device counts them. */ traffic: number[] | null }[];
  /** What must be said where times or an order of an emulated device are shown; "" where none is. */
  note: string;
  steps: { step: number; t0: number; t1: number; launches: number; copies: number; to_device: number; to_host: number; waits: number }[];
  gaps: { device: number; t0: number; t1: number; cause: string; plan: number; seq: number }[];
}
/** A row of the timeline: `depth` is that of a scope, of tasks the number of their stream, whose device is the `name`. A part is an op inside of another one, or one that a kernel computed. */
export interface TimelineRow { thread: number; rank: number | null; name?: string; kind: "phase" | "scope" | "record" | "compile" | "materialize" | "op" | "part" | "task"; depth: number }
/**
 * Pieces of the timeline, each a stretch of time (ms of the run) whose bars are merged where they are shorter than `pixel`
 * (ms), with the number of its bars. The bars are columns, piece by piece and row by row: row (of `rows`), t0, t1 (ms),
 * what (plan, phase, number of values), context, count (events that the bar stands for), number (of the longest of
 * them in its row), longest (its ms).
 */
export interface TimelinePart { rows: TimelineRow[]; pieces: ({ name: "whole" | "newest" | "window"; t0: number; t1: number; pixel: number; count: number } & Partial<Lacking>)[]; t0: number; t1: number }
/** Until this time (ms) bars are coarser than was asked for, and why; `reading`: what is missing is being read, and the same question has another answer soon. */
export interface Lacking { note: string; until: number; reading: boolean }
/** The timeline in a frame: now and then the whole run coarsely, and the newest steps. Its columns are `timeline.*`. */
export type TimelineSection = TimelinePart;
/** One event: its place, its times (ms), plan (or what its row has in place of it) and context, tape node and block (0: none). */
export interface TimelineEvent {
  thread: number; depth: number; kind: TimelineRow["kind"]; number: number; t0: number; t1: number; what: number; context: number; node: number; block: number;
}
/**
 * Asks for a window [t0, t1, pixels] (`older`: also for what the kernel must read from the recording), an event, how much there is between two times, its ops, or the next match of a text
 * after a time; or, to compare, which of its name an event is since a time, and the one that is so in the other recording.
 */
/** `side`: of two recordings side by side, the one that is asked about. */
export type TimelineRequest = { type: "timeline"; id: number; side?: 0 | 1 } & (
  | { window: [number, number, number]; older?: boolean } | { event: [thread: number, kind: string, depth: number, number: number, t0?: number] }
  | { measure: [number, number] } | { ops: [number, number] } | { search: string; after: number }
  | { ordinal: [thread: number, kind: string, depth: number, number: number, since: number] }
  | { nth: [thread: number, kind: string, depth: number, name: string, scope: string, before: number, since: number] });
export interface TimelineMeasure { t0: number; t1: number; counts: Record<string, number>; ns: Record<string, number>; complete: boolean }
/** An answer; that to a window has columns like a frame. */
export interface TimelineMessage extends Partial<TimelinePart> {
  type: "timeline";
  id: number;
  side?: 0 | 1;
  arrays?: FrameHead["arrays"];
  /** With the events of the same tape node. */
  event?: (TimelineEvent & { related: TimelineEvent[] }) | null;
  /** The event is being read: the same question has another answer soon. */
  reading?: true;
  measure?: TimelineMeasure;
  search?: { text: string; count: number; at: number; next: TimelineEvent | null };
  /** Ops that begin in a stretch of time, the longest first: name, how often, ns. */
  ops?: { t0: number; t1: number; rows: [op: string, count: number, ns: number][]; complete: boolean };
  /** Name and scope of an event, and how many such events are before it since a time; in the other recording, that one. */
  ordinal?: { name: string; scope: string; before: number } | null;
  nth?: TimelineEvent | null;
  /** A saved page answers: it has what its frames have. */
  saved?: true;
}
/** From where to where a copy goes. */
export const ROUTES = ["", "to the device", "to the host", "on the device", "between devices"] as const;

export type ArrayType = "f64" | "f32" | "i32" | "u32" | "u8";
export type Column = Float64Array | Float32Array | Int32Array | Uint32Array | Uint8Array;

export interface FrameHead {
  type: "frame";
  protocol: number;
  seq: number;
  keyframe: boolean;
  run: RunInfo;
  counters: Counters;
  strings?: TableDelta<string>;
  plans?: TableDelta<Plan>;
  contexts?: TableDelta<Context>;
  arrays: Record<string, [ArrayType, number, number]>;
  tape?: Tape;
  /** What was measured after the tape that is shown, where that is kept for its NaN. */
  norms?: TapeNorms;
  collectives?: CollectivesSection;
  devices?: DevicesSection;
  timeline?: TimelineSection;
  kernels?: TableDelta<KernelInfo>;
  /** When backend, manager or device were exchanged during the run, seconds, and what changed; all of them, where there is news. */
  exchanges?: Moment[];
  /** Of a whole recording: which part this is, from 0 on, and one that is still to come, or the same if this is the last. */
  part?: [number, number];
  /** Of two recordings side by side: which one. */
  side?: 0 | 1;
}

/** A decoded frame: its head, and the columns as typed arrays over the received buffer. */
export interface Frame { head: FrameHead; columns: Record<string, Column>; bytes: number }

export type ToKernel = TapeRequest | TimelineRequest | CodeRequest | StackRequest | FitRequest | ExportRequest | { type: "ack"; seq: number; tab?: string } | { type: "resync" } | { type: "hello"; protocol: number };

/** A row of a comparison: op, scope; of A and of B calls, ns, bytes; FLOPs and bytes moved in B, share of B's time, what changed. */
export type ComparedRow = readonly [string, string, number, number, number, number, number, number, number, number, number, string];
/** Two recordings aligned by scope and op, in numbers of one step (or run). Peaks: FLOP/s, and bytes/s of memory. */
export interface ComparedRuns { readonly type: "comparison"; readonly summary: string; readonly peaks: readonly [number, number]; readonly rows: readonly ComparedRow[] }

export function isComparison(content: unknown): content is ComparedRuns {
  const given = content as Partial<ComparedRuns> | null;
  return given?.type === "comparison" && Array.isArray(given.rows) && Array.isArray(given.peaks) && typeof given.summary === "string";
}

/** The test whether a custom message is of a type. */
export const ofType = <T>(type: string) => (content: unknown): content is T => (content as { type?: unknown } | null | undefined)?.type === type;

/** Whether a custom message is a frame; other messages on the channel are not ours to judge. */
export const isFrame = ofType<FrameHead>("frame");
/** Answers to a `StackRequest`, a `FitRequest`, a `TimelineRequest`, a `TapeRequest`. */
export const isStackAnswer = ofType<StackAnswer>("stack");
export const isProposal = ofType<Proposal>("fit");
export const isTimelineMessage = ofType<TimelineMessage>("timeline");
export const isTapeAnswer = ofType<TapeAnswer>("tape");
/** The answer to a `TapeRequest` for the tape of a step. */
export const isStepTapeAnswer = (content: unknown): content is StepTapeAnswer => isTapeAnswer(content) && "at" in content;
