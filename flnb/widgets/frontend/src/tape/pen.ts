/** The shapes and texts that a tape is drawn of, whatever they stand for. */

import { fillBox, hatch, horizontal, label, setPen, tracePath } from "../canvas.ts";
import { clamp } from "../clamp.ts";
import { significant } from "../format.ts";
import type { Theme } from "../theme.ts";
import type { Group } from "./groups.ts";
import type { Health } from "./model.ts";

/** From world to screen. */
export interface Camera { scale: number; x: number; y: number }

/** Gradient norms are drawn on this logarithmic scale. */
export const NORM_LOW = -4;
export const NORM_HIGH = 1;

/** Share of the bar that a norm fills, 0..1; 0.02 at least, so that a tiny one can be seen. */
export const normShare = (norm: number): number =>
  norm > 0 ? clamp((Math.log10(norm) - NORM_LOW) / (NORM_HIGH - NORM_LOW), 0.02, 1) : 0.02;

/** A closed module's second edge stands this far behind it. */
export const SECOND_EDGE = 3;

export class Pen {
  camera: Camera = { scale: 1, x: 0, y: 0 };

  constructor(public c: CanvasRenderingContext2D, private readonly theme: Theme) {}

  /** All text is drawn; farther away only names are, where they fit. */
  get legible(): boolean {
    return this.camera.scale > 0.78;
  }

  /** Fonts in world units. They shrink with the picture only until they stand at that size on the screen. */
  get least(): number {
    return this.camera.scale < 1 ? Math.round(100 / this.camera.scale) / 100 : 1;
  }

  ui(px: number, weight: number | "" = ""): string {
    return this.theme.ui(px * this.least, weight);
  }

  code(px: number, weight: number | "" = ""): string {
    return this.theme.code(px * this.least, weight);
  }

  /** The name of a box seen from afar. */
  distantName(what: string, box: { readonly x: number; readonly width: number; readonly height: number }, y: number): void {
    const { theme } = this;
    if (box.width * this.camera.scale < 26) return;
    const shown = theme.fit(what, this.code(10), box.width - 12);
    if (shown.length > 2) label(this.c, shown, box.x + 9, y + box.height / 2, theme.colours.ink, this.code(10));
  }

  rounded(x: number, y: number, width: number, height: number, radius: number): void {
    this.c.beginPath();
    this.c.roundRect(x, y, width, height, radius);
  }

  plate(x: number, y: number, width: number, height: number, health: Health, edges: number): void {
    const { c } = this;
    const { colours } = this.theme;
    c.lineWidth = 1;
    // A second edge says that there is something inside, a third that it repeats.
    for (let edge = edges; edge > 0; edge--) {
      this.rounded(x + edge * SECOND_EDGE + 0.5, y + edge * SECOND_EDGE + 0.5, width - 1, height - 1, 4);
      c.fillStyle = colours.soft;
      c.fill();
      c.strokeStyle = colours.line;
      c.stroke();
    }
    this.rounded(x + 0.5, y + 0.5, width - 1, height - 1, 4);
    c.fillStyle = colours.bg;
    c.fill();
    if (health !== "fine") {
      const alpha = c.globalAlpha;
      c.globalAlpha = 0.28 * alpha;
      c.fillStyle = hatch(c, colours.error, 5);
      c.fill();
      c.globalAlpha = alpha;
    }
    setPen(c, health === "fine" ? colours.mark : colours.error, health === "origin" ? 2.5 : 1);
    c.stroke();
    c.lineWidth = 1;
  }

  /** A line through places (x, distance to the middle) of one row. */
  line(points: readonly number[], place: (d: number) => number, colour: string, arrow: boolean, straight: boolean): void {
    const { c } = this;
    const corners = points.length / 2;
    const x = (at: number): number => points[2 * at]!;
    const y = (at: number): number => Math.round(place(points[2 * at + 1]!)) + 0.5;
    setPen(c, c.fillStyle = colour, 1.2);
    c.beginPath();
    c.moveTo(x(0), y(0));
    if (!straight && corners === 2) {
      const middle = (x(0) + x(1)) / 2;
      c.bezierCurveTo(middle, y(0), middle, y(1), x(1), y(1));
    } else {
      for (let at = 1; at < corners - 1; at++) c.arcTo(x(at), y(at), x(at + 1), y(at + 1), 4);
      c.lineTo(x(corners - 1), y(corners - 1));
    }
    c.stroke();
    if (!arrow) return;
    const [endX, endY] = [x(corners - 1), y(corners - 1)];
    const direction = Math.sign(endX - x(corners - 2)) || 1;
    tracePath(c, endX, endY, endX - 5 * direction, endY - 3, endX - 5 * direction, endY + 3);
    c.fill();
  }

  upward(x: number, from: number, to: number, colour: string): void {
    const { c } = this;
    const at = Math.round(x) + 0.5;
    setPen(c, c.fillStyle = colour);
    tracePath(c, at, from, at, to + 5);
    c.stroke();
    tracePath(c, at, to, at - 3, to + 5, at + 3, to + 5);
    c.fill();
  }

  ring({ x, y, width, height }: { readonly x: number; readonly y: number; readonly width: number; readonly height: number }): void {
    const { c } = this;
    const { colours } = this.theme;
    this.rounded(x, y, width, height, 4);
    setPen(c, colours.bg, 4);
    c.stroke();
    setPen(c, colours.ink, 2);
    c.stroke();
  }

  /** The norm with its name where there is room for it. */
  normText(norm: number | null, font: string, width: number): string {
    const value = significant(norm ?? NaN);
    return this.theme.measure(`norm ${value}`, font) <= width ? `norm ${value}` : value;
  }

  normBar(norm: number | null, x: number, y: number, width: number): void {
    const { c } = this;
    const { colours } = this.theme;
    fillBox(c, colours.grid, x, y, width, 4);
    if (norm === null || Number.isNaN(norm)) return;
    const alpha = c.globalAlpha;
    c.fillStyle = colours.ink;
    c.globalAlpha = alpha * 0.72;
    c.fillRect(x, y, width * normShare(norm), 4);
    c.globalAlpha = alpha;
  }

  /** Time of a module's ops by family, the longest first. */
  strip(group: Group, x: number, y: number, width: number): void {
    const { c } = this;
    const times = group.data?.families ?? [];
    const total = times.reduce((sum, [, time]) => sum + time, 0);
    if (total <= 0) {
      horizontal(c, x, x + width, y + 2, this.theme.colours.grid, [], 1);
      return;
    }
    let from = x;
    for (const [family, time] of times) {
      const wide = (width * time) / total;
      fillBox(c, this.theme.family(family), from, y, Math.max(0, wide - 0.5), 5);
      from += wide;
    }
  }
}
