/** All segments with their blocks at one moment: used, free (dashed), split marks, rounding waste (hatched). */

import { clamp } from "../clamp.ts";
import { attribute, on } from "../dom.ts";
import { fillBox, hatch, label, ring, strokeBox, Surface } from "../canvas.ts";
import { bytesText, wholeBytes } from "../format.ts";
import { categoryLabels } from "../palette.ts";
import type { ViewContext } from "../view.ts";
import { holesOf, type MemoryState, type SegmentState } from "./state.ts";
import { type Mark, markAt, marksOf } from "./marks.ts";
import { CROWD, FIGURES, NAME, ordered, placeCompact, placeSegments, type Place, type SegmentOrder, SIDE, wholeRows } from "./places.ts";
import type { MemoryModel } from "./model.ts";
import { Tip } from "../tip.ts";
import { selectionOfBlock, selectsBlock } from "../selection.ts";
import { type Hole, holeAt, selectionOfHole, selectsHole, type Stop, stopsOf } from "./holes.ts";

interface Caption { text: string; x: number; y: number; dim: boolean; right: boolean; bold: boolean }

export class BlockMap {
  readonly surface: Surface;
  readonly element: HTMLElement;
  /** The colour of a block where it is not that of its category. */
  colourOf: ((row: number) => string) | null = null;
  order: SegmentOrder = "address";
  state: MemoryState | null = null;
  private readonly spacer: HTMLElement;
  private readonly tip: Tip;
  private places: Place[] = [];
  private placesKey = "";
  private numberWidth = 0;
  private nameWidth = NAME;
  private hover: { x: number; y: number } | null = null;

  /** `compact`: the overview's strip without captions. */
  constructor(private readonly context: ViewContext, private readonly model: MemoryModel, host: HTMLElement, private readonly compact: boolean) {
    this.surface = new Surface("segments and blocks");
    const { canvas } = this.surface;
    canvas.style.position = "sticky";
    canvas.tabIndex = 0;
    this.spacer = document.createElement("div");
    this.spacer.style.cssText = "width:1px;margin-top:0";
    this.element = document.createElement("div");
    this.element.className = "fl-scroll";
    if (compact) this.element.style.overflow = "hidden";
    this.element.append(canvas, this.spacer);
    host.append(this.element);
    this.tip = new Tip(host);
    on(this.element, "scroll", () => this.draw(), { passive: true });
    on(canvas, "pointermove", (event) => this.point({ x: event.offsetX, y: event.offsetY }));
    on(canvas, "pointerleave", () => this.point(null));
    on(canvas, "click", (event) => this.pick(event.offsetX, event.offsetY));
  }

  resize(width: number, height: number): void {
    this.surface.resize(width, height);
    this.placesKey = "";
  }

  address(segment: SegmentState): number {
    return segment.row < 0 ? 0 : this.model.segments.address[segment.row]!;
  }

  draw(): void {
    const { store, theme } = this.context;
    const { width, height } = this.surface;
    if (width < 80 || height < 20) return;
    const state = (this.state = this.model.state(store.at));
    this.place(state);
    const c = this.surface.begin();
    const scrolled = this.element.scrollTop;
    if (state.segments.length === 0) {
      label(c, "nothing reserved yet", width / 2, height / 2, theme.colours.dim, theme.ui(11), "center");
      return;
    }
    // No row is cut: what lies below the last whole one is told.
    const { end, below } = this.compact ? { end: scrolled + height, below: 0 } : wholeRows(this.places, scrolled, height);
    const left = scrolled + height - end;
    if (below > 0 && left > 10) label(c, `↓ ${below} more`, SIDE, height - left / 2, theme.colours.dim, theme.ui(10));
    c.save();
    c.beginPath();
    c.rect(0, 0, width, height - left);
    c.clip();
    c.translate(0, -scrolled);
    for (const place of this.places) {
      if (place.y + place.height + 4 < scrolled || place.y > scrolled + height) continue;
      this.segment(c, place);
    }
    if (!this.compact) for (const caption of this.captions()) this.caption(c, caption);
    this.rings(c);
    c.restore();
    attribute(this.surface.canvas, "aria-label", `${state.segments.length} segments with ${state.blocks} blocks, ${bytesText(state.totals[8]!)} reserved. Arrow keys move from block to block and hole to hole.`);
  }

  private place(state: MemoryState): void {
    const { width, height } = this.surface;
    const key = `${state.time} ${this.order} ${width} ${this.context.store.versions.memory}`;
    if (key === this.placesKey) return;
    this.placesKey = key;
    const segments = ordered(state, this.order, (segment) => this.address(segment));
    const { theme } = this.context;
    const font = theme.ui(11, 500);
    this.numberWidth = 0;
    for (const segment of segments) this.numberWidth = Math.max(this.numberWidth, theme.measure(`S${segment.id}`, font));
    this.nameWidth = Math.max(NAME, this.numberWidth + 8 + theme.measure("20 MiB", theme.ui(11)) + 8);
    const { places, height: content } = this.compact ? { places: placeCompact(segments, width), height: 0 } : placeSegments(segments, width, this.nameWidth);
    const { blocks } = this.model.index;
    this.places = places.map((place) => ({ ...place, marks: marksOf(blocks, place.segment.rows, place.segment.size, place.width) }));
    this.spacer.style.height = `${Math.max(0, content - height)}px`;
  }

  private segment(c: CanvasRenderingContext2D, { segment, x, y, width, height, marks }: Place): void {
    const { store, theme } = this.context;
    const { colours } = theme;
    const { blocks } = this.model.index;
    fillBox(c, colours.soft, x, y, width, height);
    for (const mark of marks) {
      const row = segment.rows[mark.first]!;
      const alone = mark.last === mark.first + 1;
      const wide = mark.x1 - mark.x0;
      const edge = wide > 3 ? 0.5 : 0;
      const found = store.search === "" || this.matches(segment, mark);
      c.globalAlpha = found ? 1 : 0.22;
      const fill = this.colourOf?.(row) || theme.category(mark.category);
      fillBox(c, fill, x + mark.x0 + edge, y, Math.max(mark.used - mark.x0 - edge, wide > 3 ? 0.8 : wide), height);
      if (mark.x1 - mark.used > 0.8) {
        fillBox(c, hatch(c, colours.dim), x + mark.used, y, mark.x1 - mark.used, height);
      }
      if (alone && found) this.condition(c, row, x + mark.x0 + edge, y, mark.used - mark.x0 - edge, height);
      c.globalAlpha = 1;
      if (alone && found && height > 14 && mark.used - mark.x0 > 48) this.name(c, row, x + mark.x0, y + height / 2, mark.used - mark.x0, fill);
      else if (alone && this.compact && found && height > 14 && wide > 60) this.name(c, row, x + mark.x0, y + height / 2, wide, fill);
    }
    strokeBox(c, colours.mark, x + 0.5, y + 0.5, width - 1, height - 1);
    this.holes(c, segment, x, y, width, height);
    // A notch under every boundary that a split made.
    let last = -Infinity;
    c.fillStyle = colours.ink;
    for (const row of segment.rows) {
      for (const edge of [blocks.offset[row]!, blocks.offset[row]! + blocks.size[row]!]) {
        if (edge === 0 || edge >= segment.size) continue;
        const at = Math.round(x + (edge / segment.size) * width);
        if (at - last < 3) continue;
        last = at;
        c.fillRect(at, y + height, 1, 3);
      }
    }
  }

  /** Locked by a user: a heavy edge on top. Pending, that is freed but still held: hatched and pale. */
  private condition(c: CanvasRenderingContext2D, row: number, x: number, y: number, width: number, height: number): void {
    const { theme } = this.context;
    const state = this.conditionOf(row);
    if (state === "pending") {
      c.globalAlpha = 0.55;
      fillBox(c, theme.colours.bg, x, y, width, height);
      c.globalAlpha = 1;
      fillBox(c, hatch(c, theme.colours.dim, 7), x, y, width, height);
    }
    if (state === "" || !this.locked(row)) return;
    fillBox(c, theme.colours.bg, x, y, width, 4);
    fillBox(c, theme.colours.ink, x, y, width, 3);
  }

  private locked(row: number): boolean {
    const { memory, at } = this.context.store;
    return memory.locks.on(memory.lifetimes.id[row]!, at) > 0;
  }

  /** How many blocks are locked, and how many freed but still held. */
  conditions(state: MemoryState): { locked: number; pending: number } {
    const rows = state.segments.flatMap((segment) => [...segment.rows]);
    return { locked: rows.filter((row) => this.locked(row)).length, pending: rows.filter((row) => this.conditionOf(row) === "pending").length };
  }

  private conditionOf(row: number): "" | "locked" | "pending" {
    const { memory, at } = this.context.store;
    return memory.lifetimes.asked[row]! <= at ? "pending" : this.locked(row) ? "locked" : "";
  }

  private holes(c: CanvasRenderingContext2D, segment: SegmentState, x: number, y: number, width: number, height: number): void {
    const { theme } = this.context;
    const { colours } = theme;
    const font = theme.ui(10.5);
    const holes = holesOf(this.model.index.blocks, segment.rows, segment.size);
    for (let at = 0; at < holes.length; at += 2) {
      const x0 = x + (holes[at]! / segment.size) * width;
      const wide = (holes[at + 1]! / segment.size) * width;
      if (selectsHole(this.context.store.selection, { segment: segment.id, offset: holes[at]!, size: holes[at + 1]!, before: -1, after: -1 })) {
        ring(c, Math.round(x0) + 1, y, Math.max(3, Math.round(wide) - 2), height, colours.ink, colours.bg);
      }
      if (wide <= 4) continue;
      strokeBox(c, colours.dim, Math.round(x0) + 1.5, y + 1.5, Math.round(wide) - 3, height - 3, 1, [2, 2]);
      const what = `free ${bytesText(holes[at + 1]!)}`;
      if (height > 14 && theme.measure(what, font) + 8 < wide) label(c, what, x0 + wide / 2, y + height / 2 + 0.5, colours.dim, font, "center");
    }
  }

  private name(c: CanvasRenderingContext2D, row: number, x: number, y: number, width: number, fill: string): void {
    const { theme } = this.context;
    const font = theme.code(10.5);
    const shown = theme.fit(this.blockName(row), font, width - 10);
    // Over the pale hatch of a pending block as on the page.
    if (shown !== "") label(c, shown, x + 6, y + 0.5, this.conditionOf(row) === "pending" ? theme.colours.ink : theme.labelOn(fill), font);
  }

  /** The shortest name that says where a block comes from: the last two parts of its scope, or its op. */
  private blockName(row: number): string {
    const { store } = this.context;
    const { lifetimes } = store.memory;
    const scope = store.context(lifetimes.context[row]!)?.scope ?? "";
    const op = store.plan(lifetimes.plan[row]!)?.op ?? "";
    const short = scope.split(".").slice(-2).join(".");
    return short === "" ? op || `${categoryLabels[lifetimes.category[row]!] ?? "block"} #${lifetimes.id[row]!}` : lifetimes.category[row] === 1 || op === "" ? short : `${short}.${op}`;
  }

  private captions(): Caption[] {
    const captions: Caption[] = [];
    const crowded = this.places.length > CROWD;
    const rows = new Map<string, Place[]>();
    for (const place of this.places) {
      const key = crowded ? String(place.y) : `${place.x} ${place.y}`;
      rows.set(key, [...(rows.get(key) ?? []), place]);
    }
    for (const places of rows.values()) {
      const first = places[0]!;
      const middle = first.y + first.height / 2;
      const size = places.reduce((sum, place) => sum + place.segment.size, 0);
      const used = places.reduce((sum, place) => sum + place.segment.used, 0);
      const holes = places.reduce((sum, place) => sum + place.segment.holes, 0);
      const begin = first.x - this.nameWidth;
      const end = crowded ? this.surface.width - SIDE : first.x + first.width + FIGURES;
      captions.push({ text: `S${first.segment.id}`, x: begin, y: middle, dim: false, right: false, bold: true });
      captions.push({ text: crowded ? `+${places.length - 1}` : wholeBytes(size), x: begin + Math.max(28, this.numberWidth + 8), y: middle, dim: true, right: false, bold: false });
      captions.push({ text: size > 0 ? `${Math.floor((used / size) * 100)} %` : "–", x: end - 62, y: middle, dim: false, right: true, bold: false });
      captions.push({ text: holes === 0 ? "full" : holes === 1 ? "1 hole" : `${holes} holes`, x: end, y: middle, dim: true, right: true, bold: false });
    }
    return captions;
  }

  private caption(c: CanvasRenderingContext2D, { text: what, x, y, dim, right, bold }: Caption): void {
    const { theme } = this.context;
    label(c, what, x, y, dim ? theme.colours.dim : theme.colours.ink, theme.ui(11, bold ? 500 : ""), right ? "right" : "left");
  }

  /** The selection as rings, at most a few hundred; a thin outline for what the pointer is on. */
  private rings(c: CanvasRenderingContext2D): void {
    const { store, theme } = this.context;
    const { colours } = theme;
    const over = this.hover ? this.hit(this.hover.x, this.hover.y) : null;
    if (store.selection) {
      let drawn = 0;
      for (const place of this.places) {
        if (store.selection.kind === "segment" && store.selection.segment === place.segment.id) {
          ring(c, place.x - 1, place.y - 1, place.width + 2, place.height + 2, colours.ink, colours.bg);
          continue;
        }
        // A step holds nearly everything: rings around all of it would say nothing.
        if (["segment", "step", "hole"].includes(store.selection.kind)) continue;
        for (const mark of place.marks) {
          if (drawn >= 400 || !this.selected(place.segment, mark)) continue;
          drawn++;
          ring(c, Math.round(place.x + mark.x0), place.y, Math.max(3, Math.round(mark.x1 - mark.x0)), place.height, colours.ink, colours.bg);
        }
      }
    }
    if (!over) return;
    const { place, mark } = over;
    if (mark) strokeBox(c, colours.ink, Math.floor(place.x + mark.x0) + 0.5, place.y + 0.5, Math.max(2, mark.x1 - mark.x0) - 1, place.height - 1);
  }

  private selected(segment: SegmentState, mark: Mark): boolean {
    for (let at = mark.first; at < mark.last; at++) if (selectsBlock(this.context.store, segment.rows[at]!)) return true;
    return false;
  }

  private matches(segment: SegmentState, mark: Mark): boolean {
    const { store } = this.context;
    const { lifetimes } = store.memory;
    for (let at = mark.first; at < mark.last; at++) {
      const row = segment.rows[at]!;
      if (store.matches(store.plan(lifetimes.plan[row]!)?.op, store.context(lifetimes.context[row]!)?.scope, categoryLabels[lifetimes.category[row]!])) return true;
    }
    return false;
  }

  private hit(x: number, y: number): { place: Place; mark: Mark | null } | null {
    const at = y + this.element.scrollTop;
    const place = this.places.find((one) => x >= one.x - 2 && x <= one.x + one.width + 2 && at >= one.y - 2 && at <= one.y + one.height + 3);
    if (!place) return null;
    const number = markAt(place.marks, x - place.x);
    return { place, mark: number < 0 ? null : place.marks[number]! };
  }

  private point(place: { x: number; y: number } | null): void {
    this.hover = place;
    const over = place ? this.hit(place.x, place.y) : null;
    this.surface.canvas.style.cursor = over ? "pointer" : "default";
    if (!over || !place) this.tip.hide();
    else this.tip.show(this.describe(over.place, over.mark, place.x), place.x, place.y + 4, this.surface.width);
    this.draw();
  }

  private describe(place: Place, mark: Mark | null, x: number): string {
    const { store } = this.context;
    const { segment } = place;
    if (mark === null) {
      const hole = this.holeAt(place, x);
      return hole ? `free ${bytesText(hole.size)} · S${segment.id} + 0x${hole.offset.toString(16)}` : `S${segment.id} · ${bytesText(segment.size)}`;
    }
    const { lifetimes } = store.memory;
    const row = segment.rows[mark.first]!;
    if (mark.last > mark.first + 1) {
      let size = 0;
      for (let at = mark.first; at < mark.last; at++) size += lifetimes.size[segment.rows[at]!]!;
      return `${mark.last - mark.first} blocks · ${bytesText(size)} · S${segment.id}`;
    }
    const state = this.conditionOf(row);
    const said = state === "pending" ? "freed, still held · " : state === "locked" ? "locked by a user · " : "";
    return `${said}${this.blockName(row)} · ${categoryLabels[lifetimes.category[row]!] ?? "unknown"} · ${bytesText(lifetimes.size[row]!)} · S${segment.id} + 0x${lifetimes.offset[row]!.toString(16)}`;
  }

  private pick(x: number, y: number): void {
    const { store, actions } = this.context;
    const over = this.hit(x, y);
    if (!over) return;
    const { place, mark } = over;
    if (mark === null) {
      const hole = this.holeAt(place, x);
      if (hole) this.select(hole);
      else actions.select({ kind: "segment", label: `S${place.segment.id}`, segment: place.segment.id, bytes: place.segment.size });
      return;
    }
    // A second click on merged blocks goes to the next of them.
    const rows = [...place.segment.rows.subarray(mark.first, mark.last)];
    const now = rows.findIndex((row) => store.memory.lifetimes.id[row] === store.selection?.block);
    this.select(rows[(now + 1) % rows.length]!);
  }

  private holeAt({ segment, x, width }: Place, at: number): Hole | null {
    return holeAt(this.model.index.blocks, segment, ((at - x) / width) * segment.size);
  }

  /** Selecting stands still: the picture stays at the time at which the block or hole was seen. */
  private select(stop: Stop): void {
    const { store, actions } = this.context;
    if (store.cursor === null && !store.paused) actions.setCursor(store.at);
    actions.select(typeof stop === "number" ? selectionOfBlock(store, stop) : selectionOfHole(stop, store.at));
  }

  /** The arrow keys on the focused map: sideways from block or hole to the next, up and down from segment to segment. */
  key(event: KeyboardEvent): boolean {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: Infinity, ArrowUp: -Infinity }[event.key];
    if (by === undefined) return false;
    const { store } = this.context;
    const all = this.places.flatMap((place, at) => stopsOf(this.model.index.blocks, place.segment).map((stop) => ({ stop, at })));
    if (all.length === 0) return true;
    const { selection } = store;
    const now = all.findIndex(({ stop }) => typeof stop === "number" ? store.memory.lifetimes.id[stop] === selection?.block : selectsHole(selection, stop));
    let next: number;
    if (now < 0) next = 0;
    else if (Number.isFinite(by)) next = clamp(now + by, 0, all.length - 1);
    else {
      const others = all.flatMap((block, index) => (by > 0 ? block.at > all[now]!.at : block.at < all[now]!.at) ? [index] : []);
      next = (by > 0 ? others[0] : others.at(-1)) ?? now;
    }
    const { stop, at } = all[next]!;
    const place = this.places[at]!;
    if (place.y < this.element.scrollTop) this.element.scrollTop = place.y - 4;
    else if (place.y + place.height > this.element.scrollTop + this.surface.height) this.element.scrollTop = place.y + place.height + 8 - this.surface.height;
    this.select(stop);
    return true;
  }
}
