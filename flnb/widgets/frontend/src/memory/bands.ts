/** Stacked, stepped areas over time, and the lines that follow pixels. */

import { fillBox, hatch, label } from "../canvas.ts";
import { categoryLabels, categoryOrder } from "../palette.ts";
import type { Theme } from "../theme.ts";
import { TOTALS_WIDTH, WASTE } from "./lifetimes.ts";
import type { Timeline } from "./stacking.ts";

/** One area: its column in the stack's totals, and how it is filled; "" is a hatch. */
export interface Band { readonly name: string; readonly column: number; readonly fill: string }

/** Bytes by pixel and band, the lowest band first; each pixel's bands add up to what was allocated. */
export interface Stack { readonly bands: readonly Band[]; readonly width: number; readonly totals: Float64Array }

export const nameOf = (category: number): string => (category === WASTE ? "rounding waste" : categoryLabels[category]!);

/** The bands of categories: what is steady lies low, the rounding waste on top. */
export function categoryStack(line: Timeline, theme: Theme): Stack {
  const bands = [...categoryOrder, WASTE].map((column) => ({ name: nameOf(column), column, fill: column === WASTE ? "" : theme.category(column) }));
  return { bands, width: TOTALS_WIDTH, totals: line.totals };
}

/** The places of a chart: its left edge, and the height of a value. */
export interface Places { readonly left: number; y(value: number): number }

/** Fills the bands from the bottom up with a gap between two. */
export function drawBands(c: CanvasRenderingContext2D, at: Places, { bands, width, totals }: Stack, theme: Theme): void {
  const pixels = totals.length / width;
  const base = new Float64Array(pixels);
  bands.forEach(({ column, fill }, number) => {
    let any = false;
    for (let k = 0; k < pixels && !any; k++) any = totals[k * width + column]! > 0;
    if (!any) return;
    c.fillStyle = fill || hatch(c, theme.colours.dim);
    c.beginPath();
    let [before, started] = [NaN, false];
    for (let k = 0; k < pixels; k++) {
      const y = at.y(base[k]! + totals[k * width + column]!);
      // A flat stretch is one corner: fewer points than pixels.
      if (y === before) continue;
      if (started) c.lineTo(at.left + k, before);
      else c.moveTo(at.left, y);
      c.lineTo(at.left + k, y);
      started = true;
      before = y;
    }
    c.lineTo(at.left + pixels, before);
    before = NaN;
    for (let k = pixels - 1; k >= 0; k--) {
      const y = at.y(base[k]!);
      if (y === before) continue;
      c.lineTo(at.left + k + 1, Number.isNaN(before) ? y : before);
      c.lineTo(at.left + k + 1, y);
      before = y;
    }
    c.lineTo(at.left, before);
    c.fill();
    for (let k = 0; k < pixels; k++) base[k]! += totals[k * width + column]!;
    if (!fill || number === bands.length - 1 || !bands[number + 1]!.fill) return;
    c.strokeStyle = theme.colours.bg;
    c.globalAlpha = 0.75;
    c.lineWidth = 1;
    strokeSteps(c, at, base);
    c.globalAlpha = 1;
  });
}

/** Strokes values by pixel as a stepped line on sharp rows. */
export function strokeSteps(c: CanvasRenderingContext2D, at: Places, values: Float64Array): void {
  c.beginPath();
  let before = NaN;
  for (let k = 0; k < values.length; k++) {
    const y = Math.round(at.y(values[k]!)) + 0.5;
    if (y === before) continue;
    if (k === 0) c.moveTo(at.left, y);
    else {
      c.lineTo(at.left + k, before);
      c.lineTo(at.left + k, y);
    }
    before = y;
  }
  c.lineTo(at.left + values.length, before);
  c.stroke();
}

/** Hatch the spans (in seconds) of which nothing was received; `x` keeps within the picture, or the picture is clipped. */
export function paintMissing(c: CanvasRenderingContext2D, theme: Theme, gaps: readonly (readonly [number, number])[], x: (t: number) => number, top: number, bottom: number): void {
  const { colours } = theme;
  for (const [from, to] of gaps) {
    const [x0, x1] = [x(from), x(to)];
    if (x1 <= x0) continue;
    for (const fill of [colours.bg, hatch(c, colours.mark, 5)]) fillBox(c, fill, x0, top, Math.max(1, x1 - x0), bottom - top);
    const [said, font] = ["not received", theme.ui(11, 500)];
    const wide = theme.measure(said, font);
    if (x1 - x0 < wide + 12) continue;
    fillBox(c, colours.bg, x1 - wide - 6, top + 3, wide + 4, 14);
    label(c, said, x1 - 4, top + 10, colours.ink, font, "right");
  }
}
