/** The blocks of each device at the cursor, with the streams that used them; freed ones that wait for a stream are dotted. */

import { fillBox, label, ring, setPen, strokeBox, Surface, tracePath } from "../canvas.ts";
import { clamp } from "../clamp.ts";
import { attribute, h, on } from "../dom.ts";
import { bytesText, integer, joined, percent, wholeBytes } from "../format.ts";
import { categoryLabels } from "../palette.ts";
import { namesOf } from "../selection.ts";
import { Panel } from "../panel.ts";
import { Tip } from "../tip.ts";
import type { DataTable, ViewContext } from "../view.ts";
import { dotted } from "./memory.ts";
import { type BlockAt, type DevicesModel, memoryAt, type SegmentAt } from "./model.ts";
import { blockName, sizeOf, streamsOf, waitsFor } from "./names.ts";

const ROW = 26;
const BAR = 18;
const LEFT = 92;
const RIGHT = 96;
/** A free end is cut short where it is more than this share of a segment. */
const TAIL = 0.45;
const CUT = 96;

interface Drawn { x0: number; x1: number; y: number; row: number; waits: boolean }

export class DeviceBlocks {
  readonly panel: Panel;
  private readonly surface = new Surface("blocks of the devices");
  private readonly scroll: HTMLElement;
  private readonly spacer = h("div");
  private readonly tip: Tip;
  private drawn: Drawn[] = [];
  private segments: readonly SegmentAt[] = [];
  private model: DevicesModel | null = null;
  private marked = new Set<number>();

  constructor(private readonly context: ViewContext) {
    this.panel = new Panel("Block map", () => this.table());
    const { canvas } = this.surface;
    canvas.style.position = "sticky";
    canvas.tabIndex = 0;
    this.scroll = h("div", "fl-scroll", canvas, this.spacer);
    this.panel.body.append(this.scroll);
    this.tip = new Tip(this.panel.body);
    this.panel.tools.append(this.legend());
    on(this.scroll, "scroll", () => this.draw(), { passive: true });
    on(canvas, "pointermove", (event) => this.hover(event.offsetX, event.offsetY));
    on(canvas, "pointerleave", () => this.tip.hide());
    on(canvas, "click", (event) => this.pick(event.offsetX, event.offsetY));
  }

  resize(): void {
    this.surface.resize(this.scroll.clientWidth, this.scroll.clientHeight);
  }

  /** At a time (ms since the run began); rows of blocks in `marked` have a ring. */
  update(model: DevicesModel, time: number, when: string, marked: readonly number[]): void {
    this.model = model;
    this.marked = new Set(marked);
    this.segments = memoryAt(model, time);
    this.panel.sub = `devices and pinned memory · ${when}`;
    this.spacer.style.height = `${Math.max(0, this.segments.length * ROW + 6 - this.surface.height)}px`;
    this.draw();
  }

  /** How high the panel is with all its segments in sight. */
  get height(): number {
    return 28 + 12 + ROW * Math.max(1, this.segments.length);
  }

  /** What is waiting now, in words. */
  get waiting(): string[] {
    const { model } = this;
    return model ? this.segments.flatMap(({ blocks }) => blocks.filter(({ waits }) => waits).map(({ row }) => `${blockName(model, this.context.store, row)} ${waitsFor(model, row)}`)) : [];
  }

  /** Rows of the blocks that are drawn. */
  get shown(): { row: number; waits: boolean }[] {
    return this.segments.flatMap(({ blocks }) => blocks);
  }

  private legend(): HTMLElement {
    const entry = (style: string, name: string): HTMLElement => h("span", "fl-legenditem fl-wideonly", h("i", { class: "fl-callmark", style }), name);
    return h("div", "fl-calllegend", entry("border:1px dashed var(--fl-dim)", "free"),
      entry("border:1px solid var(--fl-ink);background:radial-gradient(var(--fl-ink) 0.8px,transparent 1px) 0 0/4px 4px", "freed, waits for an event"),
      h("span", "fl-legenditem", h("b", {}, "s0 s1"), "streams that used it"));
  }

  private draw(): void {
    const { model, surface: { width, height } } = this;
    if (!model || width < LEFT + RIGHT + 40 || height < 20) return;
    const { theme } = this.context;
    const c = this.surface.begin();
    this.drawn = [];
    if (!this.segments.length) {
      label(c, "no memory of a device is in use", 12, 14, theme.colours.dim, theme.ui(11));
      return;
    }
    const scrolled = this.scroll.scrollTop;
    this.segments.forEach((segment, at) => {
      const y = at * ROW + 4 - scrolled;
      if (y + ROW > 0 && y < height) this.segment(c, model, segment, y);
    });
    const blocks = this.segments.reduce((sum, one) => sum + one.blocks.length, 0);
    surfaceLabel(this.surface, `${this.segments.length} segments with ${blocks} blocks${this.waiting.length ? `; ${this.waiting.join(", ")}` : ""}`);
  }

  private segment(c: CanvasRenderingContext2D, model: DevicesModel, { id, size, device, blocks }: SegmentAt, y: number): void {
    const { theme } = this.context;
    const { colours } = theme;
    const middle = y + BAR / 2 + 0.5;
    const place = model.section.devices.length > 1 && device >= 0 ? model.section.devices[device]!.place : "";
    const name = `${device < 0 ? "P" : "S"}${id}`;
    label(c, name, 12, middle, colours.ink, theme.ui(11, 500));
    const x = 18 + theme.measure(name, theme.ui(11, 500));
    label(c, theme.fit(`${wholeBytes(size)}${place ? ` ${place}` : ""}`, theme.ui(11), LEFT - x - 6), x, middle, colours.dim, theme.ui(11));
    const [left, right] = [LEFT, this.surface.width - RIGHT];
    const { block_offset: offset, block_size: sizes } = model.columns;
    const used = blocks.reduce((end, { row }) => Math.max(end, offset![row]! + sizes![row]!), 0);
    const cut = used > 0 && (size - used) / size > TAIL && right - left > 3 * CUT;
    const scale = cut ? (right - left - CUT) / used : (right - left) / size;
    const at = (byte: number): number => left + byte * scale;
    fillBox(c, colours.soft, left, y, right - left, BAR);
    let [from, holes, live] = [0, 0, 0];
    for (const block of blocks) {
      const [begin, end] = [offset![block.row]!, offset![block.row]! + sizes![block.row]!];
      if (begin > from) {
        holes++;
        this.free(c, at(from), at(begin), y, begin - from);
      }
      if (!block.waits) live += sizes![block.row]!;
      this.block(c, model, block, at(begin), at(end), y);
      from = Math.max(from, end);
    }
    if (from < size) this.free(c, at(from), cut ? right : at(size), y, size - from, cut ? 14 : 0);
    if (cut) torn(c, right - CUT + 9, y, colours.bg, colours.dim);
    const [share, unit] = percent(live / size);
    label(c, `${share} ${unit}, ${holes ? `${holes} ${holes === 1 ? "hole" : "holes"}` : "no holes"}`, this.surface.width - 12, middle, colours.dim, theme.ui(10.5), "right");
  }

  private block(c: CanvasRenderingContext2D, model: DevicesModel, { row, waits }: BlockAt, x0: number, x1: number, y: number): void {
    const { theme, store } = this.context;
    const { colours } = theme;
    const wide = Math.max(1, x1 - x0 - (x1 - x0 > 3 ? 1 : 0));
    const fill = theme.category(model.columns["block_category"]![row]!);
    this.drawn.push({ x0, x1: x0 + wide, y, row, waits });
    if (waits) {
      fillBox(c, colours.bg, x0, y, wide, BAR);
      dotted(c, x0 + 1, y + 1, wide - 2, BAR - 2, colours.ink);
      strokeBox(c, colours.ink, Math.round(x0) + 0.5, y + 0.5, Math.max(1, Math.round(wide) - 1), BAR - 1);
    } else {
      fillBox(c, fill, x0, y, wide, BAR);
    }
    const ink = waits ? colours.ink : theme.labelOn(fill);
    const streams = streamsOf(model, row);
    const bold = theme.ui(10, 600);
    const right = streams && !waits ? theme.measure(streams, bold) + 8 : 0;
    if (right && right < wide - 4) label(c, streams, x0 + wide - 4, y + BAR / 2 + 0.5, ink, bold, "right");
    const room = wide - (right && right < wide - 4 ? right : 0) - 10;
    const said = room > 24 ? theme.fit(waits ? `${blockName(model, store, row)} · ${waitsFor(model, row)}` : blockName(model, store, row), theme.code(10.5), room) : "";
    if (said && waits) {
      const middle = x0 + wide / 2;
      const half = theme.measure(said, theme.code(10.5)) / 2 + 4;
      fillBox(c, colours.bg, middle - half, y + 3, 2 * half, BAR - 6);
      label(c, said, middle, y + BAR / 2 + 0.5, ink, theme.code(10.5), "center");
    } else if (said.length > 2) label(c, said, x0 + 5, y + BAR / 2 + 0.5, ink, theme.code(10.5));
    if (this.marked.has(row) || (store.selection?.kind === "block" && store.selection.block === model.columns["block_id"]![row])) {
      ring(c, Math.round(x0) + 1, y + 1, Math.max(2, Math.round(wide) - 2), BAR - 2, colours.ink, colours.bg);
    }
  }

  private free(c: CanvasRenderingContext2D, x0: number, x1: number, y: number, size: number, aside = 0): void {
    const { theme } = this.context;
    if (x1 - x0 < 3) return;
    strokeBox(c, theme.colours.dim, Math.round(x0) + 1.5, y + 1.5, Math.round(x1 - x0) - 3, BAR - 3, 1, [2, 2]);
    const said = `free ${bytesText(size)}`;
    if (theme.measure(said, theme.ui(10.5)) + 6 < x1 - x0 - aside) label(c, said, (x0 + aside + x1) / 2, y + BAR / 2 + 0.5, theme.colours.dim, theme.ui(10.5), "center");
  }

  private at(x: number, y: number): Drawn | undefined {
    return this.drawn.find((one) => x >= one.x0 - 1 && x <= one.x1 + 1 && y >= one.y && y <= one.y + BAR);
  }

  private hover(x: number, y: number): void {
    const { model } = this;
    const found = model && this.at(x, y);
    this.surface.canvas.style.cursor = found ? "pointer" : "default";
    if (!model || !found) return this.tip.hide();
    const { row, waits } = found;
    const streams = streamsOf(model, row);
    const parts = [blockName(model, this.context.store, row), sizeOf(model, row), categoryLabels[model.columns["block_category"]![row]!] ?? "", streams ? `used by ${streams}` : "", waits ? `freed, ${waitsFor(model, row)}` : ""];
    this.tip.show(joined(parts), x, y - 4, this.surface.width);
  }

  private pick(x: number, y: number): void {
    const found = this.at(x, y);
    if (found) this.choose(found.row);
    else this.context.actions.select(null);
  }

  /** The arrows go from block to block; true when taken. */
  key(event: KeyboardEvent): boolean {
    const by = event.key === "ArrowRight" || event.key === "ArrowDown" ? 1 : event.key === "ArrowLeft" || event.key === "ArrowUp" ? -1 : 0;
    if (!by || event.composedPath()[0] !== this.surface.canvas) return false;
    const { model, shown, context: { store: { selection } } } = this;
    const at = selection?.kind === "block" ? shown.findIndex(({ row }) => model?.columns["block_id"]![row] === selection.block) : -1;
    const next = shown[at < 0 ? (by > 0 ? 0 : shown.length - 1) : clamp(at + by, 0, shown.length - 1)];
    if (next) this.choose(next.row);
    return true;
  }

  private choose(row: number): void {
    const { model, context: { store, actions } } = this;
    if (!model) return;
    const { block_id: ids, block_size: sizes, block_plan: plans, block_context: contexts } = model.columns;
    actions.select({
      kind: "block", label: blockName(model, store, row), block: ids![row]!, bytes: sizes![row]!, ...namesOf(store, plans![row]!, contexts![row]!),
    });
  }

  private table(): DataTable {
    const { model, context: { store } } = this;
    const columns = ["Segment", "Device", "Offset", "Bytes", "Block", "Category", "Streams", "State"];
    const rows = !model ? [] : this.segments.flatMap(({ id, device, blocks }) => blocks.map(({ row, waits }) => [
      id, device < 0 ? "pinned" : model.section.devices[device]?.place ?? "", integer(model.columns["block_offset"]![row]!), integer(model.columns["block_size"]![row]!), blockName(model, store, row),
      categoryLabels[model.columns["block_category"]![row]!] ?? "", streamsOf(model, row) || "–", waits ? `freed, ${waitsFor(model, row)}` : "in use",
    ]));
    return { caption: "Blocks of the devices at the cursor", columns, rows };
  }
}

const surfaceLabel = (surface: Surface, said: string): void => attribute(surface.canvas, "aria-label", said);

/** Two slanted strokes: here something is left out. */
function torn(c: CanvasRenderingContext2D, x: number, y: number, ground: string, ink: string): void {
  c.fillStyle = ground;
  tracePath(c, x - 2, y - 1, x + 4, y - 1, x, y + BAR + 1, x - 6, y + BAR + 1);
  c.fill();
  setPen(c, ink);
  c.beginPath();
  for (const by of [-2, 4]) {
    c.moveTo(x + by, y - 1);
    c.lineTo(x + by - 4, y + BAR + 1);
  }
  c.stroke();
}
