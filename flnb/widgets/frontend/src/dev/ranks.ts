/** Ranks that train data parallel, one of them late now and then, simulated through the real protocol. */

import type { ArrayType, CollectivesSection, FrameHead, LateReason } from "../protocol.ts";
import { pack } from "./packing.ts";
import { generator } from "./program.ts";

type Op = readonly [op: string, scope: string, family: string, ms: number];

const FORWARD: readonly Op[] = [
  ["conv2d", "stem", "matmul", 3.2], ["batch_norm", "stem", "norm", 0.9], ["relu", "stem", "elementwise", 0.4], ["conv2d", "block1", "matmul", 4.6],
  ["batch_norm", "block1", "norm", 1], ["relu", "block1", "elementwise", 0.4], ["max_pool2d", "block1", "reduction", 0.6], ["conv2d", "block2", "matmul", 7],
  ["batch_norm", "block2", "norm", 1], ["max_pool2d", "block2", "reduction", 0.6], ["conv2d", "block3", "matmul", 6], ["batch_norm", "block3", "norm", 0.7],
  ["matmul", "head", "matmul", 1.4], ["relu", "head", "elementwise", 0.1], ["log_softmax", "loss", "norm", 0.2],
];
/** Modules whose gradients travel together, and how many float32 they have. */
const BUCKETS: readonly { modules: readonly string[]; holds: string; elements: number; gb_s: number }[] = [
  { modules: ["loss", "head"], holds: "head.fc1, head.fc2 · 4 params", elements: 1_059_850, gb_s: 0.939 },
  { modules: ["block3"], holds: "block3.conv1 … block3.bn2 · 6 params", elements: 885_760, gb_s: 0.921 },
  { modules: ["block2"], holds: "block2.conv1 … block2.bn2 · 6 params", elements: 221_696, gb_s: 0.811 },
  { modules: ["block1", "stem"], holds: "stem … block1.bn1 · 6 params", elements: 38_848, gb_s: 0.409 },
];
const FAMILIES = ["matmul", "norm", "elementwise", "reduction", "movement", "optimizer"];
const NAMES = ["", "data.take", "forward", "backward", "optimizer", "all_reduce"];
const HELD = NAMES.length;
NAMES.push(...BUCKETS.map(({ holds }) => holds));
const WINDOW = 8;
const PEAK = 1.08;

interface Bar { rank: number; start: number; end: number; kind: number; name: number }
interface Call { seq: number; bucket: number; step: number; begin: number[]; end: number[]; bytes: number; op: number }
interface Step { step: number; start: number; end: number; spans: Bar[]; acts: Bar[]; calls: Call[]; exposed: number; overlap: number; take: number[] }

export interface RankOptions {
  ranks?: number;
  seed?: number;
  /** By how much a rank's loading is longer in a step, ms. */
  delay?: (rank: number, step: number) => number;
  /** The step in which ranks call with different dtypes and one does not come. */
  stuckAt?: number;
  /** There every rank comes. */
  allCome?: boolean;
  /** Steps that a frame tells of. */
  window?: number;
}

export class RankSimulation {
  /** Milliseconds since the run began. */
  t = 0;
  readonly steps: Step[] = [];
  private readonly count: number;
  private readonly options: RankOptions;
  private readonly random: () => number;
  private sent = 0;
  private seq = 0;

  constructor(options: RankOptions = {}) {
    this.options = options;
    this.count = options.ranks ?? 4;
    this.random = generator(options.seed ?? 5);
  }

  /** Let the program run for at least `ms`. */
  advance(ms: number): void {
    const until = this.t + ms;
    while (this.t < until && this.steps.length - 1 !== this.options.stuckAt) {
      const step = this.train(this.steps.length, this.t);
      this.steps.push(step);
      this.t = step.end + 0.1;
    }
    if (this.steps.length - 1 === this.options.stuckAt) this.t = Math.max(this.t, until);
  }

  frame(keyframe = this.seq === 0): { content: FrameHead; buffers: [DataView] } {
    const fresh = this.steps.slice(keyframe ? 0 : this.sent);
    this.sent = this.steps.length;
    const { section, arrays } = this.section();
    if (fresh.length) {
      arrays["step.index"] = { type: "f64", values: fresh.map(({ step }) => step) };
      arrays["step.t0"] = { type: "f64", values: fresh.map(({ start }) => start / 1e3) };
      arrays["step.t1"] = { type: "f64", values: fresh.map(({ end }) => end / 1e3) };
    }
    const packed = pack(arrays);
    const content: FrameHead = {
      type: "frame", protocol: 1, seq: ++this.seq, keyframe, arrays: packed.arrays, collectives: section,
      run: {
        id: 1, name: "cifar-cnn", state: "recording", error: null, backend: "numpy", manager: "caching", device: `${this.count} ranks`,
        capacity: null, min_block: 1024,
      },
      counters: {
        t: this.t / 1e3, step: this.steps.length - 1, steps_total: 600, events: this.steps.length * 4000, events_per_s: 41_800, dropped: 0,
        dropped_first_step: null, dropped_last_step: null, telemetry_share: 0.019, buffer_used: 2 ** 20, buffer_capacity: 2 ** 24, tick_hz: 20,
        step_seconds: 0.09, small_bytes: 0,
      },
    };
    return { content, buffers: [packed.buffer] };
  }

  private train(step: number, t0: number): Step {
    const stuck = step === this.options.stuckAt;
    const delay = this.options.delay ?? ((rank, at) => (rank === 2 && at % 5 === 4 ? 41 : 0));
    const made: Step = { step, start: t0, end: t0, spans: [], acts: [], calls: [], exposed: 0, overlap: 0, take: [] };
    const enter = BUCKETS.map(() => new Array<number>(this.count).fill(NaN));
    const backwardEnds: number[] = [];
    for (let rank = 0; rank < this.count; rank++) {
      let t = t0 + this.random() * 0.3;
      const span = (start: number, end: number, kind: number, name: number): void => void made.spans.push({ rank, start, end, kind, name });
      const act = (end: number, family: string): void => {
        made.acts.push({ rank, start: t, end: end - 0.04, kind: FAMILIES.indexOf(family), name: 0 });
        t = end;
      };
      const begin = t;
      act(t + (made.take[rank] = 2 + delay(rank, step)), "movement");
      span(begin, t, 4, 1);
      if (stuck && !this.options.allCome && rank === this.count - 1) { // it never comes out of its loading
        made.spans[made.spans.length - 1]!.end = NaN;
        backwardEnds.push(NaN);
        continue;
      }
      const forward = t;
      for (const [, , family, ms] of FORWARD) act(t + ms * (1 + 0.03 * (this.random() - 0.5)), family);
      span(forward, t, 1, 2);
      const backward = t;
      [...FORWARD].reverse().forEach(([, scope, family, ms], at, all) => {
        act(t + 1.85 * ms * (1 + 0.03 * (this.random() - 0.5)), family);
        const bucket = BUCKETS.findIndex(({ modules }) => modules.includes(scope));
        if (!BUCKETS[bucket]!.modules.includes(all[at + 1]?.[1] ?? "")) enter[bucket]![rank] = t + 0.1 + BUCKETS[bucket]!.elements / 1e6;
      });
      span(backward, t, 2, 3);
      backwardEnds.push(t);
    }
    const exits: number[] = [];
    const starts: number[] = [];
    BUCKETS.forEach((bucket, at) => {
      const meet = Math.max(...enter[at]!); // NaN where somebody never comes
      const factor = this.count > 1 ? (2 * (this.count - 1)) / this.count : 0;
      starts[at] = Math.max(meet, exits[at - 1] ?? 0);
      exits[at] = starts[at]! + (factor * bucket.elements * 4) / bucket.gb_s / 1e6;
      if (stuck && at > 0) return;
      made.calls.push({ seq: 4 * step + at, bucket: at, step, bytes: bucket.elements * 4, op: 0, begin: enter[at]!, end: enter[at]!.map(() => (stuck ? NaN : exits[at]!)) });
    });
    const exit = exits[exits.length - 1]!;
    for (let rank = 0; rank < this.count; rank++) {
      const from = Math.max(backwardEnds[rank]!, exit);
      let t = from;
      if (!stuck) {
        for (let at = 0; at < 8; at++) {
          made.acts.push({ rank, start: t, end: t + 0.7, kind: FAMILIES.indexOf("optimizer"), name: 0 });
          t += 0.76;
        }
        made.spans.push({ rank, start: from, end: t, kind: 3, name: 4 }, { rank, start: backwardEnds[rank]!, end: from, kind: 5, name: 5 });
      }
      made.spans.push({ rank, start: t0, end: stuck ? NaN : t, kind: 0, name: step });
      if (!stuck) made.end = Math.max(made.end, t);
      made.exposed += stuck ? 0 : (from - backwardEnds[rank]!) / this.count;
      const hidden = BUCKETS.reduce((sum, _, at) => sum + Math.max(0, Math.min(exits[at]!, backwardEnds[rank]!) - starts[at]!), 0);
      made.overlap += hidden / BUCKETS.reduce((sum, _, at) => sum + exits[at]! - starts[at]!, 0) / this.count;
    }
    return made;
  }

  private section(): { section: CollectivesSection; arrays: Record<string, { type: ArrayType; values: number[] }> } {
    const shown = this.steps.slice(-(this.options.window ?? WINDOW));
    const calls = shown.flatMap((step) => step.calls);
    const names = NAMES;
    const spans = shown.flatMap((step) => step.spans);
    const acts = shown.flatMap((step) => step.acts);
    const arrays: Record<string, { type: ArrayType; values: number[] }> = {};
    const put = (name: string, type: ArrayType, values: number[]): void => void (arrays[`collectives.${name}`] = { type, values });
    const lateness = calls.map(({ begin }) => late(begin));
    const integers = { seq: calls.map(({ seq }) => seq), group: calls.map(() => 0), op: calls.map(({ op }) => op), bucket: calls.map(({ bucket }) => bucket), step: calls.map(({ step }) => step) };
    for (const [name, values] of Object.entries(integers)) put(name, "i32", values);
    put("nbytes", "f64", calls.map(({ bytes }) => bytes));
    put("elements", "f64", calls.map(({ bytes }) => bytes / 4));
    put("holds", "i32", calls.map(({ bucket }) => HELD + bucket));
    put("dtype", "i32", calls.map(() => 0));
    put("last", "f64", calls.map(({ begin }) => Math.max(...begin)));
    put("late_rank", "i32", lateness.map(({ rank }) => rank));
    put("late", "f64", lateness.map(({ ms }) => ms));
    put("gb_s", "f64", calls.map(({ bucket }) => BUCKETS[bucket]!.gb_s));
    for (const name of ["begin", "end"] as const) put(name, "f64", Array.from({ length: this.count }, (_, rank) => calls.map((call) => call[name][rank]!)).flat());
    for (const name of ["rank", "start", "end", "kind", "name"] as const) put(`span_${name}`, name === "start" || name === "end" ? "f64" : "i32", spans.map((row) => row[name]));
    for (const name of ["rank", "start", "end"] as const) put(`act_${name}`, name === "rank" ? "i32" : "f64", acts.map((row) => row[name]));
    put("act_family", "i32", acts.map((row) => row.kind));
    return { arrays, section: this.head(shown, calls, lateness, names) };
  }

  private head(shown: Step[], calls: Call[], lateness: { rank: number; ms: number }[], names: string[]): CollectivesSection {
    const reasons: LateReason[] = [];
    calls.forEach((call, row) => {
      const { rank, ms } = lateness[row]!;
      const take = shown.find(({ step }) => step === call.step)!.take;
      if (rank < 0 || !(ms > 0.8) || take[rank]! < 5 || call.bucket > 0) return;
      reasons.push({ row, rank, scope: "data.take", ms: take[rank]!, median_ms: 2, text: `rank ${rank} was last, by ${ms.toFixed(1)} ms: ${take[rank]!.toFixed(1)} ms in data.take, the median of the others 2.00 ms` });
    });
    const ranks = Array.from({ length: this.count }, (_, rank) => {
      const host = rank < this.count / 2 ? "a" : "b";
      return { rank, host, process: 740 + rank, bound_ns: rank === 0 ? 0 : host === "a" ? 4000 : 400_000, seen_ms: this.steps[this.steps.length - 1]!.start + (rank === this.count - 1 ? 2 : 80) };
    });
    const lost = ranks.map(({ rank, host }) => {
      const mine = lateness.filter((one, row) => one.rank === rank && one.ms > 0.8 && calls[row]!.bucket === 0);
      const sum = mine.reduce((total, { ms }) => total + ms, 0) / Math.max(1, shown.length);
      return { rank, host, last: mine.length, lost_ms_per_step: sum, scope: sum > 1 ? "data.take" : "" };
    });
    const stuck = this.steps.length - 1 === this.options.stuckAt;
    const last = this.options.allCome ? -1 : this.count - 1;
    return {
      origin_ms: 0, now_ms: this.t, rows: calls.length, ranks, ops: ["all_reduce"], groups: ["world"], dtypes: ["float32"], names, families: FAMILIES, reasons,
      late: lost.sort((one, two) => two.lost_ms_per_step - one.lost_ms_per_step),
      steps: shown.filter(({ end, start }) => end > start).map(({ step, start, end, exposed, overlap }) => ({ step, ms: end - start, exposed_ms: exposed, share: exposed / (end - start), overlap })),
      bandwidth: { peak_gb_s: PEAK, ops: [{ op: "all_reduce", gb_s: 0.92, share: 0.92 / PEAK }] },
      stuck: !stuck ? null : {
        seq: calls[calls.length - 1]!.seq, group: "world", seconds: 0.12,
        text: `rank 1 asks for another element type${last < 0 ? "" : `; rank ${last} has not come`}`,
        rows: ranks.map(({ rank }) => ({
          rank, state: rank === last ? "stopped" : rank === 1 ? "differs" : "waits", call: rank === last ? "" : `all_reduce ${rank === 1 ? "int32" : "float32"}[1024] sum`,
          last: `${calls[calls.length - 1]!.seq - 1} all_reduce float32[38848]`, seconds: rank === last ? 0.12 : 0.03,
        })),
      },
    };
  }
}

/** The rank that came last and how much later than the median of the others; nobody within half a millisecond. */
function late(begin: readonly number[]): { rank: number; ms: number } {
  const last = Math.max(...begin);
  if (Number.isNaN(last)) return { rank: -1, ms: NaN };
  const rank = begin.indexOf(last);
  const others = begin.filter((_, at) => at !== rank).sort((one, two) => one - two);
  const ms = last - (others[(others.length - 1) >> 1] ?? last);
  return { rank, ms };
}
