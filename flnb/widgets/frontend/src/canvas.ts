/** Drawing that every canvas shares: sharp lines, text, hatches, screen scale. */

import { attribute } from "./dom.ts";
import { range, ticks as decimalTicks } from "d3-array";

/** A canvas that knows its size in CSS pixels and stays sharp on every screen. */
export class Surface {
  readonly canvas: HTMLCanvasElement;
  readonly context: CanvasRenderingContext2D;
  width = 0;
  height = 0;

  constructor(label: string) {
    this.canvas = document.createElement("canvas");
    this.canvas.className = "fl-canvas";
    attribute(this.canvas, "role", "img");
    attribute(this.canvas, "aria-label", label);
    const context = this.canvas.getContext("2d");
    if (!context) throw new Error("flnb: this browser gives no 2D canvas");
    this.context = context;
  }

  /**
   * Set the size; true when it changed (a change clears the canvas). A page that is hidden for a moment, as JupyterLab's
   * is while it changes its theme, has no size: the picture keeps the one it had.
   */
  resize(width: number, height: number): boolean {
    if (!(width > 0 && height > 0)) return false;
    const scale = devicePixelRatio || 1;
    const [pixelsX, pixelsY] = [Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))];
    this.width = width;
    this.height = height;
    if (this.canvas.width === pixelsX && this.canvas.height === pixelsY) return false;
    this.canvas.width = pixelsX;
    this.canvas.height = pixelsY;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    return true;
  }

  /** Clear and start a drawing in CSS pixels. */
  begin(): CanvasRenderingContext2D {
    const scale = this.width > 0 ? this.canvas.width / this.width : 1;
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.context.clearRect(0, 0, this.width, this.height);
    this.context.globalAlpha = 1;
    this.context.setLineDash([]);
    return this.context;
  }
}

export function horizontal(c: CanvasRenderingContext2D, x0: number, x1: number, y: number, colour: string, dash: number[] = [], width = 1): void {
  setPen(c, colour, width);
  c.setLineDash(dash);
  const at = width % 2 ? Math.round(y - 0.5) + 0.5 : Math.round(y);
  tracePath(c, x0, at, x1, at);
  c.stroke();
  c.setLineDash([]);
}

export function vertical(c: CanvasRenderingContext2D, x: number, y0: number, y1: number, colour: string, dash: number[] = [], width = 1): void {
  setPen(c, colour, width);
  c.setLineDash(dash);
  const at = width % 2 ? Math.round(x - 0.5) + 0.5 : Math.round(x);
  tracePath(c, at, y0, at, y1);
  c.stroke();
  c.setLineDash([]);
}

export function fillBox(c: CanvasRenderingContext2D, colour: string | CanvasPattern, x: number, y: number, width: number, height: number): void {
  c.fillStyle = colour;
  c.fillRect(x, y, width, height);
}

/** Outline a box. */
export function strokeBox(c: CanvasRenderingContext2D, colour: string, x: number, y: number, width: number, height: number, pen = 1, dash: number[] = []): void {
  setPen(c, colour, pen);
  c.setLineDash(dash);
  c.strokeRect(x, y, width, height);
  c.setLineDash([]);
}

/** Colour and width of the lines that follow. */
export function setPen(c: CanvasRenderingContext2D, colour: string, width = 1): void {
  c.strokeStyle = colour;
  c.lineWidth = width;
}

/** Begin a path of straight lines through points: x, y, x, y ... */
export function tracePath(c: CanvasRenderingContext2D, x: number, y: number, ...rest: number[]): void {
  c.beginPath();
  c.moveTo(x, y);
  for (let at = 0; at < rest.length; at += 2) c.lineTo(rest[at]!, rest[at + 1]!);
}

/** Text whose middle line is y. */
export function label(
  c: CanvasRenderingContext2D, text: string, x: number, y: number, colour: string, font: string,
  align: CanvasTextAlign = "left",
): void {
  c.font = font;
  c.fillStyle = colour;
  c.textAlign = align;
  c.textBaseline = "middle";
  c.fillText(text, x, y);
}

const hatches = new Map<string, CanvasPattern>();

/** Diagonal hatch: waste in ink at 62 %, errors in red. One pattern per colour and scale. */
export function hatch(c: CanvasRenderingContext2D, colour: string, spacing = 4): CanvasPattern | string {
  const key = `${colour}|${spacing}`;
  let pattern = hatches.get(key);
  if (!pattern) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = spacing * 2;
    const pencil = tile.getContext("2d");
    if (!pencil) return colour;
    pencil.strokeStyle = colour;
    pencil.lineWidth = 1.6;
    pencil.beginPath();
    for (const shift of [-spacing * 2, 0, spacing * 2]) {
      pencil.moveTo(shift, spacing * 2);
      pencil.lineTo(shift + spacing * 2, 0);
    }
    pencil.stroke();
    const made = c.createPattern(tile, "repeat");
    if (!made) return colour;
    made.setTransform(new DOMMatrix([0.5, 0, 0, 0.5, 0, 0]));
    if (hatches.size > 32) hatches.clear();
    hatches.set(key, (pattern = made));
  }
  return pattern;
}

/** Selection: a 2 px ring in ink with a halo of the page's colour. */
export function ring(c: CanvasRenderingContext2D, x: number, y: number, width: number, height: number, ink: string, halo: string): void {
  strokeBox(c, halo, x, y, width, height, 5);
  strokeBox(c, ink, x, y, width, height, 2);
}

/** At most `goal` + 1 round tick values from low to high (steps of 1, 2 or 5 times a power of ten; `binary` for bytes: powers of two). */
export function ticks(low: number, high: number, goal: number, binary = false): number[] {
  if (!(high > low) || goal < 1) return [];
  if (binary) {
    const step = 2 ** Math.ceil(Math.log2((high - low) / goal));
    return range(Math.ceil(low / step) * step, high + step * 1e-9, step);
  }
  // d3 may take the finer of two steps; labels have room for no more than the goal.
  let values = decimalTicks(low, high, goal);
  for (let fewer = goal - 1; values.length > goal + 1 && fewer >= 1; fewer--) values = decimalTicks(low, high, fewer);
  return values;
}
