import { describe, expect, it } from "vitest";
import type { RunInfo } from "../../src/protocol.ts";
import { Store } from "../../src/store.ts";
import { stepBands } from "../../src/threads/bands.ts";

function ran(state: RunInfo["state"]): Store {
  const store = new Store();
  for (const [index, t0, t1] of [[0, 0.1, 0.2], [1, 0.2, 0.4]] as const) store.steps.append({ index, t0, t1 });
  store.run = { state } as RunInfo;
  return store;
}

describe("the ruler over the lanes", () => {
  it("has the steps in sight, and counts from the first of them, or from the beginning of the run", () => {
    const store = ran("finished");
    const { bands, origin, since } = stepBands(store, { t0: 150, t1: 500 });
    expect(bands.map(({ label, start, end }) => [label, Math.round(start), Math.round(end)])).toEqual([["step 0", 100, 200], ["step 1", 200, 400]]);
    expect(origin).toBeCloseTo(100);
    expect(since).toBe("since step 0");
    expect(stepBands(store, { t0: 20, t1: 500 })).toMatchObject({ origin: 0, since: "since the start" }); // never negative times
    store.setCursor(0.15);
    expect(stepBands(store, { t0: 150, t1: 500 }).bands.map(({ strong }) => strong)).toEqual([true, false]);
  });

  it("says of a run that goes on which step was the last", () => {
    const { bands, origin, since } = stepBands(ran("recording"), { t0: 450, t1: 500 });
    expect(bands.map(({ label }) => label)).toEqual(["after step 1"]);
    expect(origin).toBeCloseTo(400);
    expect(since).toBe("after step 1");
    expect(stepBands(ran("recording"), { t0: 250, t1: 390 }).bands.map(({ label }) => label)).toEqual(["step 1"]);
  });
});
