import { describe, expect, it } from "vitest";
import { Simulation } from "../../src/dev/simulate.ts";
import { allocatedOf } from "../../src/memory/lifetimes.ts";
import { memoryOf } from "../../src/memory/model.ts";
import { MemoryLog } from "../../src/memorylog.ts";
import type { FrameHead } from "../../src/protocol.ts";
import { Store } from "../../src/store.ts";

/** The frames of a run that has ended, as they are told of a recording, and how often each of them came. */
function told(store: Store, seconds: number, times = 1): void {
  for (let time = 0; time < times; time++) {
    const simulation = new Simulation({ steps: 1000 });
    const parts = Math.round(seconds / 0.1);
    for (let part = 0; part <= parts; part++) {
      simulation.advance(0.1);
      const { content, buffers } = simulation.frame();
      const head: FrameHead = structuredClone(content);
      Object.assign(head, { part: [part, parts], run: { ...head.run, state: "finished", whole: true } });
      store.receive(head, buffers, part);
    }
  }
}

const small = (): Store => Object.assign(new Store(), { memory: new MemoryLog(1024, 1024) });

describe("a recording that is told whole", () => {
  const store = small();
  told(store, 4);
  const model = memoryOf(store);
  model.update();

  it("keeps every lifetime, however many", () => {
    const { lifetimes } = store.memory;
    expect(lifetimes.used).toBeGreaterThan(4096);
    expect(lifetimes.generation).toBe(1); // cleared once, as it began
    expect(lifetimes.completeSince).toBe(-Infinity);
    for (let row = 1; row < lifetimes.used; row++) expect(lifetimes.start[row]!).toBeGreaterThanOrEqual(lifetimes.start[row - 1]!);
  });

  it("answers for any moment what the lifetimes say", () => {
    const { lifetimes } = store.memory;
    for (let k = 0; k <= 20; k++) {
      const t = (store.now * k) / 20;
      let size = 0;
      for (let row = 0; row < lifetimes.used; row++) if (lifetimes.isLive(row, t)) size += lifetimes.size[row]!;
      const state = model.state(t);
      expect(allocatedOf(state.totals)).toBe(size);
      expect(state.segments.reduce((sum, segment) => sum + segment.used, 0)).toBe(size);
    }
  });

  it("opens at its peak, and goes back there", () => {
    expect(store.landed).toBe(true);
    const most = (t: number): number => allocatedOf(model.state(t).totals);
    expect(most(store.cursor!)).toBe(store.memory.peak.allocated);
    expect(store.stepAt(store.cursor!)).toBe(store.tape!.step); // as much is live in each step: the one with the tape
    const landed = store.cursor;
    expect(store.range.t0).toBeLessThanOrEqual(store.cursor!);
    expect(store.range.t1).toBeGreaterThan(store.cursor!);
    store.setCursor(1);
    store.follow();
    expect(store.cursor).toBe(landed);
    store.tape = { ...store.tape!, step: -1 }; // of no step that has ended
    store.follow();
    expect(store.cursor).toBe(store.memory.peak.t);
  });

  it("draws its whole range from lifetimes, not from bins", () => {
    const line = model.timeline({ t0: 0, t1: store.now }, 50);
    for (let k = 0; k < 50; k++) expect(line.allocated[k]).toBe(allocatedOf(model.index.totalsAt(line.time[k]!).totals));
    expect(Math.max(...line.allocated)).toBe(store.memory.peak.allocated);
  });

  it("is the same when it is told again", () => {
    const again = small();
    told(again, 4, 2);
    expect(again.memory.lifetimes.used).toBe(store.memory.lifetimes.used);
    expect(again.memory.allocated).toBe(store.memory.allocated);
    expect(again.memory.peak).toEqual(store.memory.peak);
  });
});
