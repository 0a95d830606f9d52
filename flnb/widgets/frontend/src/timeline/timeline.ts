/**
 * A timeline on a canvas: lanes with rows of bars over one time axis. It knows nothing of what the bars stand for: its
 * owner gives the content, draws over it where that needs more than bars, and hears what the reader does.
 *
 * The wheel zooms about the pointer (with Shift, or sideways, it pans), a drag moves time and lanes, a press on the axis
 * moves the cursor, W S zoom, A D and the arrows pan. The lanes scroll where they are higher than their place.
 */

import { strokeBox, Surface } from "../canvas.ts";
import { clamp } from "../clamp.ts";
import { h, on } from "../dom.ts";
import { joined } from "../format.ts";
import { Tip } from "../tip.ts";
import type { Theme } from "../theme.ts";
import { type Content, EMPTY, HEADER, HEADING, Layout, type Mark, PADDING, RIGHT } from "./lanes.ts";
import { type Frame, paintCursor, paintHeader, paintLanes } from "./paint.ts";
import { panned, type Span, spanOfKey, spanOfWheel, takesWheel, TimeScale, within } from "./scale.ts";

export interface TimelineOwner {
  /** The reader looks at another time. */
  range(span: Span): void;
  cursor(t: number): void;
  /** A click: on a bar, or (null) on none, at this time. */
  pick(mark: Mark | null, t: number): void;
  /** One line about a bar; "" shows none. */
  tip(mark: Mark): string;
  /** What else there is at this place of the canvas, for the line about it. */
  near?(x: number, scale: TimeScale): string;
  /** Drawn under the bars. */
  under?(frame: Frame): void;
  /** Drawn over the lanes, and into the footer. */
  draw?(frame: Frame): void;
  /** Drawn over the cursor's line. */
  words?(frame: Frame): void;
}

const DRAG = 3;

export class Timeline {
  readonly element: HTMLElement;
  readonly surface: Surface;
  cursor: number | null = null;
  private readonly spacer = h("div");
  private readonly scroll: HTMLElement;
  private readonly tip: Tip;
  private content: Content = EMPTY;
  private layout = new Layout([]);
  private span: Span = { t0: 0, t1: 1 };
  private hovered: Mark | null = null;
  private pressed: { x: number; y: number; span: Span; scroll: number; axis: boolean; moved: boolean } | null = null;
  /** Whether something has changed since the last drawing. */
  private stale = true;

  constructor(private readonly theme: Theme, private readonly owner: TimelineOwner, name: string) {
    this.surface = new Surface(name);
    const { canvas } = this.surface;
    canvas.tabIndex = 0;
    canvas.style.position = "sticky";
    canvas.style.touchAction = "none";
    this.scroll = h("div", "fl-timeline", canvas, this.spacer);
    this.element = h("div", "fl-timelinehost", this.scroll);
    this.tip = new Tip(this.element);
    on(this.scroll, "scroll", () => this.redraw());
    on(canvas, "pointerdown", this.press);
    on(canvas, "pointermove", this.move);
    on(canvas, "pointerup", this.release);
    on(canvas, "pointercancel", () => (this.pressed = null));
    on(canvas, "pointerleave", () => this.hover(null, 0, 0));
    on(canvas, "wheel", this.wheel, { passive: false });
  }

  /** New content; the picture is drawn by the next `render`. */
  set(content: Content): void {
    this.content = content;
    this.layout = new Layout(content.lanes);
    this.hovered = null;
    this.fit();
  }

  /** Look at this time, as far as the content has it. */
  show(span: Span): void {
    this.span = within(span, this.content.limits);
    this.stale = true;
  }

  get shown(): Span {
    return this.span;
  }

  resize(width: number, height: number): void {
    if (width > 0 && height > 0) this.surface.resize(width, height);
    this.fit();
  }

  /** Bring a lane into sight. */
  reveal(lane: number): void {
    const room = this.room;
    const [top, bottom] = [this.layout.tops[lane] ?? 0, this.layout.bottom(lane)];
    if (top < this.scroll.scrollTop) this.scroll.scrollTop = top;
    else if (bottom > this.scroll.scrollTop + room) this.scroll.scrollTop = bottom - room;
    this.redraw();
  }

  redraw(): void {
    this.stale = true;
    this.render();
  }

  /** Draw, where something has changed. */
  render(force = false): void {
    if ((!this.stale && !force) || this.surface.width < HEADING + RIGHT + 20) return;
    this.stale = false;
    const c = this.surface.begin();
    const frame = this.frame(c);
    paintHeader(frame, this.content, this.cursor);
    this.owner.under?.(frame);
    paintLanes(frame, this.content);
    this.outline(frame);
    this.owner.draw?.(frame);
    paintCursor(frame, this.cursor);
    this.owner.words?.(frame);
  }

  /** The keys of a timeline; true when taken. */
  key(event: KeyboardEvent): boolean {
    const span = spanOfKey(event.key, this.span, this.cursor, this.content.limits);
    if (span) this.owner.range(span);
    switch (event.key) {
      case "ArrowUp": this.scroll.scrollTop -= 40; return true;
      case "ArrowDown": this.scroll.scrollTop += 40; return true;
      case "PageUp": this.scroll.scrollTop -= this.room; return true;
      case "PageDown": this.scroll.scrollTop += this.room; return true;
      default: return span !== null;
    }
  }

  /** The bar at a place of the canvas. */
  markAt(x: number, y: number): Mark | null {
    if (x < HEADING || y < HEADER || y > this.surface.height - this.content.footer) return null;
    return this.layout.markAt(y - HEADER + this.scroll.scrollTop, x, this.scale);
  }

  /** Pixels that bands, axis and all lanes need. */
  get needed(): number {
    return HEADER + this.layout.height + 8;
  }

  /** The middle of a row's height on the canvas. */
  placeOf(lane: number, row: number): number {
    return HEADER - this.scroll.scrollTop + this.layout.rows[lane]![row]! + this.content.lanes[lane]!.rows[row]!.height / 2;
  }

  /** The canvas on the page, for tests. */
  get place(): { x: number; y: number; width: number; height: number } {
    const { x, y, width, height } = this.surface.canvas.getBoundingClientRect();
    return { x, y, width, height };
  }

  private get scale(): TimeScale {
    return new TimeScale(this.span, HEADING, this.surface.width - RIGHT);
  }

  /** Pixels that the lanes have. */
  private get room(): number {
    return Math.max(0, this.surface.height - HEADER - this.content.footer);
  }

  private fit(): void {
    // The canvas sticks to its place; what follows it is only as high as there is to scroll.
    this.spacer.style.height = `${Math.max(0, this.layout.height - this.room)}px`;
    this.stale = true;
  }

  private frame(c: CanvasRenderingContext2D): Frame {
    const { layout, scale } = this;
    const { width, height } = this.surface;
    const shift = HEADER - this.scroll.scrollTop;
    const [top, bottom] = [HEADER + 1, HEADER + this.room];
    return {
      c, scale, theme: this.theme, top, bottom, width, height,
      row: (lane, row) => shift + (layout.rows[lane]?.[row] ?? 0),
      lane: (lane) => ({ top: shift + (layout.tops[lane] ?? 0), bottom: shift + layout.bottom(lane) }),
      clipped: (draw, from = top, to = bottom) => {
        c.save();
        c.beginPath();
        c.rect(scale.left, from, scale.right - scale.left, Math.max(0, to - from));
        c.clip();
        draw();
        c.restore();
      },
    };
  }

  /** Hover: an outline of one pixel. */
  private outline(frame: Frame): void {
    const mark = this.hovered;
    const row = mark && this.content.lanes[mark.lane]?.rows[mark.row];
    if (!mark || !row) return;
    const { c, scale } = frame;
    const [x0, x1] = [scale.x(row.bars.start[mark.index]!), scale.x(row.bars.end[mark.index]!)];
    frame.clipped(() => {
      strokeBox(c, this.theme.colours.ink, Math.round(x0) + 0.5, frame.row(mark.lane, mark.row) + 0.5, Math.max(1, Math.round(x1 - x0) - 1), row.height - 1);
    });
  }

  private hover(mark: Mark | null, x: number, y: number): void {
    const text = joined([x >= HEADING && this.owner.near?.(x, this.scale), mark && this.owner.tip(mark)]);
    if (text) this.tip.show(text, x, y, this.surface.width);
    else this.tip.hide();
    const { hovered } = this;
    if (mark?.lane === hovered?.lane && mark?.row === hovered?.row && mark?.index === hovered?.index) return;
    this.hovered = mark;
    this.redraw();
  }

  private readonly press = (event: PointerEvent): void => {
    if (event.button !== 0) return;
    const axis = event.offsetY < HEADER;
    this.pressed = { x: event.offsetX, y: event.offsetY, span: this.span, scroll: this.scroll.scrollTop, axis, moved: false };
    this.surface.canvas.setPointerCapture(event.pointerId);
    if (axis) this.moveCursor(event.offsetX);
  };

  private readonly move = (event: PointerEvent): void => {
    const { pressed } = this;
    if (!pressed) {
      const mark = this.markAt(event.offsetX, event.offsetY);
      this.surface.canvas.style.cursor = event.offsetX < HEADING ? "default" : event.offsetY < HEADER ? "col-resize" : mark ? "pointer" : "grab";
      this.hover(mark, event.offsetX, event.offsetY);
      return;
    }
    const [dx, dy] = [event.offsetX - pressed.x, event.offsetY - pressed.y];
    if (!pressed.moved && Math.hypot(dx, dy) < DRAG) return;
    pressed.moved = true;
    this.hover(null, 0, 0);
    if (pressed.axis) return this.moveCursor(event.offsetX);
    this.surface.canvas.style.cursor = "grabbing";
    this.scroll.scrollTop = pressed.scroll - dy;
    if (dx) this.owner.range(panned(pressed.span, -dx * this.scale.pixel, this.content.limits));
  };

  private readonly release = (event: PointerEvent): void => {
    const { pressed } = this;
    this.pressed = null;
    if (pressed && !pressed.moved && !pressed.axis) this.owner.pick(this.markAt(event.offsetX, event.offsetY), this.scale.time(event.offsetX));
  };

  private moveCursor(x: number): void {
    const { t0, t1 } = this.span;
    if (x >= HEADING) this.owner.cursor(clamp(this.scale.time(x), t0, t1));
  }

  private readonly wheel = (event: WheelEvent): void => {
    if (!takesWheel(event, this.element) || event.offsetX < HEADING) return; // the names scroll the lanes
    event.preventDefault();
    this.owner.range(spanOfWheel(event, this.span, this.scale, this.content.limits));
  };
}

export { HEADER, HEADING, PADDING };
