/** Where do gradients vanish, explode or become NaN? The Tape panel of the overview and the Tape view. */

import { attribute, h, setText } from "../dom.ts";
import { joined } from "../format.ts";
import { Tip } from "../tip.ts";
import { buttonGroup, Panel } from "../panel.ts";
import type { DataTable, View, ViewContext } from "../view.ts";
import { fitted, keepInSight, zoomAt } from "./camera.ts";
import { TapeCanvas } from "./canvas.ts";
import { TapeDetails } from "./details.ts";
import { Finder } from "./finder.ts";
import { isOpen } from "./groups.ts";
import { type Layout, layoutTape, MEASURES, type Measures, renewed } from "./layout.ts";
import { compactMeasures, EDGE, measuresOf } from "./measures.ts";
import { tapeOf, type TapeModel } from "./model.ts";
import { dragged, Motion, type Shifts } from "./motion.ts";
import { Opening } from "./opening.ts";
import { bind } from "./pointer.ts";
import { platesOf, type Rows, rowsOf } from "./rows.ts";
import { TapeSteps, whyNone } from "./steps.ts";
import { nearest, selectionOfTarget, type Target } from "./targets.ts";
import { about, legend, showFamilies, tableOf, tipOf } from "./words.ts";

class TapeView implements View {
  readonly element: HTMLElement;
  private readonly model: TapeModel;
  private readonly panel: Panel;
  private readonly canvas: TapeCanvas;
  private readonly host = h("div", { style: "position:relative;flex:1;min-height:0;overflow:hidden" });
  private readonly none = h("div", "fl-none fl-callhost");
  private readonly tip: Tip;
  private readonly details: TapeDetails | null;
  private readonly families: HTMLElement | null;
  private readonly finder: Finder;
  private readonly motion = new Motion();
  private measures: Measures = MEASURES;
  private layout: Layout | null = null;
  private rows: Rows | null = null;
  /** Room kept above the forward row: it grows with what opens and never shrinks, so that the rows stay. */
  private above = 0;
  private plates: ReadonlyMap<string, readonly number[]> = new Map();
  private readonly opening: Opening;
  private readonly steps: TapeSteps;
  private readonly shifts: Shifts = new Map();
  /** What stays where it is while everything is laid out anew, and where that is on the screen. */
  private anchor: { key: string; x: number } | null = null;
  private measured = "";
  private laid = "";
  private shown = -1;
  /** The graph, and where its NaN begins or its forward ended, that was brought into sight. */
  private alarmed = "";
  private drawn = "";
  /** The reader moved the picture: new steps leave it where it is. */
  private moved = false;
  constructor(private readonly context: ViewContext, private readonly full: boolean) {
    this.model = tapeOf(context.store);
    this.steps = new TapeSteps(context, this.model);
    this.opening = new Opening(this.model, context.actions);
    this.panel = new Panel("Tape", () => this.describe());
    this.canvas = new TapeCanvas(context, this.model, !full);
    this.panel.body.append(h("div", "fl-column", this.host, ...(full ? [legend()] : [])));
    this.host.append(this.canvas.surface.canvas, this.none);
    this.tip = new Tip(this.host);
    this.families = full ? h("div", { class: "fl-wideonly", style: "display:flex;gap:12px;font-size:11px;color:var(--fl-dim);overflow:hidden" }) : null;
    if (this.families) this.panel.tools.append(this.families);
    this.panel.tools.append(this.steps.newest, this.buttons());
    this.finder = new Finder(context, this.model, full);
    this.details = full ? new TapeDetails(context, this.model) : null;
    this.element = this.details ? h("div", { class: "fl-split", style: "height:100%;width:100%" }, this.panel.element, this.details.element) : this.panel.element;
    this.bind();
  }

  // ---- the view interface

  resize(): void {
    const { clientWidth, clientHeight } = this.host;
    this.canvas.surface.resize(clientWidth, clientHeight);
    this.laid = this.drawn = "";
  }

  render(now: number): void {
    const { store, theme } = this.context;
    this.model.update();
    for (const key of this.finder.update()) this.opening.chosen.set(key, true);
    this.details?.update();
    const key = `${store.versions.tape} ${store.versions.view} ${theme.version} ${this.opening.chosen.size} ${store.ended}`;
    if (key === this.drawn && !this.motion.running(now)) return;
    this.drawn = key;
    const { tape } = this.model;
    this.none.hidden = tape !== null && tape.count > 0;
    if (!this.none.hidden) setText(this.none, whyNone(store));
    this.steps.follow();
    this.write();
    this.arrange();
    if (this.panel.update(now)) return;
    this.reveal();
    this.draw();
  }

  describe(): DataTable {
    return tableOf(this.layout, this.model, this.context);
  }

  probe(): unknown {
    const { camera, targets, surface } = this.canvas;
    const { left, top } = surface.canvas.getBoundingClientRect();
    return {
      count: this.model.tape?.count ?? 0, known: this.model.nodes.length, boxes: this.layout?.boxes.length ?? 0, scale: camera.scale,
      targets: targets.map(({ kind, key, row, group, index, x, y, width, height }) => ({
        kind, key, row, name: group?.name ?? (kind === "op" ? this.model.nodes[index]!.op : ""), repeat: group?.repeat ?? 0,
        x: left + x * camera.scale + camera.x, y: top + y * camera.scale + camera.y, width: width * camera.scale, height: height * camera.scale,
      })),
    };
  }

  find(): void {
    this.finder.next();
  }

  key(event: KeyboardEvent): boolean {
    const onCanvas = event.composedPath()[0] === this.canvas.surface.canvas;
    if (!this.full && !onCanvas) return false;
    const { surface } = this.canvas;
    switch (event.key) {
      case "w": case "W": this.zoom(1.25, surface.width / 2, surface.height / 2); return true;
      case "s": case "S": this.zoom(1 / 1.25, surface.width / 2, surface.height / 2); return true;
      case "a": case "A": this.pan(surface.width / 5, 0); return true;
      case "d": case "D": this.pan(-surface.width / 5, 0); return true;
      case "f": case "F": this.fitAll(false); return true;
      case "Enter": return onCanvas && this.enter();
      case "ArrowLeft": case "ArrowRight": case "ArrowUp": case "ArrowDown":
        if (!onCanvas) return false;
        this.walk(event.key);
        return true;
      default: return false;
    }
  }

  destroy(): void {
    this.element.remove();
  }

  // ---- layout

  /** Lays out anew where structure, size or what stands open has changed; otherwise the boxes take the new step's numbers. */
  private arrange(): void {
    const { model, canvas } = this;
    const { width, height } = canvas.surface;
    if (width === 0 || height === 0 || !model.tape) {
      this.layout = this.rows = null;
      return;
    }
    const key = `${model.structure} ${width} ${height} ${model.known} ${model.origin} ${[...this.opening.chosen].map(([name, open]) => name + Number(open)).join()}`;
    if (key === this.laid) {
      if (this.layout) this.layout = renewed(this.layout, model.groups);
      return;
    }
    const fresh = this.shown !== model.structure;
    const refit = this.laid === "" || fresh;
    this.laid = key;
    this.shown = model.structure;
    if (fresh) {
      this.shifts.clear();
      this.above = 0;
    }
    const before = this.layout && this.rows && !fresh ? { layout: this.layout, rows: this.rows } : null;
    const wasAt = canvas.camera.x;
    const measured = `${model.structure} ${width} ${this.context.theme.version}`;
    if (measured !== this.measured) this.measures = this.full ? measuresOf(model, this.context.theme, width) : compactMeasures(model, this.context.theme, width);
    this.measured = measured;
    const room = width - 2 * EDGE;
    this.opening.choose(this.full ? this.measured : null, (some) => layoutTape(model.tree, some, this.measures).width <= room);
    this.layout = dragged(layoutTape(model.tree, this.opening.open, this.measures), this.shifts);
    this.above = Math.max(this.above, this.layout.above);
    this.plates = platesOf(this.layout, model);
    this.alarm();
    if (refit || (!this.moved && !this.anchor)) this.fit();
    else this.hold();
    this.spread();
    if (before && this.anchor) this.motion.begin(before, (wasAt - canvas.camera.x) / canvas.camera.scale, this.anchor.key, performance.now());
    if (!this.anchor || isOpen(model.groups.get(this.anchor.key) ?? model.tree.root, this.opening.open) === this.opening.chosen.get(this.anchor.key)) this.anchor = null;
    this.write();
  }

  /** Brings where a NaN begins, or the forward ended, into sight: once, also where only that is new. */
  private alarm(): void {
    const { model } = this;
    const at = model.alarm;
    const key = `${model.structure} ${model.origin} ${at}`;
    if (key !== this.alarmed) this.finder.show(at);
    this.alarmed = key;
  }

  /** Keeps the anchor where it is on the screen. */
  private hold(): void {
    const { anchor, canvas, layout } = this;
    const place = layout?.boxes.find((box) => box.key === anchor?.key) ?? layout?.frames.find((frame) => frame.group.key === anchor?.key);
    if (anchor && place) canvas.camera.x = anchor.x - place.x * canvas.camera.scale;
  }

  private fit(everything = false): void {
    const { layout, canvas } = this;
    if (!layout) return;
    canvas.camera = fitted(layout.width, rowsOf(layout, this.plates, 0, !this.full, this.above).height, canvas.surface, everything);
    this.spread();
  }

  /** Fits the whole tape, with boxes where the layout puts them. */
  private fitAll(everything: boolean): void {
    this.moved = false;
    this.shifts.clear();
    this.above = 0;
    this.laid = "";
    this.motion.stop();
    this.arrange();
    this.fit(everything);
    this.draw();
  }

  /** The rows use the whole height at every scale: what is between them gives way. */
  private spread(): void {
    if (this.layout) this.rows = rowsOf(this.layout, this.plates, this.canvas.surface.height / this.canvas.camera.scale, !this.full, this.above);
    this.clamp();
  }

  /** Brings what was selected elsewhere or found into sight, once. */
  private reveal(): void {
    const { layout } = this;
    const node = this.finder.takeTarget();
    if (node < 0 || !layout) return;
    const { camera, surface } = this.canvas;
    const { at } = this.model.nodes[node]!.node;
    const box = layout.boxes.find((one) => (one.group ? one.group.first <= at && at < one.group.last : one.kind === "op" && one.index === node));
    if (!box) return;
    const [from, to] = [box.x * camera.scale + camera.x, (box.x + box.width) * camera.scale + camera.x];
    if (from < 0 || to > surface.width) camera.x = surface.width / 2 - (box.x + box.width / 2) * camera.scale;
    this.clamp();
  }

  private draw(): void {
    const { layout, rows } = this;
    if (!layout || !rows) return this.canvas.draw(null, null, this.plates);
    const now = performance.now();
    const { picture, lines } = this.motion.at({ layout, rows }, now);
    this.canvas.lines = lines;
    this.canvas.draw(picture.layout, picture.rows, this.plates);
    if (this.motion.running(now)) requestAnimationFrame(() => this.draw());
  }

  // ---- what is read

  private write(): void {
    const { theme } = this.context;
    const { said, label } = this.model.tape ? about(this.model, this.opening.open) : { said: "", label: null };
    this.panel.sub = joined([said, this.model.tape ? this.finder.text : "", this.steps.elsewhere]);
    if (label !== null) attribute(this.canvas.surface.canvas, "aria-label", label);
    this.steps.update();
    if (label !== null && this.families) showFamilies(this.families, this.model, theme);
  }

  private buttons(): HTMLElement {
    const all = (): void => this.again(() => this.opening.all());
    const none = (): void => this.again(() => this.opening.none());
    return buttonGroup("Modules", [
      ["▾ all", "Open all modules", all], ["▸ all", "Close all modules", none],
      ...(this.full ? [["Fit", "Fit the whole tape, and put back what was dragged (F)", () => this.fitAll(true)] as const] : []),
    ]);
  }

  private again(change: () => void): void {
    change();
    [this.drawn, this.moved] = ["", false];
    this.render(performance.now());
  }

  // ---- pointer and keys

  private bind(): void {
    const { canvas } = this;
    bind(canvas.surface.canvas, {
      hit: (x, y) => canvas.hit(x, y),
      hover: (target, x, y) => {
        if (target) this.tip.show(tipOf(target, this.model, this.context), x, y, canvas.surface.width);
        else this.tip.hide();
        if (target?.key === canvas.hover?.key && target?.row === canvas.hover?.row) return;
        canvas.hover = target;
        this.draw();
      },
      click: (target, x, y) => this.click(target, x, y),
      open: (target) => this.toggle(target.key),
      pan: (byX, byY) => this.pan(byX, byY),
      drag: (target, byX, byY) => this.drag(target, byX, byY),
      zoom: (factor, x, y) => this.zoom(factor, x, y),
    });
  }

  private click(target: Target, x: number, y: number): void {
    // The triangle opens and closes; the rest of a module selects it.
    const { camera } = this.canvas;
    const inside = (x - camera.x) / camera.scale - target.x;
    const down = (y - camera.y) / camera.scale - target.y;
    if (target.group && inside < 22 && (target.kind === "frame" || down < 24)) return this.toggle(target.key);
    this.select(target);
  }

  private select(target: Target): void {
    const { store, actions } = this.context;
    const { model } = this;
    this.canvas.focus = { key: target.key, row: target.row };
    if (!model.tape) return;
    const selection = selectionOfTarget(target, model, store);
    if (selection) actions.select(selection);
    this.finder.settle();
  }

  private toggle(key: string): void {
    const group = this.model.groups.get(key);
    if (!group) return;
    const was = isOpen(group, this.opening.open);
    const { camera } = this.canvas;
    const before = this.layout?.boxes.find((box) => box.key === key) ?? this.layout?.frames.find((frame) => frame.group.key === key);
    // What closes comes into sight: the title that was clicked may stand far from where its frame begins.
    const x = (before?.x ?? 0) * camera.scale + camera.x;
    this.anchor = { key, x: was ? Math.max(x, EDGE) : x };
    this.opening.chosen.set(key, !was);
    this.tip.hide();
    this.canvas.hover = null; // what lies under the pointer is about to be another thing
    this.moved = true;
    if (!was && group.level === null) this.context.actions.ask({ type: "tape", open: [key] });
    this.drawn = "";
    this.render(performance.now());
    this.context.actions.announce(`${group.name} ${was ? "closed" : "open"}`);
  }

  private drag(target: Target, byX: number, byY: number): void {
    const { scale } = this.canvas.camera;
    const shift = this.shifts.get(target.key) ?? { x: 0, d: 0 };
    // Both rows mirror each other: away from the middle is up in the forward row and down in the backward row.
    const away = target.row === "backward" ? byY : -byY;
    this.shifts.set(target.key, { x: shift.x + byX / scale, d: shift.d + away / scale });
    this.tip.hide();
    this.moved = true;
    this.layout = dragged(layoutTape(this.model.tree, this.opening.open, this.measures), this.shifts);
    this.plates = platesOf(this.layout, this.model);
    this.draw();
  }

  private pan(byX: number, byY: number): void {
    this.tip.hide();
    this.canvas.camera.x += byX;
    this.canvas.camera.y += byY;
    this.moved = true;
    this.clamp();
    this.draw();
  }

  private zoom(factor: number, x: number, y: number): void {
    zoomAt(this.canvas.camera, factor, x, y);
    this.moved = true;
    this.spread();
    this.draw();
  }

  /** Some of the picture always stays in sight. */
  private clamp(): void {
    if (this.layout && this.rows) keepInSight(this.canvas.camera, this.layout.width, this.rows.height, this.canvas.surface);
  }

  private enter(): boolean {
    const { focus, targets } = this.canvas;
    const target = targets.find((one) => one.key === focus?.key && one.row === focus.row);
    if (!target?.group) return false;
    this.toggle(target.key);
    return true;
  }

  /** The nearest box in the direction of the arrow becomes the selection. */
  private walk(key: string): void {
    const { canvas } = this;
    const all = canvas.targets;
    const from = all.find((one) => one.key === canvas.focus?.key && one.row === canvas.focus.row) ?? null;
    if (!from) {
      const first = all.find((one) => one.kind !== "frame");
      if (first) this.select(first);
      return;
    }
    const next = nearest(all, from, key);
    if (!next) return;
    this.select(next);
    const { camera, surface } = canvas;
    const [left, right] = [next.x * camera.scale + camera.x, (next.x + next.width) * camera.scale + camera.x];
    if (left < 8) camera.x += 8 - left;
    else if (right > surface.width - 8) camera.x -= right - surface.width + 8;
    this.drawn = "";
  }
}

export const createTapePanel = (context: ViewContext): View => new TapeView(context, false);
export const createTapeView = (context: ViewContext): View => new TapeView(context, true);
