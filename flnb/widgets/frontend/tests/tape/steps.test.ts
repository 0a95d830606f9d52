// @vitest-environment jsdom
import { beforeEach, describe, expect, it } from "vitest";
import type { Tape, TapeNode } from "../../src/protocol.ts";
import { Store } from "../../src/store.ts";
import { TapeModel } from "../../src/tape/model.ts";
import { TapeSteps, whyNone } from "../../src/tape/steps.ts";
import type { ViewContext } from "../../src/view.ts";

const node = (more: object): TapeNode => ({ id: 1, at: 0, plan: 0, context: 0, parents: [], health: 0, forward_ns: 1, backward_ns: 1, ...more } as unknown as TapeNode);
const tape = (step: number, more = {}): Tape => ({ step, t: 1, count: 1, structure: "", nodes: [node(more)], leaves: [], levels: [], inputs: [] } as unknown as Tape);

describe("the tape of a run that has ended", () => {
  let store: Store;
  let asked: object[];
  const open = (shown: Tape): TapeSteps => {
    store.tape = shown;
    store.versions.tape++;
    const model = new TapeModel(store);
    model.update();
    return new TapeSteps({ store, actions: { ask: (request: object) => asked.push(request) } } as unknown as ViewContext, model);
  };
  beforeEach(() => {
    [store, asked] = [new Store(), []];
    for (const index of [0, 1]) store.steps.append({ index, t0: index, t1: index + 0.9 });
    store.cursor = store.landedAt = 0.5; // in step 0
  });

  it("is that of the step under the cursor from the beginning", () => {
    const steps = open(tape(1));
    expect(steps.elsewhere).toBe("not that of step 0 under the cursor");
    steps.follow();
    steps.follow(); // is not asked for twice
    expect(asked).toEqual([{ type: "tape", at: 0 }]);
    const shown = open(tape(0));
    shown.follow();
    expect([shown.elsewhere, asked.length]).toEqual(["", 1]);
  });

  it("begins with a NaN or a failed forward, in whatever step, and follows the reader from there", () => {
    for (const bad of [{ health: 2 }, { failed: { op: "matmul", got: [], expected: null, message: "" } }]) {
      const steps = open(tape(1, bad));
      store.cursor = store.landedAt;
      steps.follow();
      expect(asked).toEqual([]);
      store.cursor = 0.6;
      steps.follow();
      expect(asked.splice(0)).toEqual([{ type: "tape", at: 0 }]);
    }
  });

  it("is missing for a reason", () => {
    const reasons = (["recording", "finished", "failed"] as const).map((state) => {
      store.run = { state } as never;
      store.latest = { run: { state }, counters: {} } as never;
      return whyNone(store);
    });
    expect(reasons).toEqual([
      "No tape yet: the graph of a step appears after its backward().", "No tape: nothing was differentiated in this recording.",
      "No tape: the run failed before anything was differentiated.",
    ]);
  });
});
