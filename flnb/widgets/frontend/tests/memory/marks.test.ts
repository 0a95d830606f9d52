import { describe, expect, it } from "vitest";
import type { Lifetimes } from "../../src/memory/lifetimes.ts";
import { markAt, marksOf } from "../../src/memory/marks.ts";
import { generator } from "./simulated.ts";

function blocks(list: { offset: number; size: number; requested?: number; category?: number }[]): Lifetimes {
  const column = (f: (b: (typeof list)[number]) => number): Float64Array => Float64Array.from(list, f);
  return {
    used: list.length, id: column((b) => b.offset + 1), start: column(() => 0), end: column(() => Infinity), segment: Uint32Array.from(list, () => 1),
    offset: column((b) => b.offset), size: column((b) => b.size), requested: column((b) => b.requested ?? b.size), category: Uint8Array.from(list, (b) => b.category ?? 3),
  };
}
const rowsOf = (l: Lifetimes): Int32Array => Int32Array.from({ length: l.used }, (_, at) => at);

describe("marks", () => {
  it("stand to scale where there is room, with the waste at their end", () => {
    const l = blocks([{ offset: 0, size: 100, requested: 80 }, { offset: 200, size: 50 }]);
    expect(marksOf(l, rowsOf(l), 400, 200)).toEqual([
      { x0: 0, x1: 50, used: 40, category: 3, first: 0, last: 1 },
      { x0: 100, x1: 125, used: 125, category: 3, first: 1, last: 2 },
    ]);
  });

  it("merge in a pixel under the category with most bytes", () => {
    const l = blocks([{ offset: 0, size: 1, category: 1 }, { offset: 1, size: 3, category: 2 }, { offset: 4, size: 1, category: 1 }, { offset: 900, size: 1 }]);
    expect(marksOf(l, rowsOf(l), 1000, 100)).toEqual([
      { x0: 0, x1: 1, used: 1, category: 2, first: 0, last: 3 },
      { x0: 90, x1: 91, used: 91, category: 3, first: 3, last: 4 },
    ]);
  });

  it("never vanish: every block is in exactly one mark, at least a pixel wide, in order, without overlap", () => {
    const random = generator(12);
    for (let round = 0; round < 200; round++) {
      const list = [];
      let offset = 0;
      while (list.length < 1 + random() * 200) {
        offset += random() < 0.5 ? 0 : Math.floor(random() ** 4 * 5000);
        const size = 1 + Math.floor(random() ** 6 * 20000);
        list.push({ offset, size, category: Math.floor(random() * 7) });
        offset += size;
      }
      const l = blocks(list);
      const width = 20 + Math.floor(random() * 500);
      const marks = marksOf(l, rowsOf(l), offset, width);
      expect(marks.flatMap((m) => Array.from({ length: m.last - m.first }, (_, k) => m.first + k))).toEqual(list.map((_, at) => at));
      marks.forEach((m, at) => {
        expect(m.x1 - m.x0).toBeGreaterThan(0.999);
        expect(m.x1).toBeLessThanOrEqual(width + 1e-6);
        if (at > 0 && m.x0 < width - 1) expect(m.x0).toBeGreaterThanOrEqual(marks[at - 1]!.x1 - 1 - 1e-9);
      });
    }
  });

  it("of one pixel can be hit from beside", () => {
    const l = blocks([{ offset: 0, size: 400 }, { offset: 600, size: 1 }]);
    const marks = marksOf(l, rowsOf(l), 1000, 100);
    expect(markAt(marks, 10)).toBe(0);
    expect(markAt(marks, 58.5)).toBe(1);
    expect(markAt(marks, 50)).toBe(-1);
  });
});
