/** Which op costs most, is it steady? A table of ops or scopes, with one sparkline a row. */

import { Facts, pane, rowButton, rowList, title } from "./details.ts";
import { attribute, h, nothing, on, section, setQuantity, setText } from "./dom.ts";
import { atLeast, bytes, count, duration, durationText, exactBytes, integer, measured, percent, percentText, placeOf, shape as shapeText, text } from "./format.ts";
import { familyLabels } from "./palette.ts";
import { Panel, segmented } from "./panel.ts";
import { keepOrder, mean, sortRows, type SortKey } from "./sorting.ts";
import type { Grouping, OpRow } from "./oprows.ts";
import { chooseRows, SortHeads, stopAt } from "./table.ts";
import { spark } from "./spark.ts";
import { StepOps } from "./opstep.ts";
import { kernelParts } from "./kernelparts.ts";
import { baseOp, type Selection, selectionOfKernel, selectionOfNode, selectsNode } from "./selection.ts";
import type { Cell, DataTable, View, ViewContext } from "./view.ts";

type By = "op" | Grouping;
const HEADS: Readonly<Record<By, string>> = { op: "Op", kernel: "Kernel", scope: "Scope", line: "Line", shape: "Shape" };
/** Rows of ops and kernels have the colour of their family; other rows are of many families. */
const coloured = (by: By): boolean => by === "op" || by === "kernel";
/** A row's name on screen. */
const nameIn = (by: By, name: string): string => (by === "line" ? placeOf(name) : name) || { scope: "(outside of scopes)", line: "(unknown line)" }[by as string] || "(unknown)";
/** The source text of a line, which is shown behind its place. */
const sourceIn = (by: By, name: string): string => (by === "line" ? name.slice(placeOf(name).length + 2) : "");
interface ColumnOf { key: SortKey; title: string; wide?: boolean; full?: boolean }

const columns: readonly ColumnOf[] = [
  { key: "name", title: "Op" },
  { key: "count", title: "Count" },
  { key: "total", title: "Total" },
  { key: "mean", title: "Mean" },
  { key: "p99", title: "p99", wide: true },
  { key: "max", title: "Max", full: true },
  { key: "share", title: "Share of time" },
  { key: "bytes", title: "Bytes", wide: true },
];

const REFRESH = 250;
/** Classes that give up width step by step, as far as the reader's fonts need it. */
const TIGHT = ["", "fl-tight1", "fl-tight2", "fl-tight3", "fl-tight4"] as const;
const ROW = 22;

/** One row of the table and what it shows now. */
class Row {
  readonly element: HTMLTableRowElement;
  readonly spark: HTMLCanvasElement;
  private readonly cells: Record<SortKey, HTMLElement>;
  private readonly swatch = h("i", "fl-swatch");
  private readonly name = h("span", "fl-code");
  private readonly source = h("span", "fl-source");
  private readonly bar = h("i");
  private readonly shareText = h("span", "fl-sharetext");
  drawn: readonly number[] | null = null;
  drawnAt = -1;

  constructor(name: string, full: boolean) {
    // The panel leaves out by the dashboard's width, as designed; the full table only what does not fit (see fit).
    const wide = full ? "" : "fl-wideonly";
    const cell = (...classes: string[]): HTMLElement => h("td", { class: classes.filter(Boolean).join(" ") || null });
    this.cells = {
      name: cell("fl-left"), count: cell(), total: cell("fl-quantity"), mean: cell("fl-quantity", "fl-c-mean"),
      p99: cell("fl-quantity", "fl-c-p99", wide), max: cell("fl-quantity", "fl-c-max"), share: cell("fl-left", "fl-c-share"),
      bytes: cell("fl-quantity", "fl-bytes", "fl-c-bytes", wide),
    };
    this.cells.name.append(h("div", "fl-opname", this.swatch, this.name, this.source));
    this.cells.share.append(h("span", "fl-share", this.bar), this.shareText);
    this.spark = h("canvas", { role: "img", "aria-label": "time a step" });
    this.element = h("tr", { tabindex: -1, "aria-selected": false });
    this.element.dataset["name"] = name;
    for (const { key, full: only } of columns) if (full || !only) this.element.append(this.cells[key]);
    this.element.append(h("td", { class: `fl-sparkcell ${wide}`.trim() }, this.spark));
  }

  update(row: OpRow, largest: number, colour: string, lower: boolean, by: By): void {
    setText(this.name, nameIn(by, row.name));
    setText(this.source, sourceIn(by, row.name));
    if (by !== "op") attribute(this.cells.name, "title", row.name);
    if (this.swatch.style.background !== colour) this.swatch.style.background = colour;
    this.swatch.hidden = !coloured(by);
    setText(this.cells.count, integer(row.count));
    setQuantity(this.cells.total, atLeast(duration(row.total), lower));
    setQuantity(this.cells.mean, duration(row.count ? mean(row) : null));
    setQuantity(this.cells.p99, duration(row.count ? row.p99 : null));
    setQuantity(this.cells.max, duration(row.count ? row.max : null));
    setQuantity(this.cells.bytes, atLeast(bytes(row.bytes), lower));
    setQuantity(this.shareText, percent(row.share));
    const width = `${((largest ? row.share / largest : 0) * 100).toFixed(1)}%`;
    if (this.bar.style.width !== width) this.bar.style.width = width;
    const fill = coloured(by) ? colour : "var(--fl-dim)";
    if (this.bar.style.background !== fill) this.bar.style.background = fill;
  }
}

class Ops implements View {
  readonly element: HTMLElement;
  private readonly context: ViewContext;
  private readonly panel: Panel;
  private readonly full: boolean;
  private readonly scroll: HTMLElement;
  private readonly body = h("tbody");
  private readonly none = h("div", "fl-none");
  private readonly side: HTMLElement | null;
  private readonly heads = new SortHeads<SortKey>({ key: "total", descending: true }, () => {
    this.reorder = true;
    this.render(performance.now());
  });
  private readonly rows = new Map<string, Row>();
  private grouping: By = "op";
  private pointed = false;
  private reorder = true;
  private drawn = "";
  private updated = -Infinity;
  private readonly step: StepOps;
  private sideDrawn = "";
  private fitted = "";
  private tight = 0;

  constructor(context: ViewContext, full: boolean) {
    this.context = context;
    this.full = full;
    this.step = new StepOps(context);
    this.panel = new Panel("Ops");
    this.panel.tools.append(segmented("Group by", Object.entries(HEADS) as [By, string][], "op", (grouping) => {
      this.grouping = grouping;
      this.heads.rename("name", HEADS[grouping]);
      this.restart();
    }));
    this.scroll = h("div", "fl-scroll", this.table(), this.none);
    this.panel.body.append(this.scroll);
    on(this.scroll, "scroll", () => this.sparklines(), { passive: true });
    on(this.body, "pointerenter", () => (this.pointed = true));
    on(this.body, "pointerleave", () => {
      this.pointed = false;
      this.reorder = true;
    });
    chooseRows(this.body, (row) => this.pick(row));
    this.side = full ? pane("Details of the selected op") : null;
    this.element = this.side ? h("div", "fl-split", this.panel.element, this.side) : this.panel.element;
    if (this.side) this.element.style.cssText = "height:100%;width:100%";
  }

  resize(): void {
    this.drawn = this.fitted = ""; // with the dashboard's width its rules for columns change, also of a run that has ended
  }

  render(now: number): void {
    const { store, theme } = this.context;
    const key = `${store.versions.ops} ${store.versions.view} ${theme.version} ${this.grouping} ${this.heads.order.key}${this.heads.order.descending} ${store.ended}`;
    const moved = this.drawn.split(" ")[1] !== String(store.versions.view) || this.reorder;
    if ((key !== this.drawn || this.reorder) && (moved || now - this.updated >= REFRESH)) {
      this.drawn = key;
      this.updated = now;
      this.update();
    }
    this.details();
  }

  describe(): DataTable {
    const { store } = this.context;
    const rows = sortRows(this.shownRows.filter((row) => store.matches(row.name, row.family)), this.heads.order).map((row): Cell[] => [
      row.name, row.count, measured.duration(row.total), measured.duration(row.count ? mean(row) : NaN), measured.duration(row.p99), measured.duration(row.max), measured.percent(row.share), measured.bytes(row.bytes),
    ]);
    return { caption: `Time of ${this.grouping}s`, columns: [HEADS[this.grouping], ...columns.slice(1).map(({ title }) => title)], rows, units: ["", "", "ns", "ns", "ns", "ns", "0 to 1", ""] };
  }

  destroy(): void {
    this.rows.clear();
  }

  private table(): HTMLElement {
    const head = h("tr");
    for (const column of columns) {
      if (column.full && !this.full) continue;
      const words = column.key === "name";
      head.append(this.heads.add(column.key, column.title, words, [`fl-c-${column.key}`, words || column.key === "share" ? "fl-left" : "", column.wide && !this.full ? "fl-wideonly" : ""].join(" ").trim()));
    }
    head.append(h("th", { scope: "col", class: this.full ? "fl-sparkcell" : "fl-sparkcell fl-wideonly" }, "Per step"));
    return h("table", { class: "fl-table fl-ops", role: "grid", "aria-label": "Time of ops" }, h("thead", {}, head), this.body);
  }

  private restart(): void {
    this.rows.clear();
    this.body.replaceChildren();
    this.reorder = true;
    this.render(performance.now());
  }

  private update(): void {
    const { store, theme } = this.context;
    attribute(this.panel.tools.querySelectorAll("[role=radio]")[1]!, "hidden", !store.kernels.length && this.grouping !== "kernel"); // a run without programs has none
    const all = this.shownRows;
    const matching = all.filter((row) => store.matches(row.name, row.family));
    const still = this.pointed && !this.reorder;
    const shown = still ? keepOrder(matching, [...this.rows.keys()]) : sortRows(matching, this.heads.order);
    this.reorder = false;
    const things = `${this.grouping}s`;
    const perStep = store.counters?.step_seconds;
    const lately = store.run?.state === "recording" && store.steps.length > 10 ? " (last 10 steps)" : "";
    this.panel.sub = store.search
      ? `${matching.length} of ${all.length} ${things} match`
      : `${all.length} ${things}${perStep ? ` · ${durationText(perStep * 1e9)} a step${lately}` : ""}`;
    this.none.hidden = shown.length > 0;
    setText(this.none, store.search ? `No ${things} match “${store.search}”.` : `No ${this.grouping === "kernel" ? "kernel of several ops" : "op"} ${!store.ended ? "recorded yet" : store.run?.state === "failed" ? "ran before it failed" : "ran"}.`);
    const largest = all.reduce((most, row) => Math.max(most, row.share), 0);
    const names = new Set(shown.map((row) => row.name));
    for (const [name, row] of this.rows) {
      if (names.has(name)) continue;
      row.element.remove();
      this.rows.delete(name);
    }
    shown.forEach((data, at) => {
      let row = this.rows.get(data.name);
      if (!row) this.rows.set(data.name, (row = new Row(data.name, this.full)));
      row.update(data, largest, theme.family(data.family), store.lower, this.grouping);
      attribute(row.element, "aria-selected", this.selects(data));
      if (this.body.children[at] !== row.element) this.body.insertBefore(row.element, this.body.children[at] ?? null);
    });
    // Keys in the order on screen, for keepOrder.
    const ordered = shown.map((data) => [data.name, this.rows.get(data.name)!] as const);
    this.rows.clear();
    for (const [name, row] of ordered) this.rows.set(name, row);
    stopAt(this.body);
    this.scroll.classList.toggle("fl-byline", this.grouping === "line");
    this.scroll.classList.toggle("fl-nohistory", store.memory.whole && !all.some(({ history }) => history.length > 1)); // opened after its end
    this.fit();
    this.sparklines();
  }

  /** Give up columns until the table is no wider than its place. A table that fits is looked at once a refresh, not laid out again. */
  private fit(): void {
    const { scroll, context: { store } } = this;
    if (!scroll.clientWidth) return;
    const key = `${scroll.clientWidth} ${this.context.theme.version} ${this.grouping} ${scroll.classList.contains("fl-nohistory")} ${store.latest?.run.id} ${store.search}`;
    if (key !== this.fitted) {
      this.fitted = key;
      this.tight = 0;
      scroll.classList.remove(...TIGHT.slice(1));
    }
    while (this.tight < TIGHT.length - 1 && scroll.scrollWidth > scroll.clientWidth) {
      if (this.tight) scroll.classList.remove(TIGHT[this.tight]!);
      scroll.classList.add(TIGHT[++this.tight]!);
    }
  }

  private rowsBy(by: By): readonly OpRow[] {
    const { store } = this.context;
    return { op: store.ops, kernel: store.kernels, scope: store.scopes, line: store.lines, shape: store.shapes }[by];
  }

  private get shownRows(): readonly OpRow[] {
    return this.rowsBy(this.grouping);
  }

  private selects(row: OpRow): boolean {
    const { selection } = this.context.store;
    if (!selection) return false;
    if (this.grouping === "kernel") return selection.kernel === row.name;
    if (this.grouping === "line" || this.grouping === "shape") return selection[this.grouping] === row.name;
    if (this.grouping === "scope") return selection.kind !== "op" && selection.scope === row.name;
    return selection.kind === "op" ? selection.op === row.name : selection.op !== undefined && selection.op === row.name;
  }

  private pick(row: HTMLElement): void {
    const name = row.dataset["name"];
    if (name === undefined) return;
    const { store, actions } = this.context;
    const { selection } = store;
    if (selection?.kind === this.grouping && selection[this.grouping] === name) actions.select(null);
    else actions.select(this.selectionOf(name));
    this.drawn = "";
    this.render(performance.now());
  }

  private selectionOf(name: string): Selection {
    if (this.grouping === "scope") return { kind: "scope", label: name, scope: name };
    if (this.grouping === "kernel") return selectionOfKernel(this.context.store, name);
    if (this.grouping === "line") return { kind: "line", label: nameIn("line", name), line: name };
    if (this.grouping === "shape") return { kind: "shape", label: name, shape: name };
    return { kind: "op", label: name, op: name, ...(name !== baseOp(name) ? { phase: "backward" as const } : {}) };
  }

  /** Draw the sparklines of the rows in sight that have news. */
  private sparklines(): void {
    const { theme } = this.context;
    const rows = this.shownRows;
    const first = Math.floor(this.scroll.scrollTop / ROW) - 2;
    const last = first + Math.ceil((this.scroll.clientHeight || Infinity) / ROW) + 4; // a hidden table draws all: nobody asks again once it is shown
    const histories = new Map(rows.map((row) => [row.name, row.history]));
    let at = 0;
    const scale = devicePixelRatio || 1;
    for (const [name, row] of this.rows) {
      if (at >= first && at <= last) {
        const history = histories.get(name) ?? [];
        const stamp = history.length + (history.at(-1) ?? 0) * 1e3 + theme.version * 0.5;
        if (row.drawnAt !== stamp) {
          row.drawnAt = stamp;
          spark(row.spark, history, theme.colours.dim, scale);
          attribute(row.spark, "aria-label", history.length ? `time a step over the last ${history.length} updates` : "no history yet");
        }
      }
      at++;
    }
  }

  /** The column beside the full table: exact values, and where on the tape this op stands. */
  private details(): void {
    const { side } = this;
    if (!side) return;
    const { store, theme } = this.context;
    const { selection } = store;
    const now = Math.floor(this.updated / REFRESH);
    const key = `${store.versions.view} ${store.versions.tape} ${store.versions.ops} ${now} ${theme.version} ${this.step.update()}`;
    if (key === this.sideDrawn || (this.sideDrawn && side.matches(":hover") && this.sideDrawn.split(" ")[0] === String(store.versions.view))) return;
    this.sideDrawn = key;
    const kernel = selection?.kernel === undefined ? undefined : store.kernelInfos.find(({ name }) => name === selection.kernel);
    const by: By = kernel ? "kernel" : selection?.kind === "scope" || selection?.kind === "line" || selection?.kind === "shape" ? selection.kind : "op";
    const name = selection?.[by];
    const row = name === undefined ? undefined : this.rowsBy(by).find((candidate) => candidate.name === name);
    if (!row) {
      side.replaceChildren(nothing(selection ? "The selection has no row in this table." : "Click a row for its exact numbers and its places on the tape."), ...this.step.elements(), this.legend());
      return;
    }
    const facts = new Facts();
    facts.list.style.gridTemplateColumns = "52px minmax(0, 1fr)";
    const exact = (ns: number): string => `${integer(ns)} ns`;
    facts.add("Count", integer(row.count));
    facts.add("Total", text(atLeast(duration(row.total), store.lower)), percentText(row.share));
    facts.add("Mean", durationText(mean(row)), exact(mean(row)));
    facts.add("p99", durationText(row.p99), exact(row.p99));
    facts.add("Max", durationText(row.max), exact(row.max));
    const stepCount = store.steps.length + store.steps.evicted;
    if (stepCount) facts.add("A step", durationText(row.total / stepCount), `${text(count(row.count / stepCount))} calls`);
    facts.add("Bytes", text(atLeast(bytes(row.bytes), store.lower)), exactBytes(row.bytes));
    const about = kernel ? `kernel of ${kernel.parts.length} ${kernel.parts.length === 1 ? "op" : "ops"}` : by === "op" ? familyLabels[row.family] ?? row.family : by;
    const head = title(nameIn(by, row.name), sourceIn(by, row.name) || about, ...(coloured(by) ? [this.swatch(row.family)] : []));
    if (kernel) return side.replaceChildren(head, facts.list, ...kernelParts(theme, store, kernel), ...this.step.elements());
    side.replaceChildren(head, facts.list, ...(by === "op" ? [this.opener(row.name)] : []), ...this.places(by), ...this.step.elements());
  }

  /** The button that opens the last recorded call of an op in a cell. */
  private opener(op: string): HTMLElement {
    const { store, actions } = this.context;
    const title = "A new cell that runs the last recorded call again with its real inputs (flnb.record(inputs=True))";
    const button = h("button", { class: "fl-button fl-opener", title }, "Open in a cell");
    const scope = store.selection?.scope;
    on(button, "click", () => actions.ask({ type: "code", op, ...(scope ? { scope } : {}) }));
    return button;
  }

  /** Tape nodes that belong to the selection, each a way to select it. */
  private places(by: By): HTMLElement[] {
    const { store, actions } = this.context;
    const { tape } = store;
    if (!tape) return [];
    const nodes = tape.nodes.filter((node) => selectsNode(store, node));
    if (!nodes.length) return [];
    const backward = store.selection?.phase === "backward";
    const list = rowList(nodes.slice(0, 60).map((node) => {
      const [plan, context] = [store.plan(node.plan), store.context(node.context)];
      return rowButton(() => actions.select(selectionOfNode(store, node, tape)), plan ? `${plan.op} ${shapeText(plan.shape)}` : "",
        by !== "op" ? plan?.op ?? "" : context?.scope || "(outside of scopes)", durationText(backward ? node.backward_ns : node.forward_ns));
    }));
    return [section(`On the tape of step ${integer(tape.step)}${backward ? ", backward" : ""}`), list];
  }

  private legend(): HTMLElement {
    const { store } = this.context;
    const present = new Set(store.ops.map((row) => row.family));
    const list = h("div", { class: "fl-pairs", style: "grid-template-columns:12px 1fr;margin-top:10px" });
    for (const [family, title] of Object.entries(familyLabels)) if (present.has(family)) list.append(this.swatch(family), h("span", {}, title));
    return list;
  }

  private swatch(family: string): HTMLElement {
    return h("i", { class: "fl-swatch", style: `background:${this.context.theme.family(family)};margin-top:4px` });
  }
}

export const createOpsPanel = (context: ViewContext): View => new Ops(context, false);
export const createOpsView = (context: ViewContext): View => new Ops(context, true);
