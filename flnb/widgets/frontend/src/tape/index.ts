/** Where do gradients vanish, explode or become NaN? The Tape panel of the overview and the Tape view. */

import { attribute, h } from "../dom.ts";
import { bytes, duration, integer, shape as shapeText, significant, text } from "../format.ts";
import { Tip } from "../memory/tip.ts";
import { familyLabels } from "../palette.ts";
import { Panel } from "../panel.ts";
import type { DataTable, View, ViewContext } from "../view.ts";
import { nearest, type Target, TapeCanvas } from "./canvas.ts";
import { TapeDetails } from "./details.ts";
import { boxes, openAll, openAtFirst } from "./groups.ts";
import { type Layout, layoutTape, MEASURES, type Measures } from "./layout.ts";
import { nodeCount, tapeOf, type TapeModel } from "./model.ts";
import { platesOf, type Rows, rowsOf } from "./rows.ts";

/** Boxes shown at first, and at most. */
const FIRST = 60;
const MOST = 1500;
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
  private measures: Measures = MEASURES;
  private layout: Layout | null = null;
  private rows: Rows | null = null;
  private plates: ReadonlyMap<string, readonly number[]> = new Map();
  private open = new Set<string>();
  /** What the reader opened or closed, by group; the rest follows the automatic choice. */
  private readonly chosen = new Map<string, boolean>();
  private laid = "";
  private drawn = "";
  /** The reader moved the picture: new steps leave it where it is. */
  private moved = false;
  private selectionSeen = "";

  constructor(private readonly context: ViewContext, private readonly full: boolean) {
    this.model = tapeOf(context.store);
    this.panel = new Panel("Tape", () => this.describe());
    this.canvas = new TapeCanvas(context, this.model, !full);
    this.panel.body.append(h("div", { style: "position:absolute;inset:0;display:flex;flex-direction:column" }, this.host, ...(full ? [this.legend()] : [])));
    this.host.append(this.canvas.surface.canvas, this.none);
    this.tip = new Tip(this.host);
    this.families = full ? h("div", { class: "fl-wideonly", style: "display:flex;gap:12px;font-size:11px;color:var(--fl-dim);overflow:hidden" }) : null;
    if (this.families) this.panel.tools.append(this.families);
    this.panel.tools.append(this.buttons());
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
    this.details?.update();
    const key = `${store.versions.tape} ${store.versions.view} ${theme.version}`;
    if (key === this.drawn) return;
    this.drawn = key;
    const { tape, nodes } = this.model;
    this.none.hidden = tape !== null && nodes.length > 0;
    this.write();
    if (this.panel.update(now)) return;
    this.arrange();
    this.reveal();
    this.draw();
  }

  describe(): DataTable {
    const { model } = this;
    const rows = model.nodes.map((info) => [
      `#${info.node.id}`, info.op, info.scope || "–", info.plan ? shapeText(info.plan.shape) : "–", info.plan?.dtype ?? "–", text(duration(info.node.forward_ns)),
      info.node.backward_ns > 0 ? text(duration(info.node.backward_ns)) : "–", info.health === "fine" ? significant(info.node.norm ?? NaN) : info.health === "origin" ? "NaN begins" : "NaN",
      text(bytes(info.node.saved)), [...info.parents.map((parent) => `#${model.nodes[parent]!.node.id}`), ...[...info.parameters, ...info.inputs].map((leaf) => model.leafName(leaf, false))].join(" ") || "–",
    ]);
    return { caption: model.tape ? `Tape of step ${model.tape.step}` : "Tape", columns: ["Node", "Op", "Scope", "Shape", "dtype", "Forward", "Backward", "Gradient norm", "Saved", "Reads"], rows };
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
      case "f": case "F":
        this.moved = false;
        this.fit();
        this.draw();
        return true;
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
    const key = `${model.structure} ${width} ${height} ${this.full ? model.origin : ""} ${[...this.chosen].map(([name, open]) => name + Number(open)).join()}`;
    if (key === this.laid) return;
    const fresh = this.laid === "" || !this.laid.startsWith(`${model.structure} `);
    this.laid = key;
    this.choose(width);
    this.layout = layoutTape(model.graph, model.root, this.open, this.measures);
    this.plates = platesOf(this.layout, model);
    this.spread();
    if (fresh || !this.moved) this.fit();
    this.write();
  }

  /** What stands open: as much as fits the width at reading size, then what the reader chose. */
  private choose(width: number): void {
    const { model } = this;
    this.measures = this.full ? this.fullMeasures() : this.compactMeasures(width);
    const room = width - 2 * EDGE;
    this.open = this.full ? openAtFirst(model.graph, model.root, FIRST, (open) => layoutTape(model.graph, model.root, open, this.measures).width <= room) : new Set();
    for (const [name, open] of this.chosen) {
      if (open) this.open.add(name);
      else this.open.delete(name);
    }
    // The reader's choice too keeps to what can be drawn.
    if (boxes(model.root.children, this.open) > MOST) {
      const allowed = openAll(model.root, MOST);
      for (const name of this.open) if (!allowed.has(name)) this.open.delete(name);
    }
  }

  /** Boxes as wide as the names in them, within reason. */
  private fullMeasures(): Measures {
    const { theme } = this.context;
    const font = theme.code(10.5, 500);
    let longest = 0;
    for (const info of this.model.nodes) longest = Math.max(longest, theme.measure(`${info.op}′`, font));
    return { ...MEASURES, opWidth: Math.min(110, Math.max(MEASURES.opWidth, Math.ceil(longest) + 16)) };
  }

  /** The overview's boxes share the width. */
  private compactMeasures(width: number): Measures {
    const { model } = this;
    const inputs = Math.min(8, model.graph.leaves.filter((leaf) => !leaf.parameter).length) > 0 ? 1 : 0;
    const count = Math.max(1, model.root.children.length);
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
    const least = rowsOf(layout, this.plates, 0, !this.full).height;
    const tall = height / least;
    const whole = Math.min(1, wide, tall);
    const scale = Math.max(SMALLEST, everything || whole >= READABLE ? whole : Math.min(1, Math.max(tall, READABLE * 0.86)));
    canvas.camera = { scale, x: layout.width * scale <= width ? (width - layout.width * scale) / 2 : EDGE, y: 0 };
    this.spread();
  }

  /** The rows use the whole height at every scale: what is between them gives way. */
  private spread(): void {
    if (this.layout) this.rows = rowsOf(this.layout, this.plates, this.canvas.surface.height / this.canvas.camera.scale, !this.full);
    this.clamp();
  }

  /** Brings what was selected elsewhere into sight, once. */
  private reveal(): void {
    const { store } = this.context;
    const { canvas, layout } = this;
    const key = JSON.stringify(store.selection);
    if (key === this.selectionSeen || !layout) return;
    this.selectionSeen = key;
    const box = layout.boxes.find((one) => {
      if (one.kind === "input" || !store.selection) return false;
      for (let at = one.index; at < (one.group ? one.group.last : one.index + 1); at++) if (store.selectsNode(this.model.nodes[at]!.node)) return true;
      return false;
    });
    if (!box) return;
    const { camera } = canvas;
    const [from, to] = [box.x * camera.scale + camera.x, (box.x + box.width) * camera.scale + camera.x];
    if (from < 0 || to > canvas.surface.width) camera.x = canvas.surface.width / 2 - (box.x + box.width / 2) * camera.scale;
  }

  private draw(): void {
    this.canvas.draw(this.layout, this.rows, this.plates);
  }

  // ---- what is read

  private write(): void {
    const { model } = this;
    const { theme } = this.context;
    if (!model.tape) {
      this.panel.sub = "";
      return;
    }
    const groups = model.root.children.filter((child) => typeof child !== "number").length;
    const opened = model.root.children.filter((child) => typeof child !== "number" && this.open.has(child.key)).length;
    const modules = groups === 0 ? "no modules" : opened === 0 ? "modules collapsed" : `${opened} of ${groups} modules open`;
    const left = model.tape.truncated > 0 ? `${integer(model.tape.truncated)} older ${model.tape.truncated === 1 ? "node" : "nodes"} left out` : "";
    const origin = model.nodes.find((info) => info.health === "origin");
    this.panel.sub = [`step ${integer(model.tape.step)}`, origin ? `NaN begins at ${origin.op}` : "", nodeCount(model.nodes.length), modules, left].filter(Boolean).join(" · ");
    attribute(this.canvas.surface.canvas, "aria-label", `Tape graph of step ${model.tape.step}: ${nodeCount(model.nodes.length)}, ${modules}${origin ? `, NaN begins at ${origin.op} ${origin.scope}` : ""}. Arrow keys move between boxes, Enter opens a module.`);
    if (!this.families) return;
    const present = new Set(model.nodes.map((info) => info.family));
    const shown = Object.entries(familyLabels).filter(([family]) => present.has(family));
    const key = `${shown.map(([family]) => family).join()} ${theme.version}`;
    if (this.families.dataset["key"] === key) return;
    this.families.dataset["key"] = key;
    this.families.replaceChildren(...shown.map(([family, name]) =>
      h("span", { style: "display:inline-flex;align-items:center;gap:5px" }, h("i", { class: "fl-swatch", style: `background:${theme.family(family)}` }), name)));
  }

  private legend(): HTMLElement {
    const item = (mark: HTMLElement, name: string): HTMLElement => h("span", { style: "display:inline-flex;align-items:center;gap:7px;white-space:nowrap" }, mark, name);
    const box = (style: string): HTMLElement => h("i", { style: `display:inline-block;flex:none;${style}` });
    return h("div", { style: "display:flex;flex-wrap:wrap;gap:0 20px;padding:6px 12px;border-top:1px solid var(--fl-grid);font-size:11px;color:var(--fl-dim);flex:none" },
      item(box("width:34px;height:4px;background:linear-gradient(90deg,var(--fl-ink) 60%,var(--fl-grid) 60%)"), "gradient norm, log scale 10⁻⁴ to 10"),
      item(box("width:22px;border-top:1px dashed var(--fl-dim)"), "saved for backward, with its size"),
      item(box("width:18px;height:10px;border:2px solid var(--fl-error);border-radius:3px;background:repeating-linear-gradient(135deg,color-mix(in srgb,var(--fl-error) 40%,transparent) 0 1px,transparent 1px 4px)"), "NaN or Inf; heavy border: where it began"),
      item(h("b", { style: "font-weight:600;color:var(--fl-text)" }, "op′"), "its backward"));
  }

  private buttons(): HTMLElement {
    const group = h("div", { class: "fl-segmented", role: "group", "aria-label": "Modules" });
    const button = (name: string, title: string, act: () => void): void => {
      const one = h("button", { type: "button", title, "aria-label": title }, name);
      one.addEventListener("click", act);
      group.append(one);
    };
    button("▾ all", "Open all modules", () => {
      const every = openAll(this.model.root, MOST);
      for (const key of this.model.groups.keys()) this.chosen.set(key, every.has(key));
      this.again();
    });
    button("▸ all", "Close all modules", () => {
      for (const key of this.model.groups.keys()) this.chosen.set(key, false);
      this.again();
    });
    if (this.full) button("Fit", "Fit the whole tape (F)", () => {
      this.moved = false;
      this.fit(true);
      this.draw();
    });
    return group;
  }

  private again(): void {
    this.drawn = "";
    this.moved = false;
    this.render(performance.now());
  }

  // ---- pointer and keys

  private bind(): void {
    const { canvas } = this.canvas.surface;
    canvas.tabIndex = 0;
    canvas.style.touchAction = "none";
    let press: { x: number; y: number; fromX: number; fromY: number; moved: boolean } | null = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      press = { x: event.offsetX, y: event.offsetY, fromX: event.offsetX, fromY: event.offsetY, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!press) return this.point(event.offsetX, event.offsetY);
      if (Math.hypot(event.offsetX - press.fromX, event.offsetY - press.fromY) > 3) press.moved = true;
      if (!press.moved) return;
      canvas.style.cursor = "grabbing";
      this.tip.hide();
      this.pan(event.offsetX - press.x, event.offsetY - press.y);
      press.x = event.offsetX;
      press.y = event.offsetY;
    });
    const release = (event: PointerEvent): void => {
      if (press && !press.moved && event.type === "pointerup") this.click(event.offsetX, event.offsetY);
      press = null;
      canvas.style.cursor = "default";
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => {
      this.tip.hide();
      if (this.canvas.hover) {
        this.canvas.hover = null;
        this.draw();
      }
    });
    canvas.addEventListener("dblclick", (event) => {
      const target = this.canvas.hit(event.offsetX, event.offsetY);
      if (target?.kind === "module") this.toggle(target.key);
    });
    canvas.addEventListener("wheel", (event) => {
      if (!(event.ctrlKey || event.metaKey || canvas.closest(".fl-root")?.contains(document.activeElement))) return;
      event.preventDefault();
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(-(event.deltaX || event.deltaY), 0);
      else this.zoom(Math.exp(-event.deltaY * 0.002), event.offsetX, event.offsetY);
    }, { passive: false });
  }

  private point(x: number, y: number): void {
    const target = this.canvas.hit(x, y);
    const { canvas } = this.canvas.surface;
    canvas.style.cursor = target ? "pointer" : "grab";
    if (target) this.tip.show(this.tipOf(target), x, y, this.canvas.surface.width);
    else this.tip.hide();
    const same = target?.key === this.canvas.hover?.key && target?.row === this.canvas.hover?.row;
    if (same) return;
    this.canvas.hover = target;
    this.draw();
  }

  private tipOf(target: Target): string {
    const { model } = this;
    const { store } = this.context;
    if (target.kind === "input" || target.kind === "parameter") {
      const leaf = model.leaves[target.index]!;
      const dims = store.plan(leaf.plan)?.shape;
      const norm = model.leafBad(target.index) ? "gradient NaN" : leaf.norm === null ? "" : `gradient norm ${significant(leaf.norm)}`;
      return [model.leafName(target.index, false), dims ? shapeText(dims) : "", norm].filter(Boolean).join(" · ");
    }
    if (target.group) {
      const { group } = target;
      let [forward, backward] = [0, 0];
      for (let at = group.first; at < group.last; at++) {
        forward += model.nodes[at]!.node.forward_ns;
        backward += model.nodes[at]!.node.backward_ns;
      }
      return `${group.path || group.name} · ${group.last - group.first} ops · ${text(duration(forward))} forward · ${text(duration(backward))} backward`;
    }
    const info = model.nodes[target.index]!;
    const { node } = info;
    const what = target.row === "backward"
      ? [`gradient norm ${info.health === "fine" ? significant(node.norm ?? NaN) : info.health === "origin" ? "NaN begins here" : "NaN"}`, node.backward_ns > 0 ? text(duration(node.backward_ns)) : ""]
      : [info.plan ? `${shapeText(info.plan.shape)} ${info.plan.dtype}` : "", text(duration(node.forward_ns)), node.saved > 0 ? `saves ${text(bytes(node.saved))}` : ""];
    return [`${info.op}${target.row === "backward" ? "′" : ""}`, info.scope, ...what].filter(Boolean).join(" · ");
  }

  private click(x: number, y: number): void {
    const target = this.canvas.hit(x, y);
    if (!target) return;
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
    if (target.kind === "input" || target.kind === "parameter") {
      actions.select({ kind: "leaf", label: model.leafName(target.index, false), node: model.leaves[target.index]!.id });
    } else if (target.group) {
      if (target.group.path) actions.select({ kind: "scope", label: target.group.path, scope: target.group.path, step: model.tape.step });
      else if (target.kind === "module") return this.toggle(target.key);
    } else {
      const selection = store.selectionOfNode(model.nodes[target.index]!.node, model.tape);
      actions.select(target.row === "backward" ? { ...selection, label: `${selection.label}′`, phase: "backward" } : selection);
    }
    this.selectionSeen = JSON.stringify(store.selection);
  }

  private toggle(key: string): void {
    const was = this.open.has(key);
    const before = this.layout?.boxes.find((box) => box.key === key) ?? this.layout?.frames.find((frame) => frame.group.key === key);
    this.chosen.set(key, !was);
    const scale = this.canvas.camera.scale;
    const at = before ? before.x * scale + this.canvas.camera.x : 0;
    const moved = this.moved;
    this.moved = true;
    this.drawn = "";
    this.render(performance.now());
    this.moved = moved;
    // The module stays under the pointer; a picture that fits whole is centred again.
    const after = this.layout?.boxes.find((box) => box.key === key) ?? this.layout?.frames.find((frame) => frame.group.key === key);
    const { surface, camera } = this.canvas;
    if (this.layout && this.layout.width * scale <= surface.width - 2 * EDGE) camera.x = (surface.width - this.layout.width * scale) / 2;
    else if (after && before) camera.x = at - after.x * scale;
    this.clamp();
    this.draw();
    this.context.actions.announce(`${this.model.groups.get(key)?.name ?? "module"} ${was ? "closed" : "open"}`);
  }

  private pan(byX: number, byY: number): void {
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
