/** The memory plan: which bytes of the program's block belong to which value, launch by launch. */

import { on } from "../dom.ts";
import { fillBox, horizontal, label, ring, setPen, strokeBox, Surface, ticks, vertical } from "../canvas.ts";
import { bytesText } from "../format.ts";
import type { Theme } from "../theme.ts";
import { Tip } from "../tip.ts";
import { liveOf, type ProgramData, runsOf, type Span, spansOf } from "./model.ts";

const LEFT = 64;
const RIGHT = 12;
const TOP = 8;
const BOTTOM = 20;

export class MemoryPlan {
  readonly surface = new Surface("memory plan: offset in the program's block over its calls");
  private readonly tip: Tip;
  private spans: Span[] = [];
  private data: ProgramData | null = null;
  private selected: number | null = null;
  private hovered: Span | null = null;
  live: number[] = [];

  constructor(private readonly theme: Theme, private readonly host: HTMLElement, private readonly choose: (launch: number) => void) {
    host.append(this.surface.canvas);
    this.tip = new Tip(host);
    const { canvas } = this.surface;
    canvas.tabIndex = 0;
    on(canvas, "pointermove", (event) => this.hover(event.offsetX, event.offsetY));
    on(canvas, "pointerleave", () => this.hover(-1, -1));
    on(canvas, "click", ({ offsetX, offsetY }) => {
      const span = this.at(offsetX, offsetY);
      const launch = span ? span.launch : this.launchAt(offsetX);
      if (launch !== null) this.choose(launch);
    });
  }

  show(data: ProgramData): void {
    this.data = data;
    this.spans = spansOf(data.launches);
    this.live = liveOf(this.spans, data.launches.length);
    this.draw();
  }

  select(launch: number | null): void {
    this.selected = launch;
    this.draw();
  }

  resize(): void {
    this.surface.resize(this.host.clientWidth, this.host.clientHeight);
    this.draw();
  }

  private get count(): number {
    return Math.max(1, this.data?.launches.length ?? 1);
  }

  private x(launch: number): number {
    return LEFT + (launch / this.count) * Math.max(1, this.surface.width - LEFT - RIGHT);
  }

  private y(offset: number): number {
    const most = Math.max(1, this.data?.block ?? 1);
    return this.surface.height - BOTTOM - (offset / most) * Math.max(1, this.surface.height - TOP - BOTTOM);
  }

  private launchAt(x: number): number | null {
    const at = Math.floor(((x - LEFT) / Math.max(1, this.surface.width - LEFT - RIGHT)) * this.count);
    return at >= 0 && at < this.count && x >= LEFT ? at : null;
  }

  private at(x: number, y: number): Span | null {
    const inside = ({ begin, end, stored }: Span): boolean =>
      x >= this.x(begin) && x < Math.max(this.x(end), this.x(begin) + 2) && y <= this.y(stored.offset!) + 1 && y >= this.y(stored.offset! + stored.bytes) - 1;
    return this.spans.findLast(inside) ?? null;
  }

  private hover(x: number, y: number): void {
    const span = this.at(x, y);
    if (span !== this.hovered) {
      this.hovered = span;
      this.draw();
    }
    if (!span) return this.tip.hide();
    const { stored, launch, end } = span;
    const until = end - 1 > launch ? `, in use to #${end - 1}` : "";
    this.tip.show(`${stored.name} ${stored.shape} ${stored.dtype}, ${bytesText(stored.bytes)} ${stored.where}, by #${launch}${until}`, x, y, this.surface.width);
  }

  draw(): void {
    const { data, theme, surface } = this;
    if (!data || surface.width < 1) return;
    const c = surface.begin();
    const { colours } = theme;
    const [right, bottom] = [surface.width - RIGHT, surface.height - BOTTOM];
    for (const value of ticks(0, data.block, 4, true)) {
      horizontal(c, LEFT, right, this.y(value), colours.grid);
      label(c, bytesText(value), LEFT - 6, this.y(value), colours.dim, theme.ui(10.5), "right");
    }
    for (const span of this.spans) {
      const [x0, x1] = [this.x(span.begin), Math.max(this.x(span.end), this.x(span.begin) + 1)];
      const [y0, y1] = [this.y(span.stored.offset! + span.stored.bytes), this.y(span.stored.offset!)];
      const gap = y1 - y0 > 3 ? 1 : 0;
      fillBox(c, theme.category(span.stored.category), x0, y0, Math.max(1, x1 - x0 - (x1 - x0 > 3 ? 1 : 0)), Math.max(1, y1 - y0 - gap));
      if (span.launch === this.selected) ring(c, x0 + 0.5, y0 + 0.5, Math.max(2, x1 - x0 - 1), Math.max(2, y1 - y0 - 1), colours.ink, colours.bg);
      else if (span === this.hovered) {
        strokeBox(c, colours.ink, x0 + 0.5, y0 + 0.5, Math.max(1, x1 - x0 - 1), Math.max(1, y1 - y0 - 1));
      }
    }
    setPen(c, colours.ink, 1.25);
    c.beginPath();
    this.live.forEach((value, at) => {
      const y = Math.round(this.y(value)) + 0.5;
      c.lineTo(this.x(at), y);
      c.lineTo(this.x(at + 1), y);
    });
    c.stroke();
    horizontal(c, LEFT, right, bottom, colours.line);
    let [from, phase, free] = [0, "", -Infinity];
    for (const run of runsOf(data.launches)) {
      if (run.phase === phase) continue;
      [from, phase] = [run.first, run.phase];
      vertical(c, this.x(from), bottom, bottom + 4, colours.dim);
      if (this.x(from) < free || this.x(from) + theme.measure(phase, theme.ui(10.5)) > right) continue;
      label(c, phase, this.x(from) + 3, bottom + 11, colours.dim, theme.ui(10.5));
      free = this.x(from) + theme.measure(phase, theme.ui(10.5)) + 16;
    }
    if (this.selected !== null) vertical(c, (this.x(this.selected) + this.x(this.selected + 1)) / 2, TOP, bottom, colours.brand);
  }
}
