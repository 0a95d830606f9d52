/**
 * The run as the browser knows it, and what the reader has chosen to look at.
 * Frames go in through `receive`; views read public fields and compare the version counters.
 *
 * Paused, frames are taken in and acknowledged but held back: the data under the views stands still, while
 * `latest` (run and counters of the newest frame) goes on. Resuming applies what was held.
 */

import { Attention } from "./attention.ts";
import { Columns } from "./columns.ts";
import { follows as tableFollows, FrameRate, intern } from "./arrivals.ts";
import type { CollectivesModel } from "./collectives/model.ts";
import type { DevicesModel } from "./devices/model.ts";
import { HeldFrames } from "./held.ts";
import { MemoryLog } from "./memorylog.ts";
import { type OpRow, OpRows } from "./oprows.ts";
import { type Metric, NormHistory, takeMetrics } from "./norms.ts";
import { takeKernels, takeSections } from "./sections.ts";
import { withAnswer } from "./tape/answers.ts";
import type { ThreadsModel } from "./threads/model.ts";
import { decodeColumns, decodeFrame } from "./decoding.ts";
import { isFrame, isProposal, isStackAnswer, isStepTapeAnswer, isTapeAnswer, isTimelineMessage, PROTOCOL, type Context, type Counters, type Frame, type KernelInfo, type Moment, type Plan, type RunInfo, type StepTapeAnswer, type Tape, type TapeAnswer, type TimelineMessage, type TimelinePart, type ToKernel } from "./protocol.ts";

export type Steps = Columns<"index" | "t0" | "t1">;
export type { Range } from "./attention.ts";
/** Milliseconds after which a keyframe that has not come is asked for again. */
const ASK_AGAIN = 700;

export class Store extends Attention {
  // Interned tables; an id is an index.
  strings: string[] = [];
  plans: Plan[] = [];
  contexts: Context[] = [];

  // Data under the views.
  run: RunInfo | null = null;
  counters: Counters | null = null;
  ops: readonly OpRow[] = [];
  scopes: readonly OpRow[] = [];
  /** The times of ops by the user's line, and by the shape of their results. */
  lines: readonly OpRow[] = [];
  shapes: readonly OpRow[] = [];
  /** Kernels that compute several ops, in the table of ops and with what they consist of, by their names. */
  kernels: readonly OpRow[] = [];
  readonly kernelInfos: KernelInfo[] = [];
  readonly steps: Steps = new Columns(["index", "t0", "t1"], 65536);
  readonly metrics = new Map<string, Metric>();
  readonly memory = new MemoryLog();
  /** When parts were exchanged during the run. */
  exchanges: readonly Moment[] = [];
  tape: Tape | null = null;
  /** The step of the newest measured backward, where the tape is an earlier one that is kept for its NaN. */
  newest: number | null = null;
  /** The collective calls of the last steps on all ranks; null where the run has none. */
  collectives: CollectivesModel | null = null;
  /** What CUDA devices did in the last steps; null where the run has none. */
  devices: DevicesModel | null = null;
  /** What threads did when; null where nothing is known of that. */
  timeline: ThreadsModel | null = null;
  /** What the kernel answered last about an event, a measured range or a search of the timeline. */
  timelineAnswer: TimelineMessage | null = null;
  /** Call stacks of blocks, by context, as far as they were asked for; null where the answer is awaited. */
  readonly stacks = new Map<number, readonly string[] | null>();
  /** The newest answer to what was asked of the tape. */
  answer: TapeAnswer | null = null;
  /** What the nodes of a selected group ran, as the kernel answered: contexts of forward ops, scopes of backward ops. */
  marks: { group: string; contexts: ReadonlySet<number>; ops: ReadonlySet<string>; scopes: ReadonlySet<string | undefined> } | null = null;
  /** The last step whose tape was asked for and is not stored, and why. */
  tapeless: { step: number; why: string } | null = null;
  readonly norms = new NormHistory(this);
  readonly tables = new OpRows((id) => this.string(id));
  /** Increase with every change of that kind; `text` when what is read is renewed, at most four times a second, all at once. */
  readonly versions = { frame: 0, ops: 0, steps: 0, metrics: 0, memory: 0, tape: 0, collectives: 0, devices: 0, timeline: 0, view: 0, text: 0 };

  // The newest frame's head, also while paused.
  latest: { run: RunInfo; counters: Counters } | null = null;
  seq = 0;
  frames = 0;
  /** performance.now() of the newest frame, and frames a second over the recent past. */
  lastFrameAt = 0;
  /** performance.now() of the newest frame with new events. */
  lastEventAt = 0;
  lastKeyframeAt = 0;
  /** Sequence number of the first missing frame while a keyframe is awaited. */
  missing: number | null = null;
  /** A message that this dashboard could not read; shown, never thrown at the page. */
  problem: string | null = null;
  /** What the page knows of the kernel; null where it tells nothing. */
  kernel: "connected" | "restarted" | "disconnected" | null = null;

  paused = false;

  private readonly held = new HeldFrames();
  private askedAt = 0;
  private readonly arrivals = new FrameRate();
  private readonly listeners = new Set<() => void>();

  /** Called after every frame and every change of what is looked at. Returns the unsubscribe function. */
  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Take one custom message; returns what to tell the kernel. */
  receive(content: unknown, buffers: readonly (DataView | ArrayBuffer | Uint8Array)[], now: number): ToKernel[] {
    if (isStepTapeAnswer(content)) {
      this.takeStepTape(content);
      return [];
    }
    if (isTapeAnswer(content)) {
      this.takeAnswer(content);
      this.notify();
      return [];
    }
    if (isTimelineMessage(content)) {
      this.takeTimeline(content, buffers);
      return [];
    }
    if (isStackAnswer(content)) {
      this.stacks.set(content.context, content.lines);
      this.changed();
      return [];
    }
    if (isProposal(content)) {
      this.proposal = content;
      this.changed();
      return [];
    }
    if (!isFrame(content)) return [];
    let frame: Frame;
    try {
      frame = decodeFrame(content, buffers);
    } catch (error) {
      this.problem = error instanceof Error ? error.message : String(error);
      this.notify();
      return content.protocol === PROTOCOL ? [{ type: "ack", seq: content.seq }, { type: "resync" }] : [];
    }
    const replies: ToKernel[] = [{ type: "ack", seq: content.seq }];
    this.lastFrameAt = now;
    if (content.counters.events !== this.latest?.counters.events) this.lastEventAt = now;
    this.arrivals.add(now);
    this.frames++;
    const other = this.latest !== null && this.latest.run.id !== content.run.id;
    const follows = content.seq === this.seq + 1 && this.missing === null && !other;
    const tablesFollow = tableFollows(this.strings, content.strings) && tableFollows(this.plans, content.plans)
      && tableFollows(this.contexts, content.contexts);
    if (!content.keyframe && (!follows || (!this.paused && !tablesFollow))) {
      // Asked again from time to time: a request may wait behind the cell that runs.
      if (this.missing === null || now - this.askedAt >= ASK_AGAIN) {
        this.askedAt = now;
        replies.push({ type: "resync" });
      }
      this.missing ??= this.seq + 1;
      this.latest = { run: content.run, counters: content.counters };
      this.notify();
      return replies;
    }
    this.seq = content.seq;
    this.latest = { run: content.run, counters: content.counters };
    if (content.keyframe) {
      this.missing = null;
      this.problem = null;
      this.lastKeyframeAt = now;
    }
    if (this.paused && this.run !== null) this.held.add(frame);
    else this.apply(frame);
    this.notify();
    return replies;
  }

  /** Frames a second that arrived over the last two seconds. */
  rate(now: number): number {
    return this.arrivals.at(now);
  }

  /** The step that the picture shows; null outside of steps. */
  get step(): number | null {
    return this.counters?.step ?? null;
  }

  /** The run goes on no more. */
  get ended(): boolean {
    return ["finished", "failed"].includes(this.latest?.run.state ?? "");
  }

  /** Steps that the picture is behind the run. */
  get stepsBehind(): number {
    return Math.max(0, (this.latest?.counters.step ?? 0) - (this.step ?? 0));
  }

  /** Numbers are lower bounds: events of this run were dropped. */
  get lower(): boolean {
    return (this.counters?.dropped ?? 0) > 0;
  }

  // ---- what the reader looks at

  pause(paused: boolean): ToKernel[] {
    if (paused === this.paused) return [];
    this.paused = paused;
    const replies: ToKernel[] = [];
    if (!paused) {
      const { frames, incomplete } = this.held.take();
      for (const frame of frames) this.apply(frame);
      if (incomplete) replies.push({ type: "resync" });
    }
    this.changed();
    return replies;
  }

  /** Seconds since run start of the newest data under the views. */
  get now(): number {
    return Math.max(this.memory.series.last("t") ?? 0, this.steps.last("t1") ?? 0, this.run?.state === "recording" ? 0 : 1e-3);
  }

  /** Index of the step that contains t, or null. */
  stepAt(t: number): number | null {
    const at = this.steps.after("t0", t) - 1;
    return at >= 0 && this.steps.column("t1")[at]! >= t ? this.steps.column("index")[at]! : null;
  }

  // ---- names of ids

  string(id: number): string {
    return this.strings[id] ?? "";
  }

  plan(id: number): Plan | undefined {
    return id > 0 ? this.plans[id] : undefined;
  }

  context(id: number): Context | undefined {
    return id > 0 ? this.contexts[id] : undefined;
  }

  // ---- taking frames in

  private apply(frame: Frame): void {
    const { head } = frame;
    if (this.run && this.run.id !== head.run.id) this.reset();
    this.run = head.run;
    this.counters = head.counters;
    intern(this.strings, head.strings);
    intern(this.plans, head.plans);
    intern(this.contexts, head.contexts);
    const { columns } = frame;
    this.applySteps(frame);
    if (takeMetrics(this.metrics, columns, (id) => this.string(id))) this.versions.metrics++;
    const steps = this.steps.length + this.steps.evicted;
    if (columns["op.name"]) this.ops = this.tables.rows(columns, "op", steps);
    if (columns["scope.name"]) this.scopes = this.tables.rows(columns, "scope", steps);
    if (columns["line.name"]) this.lines = this.tables.rows(columns, "line", steps);
    if (columns["shape.name"]) this.shapes = this.tables.rows(columns, "shape", steps);
    takeKernels(this, frame, steps);
    if (columns["op.name"] || columns["scope.name"]) this.versions.ops++;
    if (head.keyframe || columns["alloc.id"] || columns["free.id"] || columns["segment.id"] || columns["release.id"] || columns["memory.t"] || columns["locked.t"] || columns["released.t"]) {
      this.memory.apply(frame);
      this.versions.memory++;
    }
    if (head.exchanges) {
      this.exchanges = head.exchanges;
      this.versions.view++;
    }
    if (head.tape) this.applyTape(head.tape);
    takeSections(this, frame);
    if (head.tape || head.norms) this.newest = head.norms?.step ?? null;
    if (head.norms) {
      this.versions.tape++;
      if (this.norms.take(head.norms)) this.versions.metrics++;
    }
    this.landed = head.part?.[0] === head.part?.[1] && head.run.whole === true;
    if (this.landed && this.following) this.land();
    this.versions.frame++;
  }

  private reset(): void {
    this.ops = this.scopes = this.lines = this.shapes = this.kernels = this.exchanges = [];
    this.kernelInfos.length = 0;
    this.steps.clear();
    this.metrics.clear();
    this.norms.clear();
    this.tables.clear();
    this.memory.clear();
    this.tape = this.answer = this.marks = this.newest = this.collectives = this.devices = this.timeline = this.timelineAnswer = null;
    this.stacks.clear();
    this.tapeless = null;
    this.forget();
    for (const name of Object.keys(this.versions) as (keyof Store["versions"])[]) this.versions[name]++;
  }

  private applySteps({ columns, head }: Frame): void {
    const { "step.index": index, "step.t0": t0, "step.t1": t1 } = columns;
    if (!index || !t0 || !t1) return;
    for (let at = 0; at < index.length; at++) {
      // A keyframe may repeat steps.
      if (head.keyframe && t0[at]! <= (this.steps.last("t0") ?? -Infinity)) continue;
      this.steps.append({ index: index[at]!, t0: t0[at]!, t1: t1[at]! });
    }
    this.versions.steps++;
  }

  private applyTape(tape: Tape): void {
    // An interrupt in the middle of backward() leaves a stump: the last whole tape tells more.
    if (this.tape && this.tape.leaves.length > 0 && tape.leaves.length === 0 && tape.count < this.tape.count / 2) return;
    const same = this.tape?.t === tape.t; // the step may be known only later
    this.tape = tape;
    this.versions.tape++;
    if (!same && this.norms.take(tape)) this.versions.metrics++;
  }

  /** The tape of the step under the cursor, in place of the one that is shown; curves over the steps have its norms already. */
  private takeStepTape({ at, tape, missing }: StepTapeAnswer): void {
    if (tape) this.tape = tape;
    else this.tapeless = { step: at, why: missing ?? "" };
    this.versions.tape++;
    this.changed();
  }

  /** More of the tape that is shown. */
  private takeAnswer(answer: TapeAnswer): void {
    this.answer = answer;
    if (answer.marks) {
      const { group, contexts, ops } = answer.marks;
      this.marks = { group, contexts: new Set(contexts), ops: new Set(ops), scopes: new Set(contexts.map((id) => this.contexts[id]?.scope)) };
      this.versions.timeline++;
    }
    const more = this.tape && withAnswer(this.tape, answer);
    if (!more) return;
    this.tape = more;
    this.versions.tape++;
  }

  private takeTimeline(message: TimelineMessage, buffers: readonly (DataView | ArrayBuffer | Uint8Array)[]): void {
    if (message.pieces && message.arrays && this.timeline) {
      this.timeline.answer(message as TimelineMessage & TimelinePart, decodeColumns(message.arrays, buffers, "timeline")[0]);
      this.versions.timeline++;
    }
    this.timelineAnswer = message;
    this.changed();
  }

  /** For whoever changes a public field of the connection (kernel, span). */
  notify(): void {
    for (const listener of this.listeners) listener();
  }
}
