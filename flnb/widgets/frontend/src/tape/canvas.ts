/** Draws a laid-out tape: forward row above, backward row below in the same columns, parameters and saved bytes between. */

import { fillBox, label, setPen, Surface, tracePath } from "../canvas.ts";
import { clamp } from "../clamp.ts";
import { bytesText, count, durationText, integer, shape as shapeText, text } from "../format.ts";
import { selectsGroup, selectsNode } from "../selection.ts";
import type { ViewContext } from "../view.ts";
import { matches } from "./finder.ts";
import { extentOf, type Box, type Frame, type Layout, type Route } from "./layout.ts";
import type { TapeModel } from "./model.ts";
import { type Camera, Pen, SECOND_EDGE } from "./pen.ts";
import { PARAMETER, PARAMETER_PITCH, PARAMETERS, type Rows } from "./rows.ts";
import type { Target } from "./targets.ts";
import { sizeOf } from "./words.ts";

export class TapeCanvas {
  readonly surface = new Surface("tape graph");
  targets: Target[] = [];
  hover: Target | null = null;
  /** How much of the lines is seen, 0..1: while boxes move to new places they are not. */
  lines = 1;
  /** What the arrow keys stand on. */
  focus: { key: string; row: Target["row"] } | null = null;
  private readonly pen: Pen;
  private plates: ReadonlyMap<string, readonly number[]> = new Map();

  constructor(private readonly context: ViewContext, private readonly model: TapeModel, private readonly compact: boolean) {
    this.pen = new Pen(this.surface.context, context.theme);
  }

  draw(layout: Layout | null, rows: Rows | null, plates: ReadonlyMap<string, readonly number[]>): void {
    const { theme } = this.context;
    const { width, height } = this.surface;
    this.pen.c = this.surface.begin();
    this.targets = [];
    this.plates = plates;
    if (!layout || !rows || width < 40) return;
    const { c, camera } = this.pen;
    label(c, "forward", 12, this.compact ? 9 : 14, theme.colours.dim, theme.ui(10.5));
    label(c, "backward", 12, height - (this.compact ? 9 : 14), theme.colours.dim, theme.ui(10.5));
    c.save();
    c.translate(camera.x, camera.y);
    c.scale(camera.scale, camera.scale);
    // Lines from branches farther out run behind what stands in between.
    const seen = layout.boxes.filter((box) => this.visible(box.x, box.width));
    for (const box of seen) if (box.kind !== "input" && box.d > 0) this.saved(box, rows);
    for (const frame of layout.frames) if (this.visible(frame.x, frame.width)) this.frame(frame, rows);
    for (const box of seen) if (box.kind !== "input" && box.d === 0) this.saved(box, rows);
    const closed = new Set(layout.boxes.flatMap((box) => (box.kind === "module" ? [box.key] : [])));
    c.globalAlpha = this.lines;
    for (const route of layout.routes) {
      const [low, high] = extentOf(route);
      if (this.visible(low, high - low)) this.route(route, rows, closed);
    }
    c.globalAlpha = 1;
    for (const box of seen) this.box(box, rows);
    for (const target of this.targets) if (this.isSelected(target)) this.pen.ring(target);
    if (this.hover) this.outline(this.hover);
    c.restore();
    this.extent(layout);
  }

  get camera(): Camera {
    return this.pen.camera;
  }

  set camera(camera: Camera) {
    this.pen.camera = camera;
  }

  private visible(x: number, width: number): boolean {
    const { surface, pen: { camera } } = this;
    return (x + width + 40) * camera.scale + camera.x > 0 && (x - 40) * camera.scale + camera.x < surface.width;
  }

  /** Where the view stands on a picture wider than the canvas. */
  private extent(layout: Layout): void {
    const { surface, pen: { c, camera } } = this;
    const { colours } = this.context.theme;
    const whole = layout.width * camera.scale;
    if (whole <= surface.width - 8) return;
    const from = clamp(-camera.x / whole, 0, 1);
    const to = clamp((surface.width - camera.x) / whole, 0, 1);
    const room = surface.width - 24;
    fillBox(c, colours.grid, 12, surface.height - 3, room, 2);
    fillBox(c, colours.mark, 12 + from * room, surface.height - 3, Math.max(12, (to - from) * room), 2);
  }

  // ---- pieces

  private frame(frame: Frame, rows: Rows): void {
    const { c } = this.pen;
    const { theme } = this.context;
    const { colours } = theme;
    const outer = frame.outer - frame.d;
    const places = [["forward", rows.forward - frame.outer], ["backward", rows.backward + frame.d]] as const;
    // Of a frame wider than the canvas the title stays in sight.
    const { surface, pen: { camera } } = this;
    const left = Math.max(frame.x, Math.min((4 - camera.x) / camera.scale, frame.x + frame.width - 60));
    const end = clamp((surface.width - 4 - camera.x) / camera.scale, left + 60, frame.x + frame.width);
    for (const [row, y] of places) {
      this.pen.rounded(frame.x + 0.5, y + 0.5, frame.width - 1, outer - 1, 6);
      c.fillStyle = colours.soft;
      c.fill();
      setPen(c, colours.line);
      c.stroke();
      const titleY = row === "forward" ? y + 12 : y + outer - 12;
      this.targets.push({ kind: "frame", key: frame.group.key, row, index: frame.group.first, group: frame.group, x: left, y: titleY - 12, width: end - left, height: 24 });
      if (!this.pen.legible) continue;
      const font = this.pen.ui(11, 600);
      const right = frame.group.repeat ? `×${integer(frame.group.repeat)} · ${sizeOf(frame.group)}` : sizeOf(frame.group);
      const room = end - left - 18 - (row === "forward" ? theme.measure(right, this.pen.ui(10.5)) + 8 : 0);
      label(c, theme.fit(`▾ ${frame.group.name}${row === "backward" ? " backward" : ""}`, font, room), left + 9, titleY, colours.ink, font);
      if (row === "forward") label(c, right, end - 9, titleY, colours.dim, this.pen.ui(10.5), "right");
    }
  }

  /** Distance to y in one row. */
  private y(rows: Rows, row: "forward" | "backward", d: number): number {
    return row === "forward" ? rows.forward - d : rows.backward + d;
  }

  private route(route: Route, rows: Rows, closed: ReadonlySet<string>): void {
    const { colours } = this.context.theme;
    const points = [...route.points];
    // The second edge of a closed module is its right side.
    if (closed.has(route.from)) points[0]! += SECOND_EDGE + 1;
    const port = (route.from === "" || route.to === "") && points.length === 4;
    const colour = port ? colours.mark : colours.dim;
    const place = (row: "forward" | "backward") => (d: number): number => this.y(rows, row, d);
    this.pen.line(points, place("forward"), colour, route.arrow, route.straight);
    if (route.from.startsWith("i") || (route.to.startsWith("n") && this.model.nodes[Number(route.to.slice(1))]!.node.failed)) return;
    // A gradient flows from reader to source; what matters is what arrives at the source.
    const back: number[] = [];
    for (let at = points.length - 2; at >= 0; at -= 2) back.push(points[at]!, points[at + 1]!);
    this.pen.line(back, place("backward"), this.flowsBad(route) ? colours.error : colour, !port && route.from !== "", route.straight);
  }

  private flowsBad(route: Route): boolean {
    const { model } = this;
    const from = route.from;
    if (from.startsWith("n")) return model.arrivesBad(Number(from.slice(1)));
    if (from !== "") return model.groupArrivesBad(model.groups.get(from));
    // What leaves the frame is what its first part gave.
    const group = model.groups.get(route.to);
    return (group ? model.healthOf(group) : model.nodes[Number(route.to.slice(1))]!.health) !== "fine";
  }

  /** The dashed line from an op to its backward, with the bytes that it keeps until then. */
  private saved(box: Box, rows: Rows): void {
    const { c } = this.pen;
    const { store, theme } = this.context;
    const { colours } = theme;
    const node = box.group === null ? this.model.nodes[box.index]!.node : null;
    const size = node?.saved ?? box.group?.data?.saved ?? 0;
    if (size <= 0) return;
    const selected = node !== null && selectsNode(store, node);
    const parameters = this.compact ? 0 : this.plates.get(box.key)?.length ?? 0;
    const x = Math.round(parameters > 0 ? box.x + box.width - 8 : box.x + box.width / 2) + 0.5;
    const from = rows.forward - box.d + (box.kind === "module" ? 4 : 0);
    const to = rows.backward + box.d - 1;
    setPen(c, c.fillStyle = selected ? colours.ink : colours.mark, selected ? 1.5 : 1);
    c.setLineDash([3, 3]);
    tracePath(c, x, from, x, to - 5);
    c.stroke();
    c.setLineDash([]);
    tracePath(c, x, to, x - 3, to - 5, x + 3, to - 5);
    c.fill();
    if (!this.pen.legible || (box.d > 0 && !selected)) return;
    const font = this.pen.ui(10);
    const what = bytesText(size);
    const wide = theme.measure(what, font);
    // Beside parameters there is no room in the middle; low down there is.
    const y = parameters > 0 ? rows.backward - rows.edge - 12 : rows.middle;
    const middle = parameters > 0 ? Math.min(x, box.x + box.width + 6 - wide / 2) : x;
    fillBox(c, colours.bg, middle - wide / 2 - 3, y - 7, wide + 6, 14);
    label(c, what, middle, y, selected ? colours.ink : colours.dim, font, "center");
  }

  private box(box: Box, rows: Rows): void {
    const forward = this.y(rows, "forward", box.d + box.height);
    const backward = this.y(rows, "backward", box.d);
    const { c } = this.pen;
    const dimmed = !matches(box, this.model, this.context.store);
    if (dimmed) c.globalAlpha = 0.25;
    const target = (row: Target["row"], y: number): void => {
      this.targets.push({ kind: box.kind, key: box.key, row, index: box.index, group: box.group, x: box.x, y, width: box.width, height: box.height });
    };
    target("forward", forward);
    if (box.kind === "input") this.input(box, forward);
    else {
      if (box.kind === "module" || !this.model.nodes[box.index]!.node.failed) target("backward", backward);
      if (box.kind === "module") this.module(box, forward, backward);
      else this.op(box, forward, backward, rows);
    }
    c.globalAlpha = 1;
  }

  private input(box: Box, y: number): void {
    const { c } = this.pen;
    const { store, theme } = this.context;
    const { colours } = theme;
    this.pen.plate(box.x, y, box.width, box.height, "fine", 0);
    if (!this.pen.legible) return;
    const font = this.pen.code(11.5, 500);
    const middle = box.x + box.width / 2;
    label(c, theme.fit(this.model.leafName(box.index, true), font, box.width - 6), middle, y + 15, colours.ink, font, "center");
    const dims = store.plan(this.model.leaves[box.index]!.plan)?.shape;
    if (!dims) return;
    const whole = shapeText(dims);
    const small = this.pen.ui(10);
    if (theme.measure(whole, small) <= box.width - 8) label(c, whole, middle, y + 31, colours.dim, small, "center");
    else {
      const half = Math.ceil(dims.length / 2);
      label(c, dims.slice(0, half).join("×"), middle, y + 27, colours.dim, small, "center");
      label(c, `×${dims.slice(half).join("×")}`, middle, y + 38, colours.dim, small, "center");
    }
  }

  private op(box: Box, forward: number, backward: number, rows: Rows): void {
    const { c } = this.pen;
    const { theme } = this.context;
    const { colours } = theme;
    const info = this.model.nodes[box.index]!;
    const { x, width, height } = box;
    const stripe = (y: number): void => {
      fillBox(c, theme.family(info.family), x + 3, y + 4, 3, height - 8);
    };
    const { failed } = info.node;
    this.pen.plate(x, forward, width, height, failed ? "origin" : "fine", 0);
    stripe(forward);
    if (!failed) {
      this.pen.plate(x, backward, width, height, info.health, 0);
      stripe(backward);
    }
    if (!this.pen.legible) {
      this.pen.distantName(info.op, box, forward);
      if (!failed) this.pen.distantName(`${info.op}′`, box, backward);
      return;
    }
    const name = this.pen.code(10.5, 500);
    const small = this.pen.ui(10);
    const line = (what: string, y: number, font: string, colour: string): void => label(c, theme.fit(what, font, width - 14), x + 10, y, colour, font);
    line(info.op, forward + 13, name, colours.ink);
    if (failed) {
      line("failed: got", forward + 26, this.pen.ui(10, 600), colours.error);
      line(failed.got.map((shape) => shapeText(shape)).join(", "), forward + 38, small, colours.text);
      return;
    }
    line(`${info.op}′`, backward + 13, name, colours.ink);
    if (info.plan) line(shapeText(info.plan.shape), forward + 26, small, colours.dim);
    if (info.node.forward_ns > 0) line(durationText(info.node.forward_ns), forward + 38, small, colours.dim); // else it was recorded, and ran later
    if (info.health === "fine") {
      line(this.pen.normText(info.node.norm, this.pen.ui(10.5), width - 18), backward + 27, this.pen.ui(10.5), colours.text);
      this.pen.normBar(info.node.norm, x + 10, backward + 36, width - 18);
    } else {
      const origin = info.health === "origin";
      line(origin ? "NaN origin" : "NaN", backward + 27, this.pen.ui(10.5, 600), colours.error);
      const out = this.model.badOut(box.index);
      line(origin && out ? `${text(count(out.bad))}${out.numel ? ` of ${text(count(out.numel))}` : ""}` : "spread", backward + 39, small, colours.dim);
    }
    if (!this.compact) this.parameters(box, rows);
  }

  /** Parameters of an op between its forward and its backward. */
  private parameters(box: Box, rows: Rows): void {
    const { model, pen: { c } } = this;
    const { store, theme } = this.context;
    const { colours } = theme;
    const all = this.plates.get(box.key);
    if (all === undefined) return;
    const own = model.nodes[box.index]!.parameters;
    const shown = all.slice(0, PARAMETERS);
    const slots = shown.length + (all.length > shown.length ? 1 : 0);
    const [top, bottom] = [rows.middle - (slots * PARAMETER_PITCH) / 2, rows.middle + (slots * PARAMETER_PITCH) / 2];
    const bad = own.some((leaf) => model.leafBad(leaf));
    if (own.length > 0) {
      this.pen.upward(box.x + 18, top + 2, rows.forward - box.d + 2, colours.mark);
      this.pen.upward(box.x + 18, rows.backward + box.d - 1, bottom - 2, bad ? colours.error : colours.mark);
    }
    const width = box.width - 16;
    shown.forEach((leaf, at) => {
      const y = Math.round(top + at * PARAMETER_PITCH + 2);
      const spoiled = model.leafBad(leaf);
      this.pen.rounded(box.x + 0.5, y + 0.5, width, PARAMETER - 1, 3);
      c.fillStyle = colours.bg;
      c.fill();
      setPen(c, spoiled ? colours.error : colours.mark);
      c.stroke();
      fillBox(c, theme.category(1), box.x + 4, y + 5, 5, 5);
      this.targets.push({ kind: "parameter", key: `p${box.index}.${leaf}`, row: "between", index: leaf, group: null, x: box.x, y, width: width + 1, height: PARAMETER });
      if (!this.pen.legible) return;
      const font = this.pen.ui(10);
      const dims = store.plan(model.leaves[leaf]!.plan)?.shape ?? [];
      const extra = dims.length === 1 ? String(dims[0]) : "";
      const room = width - 16 - (extra ? theme.measure(extra, font) + 4 : 0);
      label(c, theme.fit(model.leafName(leaf, true), font, room), box.x + 12, y + 8, colours.text, font);
      if (extra) label(c, extra, box.x + width - 4, y + 8, colours.dim, font, "right");
      if (spoiled) label(c, "grad NaN", box.x + 12, y + 19, colours.error, this.pen.ui(10, 600));
      else label(c, this.pen.normText(model.leaves[leaf]!.norm, font, width - 14), box.x + 12, y + 19, colours.dim, font);
    });
    if (all.length > shown.length && this.pen.legible) label(c, `+ ${all.length - shown.length} more`, box.x + 4, bottom - PARAMETER_PITCH / 2, colours.dim, this.pen.ui(10));
  }

  private module(box: Box, forward: number, backward: number): void {
    const { model, pen: { c } } = this;
    const { theme } = this.context;
    const { colours } = theme;
    const group = box.group!;
    const { x, width, height } = box;
    const { store } = this.context;
    const health = model.healthOf(group);
    const edges = group.repeat ? 2 : 1;
    this.pen.plate(x, forward, width, height, group.data?.failed ? "origin" : "fine", edges);
    this.pen.plate(x, backward, width, height, health, edges);
    this.pen.strip(group, x + 8, forward + height - 11, width - 16);
    if (!this.pen.legible) {
      this.pen.distantName(group.name, box, forward - 6);
      this.pen.distantName(`${group.name}′`, box, backward);
      return;
    }
    const bold = this.pen.ui(11, 600);
    const small = this.pen.ui(10);
    // How often a block repeats is always said; the number of ops stands beside the name where there is room.
    // In a narrow box the name is worth more than the triangle: the second edge says that it is closed, too.
    const titled = (name: string, most: number): string => theme.fit(theme.measure(`▸ ${name}`, bold) <= most ? `▸ ${name}` : name, bold, most);
    const title = `▸ ${group.name}`;
    const beside = group.repeat ? `×${integer(group.repeat)}` : sizeOf(group);
    const room = theme.measure(beside, small) + 6;
    const wide = group.repeat > 0 || (width > 84 && group.path !== "" && theme.measure(title, bold) + room + 15 <= width);
    label(c, titled(group.name, width - 15 - (wide ? room : 0)), x + 8, forward + 13, colours.ink, bold);
    if (wide) label(c, beside, x + width - 7, forward + 13, group.repeat ? colours.text : colours.dim, small, "right");
    const output = store.plan(group.data?.plan ?? 0)?.shape ?? [];
    const below = width > 84 && group.path !== "" ? shapeText(output) : sizeOf(group);
    label(c, theme.fit(below, small, width - 14), x + 8, forward + 26, colours.dim, small);
    label(c, titled(`${group.name}′`, width - 15), x + 8, backward + 13, colours.ink, bold);
    if (health === "fine") {
      const norm = group.data?.norm ?? null;
      label(c, this.pen.normText(norm, this.pen.ui(10.5), width - 14), x + 8, backward + 27, colours.text, this.pen.ui(10.5));
      this.pen.normBar(norm, x + 8, backward + 36, width - 16);
    } else label(c, health === "origin" ? "NaN origin" : "NaN", x + 8, backward + 27, colours.error, this.pen.ui(10.5, 600));
  }

  // ---- selection

  /** Whether a target stands for what is selected. */
  private isSelected(target: Target): boolean {
    const { store } = this.context;
    const { selection } = store;
    if (!selection || target.kind === "frame") return false;
    if (target.kind === "input" || target.kind === "parameter") return selection.kind === "leaf" && this.model.leaves[target.index]!.id === selection.node;
    // A clicked backward keeps to its row; everything else shows in both.
    if (selection.kind === "node" && selection.phase !== undefined && selection.phase !== target.row) return false;
    if (target.group) return target.group.data !== null && selectsGroup(store, target.group.data);
    return selectsNode(store, this.model.nodes[target.index]!.node);
  }

  private outline({ x, y, width, height }: Target): void {
    const { c } = this.pen;
    this.pen.rounded(x + 0.5, y + 0.5, width - 1, height - 1, 4);
    setPen(c, this.context.theme.colours.ink, 1 / this.pen.camera.scale);
    c.stroke();
  }

  /** What lies under a place on the canvas; boxes before the frames around them. */
  hit(x: number, y: number): Target | null {
    const { camera } = this.pen;
    const [worldX, worldY] = [(x - camera.x) / camera.scale, (y - camera.y) / camera.scale];
    let frame: Target | null = null;
    for (const target of this.targets) {
      if (worldX < target.x || worldX > target.x + target.width || worldY < target.y || worldY > target.y + target.height) continue;
      if (target.kind !== "frame") return target;
      frame = target; // the innermost one comes last
    }
    return frame;
  }
}
