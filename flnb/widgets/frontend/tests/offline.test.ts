import { expect, it } from "vitest";
import { answer } from "../src/offline.ts";

it("a saved page answers questions of the Timeline by saying that it is one", () => {
  const names = { plans: [], contexts: [] };
  expect(answer({ type: "timeline", id: 5, window: [0, 1, 100] }, { tape: null, stacks: {} }, names)).toEqual({ type: "timeline", id: 5, saved: true });
  // Of two recordings: about the one that was asked about, which else would be asked again and again.
  expect(answer({ type: "timeline", id: 6, side: 1, window: [0, 1, 100] }, { tape: null, stacks: {} }, names)).toEqual({ type: "timeline", id: 6, side: 1, saved: true });
  expect(answer({ type: "tape", structure: 0 } as never, { tape: null, stacks: {} }, names)).toBeNull();
});
