import { describe, expect, it } from "vitest";
import { axisTicks, extent, smooth, stepName, wantsLog } from "../src/chart.ts";
import { ticks } from "../src/canvas.ts";
import { Simulation } from "../src/dev/simulate.ts";
import { kernelStatus } from "../src/kernel.ts";
import { hintOf, listSeries, sharedSteps, stepRate } from "../src/metrics.ts";
import { keepOrder, sortRows } from "../src/sorting.ts";
import { sorted } from "../src/panel.ts";
import { toggled } from "../src/table.ts";
import { selectionParts, stateLine } from "../src/states.ts";
import { Columns } from "../src/columns.ts";
import type { OpRow } from "../src/oprows.ts";
import { Store } from "../src/store.ts";

const row = (name: string, total: number, count: number): OpRow => ({ name, family: "", count, total, p99: 0, max: 0, bytes: count, share: 0, history: [] });
const rows = [row("add", 10, 5), row("mul", 30, 1), row("sub", 20, 20), row("div", 10, 1)];
const names = (sorted: readonly OpRow[]): string => sorted.map((each) => each.name).join(" ");

describe("sorting", () => {
  it("puts the largest first, equal ones by name", () => {
    expect(names(sortRows(rows, { key: "total", descending: true }))).toBe("mul sub add div");
    expect(names(sortRows(rows, { key: "total", descending: false }))).toBe("add div sub mul");
    expect(names(sortRows(rows, { key: "mean", descending: true }))).toBe("mul div add sub");
    expect(names(sortRows(rows, { key: "name", descending: false }))).toBe("add div mul sub");
  });

  it("turns round on a second click", () => {
    expect(toggled({ key: "total", descending: true }, "total", false)).toEqual({ key: "total", descending: false });
    expect(toggled({ key: "total", descending: true }, "name", true)).toEqual({ key: "name", descending: false });
    expect(toggled({ key: "name", descending: false }, "p99", false)).toEqual({ key: "p99", descending: true });
  });

  it("of any table: numbers by size, what is not known last, words A to Z", () => {
    const cells = [["b", 2], ["a", { value: NaN, text: "–" }], ["a10", { value: 10, text: "10.0 B" }], ["a9", { value: 0.5, text: "500 mB" }]];
    const order = (key: number, descending: boolean): string => sorted(cells, { key, descending }).map(([name]) => name).join(" ");
    expect([order(-1, true), order(1, true), order(1, false), order(0, false)]).toEqual(["b a a10 a9", "a10 b a9 a", "a9 b a10 a", "a a9 a10 b"]);
  });

  it("holds the order on screen under the pointer; new rows come last", () => {
    expect(names(keepOrder(rows, ["sub", "gone", "add", "mul"]))).toBe("sub add mul div");
  });
});

describe("charts", () => {
  const curve = (values: number[]) => ({ steps: values.map((_, at) => at), values, length: values.length });

  it("are logarithmic for losses, norms and wide positive ranges only", () => {
    expect(wantsLog("loss", curve([2, 1, 0.5]))).toBe(true);
    expect(wantsLog("loss", curve([2, 1, 0]))).toBe(false);
    expect(wantsLog("accuracy", curve([0.1, 0.9]))).toBe(false);
    expect(wantsLog("rate", curve([0.001, 1]))).toBe(true);
    expect(wantsLog("gradient norm", curve([1, NaN, 0.5]))).toBe(true);
  });

  it("smooth without hanging on the first value and skip NaN", () => {
    const constant = smooth(curve([3, 3, NaN, 3]), 10, false);
    expect([...constant]).toEqual([3, 3, 3, 3]);
    const noisy = smooth(curve(Array.from({ length: 400 }, (_, at) => (at % 2 ? 1 : 3))), 40, false);
    expect(Math.abs(noisy[399]! - 2)).toBeLessThan(0.1);
    expect(smooth(curve([1, 100]), 1, true)[1]).toBeCloseTo(100, 9);
  });

  it("choose round ticks", () => {
    expect(ticks(0, 50 * 2 ** 20, 4, true).map((value) => value / 2 ** 20)).toEqual([0, 16, 32, 48]);
    expect(ticks(39.2, 61, 3)).toEqual([40, 50, 60]);
    expect(ticks(1, 1, 3)).toEqual([]);
    expect(axisTicks(0.04, 2.6, true)).toEqual([0.1, 1]);
    expect(axisTicks(0.1, 0.4, true)).toEqual([0.1, 0.2, 0.3]);
    expect(axisTicks(1.88, 2.36, true)).toEqual([1.9, 2, 2.1, 2.2, 2.3]); // hardly a power of ten is in it
    expect(axisTicks(0.45, 3.9, true)).toEqual([0.5, 1, 2]);
    expect(extent([1, NaN, 3], 3, false)[0]).toBeLessThan(1);
    expect(extent([0, 5], 2, false)[0]).toBe(0);
    expect(extent([], 0, true)).toEqual([0.1, 1]);
  });
});

describe("metrics", () => {
  it("are a hint where there is no step to draw a curve over", () => {
    const store = new Store();
    expect(hintOf(store, [])).toContain("Nothing logged yet");
    const once = { name: "loss", curve: { steps: [-1], values: [2], length: 1 }, times: [0], value: 2, format: (value: number) => `${value}` };
    expect(hintOf(store, [once])).toBe("loss 2. No steps yet: put “with flnb.step():” around each, and curves are drawn here.");
    store.steps.append({ index: 0, t0: 0, t1: 1 });
    expect(hintOf(store, [once])).toBe("");
  });

  it("share one axis of steps", () => {
    const curve = (...steps: number[]) => ({ steps, values: steps, length: steps.length });
    expect(sharedSteps([curve(1, 2, 22), curve(23), curve()], 23)).toEqual([0, 23]);
    expect(sharedSteps([curve(-1, 30)], null)).toEqual([-1, 30]);
    expect(sharedSteps([curve(-1)], null)).toEqual([-1, -1]);
    expect([stepName(-1), stepName(1000)]).toEqual(["outside of steps", "step 1\u202f000"]);
  });

  it("measure steps a second over several steps", () => {
    const steps = new Columns(["index", "t0", "t1"] as const, 100);
    for (let index = 0; index < 30; index++) steps.append({ index, t0: index * 0.02, t1: index * 0.02 + 0.019 });
    const rate = stepRate(steps);
    expect(rate.values.length).toBe(29);
    expect(rate.values[20]).toBeCloseTo(50, 9);
  });

  it("list loss first, gradient norm, others by name, speed last", () => {
    const store = followed(1.5);
    expect(listSeries(store).map((series) => series.name)).toEqual(["loss", "gradient norm", "test accuracy", "steps/s"]);
  });

  it("give the speed lately of a run that goes on, and of one that has ended that of all its steps", () => {
    const store = followed(1.5);
    const speed = (): number => listSeries(store).at(-1)!.value!;
    const lately = stepRate(store.steps).values.subarray(-20);
    expect(speed()).toBeCloseTo(lately.reduce((sum, value) => sum + value, 0) / lately.length, 9);
    expect(listSeries(store).at(-1)!.note).toBeUndefined();
    store.run = { ...store.run!, state: "finished" };
    store.counters = { ...store.counters!, step_seconds: 0.25 };
    expect(speed()).toBe(4);
    expect(listSeries(store).at(-1)!.note).toBe("mean of all steps");
  });
});

function followed(seconds: number, simulation = new Simulation(), store = new Store()): Store {
  for (let t = 0; t < seconds; t += 0.04) {
    simulation.advance(0.04);
    const { content, buffers } = simulation.frame();
    store.receive(content, buffers, t * 1000);
  }
  return store;
}

describe("the state in words", () => {
  const say = (store: Store, now: number): string => {
    const line = stateLine(store, now);
    return [`[${line.mark}] ${line.title}: ${line.head}`, ...line.rest].join(" · ");
  };

  it("waits", () => expect(say(new Store(), 0)).toBe("[ring] Waiting: Waiting for the first event"));

  it("records, calmly", () => expect(say(followed(1), 1000)).toMatch(/^\[dot\] Recording: Recording · step \d+ of 600 · [\d.]+ k events\/s · telemetry 1\.8 % · dropped 0$/));

  it("says that nothing is emitted, until something is", () => {
    const [simulation, store] = [new Simulation(), new Store()];
    followed(1, simulation, store);
    for (let now = 1960; now < 6000; now += 1000) { // an idle kernel sends a frame a second
      const { content, buffers } = simulation.frame();
      store.receive(content, buffers, now);
    }
    expect(say(store, 5960)).toMatch(/^\[ring\] No events: No events for 00:0[45]\.\d · step \d+ of 600 · a cell has ended, or one call takes long$/);
    simulation.advance(0.04);
    const { content, buffers } = simulation.frame();
    store.receive(content, buffers, 6000);
    expect(say(store, 6000)).toMatch(/^\[dot\] Recording/);
  });

  it("is paused and counts the lag", () => {
    const simulation = new Simulation();
    const store = followed(1, simulation);
    const step = store.counters!.step!;
    store.pause(true);
    followed(0.4, simulation, store);
    expect(say(store, 400)).toMatch(new RegExp(`^\\[bars\\] Paused: Paused · at step ${step} · the kernel goes on: \\d+ steps behind live$`));
    expect(stateLine(store, 400).action).toEqual({ name: "resume", label: "Resume" });
    const next = new Simulation({ name: "second" });
    next.runId = 2;
    const { content, buffers } = next.frame(true);
    store.receive(content, buffers, 500);
    expect(say(store, 500)).toBe(`[bars] Paused: Paused · at step ${step} · another recording has begun: second`);
  });

  it("tells dropped events from a picture that is behind", () => {
    const dropped = followed(1, new Simulation({ dropped: 1204 }));
    expect(say(dropped, 1000)).toMatch(/^\[diamond\] Recording: 1\u202f204 events dropped · in steps 301 to 303 \(\d+\.\d %\) · totals of these steps are lower bounds/);
    expect(dropped.lower).toBe(true);
    const late = followed(1);
    expect(say(late, 960 + 2100)).toMatch(/^\[diamond\] Behind: Picture 2\.1 s behind · no frame from the kernel · .* · nothing lost$/);
    expect(stateLine(late, 3060).stale).toBe(true);
  });

  it("resyncs, fails, finishes and outlives its kernel", () => {
    const simulation = new Simulation({ steps: 10 });
    const store = followed(0.1, simulation);
    simulation.advance(0.04);
    simulation.frame();
    const { content, buffers } = simulation.frame();
    store.receive(content, buffers, 200);
    expect(say(store, 200)).toBe("[ring] Resyncing: Resyncing · frame 4 missing, asked for a keyframe");
    simulation.state = "failed";
    simulation.error = "OutOfMemoryError: conv2d asked for 18.0 MiB";
    const failed = simulation.frame(true);
    store.receive(failed.content, failed.buffers, 300);
    expect(say(store, 300)).toMatch(/^\[error\] Failed: OutOfMemoryError · conv2d asked for 18\.0 MiB · step \d+ · recording closed, complete$/);
    simulation.error = "interrupted: OSError: [Errno 28] the disk is full; later events are lost";
    const lost = simulation.frame(true);
    store.receive(lost.content, lost.buffers, 350);
    expect(say(store, 350)).toMatch(/^\[error\] Interrupted: Recording interrupted · OSError: \[Errno 28\] the disk is full; later events are lost · step \d+$/);
    store.kernel = "restarted";
    expect(say(store, 400)).toMatch(/^\[square\] Restarted: Kernel restarted · \d+ steps kept in the browser, read only$/);
    const done = followed(1, new Simulation({ steps: 10 }));
    expect(say(done, 1e6)).toMatch(/^\[square\] Finished: Finished · step \d+, 10 steps · \d+ ms recorded · complete, dropped 0$/);
  });

  it("spells out the selection", () => {
    const store = followed(1);
    store.select({ kind: "block", label: "net.block1.conv.conv2d", op: "conv2d", scope: "net.block1.conv", phase: "forward", step: 41, node: 4, block: 19581 });
    expect(selectionParts(store).map((part) => part.text).join(" · ")).toBe("net.block1.conv.conv2d · conv2d · net.block1.conv · step 41 · tape node #4 · block #19\u202f581");
  });
});

it("reads a kernel connection's status", () => {
  expect([kernelStatus("busy", "connected"), kernelStatus("restarting", "connected"), kernelStatus("dead", "connected"), kernelStatus("idle", "disconnected")])
    .toEqual([null, "restarted", "disconnected", "disconnected"]);
});
