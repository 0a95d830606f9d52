/** Steps on a GPU, or on an emulated one, simulated through the real protocol: streams, events, an idle device. */

import type { ArrayType, DevicesSection, FrameHead, Plan } from "../protocol.ts";
import { pack } from "./packing.ts";

const MiB = 2 ** 20;
const FORWARD: readonly (readonly [string, string, string, string, number])[] = [ // op, family, kernel, scope, ms
  ["conv2d", "matmul", "gemm_f32_128x64", "net.block1.conv", 0.31], ["batch_norm", "norm", "bn_fwd_f32", "net.block1.bn", 0.07], ["relu", "elementwise", "relu_f32", "net.block1", 0.05],
  ["conv2d", "matmul", "gemm_f32_128x64", "net.block2.conv", 0.38], ["batch_norm", "norm", "bn_fwd_f32", "net.block2.bn", 0.06], ["relu", "elementwise", "relu_f32", "net.block2", 0.04],
  ["take", "movement", "gather_f32", "net.head", 0.05], ["matmul", "matmul", "gemm_f32_64x64", "net.head", 0.12], ["softmax", "norm", "softmax_f32", "loss", 0.04], ["sum", "reduction", "block_sum_f32", "loss", 0.03],
];
/** The op in which the host spends long: the device has nothing to do meanwhile. */
const SLOW = 6;
const SLOW_MS = 1.4;
const CALL = 0.06;

export interface DeviceOptions { emulated?: boolean; steps?: number }

interface Task { seq: number; route: number; nbytes: number; stream: number; plan: number; context: number; kernel: number; t0: number; t1: number; ran0: number; ran1: number; slot: number }
interface Event { seq: number; event: number; awaited: number; stream: number; t: number }

export class DeviceSimulation {
  private readonly tasks: Task[] = [];
  private readonly events: Event[] = [];
  private readonly waits: { t0: number; t1: number }[] = [];
  private readonly gaps: DevicesSection["gaps"] = [];
  private readonly ops: { t0: number; t1: number; plan: number; context: number }[] = [];
  private readonly blocks: { id: number; offset: number; size: number; category: number; plan: number; context: number; streams: number; begin: number; end: number; until: number; event: number; on: number }[] = [];
  private readonly uses: [number, number][] = [];
  private readonly steps: DevicesSection["steps"] = [];
  private readonly plans: Plan[] = [{ op: "", family: "", shape: [], dtype: "", nbytes: 0 }];
  private readonly contexts: { scope: string; phase: "forward" | "backward" | "optimizer" | "other" }[] = [{ scope: "", phase: "other" }];
  private readonly kernels: DevicesSection["kernels"] = [];
  private t = 5;
  private busy = [0, 0];
  private seq = 8000;
  private event = 28;
  private sent = 0;

  constructor(private readonly options: DeviceOptions = {}) {
    for (let at = 0; at < 4; at++) this.block(at * 3 * MiB, 3 * MiB, at < 2 ? 1 : 4, 0, "", 1, 0);
    for (let step = 0; step < (options.steps ?? 3); step++) this.step(step + 409);
    const order = [...this.tasks].sort((one, two) => one.ran1 - two.ran1);
    order.forEach((task, slot) => (task.slot = options.emulated ? slot : -1));
  }

  frame(): { content: FrameHead; buffers: [DataView] } {
    const arrays: Record<string, { type: ArrayType; values: number[] }> = {};
    const put = (prefix: string, names: readonly string[], rows: readonly object[]): void => {
      for (const name of names) arrays[`devices.${prefix}${name}`] = { type: "f64", values: rows.map((row) => (row as Record<string, number>)[name] ?? 0) };
    };
    const { emulated } = this.options;
    put("", ["seq", "route", "nbytes", "pinned", "device", "stream", "context", "plan", "kernel", "t0", "t1", "ran0", "ran1", "bound", "slot", "seen"],
      this.tasks.map((task) => ({ ...task, device: 0, pinned: 1, bound: emulated ? -1 : 500, seen: task.ran1 })));
    put("event_", ["seq", "event", "awaited", "device", "stream", "t"], this.events);
    put("wait_", ["t0", "t1", "event", "device", "stream"], this.waits);
    put("op_", ["t0", "t1", "plan", "context"], this.ops);
    put("segment_", ["id", "size", "device", "begin", "end"], [{ id: 1, size: 48 * MiB, device: 0, begin: 0, end: Infinity }, { id: 2, size: 16 * MiB, device: -1, begin: 0, end: Infinity }]);
    put("block_", ["id", "segment", "offset", "size", "category", "plan", "context", "streams", "begin", "end", "until", "event", "on"], this.blocks.map((one) => ({ ...one, segment: 1 })));
    put("use_", ["seq", "block"], this.uses.map(([seq, block]) => ({ seq, block })));
    const section: DevicesSection = {
      origin_ms: 0, now_ms: this.t, rows: this.tasks.length, kernels: this.kernels, steps: this.steps, gaps: emulated ? [] : this.gaps,
      devices: [{ place: "cuda:0", name: emulated ? "flnb emulated device (on the CPU)" : "GPU", emulated: emulated === true, order: emulated ? "random" : "", seed: emulated ? 17 : 0, bound_ns: emulated ? -1 : 500 }],
      note: emulated ? "emulated device: order and counts are real, durations are not" : "",
    };
    const packed = pack(arrays);
    const content: FrameHead = {
      type: "frame", protocol: 1, seq: ++this.sent, keyframe: this.sent === 1, arrays: packed.arrays, devices: section,
      run: { id: 4, name: "cifar-cnn", state: "recording", error: null, backend: "cuda", manager: "caching", device: "cuda:0", capacity: null, min_block: 0 },
      counters: {
        t: this.t / 1e3, step: this.steps[this.steps.length - 1]!.step, steps_total: 600, events: 10 * this.seq, events_per_s: 6100, dropped: 0, dropped_first_step: null, dropped_last_step: null,
        telemetry_share: 0.012, buffer_used: 4096, buffer_capacity: 16 * MiB, tick_hz: 10, step_seconds: 0.004, small_bytes: 0,
      },
      ...(this.sent === 1 ? { strings: { first: 0, items: [""] }, plans: { first: 0, items: this.plans }, contexts: { first: 0, items: this.contexts } } : {}),
    };
    return { content, buffers: [packed.buffer] };
  }

  private step(step: number): void {
    const begin = this.t;
    const launches = this.tasks.length;
    const image = this.block(20 * MiB, 8 * MiB, 5, 0, "data", 2, this.t);
    this.task(2, "", "", "", "data", "other", 0.38, 1, 8 * MiB, [image]);
    const arrived = this.record(1);
    this.await(0, arrived);
    const made: number[] = [];
    FORWARD.forEach(([op, family, kernel, scope, ms], at) => {
      const out = this.block((12 + at % 8) * MiB, MiB, at % 3 === 1 ? 6 : 3, this.plan(op, family), scope, 1, this.t);
      if (at === SLOW) this.idle(op, family, scope);
      this.task(0, op, family, kernel, scope, "forward", ms, 0, 0, [...(made.length ? [made[made.length - 1]!] : [image]), out]);
      made.push(out);
    });
    this.free(image, this.t, 1, this.record(1));
    [...FORWARD].reverse().slice(0, 6).forEach(([op, family, kernel, scope, ms], at) => this.task(0, op, family, kernel.replace("fwd", "bwd"), scope, "backward", ms * 1.6, 0, 0, [made[at]!]));
    for (const id of made) this.free(id, this.t, -1, 0);
    for (let at = 0; at < 2; at++) this.task(0, "adam", "optimizer", "adam_f32", "", "optimizer", 0.08, 0, 0, [at + 1]);
    const ready = Math.max(...this.busy);
    this.waits.push({ t0: this.t, t1: ready });
    this.t = ready + 0.02;
    this.steps.push({ step, t0: begin, t1: this.t, launches: this.tasks.length - launches - 1, copies: 1, to_device: 8 * MiB, to_host: 0, waits: 1 });
  }

  private task(stream: number, op: string, family: string, kernel: string, scope: string, phase: "forward" | "backward" | "optimizer" | "other", ms: number, route: number, nbytes: number, blocks: readonly number[]): void {
    const own = route ? 1 : stream;
    const [t0, t1] = [this.t, this.t + CALL];
    const ran0 = Math.max(this.busy[own]!, t1 + 0.01);
    this.busy[own] = ran0 + ms;
    this.t = t1 + 0.01;
    const [plan, context] = [op ? this.plan(op, family) : 0, this.context(scope, phase)];
    if (op) this.ops.push({ t0: t0 - 0.005, t1: t1 + 0.005, plan, context });
    this.tasks.push({ seq: ++this.seq, route, nbytes, stream: own, plan, context, kernel: route ? 0 : this.kernel(kernel), t0, t1, ran0, ran1: ran0 + ms, slot: -1 });
    for (const block of blocks) this.uses.push([this.seq, block]);
  }

  private idle(op: string, family: string, scope: string): void {
    const t0 = Math.max(this.busy[0]!, this.t);
    this.ops.push({ t0: this.t, t1: this.t + SLOW_MS + Math.max(0, t0 - this.t), plan: this.plan(op, family), context: this.context(scope, "forward") });
    this.t = t0 + SLOW_MS;
    this.gaps.push({ device: 0, t0, t1: this.t + CALL + 0.01, cause: "host", plan: this.plan(op, family), seq: this.seq + 1 });
  }

  private record(stream: number): number {
    this.events.push({ seq: ++this.seq, event: ++this.event, awaited: 0, stream, t: this.t });
    return this.event;
  }

  private await(stream: number, event: number): void {
    this.events.push({ seq: ++this.seq, event, awaited: 1, stream, t: this.t });
    const last = this.tasks[this.tasks.length - 1]!;
    this.busy[stream] = Math.max(this.busy[stream]!, last.ran1);
  }

  private block(offset: number, size: number, category: number, plan: number, scope: string, streams: number, begin: number): number {
    const id = this.blocks.length + 1;
    this.blocks.push({ id, offset, size, category, plan, context: scope ? this.context(scope, "forward") : 0, streams, begin, end: Infinity, until: NaN, event: 0, on: -1 });
    return id;
  }

  private free(id: number, t: number, on: number, event: number): void {
    const block = this.blocks[id - 1]!;
    block.end = t;
    if (on < 0) return;
    Object.assign(block, { until: Math.max(t, this.busy[0]!), event, on, streams: 3 });
  }

  private plan(op: string, family: string): number {
    const known = this.plans.findIndex((plan) => plan.op === op);
    return known >= 0 ? known : this.plans.push({ op, family, shape: [256, 64], dtype: "float32", nbytes: 65_536 }) - 1;
  }

  private context(scope: string, phase: "forward" | "backward" | "optimizer" | "other"): number {
    const known = this.contexts.findIndex((one) => one.scope === scope && one.phase === phase);
    return known >= 0 ? known : this.contexts.push({ scope, phase }) - 1;
  }

  private kernel(name: string): number {
    const known = this.kernels.findIndex((one) => one.name === name);
    return known >= 0 ? known : this.kernels.push({ name, grid: [64, 8], block: [256], shared: 0, registers: this.options.emulated ? -1 : 96, static: 33_792, ...(this.options.emulated ? { resident: -1, most: -1, limit: "" } : { resident: 2, most: 2048, limit: "registers" }), traffic: this.options.emulated ? [1000, 4000, 512, 64] : null }) - 1;
  }
}
