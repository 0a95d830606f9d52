import { describe, expect, it } from "vitest";
import { Locks } from "../src/locks.ts";

describe("user locks", () => {
  const locks = new Locks();
  const frame = { "locked.t": Float64Array.of(1, 2, 4, 5), "locked.alloc_id": Float64Array.of(7, 7, 7, 9), "locked.locks": Float64Array.of(1, 2, 0, 1) };
  locks.apply(frame);

  it("are counted at any time, also when a keyframe tells them again", () => {
    locks.apply(frame);
    expect([0.5, 1, 3, 4].map((t) => locks.on(7, t))).toEqual([0, 1, 2, 0]);
    expect([locks.on(9, 6), locks.on(8, 6)]).toEqual([1, 0]);
  });

  it("stand beside what release_cached gave back", () => {
    const released = { "released.t": Float64Array.of(3), "released.nbytes": Float64Array.of(4096), "released.segments": Float64Array.of(2) };
    locks.apply(released);
    locks.apply(released);
    expect(locks.given).toEqual([{ t: 3, bytes: 4096, segments: 2 }]);
    locks.clear();
    expect([locks.given, locks.on(9, 6)]).toEqual([[], 0]);
  });
});
