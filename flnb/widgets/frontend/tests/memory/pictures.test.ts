import { describe, expect, it } from "vitest";
import { Simulation } from "../../src/dev/simulate.ts";
import { MemoryLog } from "../../src/memorylog.ts";
import { Store } from "../../src/store.ts";
import { wholeBytes } from "../../src/format.ts";
import { ordered, placeCompact, placeSegments, wholeRows } from "../../src/memory/places.ts";
import { phasesOf } from "../../src/memory/details.ts";
import { ratioAxis, stretchesAbove } from "../../src/memory/fragmentation-chart.ts";
import { allocatedOf, RESERVED } from "../../src/memory/lifetimes.ts";
import type { SegmentState } from "../../src/memory/state.ts";
import { memoryOf, SegmentTable } from "../../src/memory/model.ts";
import { blockTable, fragmentationTable } from "../../src/memory/tables.ts";
import { axisTop, heldBytes, labelAt } from "../../src/memory/timeline.ts";
import { generator, simulate } from "./simulated.ts";

const MiB = 2 ** 20;

function run(seconds: number, memory = new MemoryLog()): { store: Store; simulation: Simulation } {
  const store: Store = Object.assign(new Store(), { memory });
  const simulation = new Simulation({ steps: 1000 });
  for (let t = 0; t < seconds; t += 0.04) {
    simulation.advance(0.04);
    const { content, buffers } = simulation.frame();
    store.receive(structuredClone(content), buffers, t);
  }
  return { store, simulation };
}

describe("the model and the store", () => {
  const { store } = run(3);
  const model = memoryOf(store);
  model.update();

  it("have tables that say where they end, and whole ones for files", () => {
    const { blocks } = model.state(store.at);
    const [some, every] = [7, Infinity].map((most) => blockTable({ store }, model, most));
    expect(some!.caption).toBe(`The first 7 of ${blocks} blocks`);
    expect([some!.rows.length, every!.rows.length, every!.caption]).toEqual([7, blocks, "Blocks of every segment"]);
    expect(every!.rows.slice(0, 7)).toEqual(some!.rows);
    const [last, all] = [2, Infinity].map((most) => fragmentationTable({ store }, model, most));
    expect(last!.caption).toBe("Fragmentation at the peak of each of the last 2 steps");
    expect([last!.rows.length, all!.rows.length, all!.caption]).toEqual([2, store.steps.length, "Fragmentation at the peak of each step"]);
    expect(all!.rows.slice(0, 2)).toEqual(last!.rows);
    expect(store.steps.length).toBeGreaterThan(2);
  });

  it("agree on what is allocated and reserved now", () => {
    const { totals } = model.index.totalsAt(store.now);
    expect(allocatedOf(totals)).toBe(store.memory.allocated);
    expect(totals[RESERVED]).toBe(store.memory.reservedNow);
    const state = model.state(store.now);
    expect(state.blocks).toBe(store.memory.lifetimes.live);
    expect(state.segments.reduce((sum, segment) => sum + segment.used, 0)).toBe(store.memory.allocated);
  });

  it("agree on the largest moment of every pixel", () => {
    const { series } = store.memory;
    const line = model.timeline(store.range, 150);
    const { t0, t1 } = store.range;
    const [t, allocated] = [series.column("t"), series.column("allocated")];
    for (let k = 0; k < 150; k++) {
      const [begin, end] = [t0 + ((t1 - t0) * k) / 150, t0 + ((t1 - t0) * (k + 1)) / 150];
      let most = allocated[series.after("t", begin) - 1]!;
      for (let at = series.after("t", begin); at < series.length && t[at]! < end; at++) most = Math.max(most, allocated[at]!);
      expect(line.allocated[k]).toBe(most);
    }
  });

  it("still know the run after the oldest lifetimes have left", () => {
    const { store: long } = run(8, new MemoryLog(4096, 4096));
    const old = memoryOf(long);
    old.update();
    expect(long.memory.lifetimes.generation).toBeGreaterThan(0);
    expect(long.memory.series.evicted).toBeGreaterThan(0);
    expect(long.memory.lifetimes.start[0]).toBeLessThan(1); // parameters stay
    expect(long.memory.lifetimes.completeSince).toBeGreaterThan(4);
    const line = old.timeline({ t0: 0, t1: long.now }, 100);
    // Every hundredth of the run holds whole steps: each shows nearly the peak.
    for (let k = 1; k < 99; k++) expect(line.allocated[k]!).toBeGreaterThan(0.9 * long.memory.peak.allocated);
  });

  it("judge by the largest allocation of the last steps", () => {
    expect(model.request()).toMatchObject({ bytes: 9 * MiB, steps: 8 });
    const { lifetimes } = store.memory;
    expect(store.plan(lifetimes.plan[model.request().row]!)?.op).toBe("im2col");
  });

  it("tell the phases of a step from its allocations", () => {
    const at = store.steps.length - 1;
    const [t0, t1] = [store.steps.column("t0")[at]!, store.steps.column("t1")[at]!];
    const phases = phasesOf(store, t0, t1);
    expect(phases.map(({ phase }) => phase)).toEqual(["forward", "backward"]);
    expect(phases[0]!.to).toBe(phases[1]!.from);
    expect(phases[1]!.to).toBe(t1);
  });
});

describe("rows of segments", () => {
  const rows = [0, 26, 52, 78].map((y) => ({ y, height: 18 }));

  it("are whole, and the others counted", () => {
    expect(wholeRows(rows, 0, 100)).toEqual({ end: 100, below: 0 });
    expect(wholeRows(rows, 0, 90)).toEqual({ end: 74, below: 1 });
    expect(wholeRows(rows, 26, 60)).toEqual({ end: 74, below: 1 });
    expect(wholeRows(rows, 0, 10)).toEqual({ end: 10, below: 0 }); // none is: cut is better than nothing
  });
});

describe("segments as a table", () => {
  it("keep a row for each size that they had", () => {
    const table = new SegmentTable();
    const segment = (id: number, end = Infinity): { id: number; address: number; size: number; start: number; end: number } => ({ id, address: id, size: 10 * id, start: id, end });
    table.update([segment(1), segment(2)]);
    table.update([segment(1), segment(2, 5), segment(3)]);
    expect([...table.id.subarray(0, table.used)]).toEqual([1, 2, 3]);
    expect([...table.end.subarray(0, table.used)]).toEqual([Infinity, 5, Infinity]);
  });
});

describe("the axis", () => {
  it("shows reserved and capacity where the areas are not lost below them, and never cuts the areas", () => {
    expect([labelAt(60, 15), labelAt(12, 0), labelAt(12, 15)]).toEqual([52, 14, 29]); // not under the words in the corner
    expect(axisTop(24 * MiB, 32 * MiB, 48 * MiB)).toMatchObject({ reserved: true, capacity: true });
    expect(axisTop(24 * MiB, 32 * MiB, 48 * MiB).top).toBeGreaterThan(48 * MiB);
    expect(axisTop(24 * MiB, 32 * MiB, 2 ** 34)).toMatchObject({ reserved: true, capacity: false });
    expect(axisTop(24 * MiB, 32 * MiB, 2 ** 34).top).toBeGreaterThan(32 * MiB);
    expect(axisTop(5 * MiB, 56 * MiB, 2 ** 34)).toMatchObject({ reserved: false, capacity: false });
    for (const [allocated, reserved, capacity] of [[5, 56, null], [60, 64, 48], [5, 5, null], [0, 0, 1]] as const) {
      expect(axisTop(allocated * MiB, reserved * MiB, capacity === null ? null : capacity * MiB).top).toBeGreaterThan(allocated * MiB);
    }
  });

  it("of the ratio grows for what lasts, not for spikes", () => {
    expect(ratioAxis(Float64Array.of(1.1, 1.3, NaN)).top).toBe(1.5);
    expect(ratioAxis(Float64Array.of(1.1, 2.6)).top).toBe(3);
    const cut = new Float64Array(60).fill(1);
    for (const at of [3, 4, 20, 29]) cut[at] = 9;
    cut[50] = Infinity;
    cut[40] = NaN;
    expect(stretchesAbove(cut, 5)).toEqual([[3, 5], [20, 30], [50, 51]]);
    expect(stretchesAbove(cut, 9)).toEqual([[50, 51]]);
    expect(ratioAxis(Float64Array.of(1.1, 1.2, 1.2, 1.3, 40, Infinity).map((x) => x)).top).toBe(50);
    expect(ratioAxis(Float64Array.from([...Array<number>(90).fill(1.4), ...Array<number>(10).fill(Infinity)])).top).toBe(5);
    expect(ratioAxis(Float64Array.from(Array<number>(50).fill(130))).top).toBe(200);
    expect(ratioAxis(new Float64Array(0)).top).toBe(1.5);
  });
});

describe("what a selection holds", () => {
  it("is the sum of its blocks at the largest moment of each pixel", () => {
    const { lifetimes: l, end } = simulate(1200, { seed: 3 });
    const chosen = (row: number): boolean => l.category[row] === 2;
    const [t0, t1, pixels] = [end * 0.2, end * 0.6, 70];
    const held = heldBytes(l, { t0, t1 }, pixels, chosen);
    const at = (t: number): number => [...l.id.keys()].filter((row) => chosen(row) && l.start[row]! <= t && t < l.end[row]!).reduce((sum, row) => sum + l.size[row]!, 0);
    const times = [...l.start, ...l.end].filter(Number.isFinite);
    for (let k = 0; k < pixels; k++) {
      const [begin, stop] = [t0 + ((t1 - t0) * k) / pixels, t0 + ((t1 - t0) * (k + 1)) / pixels];
      const most = Math.max(...[begin, ...times.filter((t) => t > begin && t < stop)].map(at));
      expect(held.bytes[k]).toBe(most);
    }
    for (const [from, to] of held.spans) {
      expect(at((from + Math.min(to, end)) / 2 + 1e-9)).toBeGreaterThanOrEqual(0);
      expect(to).toBeGreaterThan(from);
    }
  });

  it("is bracketed from the first allocation to the last free", () => {
    const column = (...values: number[]): Float64Array => Float64Array.from(values);
    const blocks = { used: 4, start: column(1, 2, 5, 9), end: column(3, 4, 7, Infinity), size: column(1, 1, 1, 1) };
    expect(heldBytes(blocks, { t0: 0, t1: 10 }, 100, () => true).spans).toEqual([[1, 4], [5, 7], [9, Infinity]]);
    expect(heldBytes(blocks, { t0: 0, t1: 10 }, 5, () => true).spans).toEqual([[1, 7], [9, Infinity]]);
    expect(heldBytes(blocks, { t0: 2.5, t1: 4.9 }, 100, () => true).spans).toEqual([[1, 4]]);
  });
});

describe("places of segments", () => {
  const segment = (id: number, size: number, used = 0, holes = 1): SegmentState => ({ id, row: id, size, rows: new Int32Array(0), used, holes, largestHole: size - used });
  const inside = (places: { x: number; y: number; width: number; height: number }[], width: number): void => {
    let overlaps = 0;
    places.forEach((a, at) => {
      expect(a.x).toBeGreaterThanOrEqual(0);
      expect(a.x + a.width).toBeLessThanOrEqual(width + 1e-6);
      for (let next = at + 1; next < places.length; next++) {
        const b = places[next]!;
        if (!(a.x + a.width <= b.x + 1e-6 || b.x + b.width <= a.x + 1e-6 || a.y + a.height <= b.y || b.y + b.height <= a.y)) overlaps++;
      }
    });
    expect(overlaps).toBe(0);
  };

  it("never overlap and stay inside, few or many", () => {
    const random = generator(6);
    for (const count of [1, 2, 7, 30, 49, 300, 2000]) {
      const segments = Array.from({ length: count }, (_, id) => segment(id + 1, Math.ceil(random() * 20) * MiB));
      const { places, height } = placeSegments(segments, 900, 80);
      expect(places.map((place) => place.segment.id).sort((a, b) => a - b)).toEqual(segments.map(({ id }) => id));
      inside(places, 900);
      expect(Math.max(...places.map((place) => place.y + place.height))).toBeLessThanOrEqual(height);
      expect(Math.min(...places.map((place) => place.width))).toBeGreaterThanOrEqual(3);
    }
    inside(placeCompact([segment(1, 2), segment(2, 2), segment(3, 20)], 480), 480);
  });

  it("come in the order asked for", () => {
    const state = { time: 0, totals: new Float64Array(9), blocks: 0, segments: [segment(1, 4, 4, 0), segment(2, 8, 2), segment(3, 2, 1)] };
    const ids = (order: "address" | "size" | "holes"): number[] => ordered(state, order, ({ id }) => -id).map(({ id }) => id);
    expect(ids("address")).toEqual([3, 2, 1]);
    expect(ids("size")).toEqual([2, 1, 3]);
    expect(ids("holes")).toEqual([2, 3, 1]);
  });

  it("are named without digits that say nothing", () => {
    expect([wholeBytes(20 * MiB), wholeBytes(2.5 * MiB), wholeBytes(100 * 1024)]).toEqual(["20 MiB", "2.50 MiB", "100 KiB"]);
  });
});
