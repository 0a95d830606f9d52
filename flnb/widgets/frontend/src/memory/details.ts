/** The column beside the memory view: everything known about the selected block, segment, or group of blocks. */

import { fillBox, label, Surface, vertical } from "../canvas.ts";
import { clamp } from "../clamp.ts";
import { Facts, keyButton, pane, rowButton, rowList, squareOf, title } from "../details.ts";
import { attribute, h, nothing, section } from "../dom.ts";
import { bytesText, durationText, integer, moment, tensorText } from "../format.ts";
import { categoryLabels, categoryOrder } from "../palette.ts";
import type { Phase } from "../protocol.ts";
import { selectionOfBlock, selectsBlock, selectsNode } from "../selection.ts";
import { freeSince, holeAt } from "./holes.ts";
import type { Store } from "../store.ts";
import type { ViewContext } from "../view.ts";
import type { MemoryModel } from "./model.ts";

const REFRESH = 250;
const LIFE_HEIGHT = 46;

export interface PhaseSpan { readonly phase: Phase; readonly from: number; readonly to: number }

/**
 * Phases of the step [t0, t1) as its allocations show them: each phase begins with its first allocation. Empty where
 * none was seen.
 */
export function phasesOf(store: Store, t0: number, t1: number): PhaseSpan[] {
  const { lifetimes } = store.memory;
  const first = new Map<Phase, number>();
  for (let row = 0; row < lifetimes.used; row++) {
    const t = lifetimes.start[row]!;
    if (t < t0 || t >= t1) continue;
    const phase = store.context(lifetimes.context[row]!)?.phase;
    if (phase !== undefined && phase !== "other" && t < (first.get(phase) ?? Infinity)) first.set(phase, t);
  }
  const order = [...first].sort((a, b) => a[1] - b[1]);
  return order.map(([phase, from], at) => ({ phase, from, to: order[at + 1]?.[1] ?? t1 }));
}

export class MemoryDetails {
  readonly element: HTMLElement;
  private readonly life = new Surface("life of the block within its step");
  private drawn = "";
  private drawnAt = -Infinity;
  private facts = new Facts();

  constructor(private readonly context: ViewContext, private readonly model: MemoryModel) {
    this.element = pane("Selected block");
  }

  /** Draw anew at the next update: what was drawn may have been for another width. */
  resize(): void {
    this.drawn = "";
  }

  update(now: number): void {
    const { store, theme } = this.context;
    const moving = store.following ? Math.floor(now / REFRESH) : store.versions.memory;
    const key = `${store.versions.view} ${theme.version} ${moving}`;
    const chosen = `${store.versions.view} ${theme.version}`;
    if (key === this.drawn || (this.drawn.startsWith(`${chosen} `) && now - this.drawnAt < REFRESH)) return;
    this.drawn = key;
    this.drawnAt = now;
    const { selection } = store;
    if (selection?.kind === "block") this.block(selection.block!);
    else if (selection?.kind === "segment") this.segment(selection.segment!);
    else if (selection?.kind === "hole") this.hole(selection.segment!, selection.offset!);
    else if (selection && selection.kind !== "step") this.group();
    else this.hint();
  }

  private head(name: string, sub: string, category?: number): HTMLElement {
    return title(name, sub, ...(category === undefined ? [] : [squareOf(this.context.theme.category(category))]));
  }

  private begin(): HTMLElement {
    return (this.facts = new Facts()).list;
  }

  private links(...which: ("op" | "tape")[]): HTMLElement {
    const { actions } = this.context;
    const row = h("div", "fl-links");
    if (this.context.alone) return row;
    for (const one of which) {
      row.append(one === "op" ? keyButton("Op", "O", () => actions.show("ops")) : keyButton("Tape", "T", () => actions.show("tape")));
    }
    return row;
  }

  private hint(): void {
    const { store } = this.context;
    const at = store.memory.peak;
    this.begin();
    this.facts.add("Peak live", bytesText(at.allocated), moment(at.t));
    this.facts.add("Reserved then", bytesText(at.reserved));
    const request = this.model.request();
    if (request.row >= 0) {
      const { lifetimes } = store.memory;
      this.facts.add("Largest", bytesText(request.bytes), request.steps > 0 ? `of the last ${request.steps} steps` : "");
      const [op, scope] = [store.plan(lifetimes.plan[request.row]!)?.op, store.context(lifetimes.context[request.row]!)?.scope];
      if (op || scope) this.facts.code("made by", op ?? scope!, op ? scope : "");
    }
    const small = store.counters?.small_bytes;
    if (small) this.facts.add("Outside", bytesText(small), `results under ${bytesText(store.run?.min_block ?? 0)}, in all`);
    this.element.replaceChildren(nothing("Click a block for its tensor, op and life. Click the timeline to move the time cursor."), this.facts.list);
  }

  private block(id: number): void {
    const { store } = this.context;
    const { lifetimes } = store.memory;
    const row = lifetimes.row(id);
    if (row < 0) {
      this.element.replaceChildren(this.head(store.selection!.label, `block #${integer(id)}`), nothing("This block has left the picture: only the newest lifetimes are kept in the page."));
      return;
    }
    const plan = store.plan(lifetimes.plan[row]!);
    const context = store.context(lifetimes.context[row]!);
    const category = lifetimes.category[row]!;
    const [size, requested] = [lifetimes.size[row]!, lifetimes.requested[row]!];
    const node = lifetimes.node[row]!;
    const pairs = this.begin();
    if (plan) this.facts.code("Tensor", tensorText(plan));
    if (plan) this.facts.code("Op", plan.op);
    if (context?.scope) this.facts.code("Scope", context.scope, context.phase === "other" ? "" : context.phase);
    if (node) this.facts.add("Tape node", `#${integer(node)}`);
    const line = this.lineOf(row);
    if (line) this.facts.code("Line", line);
    this.facts.bytes("Requested", requested);
    this.facts.add("Rounded", bytesText(size), `waste ${bytesText(size - requested)}`);
    this.facts.code("Place", `S${lifetimes.segment[row]!} + 0x${lifetimes.offset[row]!.toString(16)}`);
    const locks = store.memory.locks.on(id, store.at);
    if (locks) this.facts.add("Locked", locks === 1 ? "once" : `${integer(locks)} times`, "by a user: stays until user_unlock");
    if (lifetimes.asked[row]! <= store.at && lifetimes.end[row]! > store.at) this.facts.add("Pending", "freed", `${durationText((store.at - lifetimes.asked[row]!) * 1e9)} ago, still held`);
    const segment = store.memory.segments.get(lifetimes.segment[row]!);
    if (segment) this.facts.add("In", `${bytesText(segment.size)} segment`, `0x${(segment.address + lifetimes.offset[row]!).toString(16)}`);
    this.element.replaceChildren(this.head(store.selection!.label, `${categoryLabels[category] ?? "unknown"} · block #${integer(id)}`, category), pairs,
      section("Life"), this.lifeOf(row), this.age(row), ...this.stack(lifetimes.context[row]!), this.links(...(plan ? ["op" as const] : []), ...(node ? ["tape" as const] : [])));
  }

  /** The call stack that made a block, of runs that have them; asked for when it is first looked at. */
  private stack(context: number): HTMLElement[] {
    const { store, actions } = this.context;
    if (!store.run?.stacks) return [];
    if (!store.stacks.has(context)) {
      store.stacks.set(context, null);
      actions.ask({ type: "stack", context });
    }
    const lines = store.stacks.get(context);
    if (!lines?.length) return [];
    return [section("Allocated at"), h("ol", "fl-stack", ...lines.map((line) => h("li", "fl-code", line)))];
  }

  /** The user's line that made a block. Without one of its own, that of its node in the sampled tape, or of a node like it. */
  private lineOf(row: number): string | undefined {
    const { store } = this.context;
    const { lifetimes } = store.memory;
    const own = store.context(lifetimes.context[row]!)?.line;
    if (own) return own;
    const nodes = store.tape?.nodes ?? [];
    return (nodes.find(({ id }) => id === lifetimes.node[row]) ?? nodes.find((one) => selectsNode(store, one, selectionOfBlock(store, row))))?.line;
  }

  private age(row: number): HTMLElement {
    const { store } = this.context;
    const { start, end } = store.memory.lifetimes;
    const [from, to] = [start[row]!, end[row]!];
    const pairs = this.begin();
    const at = Math.min(store.at, to === Infinity ? store.at : to);
    const whole = to === Infinity ? "still alive" : `of ${durationText((to - from) * 1e9)}`;
    if (store.at < from) this.facts.add("Age", "–", `allocated ${durationText((from - store.at) * 1e9)} after the cursor`);
    else this.facts.add("Age", durationText((at - from) * 1e9), whole);
    const step = store.stepAt(from);
    this.facts.add("Allocated", step === null ? moment(from) : `step ${integer(step)}`, step === null ? "" : moment(from));
    if (to !== Infinity) {
      const freed = store.stepAt(to);
      this.facts.add("Freed", freed === null ? moment(to) : `step ${integer(freed)}`, moment(to));
    }
    return pairs;
  }

  /** A bracket of the block's life over the phases of the step in which it was made. */
  private lifeOf(row: number): HTMLElement {
    const { store, theme } = this.context;
    const { lifetimes } = store.memory;
    const host = h("div", { style: `position:relative;height:${LIFE_HEIGHT}px` }, this.life.canvas);
    const width = Math.max(80, this.element.clientWidth || this.element.parentElement?.clientWidth || this.life.width); // hidden until something is selected
    this.life.resize(width, LIFE_HEIGHT);
    const c = this.life.begin();
    const { colours } = theme;
    const [from, to] = [lifetimes.start[row]!, lifetimes.end[row]!];
    const { steps } = store;
    // The step of the cursor where the block lives then, otherwise the one that made it.
    const t = store.at >= from && store.at < to ? store.at : from;
    const at = steps.after("t0", t) - 1;
    const inStep = at >= 0 && steps.column("t1")[at]! > t;
    const end = Math.min(to, store.now);
    const t0 = inStep ? steps.column("t0")[at]! : from;
    const t1 = inStep ? steps.column("t1")[at]! : Math.max(end, from + 1e-6);
    const x = (time: number): number => 12 + clamp((time - t0) / (t1 - t0), 0, 1) * (width - 24);
    fillBox(c, colours.grid, 12, 4, width - 24, 14);
    const font = theme.ui(10);
    for (const span of inStep ? phasesOf(store, t0, t1) : []) {
      const [a, b] = [x(span.from), x(span.to)];
      fillBox(c, colours.bg, a - 0.5, 4, 1, 14);
      if (theme.measure(span.phase, font) + 8 < b - a) label(c, span.phase, a + 5, 11.5, colours.dim, font);
    }
    c.fillStyle = theme.category(lifetimes.category[row]!);
    const [x0, x1] = [x(from), Math.max(x(end), x(from) + 1)];
    c.fillRect(x0, 22, x1 - x0, 8);
    if (store.cursor !== null && store.cursor >= t0 && store.cursor <= t1) vertical(c, x(store.cursor), 2, 34, colours.brand);
    const before = from < t0 ? "before the step" : `${durationText((from - t0) * 1e9)} in`;
    const after = to > t1 ? "beyond the step" : durationText((to - t0) * 1e9);
    const words = theme.measure(before, font) + 8 + theme.measure(after, font);
    const left = Math.max(12, Math.min(x0, width - 12 - words));
    label(c, before, left, 39, colours.dim, font);
    label(c, after, Math.max(x1, left + words), 39, colours.dim, font, "right");
    attribute(this.life.canvas, "aria-label", `Lives from ${before} to ${after}`);
    return host;
  }

  private segment(id: number): void {
    const { store } = this.context;
    const state = this.model.state(store.at);
    const segment = state.segments.find((one) => one.id === id);
    const known = store.memory.segments.get(id);
    const pairs = this.begin();
    if (known) {
      this.facts.bytes("Size", known.size);
      this.facts.code("Address", `0x${known.address.toString(16)}`);
      const first = store.memory.sizes.find((one) => one.id === id) ?? known;
      this.facts.add("Reserved at", moment(first.start));
      if (first !== known) this.facts.add("This size", `since ${moment(known.start)}`, `${bytesText(first.size)} at first`);
      if (known.end !== Infinity) this.facts.add("Released at", moment(known.end));
    }
    if (segment) {
      this.facts.add("Used", bytesText(segment.used), segment.size > 0 ? `${((segment.used / segment.size) * 100).toFixed(1)} %` : "");
      this.facts.add("Blocks", integer(segment.rows.length));
      this.facts.add("Holes", integer(segment.holes));
      this.facts.add("Largest hole", bytesText(segment.largestHole));
    } else this.facts.add("At the cursor", "not reserved");
    this.element.replaceChildren(this.head(`S${id}`, "segment"), pairs);
  }

  /** A free range: how large, since when, and the blocks that keep it from being larger. */
  private hole(id: number, offset: number): void {
    const { store } = this.context;
    const { blocks } = this.model.index;
    const segment = this.model.state(store.at).segments.find((one) => one.id === id);
    const hole = segment ? holeAt(blocks, segment, offset) : null;
    const where = `hole · S${id} + 0x${(hole?.offset ?? offset).toString(16)}`;
    if (!segment || !hole) {
      this.element.replaceChildren(this.head(store.selection!.label, where), nothing(segment ? "A block stands there at the cursor." : "Its segment is not reserved at the cursor."));
      return;
    }
    const pairs = this.begin();
    this.facts.bytes("Size", hole.size);
    const free = segment.size - segment.used;
    this.facts.add("Of all free", `${((hole.size / free) * 100).toFixed(1)} %`, `of ${bytesText(free)} in S${id}`);
    const since = freeSince(blocks, hole, store.at);
    if (since !== null) this.facts.add("Free for", durationText((store.at - since) * 1e9), `since ${moment(since)}`);
    else this.facts.add("Free for", "as long as is known");
    this.element.replaceChildren(this.head(`free ${bytesText(hole.size)}`, where), pairs,
      ...this.neighbour("Before it", hole.before, "the segment begins here"), ...this.neighbour("After it", hole.after, "the segment ends here"));
  }

  /** A block beside a hole: a button that selects it, its op, line and age. */
  private neighbour(title: string, row: number, none: string): HTMLElement[] {
    const heading = section(title);
    if (row < 0) return [heading, nothing(none)];
    const { store } = this.context;
    const { lifetimes } = store.memory;
    const list = this.blocks([row]);
    const pairs = this.begin();
    const op = store.plan(lifetimes.plan[row]!)?.op;
    this.facts.add("Op", op ?? "unknown", "", op && "fl-code");
    const line = this.lineOf(row);
    this.facts.add("Line", line ?? "unknown", "", line && "fl-code");
    this.facts.add("Age", durationText((store.at - lifetimes.start[row]!) * 1e9), categoryLabels[lifetimes.category[row]!] ?? "");
    return [heading, list, pairs];
  }

  /** Blocks as buttons that select them. */
  private blocks(rows: readonly number[]): HTMLElement {
    const { store, actions, theme } = this.context;
    const { lifetimes } = store.memory;
    return rowList(rows.map((row) => {
      const block = selectionOfBlock(store, row);
      return rowButton(() => {
        if (store.cursor === null) actions.setCursor(store.at);
        actions.select(block);
      }, block.label, block.label, bytesText(lifetimes.size[row]!), [squareOf(theme.category(lifetimes.category[row]!))]);
    }));
  }

  /** An op, scope, node or step: what it holds at the cursor, and its blocks there. */
  private group(): void {
    const { store } = this.context;
    const selection = store.selection!;
    const { lifetimes } = store.memory;
    const state = this.model.state(store.at);
    const rows = state.segments.flatMap((segment) => [...segment.rows]).filter((row) => selectsBlock(store, row));
    rows.sort((a, b) => lifetimes.size[b]! - lifetimes.size[a]!);
    const perCategory = new Float64Array(8);
    let size = 0;
    for (const row of rows) {
      size += lifetimes.size[row]!;
      perCategory[Math.min(lifetimes.category[row]!, 7)]! += lifetimes.size[row]!;
    }
    const pairs = this.begin();
    this.facts.add("Holds now", bytesText(size), rows.length === 1 ? "in 1 block" : `in ${integer(rows.length)} blocks`);
    for (const category of [...categoryOrder].reverse()) if (perCategory[category]! > 0) this.facts.add(categoryLabels[category]!, bytesText(perCategory[category]!));
    const some = rows.length > 0 ? [section(rows.length > 40 ? "Its largest blocks" : "Its blocks"), this.blocks(rows.slice(0, 40))] : [];
    const { kind } = selection;
    const where = kind === "op" || kind === "scope" || kind === "line" || kind === "shape" ? kind : kind === "leaf" ? "parameter" : "tape node";
    this.element.replaceChildren(this.head(selection.label, `${where} · allocations at the cursor`), pairs, ...some, this.links("op", "tape"));
  }
}
