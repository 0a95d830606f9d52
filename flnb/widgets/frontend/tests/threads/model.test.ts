import { describe, expect, it } from "vitest";
import type { Column, TimelineRow } from "../../src/protocol.ts";
import { keyOf, ThreadsModel, Windows } from "../../src/threads/model.ts";

const OP: TimelineRow = { thread: 1, rank: null, kind: "op", depth: 0 };
const SCOPE: TimelineRow = { thread: 1, rank: null, kind: "scope", depth: 1 };

/** Columns of bars, one millisecond each, given as [row, begin]. */
function columns(bars: readonly (readonly [number, number])[], prefix = ""): Record<string, Column> {
  const of = (make: (bar: readonly [number, number], at: number) => number): Float64Array => Float64Array.from(bars, make);
  const found = { row: of(([row]) => row), t0: of(([, t]) => t), t1: of(([, t]) => t + 1), what: of(() => 3), context: of(() => 4), count: of(() => 1), number: of((_, at) => at), longest: of(() => 1) };
  return Object.fromEntries(Object.entries(found).map(([name, column]) => [prefix + name, column]));
}

function model(): ThreadsModel {
  const made = new ThreadsModel();
  made.take({
    rows: [SCOPE, OP], t0: 0, t1: 100,
    pieces: [{ name: "whole", t0: 0, t1: 100, pixel: 1, count: 3 }, { name: "newest", t0: 80, t1: 100, pixel: 1e-6, count: 2 }],
  }, columns([[0, 10], [1, 10], [1, 50], [0, 85], [1, 90]], "timeline."));
  return made;
}

describe("the pieces of a timeline", () => {
  it("have the bars of each row, piece by piece", () => {
    const made = model();
    const [whole, newest] = [made.best({ t0: 0, t1: 100 }, 1)!, made.best({ t0: 85, t1: 95 }, 0.01)!];
    expect([...whole.rows.get(keyOf(OP))!.start]).toEqual([10, 50]);
    expect([...newest.rows.get(keyOf(OP))!.start]).toEqual([90]);
    expect([...newest.rows.get(keyOf(SCOPE))!.number]).toEqual([3]);
  });

  it("say of which time they lack events, and go on saying so where the newest steps follow them", () => {
    const made = model();
    expect(made.best({ t0: 0, t1: 100 }, 1)!.lacks(0)).toBeNull();
    const lacking = { note: "reading", until: 40, reading: true };
    made.answer({ rows: [SCOPE, OP], t0: 0, t1: 100, pieces: [{ name: "window", t0: 20, t1: 90, pixel: 0.02, count: 1, ...lacking }] }, columns([[1, 30]]));
    expect(made.best({ t0: 30, t1: 60 }, 0.02)!.lacks(30)).toMatchObject(lacking);
    expect(made.best({ t0: 50, t1: 60 }, 0.02)!.lacks(50)).toBeNull();
    expect(made.best({ t0: 30, t1: 99 }, 0.02)!.lacks(30)).toMatchObject(lacking);
    made.answer({ rows: [SCOPE, OP], t0: 0, t1: 100, pieces: [{ name: "window", t0: 20, t1: 90, pixel: 0.02, count: 2 }] }, columns([[1, 30], [1, 32]]));
    expect(made.best({ t0: 30, t1: 60 }, 0.02)!.lacks(30)).toBeNull();
  });

  it("are asked for again after a while where they are being read", () => {
    const windows = new Windows();
    expect(windows.next("a", 0)).toBe(1);
    windows.came(1);
    expect(windows.next("a", 10, "a")).toBe(2);
    windows.came(2);
    expect(windows.next("a", 10 + Windows.READ - 1, "a")).toBeNull();
    expect(windows.next("a", 10 + Windows.READ, "a")).toBe(3);
  });

  it("are chosen by what is looked at: none finer than needed, the finest where none is enough", () => {
    const made = model();
    expect(made.best({ t0: 20, t1: 40 }, 0.02)!.pixel).toBe(1); // too coarse, and all there is
    made.answer({ rows: [SCOPE, OP], t0: 0, t1: 100, pieces: [{ name: "window", t0: 0, t1: 60, pixel: 0.02, count: 1 }] }, columns([[1, 30]]));
    expect(made.best({ t0: 20, t1: 40 }, 0.02)!.pixel).toBe(0.02);
    expect(made.best({ t0: 20, t1: 70 }, 0.05)!.pixel).toBe(1); // the answer does not have all of it
    expect(made.best({ t0: -5, t1: 100 }, 2)!.pixel).toBe(1); // nothing was before the run began
  });

  it("keep the whole run where a frame has the newest steps alone", () => {
    const made = model();
    made.take({ rows: [OP], t0: 0, t1: 120, pieces: [{ name: "newest", t0: 100, t1: 120, pixel: 1e-6, count: 1 }] }, columns([[0, 110]], "timeline."));
    expect([...made.best({ t0: 105, t1: 120 }, 0.01)!.rows.get(keyOf(OP))!.start]).toEqual([110]);
    expect([...made.best({ t0: 0, t1: 90 }, 0.1)!.rows.get(keyOf(OP))!.start]).toEqual([10, 50]);
    expect(made.limits.t1).toBe(120);
  });

  it("go on with the newest steps, so that a view which follows a run need not ask at every frame", () => {
    const made = model();
    const ROWS = [SCOPE, OP];
    made.answer({ rows: ROWS, t0: 0, t1: 100, pieces: [{ name: "window", t0: 0, t1: 95, pixel: 0.02, count: 3 }] }, columns([[1, 30], [1, 88.5], [1, 90]]));
    made.take({ rows: ROWS, t0: 0, t1: 110, pieces: [{ name: "newest", t0: 89, t1: 110, pixel: 1e-6, count: 2 }] }, columns([[1, 90], [1, 105]], "timeline."));
    const piece = made.best({ t0: 0, t1: 110 }, 0.02)!;
    expect([piece.pixel, piece.t1]).toEqual([0.02, 110]);
    const { start, end, number } = piece.rows.get(keyOf(OP))!;
    expect([...start]).toEqual([30, 88.5, 90, 105]); // what both have is there once
    expect([...end]).toEqual([31, 89, 91, 106]); // and a bar in which the newest begin is cut
    expect(number.length).toBe(4);
    made.take({ rows: ROWS, t0: 0, t1: 130, pieces: [{ name: "newest", t0: 96, t1: 130, pixel: 1e-6, count: 1 }] }, columns([[1, 120]], "timeline."));
    expect(made.best({ t0: 0, t1: 130 }, 0.02)!.pixel).toBe(1); // of what was between 95 and 96 the answer has nothing
  });
});

describe("questions about windows", () => {
  it("go out one at a time, again after a while, and are late until something has come", () => {
    const windows = new Windows();
    expect(windows.next("a", 0)).toBe(1);
    expect(windows.next("a", 10)).toBeNull();
    expect(windows.next("b", 20)).toBeNull();
    expect(windows.late(Windows.SLOW - 1)).toBe(false);
    expect(windows.late(Windows.SLOW + 1)).toBe(true);
    expect(windows.next("b", Windows.SLOW + 1)).toBe(2); // another one may pass it
    expect(windows.next("b", Windows.AGAIN + Windows.SLOW + 2)).toBe(3);
    expect(windows.late(Windows.AGAIN + Windows.SLOW + 3)).toBe(true); // asking again is no answer
    expect(windows.came(1)).toBe(false);
    expect(windows.late(Windows.AGAIN + Windows.SLOW + 3)).toBe(false);
    expect(windows.came(3)).toBe(true);
    expect(windows.next("c", 9999)).toBe(4);
    windows.forget();
    expect(windows.late(99999)).toBe(false);
  });

  it("about a stretch that moves with a run go out once a second at most", () => {
    const windows = new Windows();
    let asked = 0;
    for (let now = 0; now < 5000; now += 50) {
      const id = windows.next(`${now}`, now, "1300 following");
      if (id === null) continue;
      asked++;
      windows.came(id);
    }
    expect(asked).toBe(5);
    expect(windows.next("elsewhere", 5000)).not.toBeNull(); // the reader has moved: at once
  });
});
