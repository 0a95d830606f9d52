/** Where do gradients vanish, explode or become NaN? The Tape panel of the overview and the Tape view. */

import { attribute, h } from "../dom.ts";
import { integer } from "../format.ts";
import { Tip } from "../memory/tip.ts";
import { familyLabels } from "../palette.ts";
import { Panel } from "../panel.ts";
import type { DataTable, View, ViewContext } from "../view.ts";
import { nearest, type Target, TapeCanvas } from "./canvas.ts";
import { TapeDetails } from "./details.ts";
import { Finder } from "./finder.ts";
import { boxes, isGroup, isOpen, openAll, openAtFirst } from "./groups.ts";
import { type Layout, layoutTape, MEASURES, type Measures } from "./layout.ts";
import { nodeCount, tapeOf, type TapeModel } from "./model.ts";
import { dragged, Motion, type Shifts } from "./motion.ts";
import { bind } from "./pointer.ts";
import { platesOf, type Rows, rowsOf } from "./rows.ts";
import { legend, tableOf, tipOf } from "./words.ts";

/** Boxes shown at first, and at most. */
const FIRST = 60;
const MOST = 20_000;
const EDGE = 12;
const SMALLEST = 0.06;
const LARGEST = 2.5;
/** Below this the picture scrolls instead of shrinking further when it is first shown. */
const READABLE = 0.93;

class TapeView implements View {
  readonly element: HTMLElement;
  private readonly model: TapeModel;
  private readonly panel: Panel;
  private readonly canvas: TapeCanvas;
  private readonly host = h("div", { style: "position:relative;flex:1;min-height:0;overflow:hidden" });
  private readonly none = h("div", { class: "fl-none", style: "position:absolute;inset:0" }, "No tape yet: the graph of a step appears after its backward().");
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
  private open: ReadonlySet<string> = new Set();
  private automatic: { key: string; open: ReadonlySet<string> } = { key: "", open: new Set() };
  /** What the reader opened or closed, by group; the rest follows the automatic choice. */
  private readonly chosen = new Map<string, boolean>();
  private readonly shifts: Shifts = new Map();
  /** What stays where it is while everything is laid out anew, and where that is on the screen. */
  private anchor: { key: string; x: number } | null = null;
  /** All modules are to be open: asked for until nothing is unknown. */
  private everything = false;
  private measured = "";
  private laid = "";
  private shown = -1;
  private drawn = "";
  /** The reader moved the picture: new steps leave it where it is. */
  private moved = false;

  constructor(private readonly context: ViewContext, private readonly full: boolean) {
    this.model = tapeOf(context.store);
    this.panel = new Panel("Tape", () => this.describe());
    this.canvas = new TapeCanvas(context, this.model, !full);
    this.panel.body.append(h("div", { style: "position:absolute;inset:0;display:flex;flex-direction:column" }, this.host, ...(full ? [legend()] : [])));
    this.host.append(this.canvas.surface.canvas, this.none);
    this.tip = new Tip(this.host);
    this.families = full ? h("div", { class: "fl-wideonly", style: "display:flex;gap:12px;font-size:11px;color:var(--fl-dim);overflow:hidden" }) : null;
    if (this.families) this.panel.tools.append(this.families);
    this.panel.tools.append(this.buttons());
    this.finder = new Finder(context, this.model, full);
    this.details = full ? new TapeDetails(context, this.model) : null;
    this.element = this.details ? h("div", { class: "fl-split", style: "height:100%;width:100%" }, this.panel.element, this.details.element) : this.panel.element;
    this.bind();
  }

  // ---- the view interface

  resize(): void {
    const { clientWidth, clientHeight } = this.host;
    this.canvas.surface.resize(clientWidth, clientHeight);
    this.laid = "";
    this.drawn = "";
  }

  render(now: number): void {
    const { store, theme } = this.context;
    this.model.update();
    for (const key of this.finder.update()) this.chosen.set(key, true);
    this.details?.update();
    const key = `${store.versions.tape} ${store.versions.view} ${theme.version} ${this.chosen.size}`;
    if (key === this.drawn && !this.motion.running(now)) return;
    this.drawn = key;
    const { tape } = this.model;
    this.none.hidden = tape !== null && tape.count > 0;
    this.write();
    if (this.panel.update(now)) return;
    this.arrange();
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

  /** Lays out anew where structure, size or what stands open has changed. */
  private arrange(): void {
    const { model, canvas } = this;
    const { width, height } = canvas.surface;
    if (width === 0 || height === 0 || !model.tape) {
      this.layout = this.rows = null;
      return;
    }
    const key = `${model.structure} ${width} ${height} ${model.known} ${this.full ? model.origin : ""} ${[...this.chosen].map(([name, open]) => name + Number(open)).join()}`;
    if (key === this.laid) return;
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
    this.measure(width);
    this.choose(width);
    this.layout = dragged(layoutTape(model.tree, this.open, this.measures), this.shifts);
    this.above = Math.max(this.above, this.layout.above);
    this.plates = platesOf(this.layout, model);
    if (fresh && this.full) this.finder.show(model.nodes.findIndex((info) => info.health === "origin" || info.node.failed !== undefined));
    if (refit || (!this.moved && !this.anchor)) this.fit();
    else this.hold();
    this.spread();
    if (before && this.anchor) this.motion.begin(before, (wasAt - canvas.camera.x) / canvas.camera.scale, this.anchor.key, performance.now());
    if (!this.anchor || isOpen(model.groups.get(this.anchor.key) ?? model.tree.root, this.open) === this.chosen.get(this.anchor.key)) this.anchor = null;
    this.write();
  }

  /** Keeps the anchor where it is on the screen. */
  private hold(): void {
    const { anchor, canvas, layout } = this;
    const place = layout?.boxes.find((box) => box.key === anchor?.key) ?? layout?.frames.find((frame) => frame.group.key === anchor?.key);
    if (anchor && place) canvas.camera.x = anchor.x - place.x * canvas.camera.scale;
  }

  /** What stands open: as much as fits the width at reading size, then what the reader chose. */
  private choose(width: number): void {
    const { model } = this;
    const { root } = model.tree;
    const room = width - 2 * EDGE;
    // Chosen anew only for another graph, size or NaN: what opened by itself does not close by itself.
    const key = `${this.measured} ${model.origin}`;
    if (this.full && key !== this.automatic.key) {
      this.automatic = { key, open: openAtFirst(root, FIRST, (some) => layoutTape(model.tree, some, this.measures).width <= room) };
    }
    const open = new Set(this.automatic.open);
    for (const [name, chosen] of this.chosen) {
      if (chosen) open.add(name);
      else open.delete(name);
    }
    // The reader's choice too keeps to what can be drawn.
    if (boxes(root, open) > MOST) {
      const allowed = openAll(root, MOST).open;
      for (const name of open) if (!allowed.has(name)) open.delete(name);
    }
    this.open = open;
    if (this.everything) this.openMore();
  }

  /** Boxes as wide as the names in them, within reason; the same for all steps of a program. */
  private measure(width: number): void {
    const { model } = this;
    const { theme } = this.context;
    const key = `${model.structure} ${width} ${theme.version}`;
    if (key === this.measured) return;
    this.measured = key;
    if (!this.full) {
      this.measures = this.compactMeasures(width);
      return;
    }
    const [op, module] = [theme.code(10.5, 500), theme.ui(11, 600)];
    let [ops, modules] = [0, 0];
    for (const info of model.nodes) ops = Math.max(ops, theme.measure(`${info.op}′`, op));
    for (const group of model.groups.values()) modules = Math.max(modules, theme.measure(`▸ ${group.name}′${group.repeat ? ` ×${integer(group.repeat)}` : ""}`, module));
    // Text does not shrink with the picture, boxes do.
    const room = 1 / (READABLE * 0.86);
    this.measures = {
      ...MEASURES, opWidth: Math.min(110, Math.max(MEASURES.opWidth, Math.ceil(ops * room) + 16)),
      moduleWidth: Math.min(156, Math.max(MEASURES.moduleWidth, Math.ceil(modules * room) + 18)),
    };
  }

  /** The overview's boxes share the width. */
  private compactMeasures(width: number): Measures {
    const { tree } = this.model;
    const inputs = tree.inputs.length > 0 ? 1 : 0;
    const count = Math.max(1, tree.root.level?.items.length ?? 0);
    const gap = 14;
    const inputWidth = 64;
    const room = width - 2 * EDGE - 4 - inputs * (inputWidth + gap) - (count - 1) * gap;
    const box = Math.min(112, Math.max(66, Math.floor(room / count)));
    return { ...MEASURES, height: 46, gap, inputWidth, moduleWidth: box, opWidth: Math.min(box, 92) };
  }

  /** The whole picture where it stays readable; otherwise its height, and it scrolls. */
  private fit(everything = false): void {
    const { layout, canvas } = this;
    if (!layout) return;
    const { width, height } = canvas.surface;
    const wide = (width - 2 * EDGE) / Math.max(1, layout.width + 4);
    const least = rowsOf(layout, this.plates, 0, !this.full, this.above).height;
    const tall = height / least;
    const whole = Math.min(1, wide, tall);
    const scale = Math.max(SMALLEST, everything || whole >= READABLE ? whole : Math.min(1, Math.max(tall, READABLE * 0.86)));
    canvas.camera = { scale, x: layout.width * scale <= width ? (width - layout.width * scale) / 2 : EDGE, y: 0 };
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
    const { model } = this;
    const { theme } = this.context;
    const { tape } = model;
    if (!tape) {
      this.panel.sub = "";
      return;
    }
    const groups = (model.tree.root.level?.items ?? []).filter(isGroup);
    const opened = groups.filter((group) => isOpen(group, this.open)).length;
    const what = groups.some((group) => group.path) ? "modules" : "groups";
    const modules = groups.length === 0 ? "no modules" : opened === 0 ? `${what} collapsed` : `${opened} of ${groups.length} ${what} open`;
    const left = tape.truncated > 0 ? `${integer(tape.truncated)} older ${tape.truncated === 1 ? "node" : "nodes"} left out` : "";
    const origin = model.nodes.find((info) => info.health === "origin");
    const failed = model.nodes.find((info) => info.node.failed);
    this.panel.sub = [failed ? `failed at ${failed.op}` : "", tape.step >= 0 ? `step ${integer(tape.step)}` : "", origin ? `NaN begins at ${origin.op}` : "", nodeCount(tape.count), modules, left, this.finder.text].filter(Boolean).join(" · ");
    attribute(this.canvas.surface.canvas, "aria-label", `Tape graph${tape.step >= 0 ? ` of step ${tape.step}` : ""}: ${nodeCount(tape.count)}, ${modules}${origin ? `, NaN begins at ${origin.op} ${origin.scope}` : ""}. Arrow keys move between boxes, Enter opens a module.`);
    if (!this.families) return;
    const present = new Set([...model.nodes.map((info) => info.family), ...[...model.groups.values()].flatMap((group) => group.data?.families.map(([family]) => family) ?? [])]);
    const shown = Object.entries(familyLabels).filter(([family]) => present.has(family));
    const key = `${shown.map(([family]) => family).join()} ${theme.version}`;
    if (this.families.dataset["key"] === key) return;
    this.families.dataset["key"] = key;
    this.families.replaceChildren(...shown.map(([family, name]) =>
      h("span", { style: "display:inline-flex;align-items:center;gap:5px" }, h("i", { class: "fl-swatch", style: `background:${theme.family(family)}` }), name)));
  }

  private buttons(): HTMLElement {
    const group = h("div", { class: "fl-segmented", role: "group", "aria-label": "Modules" });
    const button = (name: string, title: string, act: () => void): void => {
      const one = h("button", { type: "button", title, "aria-label": title }, name);
      one.addEventListener("click", act);
      group.append(one);
    };
    button("▾ all", "Open all modules", () => {
      this.everything = true;
      this.openMore();
      this.again();
    });
    button("▸ all", "Close all modules", () => {
      this.everything = false;
      for (const key of this.model.groups.keys()) this.chosen.set(key, false);
      this.again();
    });
    if (this.full) button("Fit", "Fit the whole tape, and put back what was dragged (F)", () => this.fitAll(true));
    return group;
  }

  /** Opens all that is known and fits, and asks for the rest of it. */
  private openMore(): void {
    const every = openAll(this.model.tree.root, MOST);
    for (const key of this.model.groups.keys()) this.chosen.set(key, every.open.has(key));
    for (const key of every.unknown) this.chosen.set(key, true);
    this.open = every.open;
    if (every.unknown.length > 0) this.context.actions.ask({ type: "tape", open: every.unknown });
    else this.everything = false;
  }

  private again(): void {
    this.drawn = "";
    this.moved = false;
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
    const { step } = model.tape;
    if (target.kind === "input" || target.kind === "parameter") {
      actions.select({ kind: "leaf", label: model.leafName(target.index, false), node: model.leaves[target.index]!.id });
    } else if (target.group) {
      const { path, data, key, name } = target.group;
      if (path) actions.select({ kind: "scope", label: path, scope: path, group: key, step });
      else if (data) actions.select({ kind: "nodes", label: data.repeat ? `${name} ×${data.repeat}` : name, nodes: data.ids, group: key, step });
    } else {
      const selection = store.selectionOfNode(model.nodes[target.index]!.node, model.tape);
      actions.select(target.row === "backward" ? { ...selection, label: `${selection.label}′`, phase: "backward" } : selection);
    }
    this.finder.settle();
  }

  private toggle(key: string): void {
    const group = this.model.groups.get(key);
    if (!group) return;
    const was = isOpen(group, this.open);
    const { camera } = this.canvas;
    const before = this.layout?.boxes.find((box) => box.key === key) ?? this.layout?.frames.find((frame) => frame.group.key === key);
    // What closes comes into sight: the title that was clicked may stand far from where its frame begins.
    const x = (before?.x ?? 0) * camera.scale + camera.x;
    this.anchor = { key, x: was ? Math.max(x, EDGE) : x };
    this.chosen.set(key, !was);
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
    this.layout = dragged(layoutTape(this.model.tree, this.open, this.measures), this.shifts);
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
    const { camera } = this.canvas;
    const scale = Math.min(LARGEST, Math.max(SMALLEST, camera.scale * factor));
    camera.x = x - ((x - camera.x) * scale) / camera.scale;
    camera.y = y - ((y - camera.y) * scale) / camera.scale;
    camera.scale = scale;
    this.moved = true;
    this.spread();
    this.draw();
  }

  /** Some of the picture always stays in sight. */
  private clamp(): void {
    const { layout, rows } = this;
    const { camera, surface } = this.canvas;
    if (!layout || !rows) return;
    const keep = 60;
    camera.x = Math.min(Math.max(camera.x, keep - layout.width * camera.scale), surface.width - keep);
    const tall = rows.height * camera.scale;
    camera.y = tall <= surface.height + 1 ? (surface.height - tall) / 2 : Math.min(Math.max(camera.y, surface.height - tall), 0);
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
