import { describe, expect, it } from "vitest";
import { Bars } from "../../src/timeline/bars.ts";
import { HEADING, Layout } from "../../src/timeline/lanes.ts";
import { LEAST, panned, spanOfKey, spanOfWheel, TimeScale, timeTicks, within, zoomed } from "../../src/timeline/scale.ts";

const limits = { t0: 0, t1: 100 };

describe("the scale of a timeline", () => {
  it("leads from times to pixels and back", () => {
    const scale = new TimeScale({ t0: 10, t1: 30 }, 100, 500);
    expect(scale.x(10)).toBe(100);
    expect(scale.x(20)).toBe(300);
    expect(scale.time(scale.x(17.3))).toBeCloseTo(17.3, 10);
    expect(scale.pixel).toBeCloseTo(0.05, 12);
    expect([scale.shows(0, 9.9), scale.shows(0, 10), scale.shows(30, 31), scale.shows(31, 32)]).toEqual([false, true, true, false]);
  });

  it("zooms about the pointer, within what there is", () => {
    const span = zoomed({ t0: 40, t1: 60 }, 0.5, 45, limits);
    expect(span).toEqual({ t0: 42.5, t1: 52.5 });
    expect((45 - span.t0) / 10).toBeCloseTo((45 - 40) / 20, 12);
    expect(zoomed({ t0: 40, t1: 60 }, 100, 50, limits)).toEqual(limits);
    const closest = zoomed({ t0: 40, t1: 60 }, 1e-9, 50, limits);
    expect(closest.t1 - closest.t0).toBeCloseTo(LEAST, 9);
  });

  it("pans to the ends and no further", () => {
    expect(panned({ t0: 40, t1: 60 }, 10, limits)).toEqual({ t0: 50, t1: 70 });
    expect(panned({ t0: 40, t1: 60 }, 500, limits)).toEqual({ t0: 80, t1: 100 });
    expect(within({ t0: -30, t1: -10 }, limits)).toEqual({ t0: 0, t1: 20 });
  });

  it("answers keys: W and S zoom about the cursor where it is in sight, A, D and the arrows pan", () => {
    const span = { t0: 40, t1: 70 };
    expect(spanOfKey("w", span, 40.5, limits)!.t0).toBeCloseTo(40.5 - 0.5 / 1.5, 12);
    expect(spanOfKey("W", span, 90, limits)).toEqual({ t0: 45, t1: 65 });
    expect(spanOfKey("s", span, null, limits)).toEqual({ t0: 32.5, t1: 77.5 });
    expect([spanOfKey("a", span, null, limits), spanOfKey("ArrowRight", span, null, limits)]).toEqual([{ t0: 32.5, t1: 62.5 }, { t0: 43, t1: 73 }]);
    expect(spanOfKey("d", { t0: 75, t1: 95 }, null, limits)).toEqual({ t0: 80, t1: 100 });
    expect(spanOfKey("x", span, null, limits)).toBeNull();
  });

  it("answers the wheel: it zooms about the pointer, sideways or with Shift it pans", () => {
    const scale = new TimeScale({ t0: 40, t1: 60 }, 0, 200);
    const wheel = (event: Partial<WheelEvent>): WheelEvent => ({ offsetX: 50, deltaX: 0, deltaY: 0, shiftKey: false, ...event }) as WheelEvent;
    const closer = spanOfWheel(wheel({ deltaY: -100 }), scale, scale, limits);
    expect(closer.t1 - closer.t0).toBeCloseTo(20 * Math.exp(-0.2), 12);
    expect((45 - closer.t0) / (closer.t1 - closer.t0)).toBeCloseTo(0.25, 12);
    expect(spanOfWheel(wheel({ deltaX: 30, deltaY: 5 }), scale, scale, limits)).toEqual({ t0: 43, t1: 63 });
    expect(spanOfWheel(wheel({ deltaY: -30, shiftKey: true }), scale, scale, limits)).toEqual({ t0: 37, t1: 57 });
  });

  it("labels ticks from the origin, in the unit that reads best, with as many digits as tell them apart", () => {
    const labels = (t0: number, t1: number, origin: number): string[] => timeTicks(new TimeScale({ t0, t1 }, 0, 500), origin).map(({ label }) => label);
    expect(labels(990, 1110, 1000)).toEqual(["0", "20 ms", "40 ms", "60 ms", "80 ms", "100 ms"]);
    expect(labels(900, 1100, 1000)).toContain("−50 ms");
    expect(labels(0, 10_000, 0)).toContain("4 s");
    expect(labels(1100.25, 1100.2512, 1000)).toHaveLength(new Set(labels(1100.25, 1100.2512, 1000)).size);
  });
});

describe("lanes", () => {
  const bars = (start: number, end: number, item: number): Bars => Bars.from([{ start, end, kind: 0, item }]);
  const layout = new Layout([
    { key: "0", title: "rank 0", notes: [], rows: [{ bars: bars(0, 10, 7), height: 12 }, { bars: bars(20, 30, 8), height: 9 }] },
    { key: "1", title: "rank 1", notes: ["host a", "±4 µs"], rows: [{ bars: bars(0, 100, 9), height: 12 }] },
  ]);
  const scale = new TimeScale({ t0: 0, t1: 100 }, HEADING, HEADING + 500);

  it("stand under each other, each as high as its rows and its notes need", () => {
    expect(layout.tops[0]).toBe(0);
    expect(layout.tops[1]).toBe(layout.bottom(0));
    expect(layout.bottom(1)).toBe(layout.height);
    expect(layout.height - layout.tops[1]!).toBeGreaterThanOrEqual(3 * 13);
    expect([layout.laneAt(-1), layout.laneAt(0), layout.laneAt(layout.tops[1]!), layout.laneAt(layout.height)]).toEqual([-1, 0, 1, -1]);
  });

  it("tell which bar is at a place, narrow ones with some room around them", () => {
    const y = (lane: number, row: number): number => layout.rows[lane]![row]! + 4;
    expect(layout.markAt(y(0, 0), scale.x(5), scale)).toEqual({ lane: 0, row: 0, index: 0, item: 7 });
    expect(layout.markAt(y(0, 1), scale.x(25), scale)?.item).toBe(8);
    expect(layout.markAt(y(0, 1), scale.x(30) + 2, scale)?.item).toBe(8);
    expect(layout.markAt(y(0, 1), scale.x(30) + 20, scale)).toBeNull();
    expect(layout.markAt(y(1, 0), scale.x(50), scale)?.item).toBe(9);
    expect(layout.markAt(layout.height + 1, scale.x(50), scale)).toBeNull();
  });
});
