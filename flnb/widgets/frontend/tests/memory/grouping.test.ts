import { describe, expect, it } from "vitest";
import { Simulation } from "../../src/dev/simulate.ts";
import { Groups, onlyLines, partOf, REST } from "../../src/memory/grouping.ts";
import { allocatedOf } from "../../src/memory/lifetimes.ts";
import { memoryOf } from "../../src/memory/model.ts";
import { MemoryLog } from "../../src/memorylog.ts";
import { Store } from "../../src/store.ts";
import type { Theme } from "../../src/theme.ts";

const theme = { family: () => "#359cdf", category: () => "#6f757b", colours: { bg: "#fff" } } as unknown as Theme;

function run(memory = new MemoryLog()): Store {
  const store: Store = Object.assign(new Store(), { memory });
  const simulation = new Simulation({ steps: 1000 });
  for (let t = 0; t < 3; t += 0.04) {
    simulation.advance(0.04);
    const { content, buffers } = simulation.frame();
    store.receive(structuredClone(content), buffers, t);
  }
  memoryOf(store).update();
  return store;
}

describe("memory by scope and by op", () => {
  const store = run();
  const model = memoryOf(store);

  for (const by of ["scope", "op", "line"] as const) {
    it(`adds up to what was allocated, by ${by}`, () => {
      const groups = new Groups(store, model, by);
      const line = model.timeline({ t0: 0, t1: store.now }, 150);
      const { totals, width, bands } = groups.stack(line, theme);
      for (let k = 0; k < 150; k++) {
        let sum = 0;
        for (const { column } of bands) sum += totals[k * width + column]!;
        expect(sum).toBe(line.allocated[k]);
      }
      const held = groups.at(store.now);
      expect(held.reduce((sum, value) => sum + value, 0)).toBe(allocatedOf(model.index.totalsAt(store.now).totals));
      expect(held.length).toBe(width);
      expect(new Set(bands.map(({ name }) => name)).size).toBe(bands.length);
    });
  }

  it("takes large parts of the model apart while there is room", () => {
    const names = new Groups(store, model, "scope").bands(theme).map(({ name }) => name);
    new Groups(store, model, "scope").at(0);
    const groups = new Groups(store, model, "scope");
    groups.at(0);
    const shown = groups.bands(theme).map(({ name }) => name);
    expect(names).toHaveLength(2); // nothing was looked at yet
    expect(shown).toContain("net.block1");
    expect(shown).not.toContain("net");
    expect(shown.length).toBeLessThanOrEqual(REST + 2);
  });

  it("names lines by their places, and opens with them where nothing else is known of blocks", () => {
    const made = run();
    const { lifetimes } = made.memory;
    const lines = ["model.py:12: forward", "model.py:12: backward", "train.py:77: step", ""];
    made.contexts = lines.map((line) => ({ scope: "", phase: "other", ...(line ? { line } : {}) }));
    for (let row = 0; row < lifetimes.used; row++) lifetimes.context[row] = row % 4;
    expect(onlyLines(made)).toBe(false); // blocks have categories
    lifetimes.category.fill(0);
    expect(onlyLines(made)).toBe(true);
    const groups = new Groups(made, memoryOf(made), "line");
    groups.at(made.now);
    expect(groups.bands(theme).map(({ name }) => name).sort()).toEqual(["model.py:12", "no line", "no longer known", "the rest", "train.py:77"]);
    made.contexts = [];
    expect(onlyLines(made)).toBe(false);
  });

  it("says of a time whose blocks have left that it is not known who held what", () => {
    const old = run(new MemoryLog(1024, 4096));
    expect(old.memory.lifetimes.generation).toBeGreaterThan(0);
    const groups = new Groups(old, memoryOf(old), "op");
    const line = memoryOf(old).timeline({ t0: 0, t1: old.now }, 100);
    const { totals, width } = groups.stack(line, theme);
    expect(totals[width - 1]).toBeGreaterThan(0);
    expect(totals[99 * width + width - 1]).toBe(0);
  });

  it("names a scope by its first part, and one more below what stands open", () => {
    expect(partOf("net.block1.conv", new Set())).toBe("net");
    expect(partOf("net.block1.conv", new Set(["net"]))).toBe("net.block1");
    expect(partOf("net.block1.conv", new Set(["net", "net.block1"]))).toBe("net.block1.conv");
    expect(partOf("net", new Set(["net"]))).toBe("net");
  });
});
