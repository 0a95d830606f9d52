/**
 * A digits CNN in training, simulated through the real protocol: what tests and the developer page run on.
 * Ops, a small caching manager and gradients follow one clock, so all views agree with each other.
 */

import type { ArrayType, Context, Counters, FrameHead, Phase, Plan, RunState, Tape, TapeLeaf } from "../protocol.ts";
import { type Block, Caching, type SegmentState } from "./caching.ts";
import { tapeFrom, type Flat } from "./levels.ts";
import { pack, Table } from "./packing.ts";
import { generator, layers } from "./program.ts";

const MiB = 2 ** 20;

interface Lifetime { id: number; start: number; end: number; segment: number; offset: number; size: number; requested: number; category: number; plan: number; context: number; node: number }
interface OpStatistics { family: string; count: number; total: number; max: number; bytes: number; recent: number[] }

export interface SimulationOptions {
  seed?: number;
  steps?: number;
  capacity?: number | null;
  /** A step whose gradients become NaN in net.stem.bn. */
  nanStep?: number;
  /** Events lost so far, as the counters would tell. */
  dropped?: number;
  name?: string;
}

export class Simulation {
  /** Seconds since run start. */
  t = 0;
  step = 0;
  state: RunState = "recording";
  error: string | null = null;
  dropped: number;
  runId = 1;
  private seq = 0;
  private readonly random: () => number;
  private readonly options: SimulationOptions;
  private readonly strings = new Table<string>((text) => text);
  private readonly plans = new Table<Plan>((plan) => JSON.stringify(plan));
  private readonly contexts = new Table<Context>((context) => context.scope + context.phase);
  private readonly manager = new Caching((segment) => this.newSegments.push({ segment, t: this.t }));
  private readonly newSegments: { segment: SegmentState; t: number }[] = [];
  private readonly allSegments: { segment: SegmentState; t: number }[] = [];
  private readonly live = new Map<number, Lifetime>();
  private readonly finished: Lifetime[] = [];
  private newAllocs: Lifetime[] = [];
  private newFrees: Lifetime[] = [];
  private readonly ops = new Map<string, OpStatistics>();
  private readonly scopes = new Map<string, OpStatistics>();
  private newSteps: [number, number, number][] = [];
  private newMetrics: [string, number, number, number][] = [];
  private tape: Tape | null = null;
  private tapeNews = false;
  private lastTable = -1;
  private lastSample = -1;
  private events = 0;
  private sent = { strings: 0, plans: 0, contexts: 0 };
  private queue: Generator<void> | null = null;
  private readonly gradients = new Map<string, number>();

  constructor(options: SimulationOptions = {}) {
    this.options = options;
    this.random = generator(options.seed ?? 20240611);
    this.dropped = options.dropped ?? 0;
  }

  /** Let the program run for `seconds`. */
  advance(seconds: number): void {
    const until = this.t + seconds;
    while (this.t < until && this.state === "recording") {
      this.queue ??= this.train();
      if (this.queue.next().done) {
        this.state = "finished";
        break;
      }
    }
    if (this.state !== "recording") this.t = Math.max(this.t, until - seconds);
  }

  /** The next message, exactly as the hub sends it. */
  frame(keyframe = this.seq === 0): { content: FrameHead; buffers: [DataView] } {
    const arrays: Record<string, { type: ArrayType; values: number[] }> = {};
    const put = (name: string, type: ArrayType, values: number[]): void => void (arrays[name] = { type, values });
    if (keyframe) this.sent = { strings: 0, plans: 0, contexts: 0 };
    if (keyframe || this.t - this.lastTable >= 0.25) {
      this.lastTable = this.t;
      this.putTable(put, "op", this.ops);
      this.putTable(put, "scope", this.scopes);
    }
    if (this.newSteps.length) (["index", "t0", "t1"] as const).forEach((name, at) => put(`step.${name}`, "f64", this.newSteps.map((row) => row[at]!)));
    if (this.newMetrics.length) {
      put("metric.name", "u32", this.newMetrics.map((row) => this.strings.id(row[0])));
      (["step", "t", "value"] as const).forEach((name, at) => put(`metric.${name}`, "f64", this.newMetrics.map((row) => row[at + 1] as number)));
    }
    const recent = keyframe ? this.finished.slice(-4096) : this.newFrees;
    const allocs = keyframe ? [...recent, ...this.live.values()].sort((one, two) => one.start - two.start) : this.newAllocs;
    if (allocs.length) {
      put("alloc.id", "f64", allocs.map((row) => row.id));
      put("alloc.t", "f64", allocs.map((row) => row.start));
      put("alloc.segment", "u32", allocs.map((row) => row.segment));
      put("alloc.offset", "f64", allocs.map((row) => row.offset));
      put("alloc.size", "f64", allocs.map((row) => row.size));
      put("alloc.requested", "f64", allocs.map((row) => row.requested));
      put("alloc.category", "u8", allocs.map((row) => row.category));
      put("alloc.plan", "u32", allocs.map((row) => row.plan));
      put("alloc.context", "u32", allocs.map((row) => row.context));
      put("alloc.node", "f64", allocs.map((row) => row.node));
    }
    if (recent.length) {
      put("free.id", "f64", recent.map((row) => row.id));
      put("free.t", "f64", recent.map((row) => row.end));
    }
    this.allSegments.push(...this.newSegments);
    const segments = keyframe ? this.allSegments : this.newSegments;
    if (segments.length) {
      put("segment.id", "u32", segments.map(({ segment }) => segment.id));
      put("segment.t", "f64", segments.map(({ t }) => t));
      put("segment.size", "f64", segments.map(({ segment }) => segment.size));
      put("segment.address", "f64", segments.map(({ segment }) => segment.address));
    }
    const packed = pack(arrays);
    const content: FrameHead = {
      type: "frame", protocol: 1, seq: ++this.seq, keyframe,
      run: {
        id: this.runId, name: this.options.name ?? "digits-cnn", state: this.state, error: this.error, backend: "numpy", manager: "caching",
        device: "host", capacity: this.options.capacity === undefined ? 48 * MiB : this.options.capacity, min_block: 1024,
      },
      counters: this.counters(), arrays: packed.arrays,
      ...this.delta("strings", this.strings), ...this.delta("plans", this.plans), ...this.delta("contexts", this.contexts),
      ...(this.tape && (keyframe || this.tapeNews) ? { tape: this.tape } : {}),
    };
    this.newAllocs = [];
    this.newFrees = [];
    this.newSegments.length = 0;
    this.newSteps = [];
    this.newMetrics = [];
    this.tapeNews = false;
    return { content, buffers: [packed.buffer] };
  }

  private counters(): Counters {
    return {
      t: this.t, step: this.step || null, steps_total: this.options.steps ?? 600, events: this.events,
      events_per_s: this.t ? this.events / this.t : 0, dropped: this.dropped,
      dropped_first_step: this.dropped ? 301 : null, dropped_last_step: this.dropped ? 303 : null,
      telemetry_share: 0.018, buffer_used: 1.2 * MiB, buffer_capacity: 16 * MiB, tick_hz: 30, step_seconds: 0.0183, small_bytes: 4096,
    };
  }

  private delta<T>(name: "strings" | "plans" | "contexts", table: Table<T>): Partial<FrameHead> {
    const first = this.sent[name];
    if (table.items.length === first) return {};
    this.sent[name] = table.items.length;
    return { [name]: { first, items: table.items.slice(first) } };
  }

  private putTable(put: (name: string, type: ArrayType, values: number[]) => void, prefix: string, table: Map<string, OpStatistics>): void {
    const rows = [...table.entries()];
    put(`${prefix}.name`, "u32", rows.map(([name]) => this.strings.id(name)));
    put(`${prefix}.family`, "u32", rows.map(([, row]) => this.strings.id(row.family)));
    put(`${prefix}.count`, "f64", rows.map(([, row]) => row.count));
    put(`${prefix}.total`, "f64", rows.map(([, row]) => row.total));
    put(`${prefix}.p99`, "f64", rows.map(([, row]) => [...row.recent].sort((a, b) => a - b)[Math.floor(row.recent.length * 0.99)] ?? 0));
    put(`${prefix}.max`, "f64", rows.map(([, row]) => row.max));
    put(`${prefix}.bytes`, "f64", rows.map(([, row]) => row.bytes));
  }

  private normal(): number {
    return Math.sqrt(-2 * Math.log(this.random() + 1e-12)) * Math.cos(2 * Math.PI * this.random());
  }

  private plan(op: string, family: string, shape: number[]): number {
    return this.plans.id({ op, family, shape, dtype: "float32", nbytes: 4 * shape.reduce((product, dim) => product * dim, 1) });
  }

  private allocate(bytes: number, category: number, plan: number, context: number, node: number): Block {
    const block = this.manager.allocate(bytes);
    const row: Lifetime = {
      id: block.id, start: this.t, end: Infinity, segment: block.segment.id, offset: block.offset, size: block.size, requested: bytes,
      category, plan, context, node,
    };
    this.live.set(row.id, row);
    this.newAllocs.push(row);
    this.events++;
    return block;
  }

  private free(block: Block): void {
    const row = this.live.get(block.id)!;
    row.end = this.t;
    this.live.delete(block.id);
    this.finished.push(row);
    if (this.finished.length > 9000) this.finished.splice(0, 4500);
    this.newFrees.push(row);
    this.manager.free(block);
    this.events += 2;
  }

  private *op(name: string, family: string, scope: string, microseconds: number, bytes: number): Generator<void> {
    const slow = this.random() > 0.985 ? 2.4 : 1;
    const ns = microseconds * 1000 * slow * (1 + 0.06 * Math.abs(this.normal()));
    this.t += ns / 1e9 + 8e-6;
    this.events++;
    for (const [table, key, kind] of [[this.ops, name, family], [this.scopes, scope, family]] as const) {
      let row = table.get(key);
      if (!row) table.set(key, (row = { family: kind, count: 0, total: 0, max: 0, bytes: 0, recent: [] }));
      row.count++;
      row.total += ns;
      row.max = Math.max(row.max, ns);
      row.bytes += bytes;
      row.recent.push(ns);
      if (row.recent.length > 400) row.recent.shift();
    }
    yield;
  }

  private *train(): Generator<void> {
    const { contexts } = this;
    const sizeOf = (shape: number[]): number => 4 * shape.reduce((product, dim) => product * dim, 1);
    const parameters = layers.flatMap((layer) => (layer.parameters ?? []).map(([name, shape]) => ({ name: `${layer.scope}.${name}`, shape, scope: layer.scope })));
    for (const { name, shape } of parameters) {
      this.strings.id(name);
      const context = contexts.id({ scope: name.replace(/\.\w+$/, ""), phase: "other" });
      this.allocate(sizeOf(shape), 1, this.plan("asarray", "memory", shape), context, 0);
      this.t += 2e-5;
    }
    for (const { shape } of parameters) {
      for (let moment = 0; moment < 2; moment++) this.allocate(sizeOf(shape), 4, this.plan("zeros", "memory", shape), contexts.id({ scope: "adam", phase: "optimizer" }), 0);
    }
    let node = 0;
    for (this.step = 1; this.step <= (this.options.steps ?? 600); this.step++) {
      const begin = this.t;
      const held: (Block | null)[] = [];
      const at = (scope: string, phase: Phase): number => contexts.id({ scope, phase });
      const forward: number[] = [];
      const backward: number[] = [];
      const input = this.allocate(sizeOf([256, 1, 8, 8]), 5, this.plan("take", "movement", [256, 1, 8, 8]), at("", "other"), 0);
      yield* this.op("take", "movement", "", 60, input.size);
      const first = node;
      for (const layer of layers) {
        node++;
        const plan = this.plan(layer.op, layer.family, layer.shape);
        const context = at(layer.scope, "forward");
        const start = this.t;
        const temporary = layer.temporary ? this.allocate(layer.temporary, 6, this.plan("im2col", "movement", [layer.temporary / 4]), context, node) : null;
        held.push(sizeOf(layer.shape) >= 1024 && layer.op !== "reshape" ? this.allocate(sizeOf(layer.shape), 3, plan, context, node) : null);
        yield* this.op(layer.op, layer.family, layer.scope, layer.us, sizeOf(layer.shape));
        if (temporary) this.free(temporary);
        forward.push((this.t - start) * 1e9);
      }
      const gradientBlocks: Block[] = [];
      const bad = this.step === this.options.nanStep;
      let upstream: Block | null = null;
      for (let index = layers.length - 1; index >= 0; index--) {
        const layer = layers[index]!;
        const context = at(layer.scope, "backward");
        const name = `${layer.op}_backward`;
        const start = this.t;
        const inputShape = index ? layers[index - 1]!.shape : [256, 1, 8, 8];
        const temporary = layer.temporary ? this.allocate(layer.temporary, 6, this.plan("im2col", "movement", [layer.temporary / 4]), context, first + index + 1) : null;
        for (const [, shape] of layer.parameters ?? []) gradientBlocks.push(this.allocate(Math.max(512, sizeOf(shape)), 2, this.plan(name, layer.family, shape), context, first + index + 1));
        const gradient = sizeOf(inputShape) >= 1024 ? this.allocate(sizeOf(inputShape), 2, this.plan(name, layer.family, inputShape), context, first + index + 1) : null;
        yield* this.op(name, layer.family, layer.scope, layer.us * (layer.op === "conv2d" ? 1.9 : 1.25), sizeOf(inputShape));
        if (temporary) this.free(temporary);
        if (upstream) this.free(upstream);
        upstream = gradient;
        const output = held[index];
        if (output) this.free(output);
        backward[index] = (this.t - start) * 1e9;
      }
      if (upstream) this.free(upstream);
      for (const { shape } of parameters) yield* this.op("adam_", "optimizer", "adam", 12 + sizeOf(shape) / 4000, sizeOf(shape));
      for (const block of gradientBlocks) this.free(block);
      this.free(input);
      this.t += 9e-4;
      this.newSteps.push([this.step, begin, this.t]);
      const loss = 0.035 + 2.3 * Math.exp(-this.step / 70) * (1 + 0.1 * this.normal()) + 0.004 * Math.abs(this.normal());
      this.newMetrics.push(["loss", this.step, this.t, loss]);
      if (this.step % 20 === 0) this.newMetrics.push(["test accuracy", this.step, this.t, 0.982 * (1 - Math.exp(-this.step / 60))]);
      if (this.t - this.lastSample > 0.2 || bad) this.sample(first, forward, backward, bad);
    }
  }

  /** The tape of this step, with gradient norms that decay as the loss does. */
  private sample(first: number, forward: number[], backward: number[], bad: boolean): void {
    this.lastSample = this.t;
    const decay = 0.04 + Math.exp(-this.step / 120);
    const origin = layers.findIndex((layer) => layer.scope === "net.stem.bn");
    const leaves: TapeLeaf[] = [{ id: -1, name: "x", parameter: false, plan: this.plan("take", "movement", [256, 1, 8, 8]), norm: null, bad: 0 }];
    const nodes = layers.map((layer, index): Flat => {
      const own = (layer.parameters ?? []).map(([name, shape]) => {
        const numel = shape.reduce((product, dim) => product * dim, 1);
        const spoiled = bad && index <= origin;
        leaves.push({
          id: -1 - leaves.length, name: `${layer.scope}.${name}`, parameter: true, plan: this.plan("asarray", "memory", shape),
          norm: spoiled ? null : decay * 0.05 * (1 + 0.2 * this.random()), bad: spoiled ? Math.min(3, numel) : 0,
        });
        return -leaves.length;
      });
      const key = layer.scope + layer.op;
      const norm = (this.gradients.get(key) ?? 0.02 * (1 + index / 4)) * (1 + 0.05 * this.normal());
      this.gradients.set(key, Math.max(1e-4, norm));
      const numel = layer.shape.reduce((product, dim) => product * dim, 1);
      // A node's norm is that of the gradient of its output: what the origin's backward spoils stands at the node before it.
      const spoiled = bad && index < origin;
      const node = {
        id: first + index + 1, plan: this.plan(layer.op, layer.family, layer.shape), context: this.contexts.id({ scope: layer.scope, phase: "forward" }),
        parents: [index ? first + index : -1, ...own], forward_ns: forward[index]!, backward_ns: backward[index]!,
        saved: ["conv2d", "batch_norm", "relu", "matmul", "max_pool2d", "log_softmax"].includes(layer.op) ? 4 * numel : 0,
        norm: spoiled ? null : norm * (layer.op === "nll_loss" ? 20 : 1) * decay, bad: spoiled ? 49152 : 0, numel,
      };
      return { node, op: layer.op, family: layer.family, scope: layer.scope };
    });
    this.tape = tapeFrom(nodes, leaves, { step: this.step, t: this.t });
    this.tapeNews = true;
  }
}
