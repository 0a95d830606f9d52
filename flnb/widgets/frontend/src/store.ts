/**
 * The run as the browser knows it, and what the reader has chosen to look at.
 * Frames go in through `receive`; views read public fields and compare the version counters.
 *
 * Paused, frames are taken in and acknowledged but held back: the data under the views stands still, while
 * `latest` (run and counters of the newest frame) goes on. Resuming applies what was held.
 */

import { Columns } from "./columns.ts";
import { MemoryLog } from "./lifetimes.ts";
import {
  decodeFrame, isFrame, isStackAnswer, isTapeAnswer, PROTOCOL, type Column, type Context, type Counters, type Frame, type Phase, type Plan,
  type RunInfo, type TableDelta, type Tape, type TapeAnswer, type TapeGroup, type TapeNode, type ToKernel,
} from "./protocol.ts";

export interface OpRow {
  name: string;
  family: string;
  count: number;
  /** Nanoseconds. */
  total: number;
  p99: number;
  max: number;
  bytes: number;
  /** Share of the time of all rows, 0..1. */
  share: number;
  /** Nanoseconds a step over the recent past, oldest first; what the sparkline draws. */
  history: readonly number[];
}

export type Steps = Columns<"index" | "t0" | "t1">;
export type Metric = Columns<"step" | "t" | "value">;

/**
 * What is selected. A selection names everything it is known to be: a block knows its op, scope and node.
 * `kind` says what was clicked; views mark what matches with `selectsBlock` and `selectsNode`.
 */
export interface Selection {
  kind: "op" | "scope" | "node" | "nodes" | "leaf" | "block" | "segment" | "step";
  label: string;
  /** First and last id of a row of tape nodes, and the key of their group. */
  nodes?: readonly [number, number];
  group?: string;
  op?: string;
  scope?: string;
  phase?: Phase;
  /** Tape node id; negative is a leaf. */
  node?: number;
  block?: number;
  segment?: number;
  step?: number;
  t?: number;
  bytes?: number;
}

export interface Range { t0: number; t1: number }

const HISTORY = 48;
const HELD_BYTES = 48 * 2 ** 20;
const RECENT_FRAMES = 64;
/** Milliseconds after which a keyframe that has not come is asked for again. */
const ASK_AGAIN = 700;

/** Ops of forward and backward share a name: conv2d_backward, conv2d_input_grad and max_pool2d_grad belong to nodes conv2d and max_pool2d. */
export const baseOp = (name: string): string => name.replace(/((_(input|weight|bias))?_grad|_backward|′|')$/, "");

export class Store {
  // Interned tables; an id is an index.
  strings: string[] = [];
  plans: Plan[] = [];
  contexts: Context[] = [];

  // Data under the views.
  run: RunInfo | null = null;
  counters: Counters | null = null;
  ops: readonly OpRow[] = [];
  scopes: readonly OpRow[] = [];
  readonly steps: Steps = new Columns(["index", "t0", "t1"], 65536);
  readonly metrics = new Map<string, Metric>();
  /** Gradient norm of all parameters, by sampled step. */
  readonly gradientNorm: Metric = new Columns(["step", "t", "value"], 65536);
  readonly memory = new MemoryLog();
  tape: Tape | null = null;
  /** Call stacks of blocks, by context, as far as they were asked for; null where the answer is awaited. */
  readonly stacks = new Map<number, readonly string[] | null>();
  /** The newest answer to what was asked of the tape. */
  answer: TapeAnswer | null = null;
  /** Gradient norm by scope and op at each sampled step, for the history of one node. */
  private readonly norms = new Map<string, Metric>();

  /** Increase with every change of that kind; `text` when what is read is renewed, at most four times a second, all at once. */
  readonly versions = { frame: 0, ops: 0, steps: 0, metrics: 0, memory: 0, tape: 0, view: 0, text: 0 };

  // The newest frame's head, also while paused.
  latest: { run: RunInfo; counters: Counters } | null = null;
  seq = 0;
  frames = 0;
  /** performance.now() of the newest frame, and frames a second over the recent past. */
  lastFrameAt = 0;
  lastKeyframeAt = 0;
  /** Sequence number of the first missing frame while a keyframe is awaited. */
  missing: number | null = null;
  /** A message that this dashboard could not read; shown, never thrown at the page. */
  problem: string | null = null;
  /** What the page knows of the kernel; null where it tells nothing. */
  kernel: "connected" | "restarted" | "disconnected" | null = null;

  // What the reader looks at.
  selection: Selection | null = null;
  search = "";
  paused = false;
  /** The one time cursor (seconds since run start); null follows the newest. */
  cursor: number | null = null;
  /** A fixed range; null follows the newest with `span` seconds. */
  private fixed: Range | null = null;
  /** All of a recording that has ended is there. */
  landed = false;
  /** Seconds seen while following; 0 chooses six steps. */
  span = 0;

  private held: Frame[] = [];
  private heldBytes = 0;
  private heldIncomplete = false;
  private opNodes: { key: string; nodes: ReadonlySet<number> } = { key: "", nodes: new Set() };
  private askedAt = 0;
  private readonly arrivals: number[] = [];
  private readonly histories = new Map<string, { count: number; total: number; steps: number; values: number[] }>();
  private readonly listeners = new Set<() => void>();

  /** Called after every frame and every change of what is looked at. Returns the unsubscribe function. */
  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Take one custom message; returns what to tell the kernel. */
  receive(content: unknown, buffers: readonly (DataView | ArrayBuffer | Uint8Array)[], now: number): ToKernel[] {
    if (isTapeAnswer(content)) {
      this.takeAnswer(content);
      this.notify();
      return [];
    }
    if (isStackAnswer(content)) {
      this.stacks.set(content.context, content.lines);
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
    this.arrivals.push(now);
    if (this.arrivals.length > RECENT_FRAMES) this.arrivals.shift();
    this.frames++;
    const other = this.latest !== null && this.latest.run.id !== content.run.id;
    const follows = content.seq === this.seq + 1 && this.missing === null && !other;
    const tablesFollow = this.tableFollows(this.strings, content.strings) && this.tableFollows(this.plans, content.plans)
      && this.tableFollows(this.contexts, content.contexts);
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
    if (this.paused && this.run !== null) this.hold(frame);
    else this.apply(frame);
    this.notify();
    return replies;
  }

  /** Frames a second that arrived over the last two seconds. */
  rate(now: number): number {
    const recent = this.arrivals.filter((at) => now - at < 2000);
    return recent.length < 2 ? 0 : ((recent.length - 1) * 1000) / Math.max(now - recent[0]!, 1);
  }

  /** The step that the picture shows; null outside of steps. */
  get step(): number | null {
    return this.counters?.step ?? null;
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
      const { held, heldIncomplete } = this;
      this.held = [];
      this.heldBytes = 0;
      this.heldIncomplete = false;
      for (const frame of held) this.apply(frame);
      if (heldIncomplete) replies.push({ type: "resync" });
    }
    this.changed();
    return replies;
  }

  select(selection: Selection | null): void {
    this.selection = selection;
    this.changed();
  }

  setSearch(text: string): void {
    this.search = text.trim().toLowerCase();
    this.changed();
  }

  /** A cursor outside of the range takes the range along. */
  setCursor(t: number | null): void {
    if (t !== null && this.fixed === null) this.fixed = this.range;
    if (t === null) this.fixed = null;
    else if (this.fixed && (t < this.fixed.t0 || t > this.fixed.t1)) {
      const span = this.fixed.t1 - this.fixed.t0;
      const t0 = Math.max(0, t - span / 2);
      this.fixed = { t0, t1: t0 + span };
    }
    this.cursor = t;
    this.changed();
  }

  setRange(t0: number, t1: number): void {
    const least = 1e-5;
    this.fixed = { t0: Math.max(0, Math.min(t0, t1 - least)), t1 };
    this.changed();
  }

  /** The newest again; of a recording that has ended, where most is live. */
  follow(): void {
    this.fixed = null;
    this.cursor = null;
    if (this.landed) this.land();
    this.changed();
  }

  get following(): boolean {
    return this.fixed === null && this.cursor === null;
  }

  /** Seconds since run start of the newest data under the views. */
  get now(): number {
    return Math.max(this.memory.series.last("t") ?? 0, this.steps.last("t1") ?? 0, this.run?.state === "recording" ? 0 : 1e-3);
  }

  /** The one time range that time views show. */
  get range(): Range {
    if (this.fixed) return this.fixed;
    const t1 = this.now;
    const span = this.span || this.automaticSpan();
    return { t0: Math.max(0, t1 - span), t1: Math.max(t1, span) };
  }

  /** The time that block map and details describe: the cursor, or the newest. */
  get at(): number {
    return this.cursor ?? this.now;
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

  /** Whether a text matches the search; everything matches an empty one. */
  matches(...texts: (string | undefined)[]): boolean {
    return this.search === "" || texts.some((text) => text !== undefined && text.toLowerCase().includes(this.search));
  }

  // ---- selections

  selectionOfBlock(row: number): Selection {
    const { lifetimes } = this.memory;
    const plan = this.plan(lifetimes.plan[row]!);
    const context = this.context(lifetimes.context[row]!);
    const node = lifetimes.node[row]!;
    const step = this.stepAt(lifetimes.start[row]!);
    const id = lifetimes.id[row]!;
    return {
      kind: "block", label: context?.scope ? `${context.scope}${plan ? `.${plan.op}` : ""}` : plan?.op ?? `block #${id}`,
      block: id, segment: lifetimes.segment[row]!, t: lifetimes.start[row]!, bytes: lifetimes.size[row]!,
      ...(plan ? { op: plan.op } : {}), ...(context ? { scope: context.scope, phase: context.phase } : {}),
      ...(node ? { node } : {}), ...(step !== null ? { step } : {}),
    };
  }

  selectionOfNode(node: TapeNode, tape: Tape): Selection {
    const plan = this.plan(node.plan);
    const context = this.context(node.context);
    return {
      kind: "node", label: plan?.op ?? `node #${node.id}`, node: node.id, step: tape.step, bytes: node.saved,
      ...(plan ? { op: plan.op } : {}), ...(context ? { scope: context.scope } : {}),
    };
  }

  /** Whether the block in this row belongs to the selection. */
  selectsBlock(row: number, selection = this.selection): boolean {
    if (!selection) return false;
    const { lifetimes } = this.memory;
    switch (selection.kind) {
      case "block": return lifetimes.id[row] === selection.block;
      case "segment": return lifetimes.segment[row] === selection.segment;
      case "nodes": return within(lifetimes.node[row]!, selection.nodes);
      case "node": case "leaf": return selection.node !== undefined && selection.node !== 0 && lifetimes.node[row] === selection.node;
      case "op": return selection.op !== undefined && this.plan(lifetimes.plan[row]!)?.op === selection.op;
      case "scope": return inScope(this.context(lifetimes.context[row]!)?.scope, selection.scope);
      case "step": return selection.step !== undefined && this.stepAt(lifetimes.start[row]!) === selection.step;
    }
  }

  /** Whether a tape node belongs to the selection. */
  selectsNode(node: TapeNode, selection = this.selection): boolean {
    if (!selection) return false;
    switch (selection.kind) {
      case "node": case "leaf": return node.id === selection.node;
      case "nodes": return within(node.id, selection.nodes);
      case "block":
        // A block's node belongs to its own step's tape; another step's tape shows the same op of the same scope.
        if (selection.node !== undefined && selection.step === this.tape?.step) return node.id === selection.node;
        return selection.op !== undefined && this.plan(node.plan)?.op === baseOp(selection.op)
          && this.context(node.context)?.scope === selection.scope;
      case "op":
        return selection.op !== undefined && (this.plan(node.plan)?.op === baseOp(selection.op) || this.nodesOfOp(selection.op).has(node.id));
      case "scope": return inScope(this.context(node.context)?.scope, selection.scope);
      default: return false;
    }
  }

  /** Whether a closed group of tape nodes is, holds, or belongs to what is selected. */
  selectsGroup(group: TapeGroup, selection = this.selection): boolean {
    if (!selection) return false;
    switch (selection.kind) {
      case "node": case "leaf": case "block": return selection.node !== undefined && selection.node > 0 && within(selection.node, group.ids);
      case "nodes": return selection.nodes !== undefined && selection.nodes[0] <= group.ids[1] && group.ids[0] <= selection.nodes[1];
      case "op": return selection.op !== undefined && group.ops.some(([op]) => op === baseOp(selection.op!));
      case "scope": return group.path !== "" && (inScope(group.path, selection.scope) || inScope(selection.scope, group.path));
      default: return false;
    }
  }

  /** Tape nodes that an op worked for, as its allocations tell: a composite's node has another name than its ops. */
  private nodesOfOp(op: string): ReadonlySet<number> {
    const key = `${op} ${this.versions.tape}`;
    if (this.opNodes.key !== key) {
      const nodes = new Set<number>();
      const { lifetimes } = this.memory;
      for (let row = 0; row < lifetimes.used; row++) {
        if (lifetimes.node[row]! > 0 && this.plan(lifetimes.plan[row]!)?.op === op) nodes.add(lifetimes.node[row]!);
      }
      this.opNodes = { key, nodes };
    }
    return this.opNodes.nodes;
  }

  /** Gradient norm of a node (by scope and op) over the sampled steps; the value is NaN where the gradient was bad. */
  normHistory(node: TapeNode): Metric | undefined {
    return this.norms.get(this.normKey(node));
  }

  // ---- taking frames in

  private apply(frame: Frame): void {
    const { head } = frame;
    if (this.run && this.run.id !== head.run.id) this.reset();
    this.run = head.run;
    this.counters = head.counters;
    this.intern(this.strings, head.strings);
    this.intern(this.plans, head.plans);
    this.intern(this.contexts, head.contexts);
    const { columns } = frame;
    this.applySteps(frame);
    this.applyMetrics(columns);
    if (columns["op.name"]) {
      this.ops = this.rows(columns, "op");
      this.versions.ops++;
    }
    if (columns["scope.name"]) {
      this.scopes = this.rows(columns, "scope");
      this.versions.ops++;
    }
    if (head.keyframe || columns["alloc.id"] || columns["free.id"] || columns["segment.id"] || columns["release.id"] || columns["memory.t"]) {
      this.memory.apply(frame);
      this.versions.memory++;
    }
    if (head.tape) this.applyTape(head.tape);
    this.landed = head.part?.[0] === head.part?.[1] && head.run.whole === true;
    if (this.landed && this.following) this.land();
    this.versions.frame++;
  }

  /** A recording that has ended opens where most is live, in the steps around that. */
  private land(): void {
    const { t, allocated } = this.memory.peak;
    if (allocated === 0) return;
    const { t0, t1 } = this.range;
    const begin = Math.max(0, Math.min(t - (t1 - t0) / 2, this.now - (t1 - t0)));
    this.fixed = { t0: begin, t1: begin + t1 - t0 };
    this.cursor = t;
    this.versions.view++;
  }

  private hold(frame: Frame): void {
    this.held.push(frame);
    this.heldBytes += frame.bytes;
    // A long pause must not fill the page's memory: the oldest frames give up their memory events (the keyframe asked
    // for on resuming repairs them) and keep what cannot be had again: tables, steps, metrics, tape.
    for (let at = 0; this.heldBytes > HELD_BYTES && at < this.held.length; at++) {
      const old = this.held[at]!;
      if (old.bytes === 0) continue;
      const kept: Record<string, Column> = {};
      for (const [name, column] of Object.entries(old.columns)) if (/^(step|metric)\./.test(name)) kept[name] = column.slice();
      this.heldBytes -= old.bytes;
      this.held[at] = { head: { ...old.head, keyframe: false }, columns: kept, bytes: 0 };
      this.heldIncomplete = true;
    }
  }

  private reset(): void {
    this.ops = this.scopes = [];
    this.steps.clear();
    this.metrics.clear();
    this.gradientNorm.clear();
    this.norms.clear();
    this.histories.clear();
    this.memory.clear();
    this.tape = this.answer = null;
    this.stacks.clear();
    this.selection = null;
    this.cursor = null;
    this.fixed = null;
    for (const name of Object.keys(this.versions) as (keyof Store["versions"])[]) this.versions[name]++;
  }

  private tableFollows(table: readonly unknown[], delta: TableDelta<unknown> | undefined): boolean {
    return !delta || delta.first <= Math.max(table.length, 1);
  }

  private intern<T>(table: T[], delta: TableDelta<T> | undefined): void {
    delta?.items.forEach((item, at) => (table[delta.first + at] = item));
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

  private applyMetrics(columns: Record<string, Column>): void {
    const { "metric.name": names, "metric.step": steps, "metric.t": times, "metric.value": values } = columns;
    if (!names || !steps || !times || !values) return;
    for (let at = 0; at < names.length; at++) {
      const name = this.string(names[at]!);
      const metric = entry(this.metrics, name, newMetric);
      if (times[at]! <= (metric.last("t") ?? -Infinity)) continue;
      metric.append({ step: steps[at]!, t: times[at]!, value: values[at]! });
    }
    this.versions.metrics++;
  }

  private applyTape(tape: Tape): void {
    // An interrupt in the middle of backward() leaves a stump: the last whole tape tells more.
    if (this.tape && this.tape.leaves.length > 0 && tape.leaves.length === 0 && tape.count < this.tape.count / 2) return;
    const same = this.tape?.step === tape.step && this.tape.t === tape.t;
    this.tape = tape;
    this.versions.tape++;
    if (same) return;
    if ((tape.gradient !== null || tape.gradient_bad) && tape.t > (this.gradientNorm.last("t") ?? -Infinity)) {
      this.gradientNorm.append({ step: tape.step, t: tape.t, value: tape.gradient_bad ? NaN : tape.gradient! });
      this.versions.metrics++;
    }
    for (const node of tape.nodes) {
      if (node.norm === null && !node.bad) continue;
      entry(this.norms, this.normKey(node), newMetric).append({ step: tape.step, t: tape.t, value: node.bad ? NaN : node.norm ?? NaN });
    }
  }

  /** More of the tape that is shown. While the picture is paused the kernel may have gone on to another step's. */
  private takeAnswer(answer: TapeAnswer): void {
    this.answer = answer;
    const { tape } = this;
    if (!tape || tape.structure !== answer.structure || tape.step !== answer.step) return;
    const merged = <T>(old: T[], added: T[], id: (item: T) => number | string): T[] => [...new Map([...old, ...added].map((item) => [id(item), item])).values()];
    this.tape = {
      ...tape, levels: merged(tape.levels, answer.levels, (level) => level.key), nodes: merged(tape.nodes, answer.nodes, (node) => node.id),
      leaves: merged(tape.leaves, answer.leaves, (leaf) => leaf.id),
    };
    this.versions.tape++;
  }

  private normKey(node: TapeNode): string {
    return `${this.context(node.context)?.scope ?? ""}\0${this.plan(node.plan)?.op ?? ""}`;
  }

  private rows(columns: Record<string, Column>, prefix: "op" | "scope"): OpRow[] {
    const column = (name: string): Column => columns[`${prefix}.${name}`] ?? new Float64Array(0);
    const [names, families, counts, totals] = [column("name"), column("family"), column("count"), column("total")];
    const [p99, max, bytes] = [column("p99"), column("max"), column("bytes")];
    let all = 0;
    for (const total of totals) all += total;
    return Array.from(names, (id, at): OpRow => {
      const name = this.string(id);
      const total = totals[at] ?? 0;
      const count = counts[at] ?? 0;
      return {
        name, family: this.string(families[at] ?? 0), count, total, p99: p99[at] ?? 0, max: max[at] ?? 0, bytes: bytes[at] ?? 0,
        share: all > 0 ? total / all : 0, history: this.history(`${prefix}\0${name}`, count, total),
      };
    });
  }

  /** What one row cost a step since its table came last. */
  private history(key: string, count: number, total: number): readonly number[] {
    const steps = this.steps.length + this.steps.evicted;
    const known = entry(this.histories, key, () => ({ count: 0, total: 0, steps: 0, values: [] }));
    if (count > known.count && (steps > known.steps || steps === 0)) {
      // The first table has everything since the run began, warm-up included: it is the start, not a sample.
      if (known.count > 0) known.values.push((total - known.total) / (steps > known.steps ? steps - known.steps : count - known.count));
      if (known.values.length > HISTORY) known.values.shift();
      Object.assign(known, { count, total, steps });
    }
    return known.values;
  }

  private automaticSpan(): number {
    const { steps } = this;
    const n = Math.min(steps.length, 6);
    if (n < 2) return Math.max(this.now, 0.5);
    const [first, last] = [steps.column("t0")[steps.length - n]!, steps.last("t1")!];
    return Math.max((6 * (last - first)) / n, 1e-3);
  }

  private changed(): void {
    this.versions.view++;
    this.notify();
  }

  /** For whoever changes a public field of the connection (kernel, span). */
  notify(): void {
    for (const listener of this.listeners) listener();
  }
}

const newMetric = (): Metric => new Columns(["step", "t", "value"], 65536);

function entry<K, V>(map: Map<K, V>, key: K, make: () => V): V {
  let value = map.get(key);
  if (value === undefined) map.set(key, (value = make()));
  return value;
}

const within = (id: number, range: readonly [number, number] | undefined): boolean => range !== undefined && range[0] <= id && id <= range[1];

/** Whether `scope` is `outer` or lies inside it: "net.block1.conv" in "net.block1". */
export function inScope(scope: string | undefined, outer: string | undefined): boolean {
  return scope !== undefined && outer !== undefined && (scope === outer || scope.startsWith(outer + "."));
}
