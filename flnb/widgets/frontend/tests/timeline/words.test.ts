// @vitest-environment jsdom
import { describe, expect, it } from "vitest";
import type { Theme } from "../../src/theme.ts";
import { EMPTY } from "../../src/timeline/lanes.ts";
import { momentsAt, placeWords } from "../../src/timeline/paint.ts";
import { Timeline } from "../../src/timeline/timeline.ts";

const change = (at: number, text: string): { at: number; text: string } => ({ at, text });
/** Where words stand on a picture from 50 to 850, ten pixels a letter. */
const placed = (...seen: { at: number; text: string }[]): (readonly [string, number])[] =>
  placeWords(seen, { left: 50, right: 850 }, (words) => words.length * 10).map(({ words, x }) => [words, x] as const);

describe("the words of what happened at one time", () => {
  it("stand to the right of their line, and at the end of the picture to its left", () => {
    expect(placed(change(100, "manager a → b"))).toEqual([["manager a → b", 109]]);
    expect(placed(change(800, "manager a → b"))).toEqual([["manager a → b", 800 - 130 - 8]]);
  });

  it("are shorter rather than across another line", () => {
    expect(placed(change(150, "manager aa → b"), change(250, "backend c → d"))).toEqual([["aa → b", 159], ["backend c → d", 259]]);
  });

  it("stand together, to the right of the last or to the left of the first, where lines are near", () => {
    expect(placed(change(100, "manager a → b"), change(110, "backend c → d"))).toEqual([["manager a → b, backend c → d", 119]]);
    expect(placed(change(800, "manager a → b"), change(810, "backend c → d"), change(840, "manager b → a")))
      .toEqual([["manager a → b, backend c → d, manager b → a", 800 - 430 - 8]]);
    expect(placed(change(100, "manager a → b"), change(600, "backend c → d"), change(840, "manager b → a"))).toHaveLength(3);
  });

  it("cross no line and no other words, however many there are", () => {
    const seen = Array.from({ length: 60 }, (_, at) => change(60 + ((at * 131) % 790), `manager m${at} → n${at}`)).sort((one, other) => one.at - other.at);
    const words = placeWords(seen, { left: 50, right: 850 }, (text) => text.length * 2);
    expect(words.length).toBeGreaterThan(2);
    words.forEach(({ x, wide }, at) => {
      expect(seen.filter((one) => one.at > x && one.at < x + wide)).toEqual([]);
      if (at) expect(x).toBeGreaterThan(words[at - 1]!.x + words[at - 1]!.wide);
    });
  });

  it("are all those of a place, under the pointer", () => {
    const moments = [{ t: 1, text: "manager a → b" }, { t: 1.004, text: "backend c → d" }, { t: 2, text: "manager b → a" }];
    expect(momentsAt(moments, 1002, (t) => t * 1000)).toBe("manager a → b · backend c → d");
    expect(momentsAt(moments, 1500, (t) => t * 1000)).toBe("");
  });

  it("are drawn over the line of the time cursor", () => {
    const drawn: string[] = [];
    const pencil: Record<string, unknown> = new Proxy({}, {
      get: (own: Record<string, unknown>, name: string) => (name === "strokeStyle" ? own[name] : name === "measureText" ? () => ({ width: 6 })
        : name === "stroke" ? () => void drawn.push(`line ${String(own["strokeStyle"])}`) : () => pencil),
      set: (own, name: string, value) => ((own[name] = value), true),
    });
    HTMLCanvasElement.prototype.getContext = (() => pencil) as never;
    const theme = { colours: { brand: "brand" }, ui: () => "", measure: () => 6, fit: (text: string) => text } as unknown as Theme;
    const nothing = (): void => undefined;
    const timeline = new Timeline(theme, { range: nothing, cursor: nothing, pick: nothing, tip: () => "", draw: () => drawn.push("lanes"), words: () => drawn.push("words") }, "test");
    timeline.set({ ...EMPTY, limits: { t0: 0, t1: 10 } });
    timeline.resize(600, 300);
    timeline.show({ t0: 0, t1: 10 });
    timeline.cursor = 5;
    timeline.render(true);
    expect(drawn.filter((what) => ["lanes", "line brand", "words"].includes(what))).toEqual(["lanes", "line brand", "words"]);
  });
});
