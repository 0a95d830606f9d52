import { beforeEach, describe, expect, it } from "vitest";
import { Simulation } from "../src/dev/simulate.ts";
import { Lifetimes } from "../src/lifetimes.ts";
import { MemoryLog } from "../src/memorylog.ts";
import { Overview } from "../src/overview.ts";
import { SegmentTable } from "../src/memory/model.ts";
import { decodeFrame } from "../src/decoding.ts";
import { baseOp, inScope, isOfNode, selectionOfBlock, selectsBlock, selectsNode } from "../src/selection.ts";
import { Store } from "../src/store.ts";

/** Rows of the blocks that live at time t. */
const liveAt = (lifetimes: Lifetimes, t: number): number[] => Array.from({ length: lifetimes.used }, (_, row) => row).filter((row) => lifetimes.isLive(row, t));

type Message = ReturnType<Simulation["frame"]>;
let now = 0;
const give = (store: Store, { content, buffers }: Message) => store.receive(content, buffers, (now += 40));

/** A store that has followed a simulation for so many seconds at 25 frames a second. */
function followed(seconds: number, simulation = new Simulation(), store = new Store()): { simulation: Simulation; store: Store } {
  for (let t = 0; t < seconds; t += 0.04) {
    simulation.advance(0.04);
    give(store, simulation.frame());
  }
  return { simulation, store };
}

beforeEach(() => { now = 0; });

describe("a run through the protocol", () => {
  const { store } = followed(2);

  it("fills tables, steps, metrics and tape", () => {
    expect(store.ops.find((row) => row.name === "conv2d")).toMatchObject({ family: "matmul" });
    expect(store.ops.reduce((sum, row) => sum + row.share, 0)).toBeCloseTo(1, 12);
    expect(store.scopes.map((row) => row.name)).toContain("net.block1.conv");
    expect(store.steps.length).toBeGreaterThan(50);
    expect(store.metrics.get("loss")!.length).toBe(store.steps.length);
    expect(store.tape!.nodes.length).toBe(18);
    expect(store.norms.all.length).toBeGreaterThan(3);
    expect(store.ops[0]!.history.length).toBeGreaterThan(2);
  });

  it("keeps sums by category that add up to allocated, at every event", () => {
    const { series } = store.memory;
    for (let row = 0; row < series.length; row++) {
      let sum = 0;
      for (const name of ["c0", "c1", "c2", "c3", "c4", "c5", "c6"] as const) sum += series.column(name)[row]!;
      expect(series.column("allocated")[row]).toBe(sum);
      expect(series.column("reserved")[row]).toBeGreaterThanOrEqual(sum);
      if (row) expect(series.column("t")[row]!).toBeGreaterThan(series.column("t")[row - 1]!);
    }
  });

  it("agrees with the blocks that live at a time", () => {
    const { series, lifetimes } = store.memory;
    for (const row of [10, 200, series.length - 1]) {
      const t = series.column("t")[row]!;
      expect(liveAt(lifetimes, t).reduce((sum, at) => sum + lifetimes.size[at]!, 0)).toBe(series.column("allocated")[row]);
    }
  });

  it("remembers the peak", () => {
    const { series, peak } = store.memory;
    expect(peak.allocated).toBe(Math.max(...series.column("allocated").subarray(0, series.length)));
  });

  it("acknowledges every frame", () => {
    const simulation = new Simulation();
    simulation.advance(0.04);
    expect(give(new Store(), simulation.frame())).toEqual([{ type: "ack", seq: 1 }]);
  });
});

describe("a gap in the sequence", () => {
  it("asks once for a keyframe, keeps what it has, and is repaired by it", () => {
    const { simulation, store } = followed(1);
    const { store: whole } = followed(1, new Simulation());
    const before = store.memory.series.length;
    simulation.advance(0.04);
    simulation.frame();
    simulation.advance(0.04);
    const after = simulation.frame();
    expect(give(store, after)).toEqual([{ type: "ack", seq: after.content.seq }, { type: "resync" }]);
    expect(store.missing).toBe(after.content.seq - 1);
    expect(store.memory.series.length).toBe(before);
    simulation.advance(0.04);
    expect(give(store, simulation.frame())).toHaveLength(1);
    simulation.advance(0.04);
    give(store, simulation.frame(true));
    expect(store.missing).toBeNull();
    // Nothing was lost: the keyframe repeats what happened in between.
    const all = new Simulation();
    for (let tick = 0; tick < Math.round(simulation.t / 0.04) + 1 && all.t < simulation.t - 1e-9; tick++) all.advance(0.04);
    const { series, lifetimes } = store.memory;
    expect(store.memory.allocated).toBe(liveAt(lifetimes, series.last("t")!).reduce((sum, row) => sum + lifetimes.size[row]!, 0));
    expect(whole.memory.series.length).toBe(before);
    expect(store.memory.gaps).toEqual([]);
    const direct = new Store();
    give(direct, simulation.frame(true));
    expect(direct.memory.allocated).toBe(store.memory.allocated);
    expect(direct.memory.reservedNow).toBe(store.memory.reservedNow);
  });

  it("asks again when the keyframe does not come", () => {
    const { simulation, store } = followed(0.2);
    simulation.frame();
    const asked: number[] = [];
    for (let tick = 0; tick < 40; tick++) {
      simulation.advance(0.04);
      if (give(store, simulation.frame()).some(({ type }) => type === "resync")) asked.push(tick);
    }
    expect(asked).toEqual([0, 18, 36]);
  });

  it("marks what a keyframe can no longer tell as unknown, and is exact after it", () => {
    const { simulation, store } = followed(0.5);
    const last = store.memory.series.last("t")!;
    for (let tick = 0; tick < 200; tick++) {
      simulation.advance(0.04);
      simulation.frame();
    }
    give(store, simulation.frame(true));
    expect(store.memory.gaps).toHaveLength(1);
    expect(store.memory.gaps[0]![0]).toBe(last);
    const { lifetimes } = store.memory;
    expect(store.memory.allocated).toBe(liveAt(lifetimes, store.memory.series.last("t")!).reduce((sum, row) => sum + lifetimes.size[row]!, 0));
    expect(store.memory.allocated).toBeGreaterThan(0);
  });
});

describe("pause", () => {
  it("stops the picture, not the receiving, and catches up without loss", () => {
    const { simulation, store } = followed(1);
    const { store: running } = followed(1, new Simulation());
    const twin = new Simulation();
    followed(1, twin, new Store());
    store.pause(true);
    const [steps, events, version] = [store.steps.length, store.memory.series.length, store.versions.frame];
    const operations = store.ops;
    for (let tick = 0; tick < 25; tick++) {
      simulation.advance(0.04);
      expect(give(store, simulation.frame())).toHaveLength(1);
      twin.advance(0.04);
      give(running, twin.frame());
    }
    expect([store.steps.length, store.memory.series.length, store.versions.frame]).toEqual([steps, events, version]);
    expect(store.ops).toBe(operations);
    expect(store.stepsBehind).toBeGreaterThan(10);
    expect(store.latest!.counters.t).toBeGreaterThan(store.counters!.t);
    expect(store.pause(false)).toEqual([]);
    expect(store.stepsBehind).toBe(0);
    expect(store.steps.length).toBe(running.steps.length);
    expect(store.memory.series.length).toBe(running.memory.series.length);
    expect(store.memory.allocated).toBe(running.memory.allocated);
  });

  it("gives up memory events of a long pause, keeps steps and metrics, and asks for a keyframe", () => {
    const { simulation, store } = followed(0.5);
    store.pause(true);
    const padding = new DataView(new ArrayBuffer(8 * 2 ** 20));
    for (let tick = 0; tick < 20; tick++) {
      simulation.advance(0.04);
      const { content, buffers } = simulation.frame();
      const padded = new Uint8Array(padding.byteLength);
      padded.set(new Uint8Array(buffers[0].buffer));
      give(store, { content, buffers: [new DataView(padded.buffer)] });
    }
    expect(store.pause(false)).toEqual([{ type: "resync" }]);
    expect(store.metrics.get("loss")!.length).toBe(store.steps.length);
    expect(store.stepsBehind).toBe(0);
  });
});

describe("another run", () => {
  it("starts anew", () => {
    const { store } = followed(0.5);
    store.select({ kind: "op", label: "conv2d", op: "conv2d" });
    const next = new Simulation();
    next.runId = 2;
    next.advance(0.04);
    give(store, next.frame(true));
    expect(store.steps.length).toBeLessThan(5);
    expect(store.selection).toBeNull();
    expect(store.memory.peak.t).toBeLessThan(0.1);
  });
});

describe("selection", () => {
  const { store } = followed(1);
  const { tape } = store;

  it("of an op marks its nodes and its blocks", () => {
    const selection = { kind: "op", label: "conv2d", op: "conv2d" } as const;
    expect(tape!.nodes.filter((node) => selectsNode(store, node, selection))).toHaveLength(3);
    const { lifetimes } = store.memory;
    const rows = Array.from({ length: lifetimes.used }, (_, row) => row).filter((row) => selectsBlock(store, row, selection));
    expect(rows.length).toBeGreaterThan(50);
    expect(rows.every((row) => store.plan(lifetimes.plan[row]!)!.op === "conv2d")).toBe(true);
  });

  it("of a backward op marks its forward node", () => {
    expect(tape!.nodes.filter((node) => selectsNode(store, node, { kind: "op", label: "", op: "relu_backward" }))).toHaveLength(4);
  });

  it("knows the forward op of a gradient's op", () => {
    expect(["conv2d_backward", "conv2d_input_grad", "conv2d_weight_grad", "max_pool2d_grad", "relu′", "conv2d", "grad"].map(baseOp))
      .toEqual(["conv2d", "conv2d", "conv2d", "max_pool2d", "relu", "conv2d", "grad"]);
  });

  it("knows the nodes of a gradient's op, with a bias, too", () => {
    expect(["conv2d", "conv2d_bias", "conv2d_grad", "conv2", undefined].map((node) => isOfNode("conv2d_weight_grad", node)))
      .toEqual([true, true, false, false, false]);
    expect(isOfNode("conv2d", "conv2d_bias")).toBe(false);
  });

  it("of a scope holds what is inside it, and no namesake", () => {
    expect(inScope("net.block1.conv", "net.block1")).toBe(true);
    expect(inScope("net.block10", "net.block1")).toBe(false);
    expect(tape!.nodes.filter((node) => selectsNode(store, node, { kind: "scope", label: "", scope: "net.block1" }))).toHaveLength(4);
  });

  it("of a block knows its op, scope, node and step", () => {
    const { lifetimes } = store.memory;
    const row = Array.from({ length: lifetimes.used }, (_, at) => at).findLast((at) => lifetimes.category[at] === 3 && lifetimes.node[at]! > 0 && store.stepAt(lifetimes.start[at]!) !== null)!;
    const selection = selectionOfBlock(store, row);
    expect(selection.op).toBe(store.plan(lifetimes.plan[row]!)!.op);
    expect(selection.node).toBe(lifetimes.node[row]);
    expect(selection.step).toBeGreaterThan(0);
    expect(selectsBlock(store, row, selection)).toBe(true);
    expect(selectsBlock(store, row - 1, selection)).toBe(false);
  });
});

describe("the time range", () => {
  it("follows six steps, stands still under a cursor, and follows again", () => {
    const { simulation, store } = followed(1);
    const { t0, t1 } = store.range;
    expect(t1).toBe(store.now);
    expect(t1 - t0).toBeCloseTo((6 * (store.steps.last("t1")! - store.steps.column("t0")[store.steps.length - 6]!)) / 6, 6);
    store.setCursor(0.5);
    const fixed = store.range;
    expect((fixed.t0 + fixed.t1) / 2).toBeCloseTo(0.5, 9);
    expect(fixed.t1 - fixed.t0).toBeCloseTo(t1 - t0, 9);
    simulation.advance(0.2);
    give(store, simulation.frame());
    expect(store.range).toBe(fixed);
    expect(store.following).toBe(false);
    expect(store.at).toBe(0.5);
    store.follow();
    expect(store.range.t1).toBe(store.now);
  });
});

describe("messages that cannot be read", () => {
  it("are named, and another keyframe is asked for", () => {
    const simulation = new Simulation();
    simulation.advance(0.04);
    const { content } = simulation.frame();
    const store = new Store();
    expect(store.receive(content, [], 0)).toEqual([{ type: "ack", seq: 1 }, { type: "resync" }]);
    expect(store.problem).toMatch(/spans bytes/);
    expect(store.receive({ ...content, protocol: 9 }, [], 0)).toEqual([]);
    expect(store.problem).toMatch(/frame protocol 9/);
    expect(store.receive({ type: "hello" }, [], 0)).toEqual([]);
  });
});

describe("lifetimes", () => {
  it("drop the older half of the finished when full, never a live one", () => {
    const lifetimes = new Lifetimes(8);
    for (let id = 1; id <= 8; id++) lifetimes.finish(lifetimes.insert(id, id), id % 4 === 0 ? Infinity : id + 0.5);
    lifetimes.live = 2;
    const { generation } = lifetimes;
    lifetimes.insert(9, 9);
    expect(lifetimes.generation).toBe(generation + 1);
    expect([...lifetimes.id.subarray(0, lifetimes.used)]).toEqual([4, 6, 7, 8, 9]);
    expect(lifetimes.row(1)).toBe(-1);
    expect(lifetimes.row(8)).toBe(3);
    expect(lifetimes.completeSince).toBe(5.5);
  });

  it("grow when live blocks fill them", () => {
    const lifetimes = new Lifetimes(4);
    for (let id = 1; id <= 9; id++) {
      const row = lifetimes.insert(id, id);
      lifetimes.size[row] = id;
    }
    expect(liveAt(lifetimes, 100).map((row) => lifetimes.size[row])).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9]);
  });

  it("end at once when a block is freed at the instant of its allocation", () => {
    const log = new MemoryLog();
    const { content } = new Simulation().frame();
    const columns = Object.fromEntries(Object.entries({
      "alloc.id": [7], "alloc.t": [1], "alloc.size": [512], "alloc.requested": [500], "alloc.category": [3], "free.id": [7], "free.t": [1],
    }).map(([name, values]) => [name, Float64Array.from(values)]));
    log.apply({ head: { ...content, keyframe: false }, columns, bytes: 0 });
    expect([log.allocated, log.lifetimes.live, liveAt(log.lifetimes, 1).length]).toEqual([0, 0, 0]);
  });

  it("lie in segments that grow and shrink: one told again has a new size", () => {
    const log = new MemoryLog();
    const { content } = new Simulation().frame();
    const take = (keyframe: boolean, given: Record<string, number[]>) => log.apply({
      head: { ...content, keyframe }, bytes: 0,
      columns: Object.fromEntries(Object.entries(given).map(([name, values]) => [name, Float64Array.from(values)])),
    });
    take(false, { "segment.id": [1, 2, 1], "segment.t": [1, 2, 3], "segment.size": [100, 10, 400], "segment.address": [0, 4096, 0] });
    expect(Array.from(log.series.column("reserved").subarray(0, 3))).toEqual([100, 110, 410]);
    const table = new SegmentTable();
    table.update(log.sizes);
    take(false, { "segment.id": [1], "segment.t": [4], "segment.size": [300], "segment.address": [0] });
    expect([log.reservedNow, log.segments.size, log.segments.get(1)]).toEqual([310, 2, { id: 1, address: 0, size: 300, start: 4, end: Infinity }]);
    table.update(log.sizes);
    const rows = (column: Float64Array | Uint32Array) => Array.from(column.subarray(0, table.used));
    expect([rows(table.id), rows(table.size), rows(table.start), rows(table.end)]).toEqual([[1, 2, 1, 1], [100, 10, 400, 300], [1, 2, 3, 4], [3, Infinity, 4, Infinity]]);
    take(true, { "segment.id": [1, 2], "segment.t": [1, 2], "segment.size": [500, 10], "segment.address": [0, 4096] });
    expect(log.reservedNow).toBe(510);
    take(false, { "release.id": [1], "release.t": [6] });
    expect(log.reservedNow).toBe(10);
  });

  it("in a log stay within their cap over a long run", () => {
    const log = new MemoryLog(512, 256);
    const simulation = new Simulation();
    for (let tick = 0; tick < 50; tick++) {
      simulation.advance(0.04);
      const { content, buffers } = simulation.frame();
      log.apply(decodeFrame(content, buffers));
    }
    expect(log.lifetimes.capacity).toBe(512);
    expect(log.series.length).toBeLessThanOrEqual(512);
    expect(log.series.evicted).toBeGreaterThan(0);
    expect(log.allocated).toBe(liveAt(log.lifetimes, log.series.last("t")!).reduce((sum, row) => sum + log.lifetimes.size[row]!, 0));
  });
});

describe("the overview", () => {
  it("keeps the largest moment of every bin while bins widen", () => {
    const overview = new Overview(8);
    for (let index = 0; index < 100; index++) overview.add(index / 128, index === 37 ? 1000 : index, 2000, [0, index, 0, 0, 0, 0, 0]);
    expect(overview.width).toBe(16 / 128);
    expect(overview.count).toBe(7);
    expect(Math.max(...overview.allocated)).toBe(1000);
    expect(overview.allocated[2]).toBe(1000);
    expect(overview.allocated[6]).toBe(99);
  });
});
