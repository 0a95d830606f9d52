import { describe, expect, it } from "vitest";
import { categories, contrast, families, labelOn, over, parseColour, rgb, type Rgb } from "../src/palette.ts";

type Triple = [number, number, number];
type Matrix = [Triple, Triple, Triple];

const linear = (value: number): number => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
const gamma = (value: number): number => (value <= 0.0031308 ? 12.92 * value : 1.055 * value ** (1 / 2.4) - 0.055);
const apply = (m: Matrix, v: Triple): Triple => m.map((row) => row[0] * v[0] + row[1] * v[1] + row[2] * v[2]) as Triple;

/** Full dichromacy after Machado, Oliveira and Fernandes (2009), severity 1. */
const simulations: Record<string, Matrix> = {
  normal: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  protanopia: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  deuteranopia: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  tritanopia: [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
};

function lab(colour: Rgb, simulation: Matrix): Triple {
  const seen = apply(simulation, colour.map((value) => linear(value / 255)) as Triple).map((value) => linear(gamma(Math.min(1, Math.max(0, value))))) as Triple;
  const [x, y, z] = apply([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]], seen);
  const f = (value: number): number => (value > 216 / 24389 ? Math.cbrt(value) : (24389 / 27 * value + 16) / 116);
  const [fx, fy, fz] = [f(x / 0.95047), f(y), f(z / 1.08883)];
  return [116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)];
}

/** CIEDE2000 colour difference (Sharma, Wu and Dalal 2005). */
function difference([l1, a1, b1]: Triple, [l2, a2, b2]: Triple): number {
  const rad = Math.PI / 180;
  const chroma = (Math.hypot(a1, b1) + Math.hypot(a2, b2)) / 2;
  const g = 0.5 * (1 - Math.sqrt(chroma ** 7 / (chroma ** 7 + 25 ** 7)));
  const [p1, p2] = [a1 * (1 + g), a2 * (1 + g)];
  const [c1, c2] = [Math.hypot(p1, b1), Math.hypot(p2, b2)];
  const hue = (a: number, b: number): number => (a === 0 && b === 0 ? 0 : (Math.atan2(b, a) / rad + 360) % 360);
  const [h1, h2] = [hue(p1, b1), hue(p2, b2)];
  let dh = h2 - h1;
  if (c1 * c2 === 0) dh = 0;
  else if (dh > 180) dh -= 360;
  else if (dh < -180) dh += 360;
  const [dl, dc, dH] = [l2 - l1, c2 - c1, 2 * Math.sqrt(c1 * c2) * Math.sin((dh / 2) * rad)];
  const [l, c] = [(l1 + l2) / 2, (c1 + c2) / 2];
  const h = c1 * c2 === 0 ? h1 + h2 : Math.abs(h1 - h2) <= 180 ? (h1 + h2) / 2 : (h1 + h2 + (h1 + h2 < 360 ? 360 : -360)) / 2;
  const t = 1 - 0.17 * Math.cos((h - 30) * rad) + 0.24 * Math.cos(2 * h * rad) + 0.32 * Math.cos((3 * h + 6) * rad) - 0.2 * Math.cos((4 * h - 63) * rad);
  const sl = 1 + (0.015 * (l - 50) ** 2) / Math.sqrt(20 + (l - 50) ** 2);
  const [sc, sh] = [1 + 0.045 * c, 1 + 0.015 * c * t];
  const rt = -Math.sin(60 * Math.exp(-(((h - 275) / 25) ** 2)) * rad) * 2 * Math.sqrt(c ** 7 / (c ** 7 + 25 ** 7));
  return Math.sqrt((dl / sl) ** 2 + (dc / sc) ** 2 + (dH / sh) ** 2 + rt * (dc / sc) * (dH / sh));
}

it("computes CIEDE2000 as its authors' test data says", () => {
  expect(difference([50, 2.6772, -79.7751], [50, 0, -82.7485])).toBeCloseTo(2.0425, 4);
  expect(difference([50, -1, 2], [50, 0, 0])).toBeCloseTo(2.3669, 4);
  expect(difference([22.7233, 20.0904, -46.694], [23.0331, 14.973, -42.5619])).toBeCloseTo(2.0373, 4);
  expect(difference([2.0776, 0.0795, -1.135], [0.9033, -0.0636, -0.5514])).toBeCloseTo(0.9082, 4);
});

const sets: [string, readonly (readonly [string, string])[]][] = [["op families", Object.values(families)], ["memory categories", categories]];
const least: Record<string, number> = { normal: 16, protanopia: 14, deuteranopia: 14, tritanopia: 11.5 };

describe.each(sets)("%s", (_, pairs) => {
  describe.each([["light", 0, "#ffffff"], ["dark", 1, "#212121"]] as const)("on a %s page", (_name, at, page) => {
    it.each(Object.entries(simulations))("are told apart with %s vision", (vision, simulation) => {
      const colours = pairs.map((pair) => lab(rgb(pair[at]), simulation));
      let smallest = Infinity;
      for (let one = 0; one < colours.length; one++) for (let two = 0; two < one; two++) smallest = Math.min(smallest, difference(colours[one]!, colours[two]!));
      expect(smallest).toBeGreaterThanOrEqual(least[vision]! - 0.05);
    });

    it("contrast at least 3:1 with the page", () => {
      for (const pair of pairs) expect(contrast(rgb(pair[at]), rgb(page)), pair[at]).toBeGreaterThanOrEqual(2.995);
    });

    it("carry labels of at least 4.3:1 in black or white", () => {
      for (const pair of pairs) expect(contrast(rgb(pair[at]), rgb(labelOn(pair[at]))), pair[at]).toBeGreaterThanOrEqual(4.3);
    });
  });
});

it("secondary text, ink at 62 %, reaches 4.5:1 on both pages", () => {
  expect(contrast(over([0, 0, 0, 1], [255, 255, 255], 0.62), [255, 255, 255])).toBeGreaterThanOrEqual(4.5);
  expect(contrast(over([255, 255, 255, 1], [17, 17, 17], 0.62), [17, 17, 17])).toBeGreaterThanOrEqual(4.5);
});

it("reads the colours that browsers compute", () => {
  expect(parseColour("rgb(25, 118, 210)")).toEqual([25, 118, 210, 1]);
  expect(parseColour("rgba(0, 0, 0, 0.87)")).toEqual([0, 0, 0, 0.87]);
  expect(parseColour("rgb(0 0 0 / 54%)")).toEqual([0, 0, 0, 0.54]);
  expect(parseColour("#fff")).toEqual([255, 255, 255, 1]);
  expect(parseColour("color(srgb 1 0.5 0)")!.map(Math.round)).toEqual([255, 128, 0, 1]);
  expect(parseColour("currentcolor")).toBeNull();
});
