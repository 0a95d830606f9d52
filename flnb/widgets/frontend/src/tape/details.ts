/** The column beside the tape: one node, module or parameter with its gradient over the steps. */

import { Chart, wantsLog } from "../chart.ts";
import { Facts, keyButton, pane, rowButton, rowList, squareOf, title } from "../details.ts";
import { h, nothing, section, swatch } from "../dom.ts";
import type { TapeGroup } from "../protocol.ts";
import { durationText, integer, shape as shapeText, significant, tensorText, UNKNOWN } from "../format.ts";
import { familyLabels } from "../palette.ts";
import { inScope, selectionOfNode, selectsNode } from "../selection.ts";
import type { ViewContext } from "../view.ts";
import type { Group } from "./groups.ts";
import { nodeCount, type NodeInfo, type TapeModel } from "./model.ts";

const alarm = (head: string, ...rest: HTMLElement[]): HTMLElement[] =>
  [h("div", { class: "fl-why", style: "border-color:var(--fl-error)" }, h("b", { style: "color:var(--fl-error)" }, head), ...rest)];

const LIST = 24;

export class TapeDetails {
  readonly element = pane("Selected node");
  private drawn = "";
  private chart: Chart | null = null;
  private facts = new Facts();

  constructor(private readonly context: ViewContext, private readonly model: TapeModel) {}

  update(): void {
    const { store, theme } = this.context;
    const key = `${store.versions.view} ${store.versions.tape} ${theme.version} ${this.element.clientWidth}`;
    if (key === this.drawn) return;
    this.drawn = key;
    this.chart = null;
    const { selection } = store;
    const { nodes, leaves } = this.model;
    if (selection?.kind === "leaf") {
      const leaf = leaves.findIndex((one) => one.id === selection.node);
      if (leaf >= 0) return this.leaf(leaf);
    }
    const group = selection?.group === undefined ? undefined : this.model.groups.get(selection.group);
    if (group?.data) return this.whole(group, group.data);
    const chosen = selection ? nodes.flatMap((info, at) => (selectsNode(store, info.node) ? [at] : [])) : [];
    if (chosen.length === 1) this.node(chosen[0]!, selection?.phase === "backward" && selection.kind === "node");
    else if (chosen.length > 1) this.several(chosen);
    else this.hint();
    this.drawChart();
  }

  private drawChart(): void {
    this.chart?.measure();
    this.chart?.render(null);
  }

  private head(name: string, sub: string, family?: string): HTMLElement {
    return title(name, sub, ...(family === undefined ? [] : [swatch(this.context.theme, family)]));
  }

  private begin(): HTMLElement {
    return (this.facts = new Facts()).list;
  }

  private hint(): void {
    const { model } = this;
    const { origins } = model;
    const spoiled = model.leaves.flatMap((_, leaf) => (model.leafBad(leaf) ? [leaf] : []));
    const parts: HTMLElement[] = [];
    if (origins.length > 0) parts.push(h("div", "fl-section fl-error", "NaN begins at"), this.list(origins));
    if (spoiled.length > 0) parts.push(h("div", "fl-section fl-error", "NaN reached"), this.leafList(spoiled));
    if (spoiled.length > 0 && origins.length === 0)
      parts.push(nothing("Where it begins was not measured: no operation reported it. The next backward is measured; flnb.record(grad_interval=0) measures all."));
    parts.push(nothing("Click a node for its gradient, time and saved tensors. Enter or a second click opens a module."));
    const norms = model.nodes.flatMap((info, at) => (info.node.norm !== null && Number.isFinite(info.node.norm) && info.health === "fine" ? [{ at, norm: info.node.norm }] : []));
    if (norms.length > 1) {
      norms.sort((a, b) => b.norm - a.norm);
      parts.push(section("Largest gradients"), this.list(norms.slice(0, 4).map(({ at }) => at)));
      parts.push(section("Smallest gradients"), this.list(norms.slice(-4).reverse().map(({ at }) => at)));
    }
    this.element.replaceChildren(...parts);
  }

  private alarm(at: number): HTMLElement[] {
    const { model } = this;
    const info = model.nodes[at]!;
    if (info.node.failed) {
      const [first, ...rest] = info.node.failed.message.split("\n");
      return alarm("The forward ended here", h("div", {}, first!), ...rest.map((line) => h("div", "fl-dim", line)));
    }
    if (info.health === "fine") return [];
    const out = model.badOut(at);
    const origin = info.health === "origin";
    const where = out ? `${integer(out.bad)}${out.numel ? ` of ${integer(out.numel)}` : ""} values of what it gave are NaN or infinite` : "the gradient that arrives here is NaN or infinite";
    const arrived = model.arrivesBad(at);
    const what = origin ? (arrived ? "The loss itself gives a bad gradient: look at the forward pass." : `Its input gradient is finite; ${where}.`) : "The gradient was bad before it came here.";
    return alarm(origin ? "NaN begins here" : "NaN passes through", h("div", {}, what));
  }

  private node(at: number, backward: boolean): void {
    const { model } = this;
    const info = model.nodes[at]!;
    const { node, plan } = info;
    const pairs = this.begin();
    const { failed } = node;
    if (failed) {
      failed.got.forEach((shape, which) => this.facts.add(which === 0 ? "Got" : "", `[${shape.join(",")}]`, "", "fl-code fl-error"));
      this.facts.code("Would give", failed.expected ? `[${failed.expected.join(",")}]` : "unknown");
    } else if (plan) this.facts.code(backward ? "Gradient in" : "Output", tensorText(plan));
    if (info.scope) this.facts.code("Scope", info.scope);
    if (node.line) this.facts.code("Line", node.line);
    if (!failed) this.gradient(at, info);
    const parts = [this.head(backward ? `${info.op}′` : info.op, `${backward ? "backward of " : ""}node #${integer(node.id)} · ${familyLabels[info.family] ?? info.family}`, info.family), ...this.alarm(at), pairs];
    if (info.parameters.length > 0) parts.push(section("Parameters"), this.leafList(info.parameters));
    parts.push(...this.history(info));
    if (info.health === "origin") {
      const reached = model.leaves.flatMap((_, leaf) => (model.leafBad(leaf) ? [leaf] : []));
      if (reached.length > 0) parts.push(section("Reached"), this.leafList(reached));
    }
    if (info.parents.length > 0) parts.push(section("Reads"), this.list(info.parents));
    if (info.consumers.length > 0) parts.push(section("Read by"), this.list(info.consumers));
    parts.push(this.links());
    this.element.replaceChildren(...parts);
  }

  /** Norms, times and what is saved. */
  private gradient(at: number, info: NodeInfo): void {
    const { model } = this;
    const { node } = info;
    const bad = model.arrivesBad(at);
    this.facts.add("Norm in", bad ? "NaN" : significant(node.norm ?? NaN), bad ? `${integer(node.bad)} of ${integer(node.numel)}` : node.norm === null ? "not sampled" : "finite", bad ? "fl-error" : "");
    const out = model.badOut(at);
    const given = info.parents.map((parent) => model.nodes[parent]!.node.norm).filter((norm): norm is number => norm !== null && Number.isFinite(norm));
    if (out) this.facts.add("Norm out", "NaN", `${integer(out.bad)}${out.numel ? ` of ${integer(out.numel)}` : ""}`, "fl-error");
    else if (given.length > 0) this.facts.add("Norm out", significant(Math.max(...given)));
    this.facts.add("Time", node.forward_ns > 0 ? durationText(node.forward_ns) : UNKNOWN, "forward");
    if (node.backward_ns > 0) this.facts.add("", durationText(node.backward_ns), "backward");
    this.facts.bytes("Saved", node.saved, "nothing");
  }

  /** Norm of this node's gradient at every sampled step. */
  private history(info: NodeInfo): HTMLElement[] {
    const { store, theme } = this.context;
    const metric = store.norms.of(info.node);
    if (!metric || metric.length < 2) return [];
    this.chart = new Chart("gradient norm over steps", theme);
    const curve = { steps: metric.column("step"), values: metric.column("value"), length: metric.length };
    const last = metric.last("value")!;
    this.chart.set(curve, { name: "gradient norm", shown: Number.isNaN(last) ? "NaN" : significant(last), log: wantsLog("norm", curve), last: store.step });
    this.chart.element.style.height = "104px";
    return [section("Gradient norm over steps"), this.chart.element];
  }

  /** A module call, a fold of equal blocks or a portion, as the kernel told it. */
  private whole(group: Group, data: TapeGroup): void {
    const { store } = this.context;
    const { model } = this;
    const plan = store.plan(data.plan);
    const pairs = this.begin();
    this.facts.add("Nodes", integer(group.last - group.first), `of ${integer(model.tape!.count)}`);
    if (data.repeat) this.facts.add("Blocks", integer(data.repeat), `of ${integer((group.last - group.first) / data.repeat)} nodes`);
    if (plan) this.facts.code("Output", tensorText(plan));
    const bad = model.groupArrivesBad(group);
    this.facts.add("Norm in", bad ? "NaN" : significant(data.norm ?? NaN), data.norm === null && !bad ? "not sampled" : "", bad ? "fl-error" : "");
    this.facts.add("Time", data.forward_ns > 0 ? durationText(data.forward_ns) : UNKNOWN, "forward");
    if (data.backward_ns > 0) this.facts.add("", durationText(data.backward_ns), "backward");
    this.facts.bytes("Saved", data.saved, "nothing");
    const parts = [this.head(this.context.store.selection!.label, group.repeat ? "equal blocks" : group.path ? "module" : "a row of ops"), pairs];
    if (data.health > 0) parts.push(h("div", "fl-section fl-error", data.health === 2 ? "NaN begins inside" : "NaN passes through"));
    const list = h("dl", "fl-pairs");
    for (const [op, count] of data.ops) list.append(h("dt", "fl-code", op), h("dd", {}, integer(count)));
    if (data.different > data.ops.length) list.append(h("dt", {}, "others"), h("dd", {}, `${integer(data.different - data.ops.length)} more ops`));
    parts.push(section("Ops"), list);
    const inside = model.nodes.flatMap((info, at) => (group.first <= info.node.at && info.node.at < group.last ? [at] : []));
    const leaves = [...new Set(inside.flatMap((at) => model.nodes[at]!.parameters))];
    if (leaves.length > 0) parts.push(section("Parameters"), this.leafList(leaves));
    if (inside.length > 0) parts.push(section("Nodes"), this.list(inside));
    parts.push(this.links());
    this.element.replaceChildren(...parts);
  }

  /** An op that occurs often, or a scope. */
  private several(chosen: readonly number[]): void {
    const { store } = this.context;
    const { model } = this;
    const selection = store.selection!;
    let [forward, backward, saved] = [0, 0, 0];
    const leaves = new Set<number>();
    for (const at of chosen) {
      const { node, parameters } = model.nodes[at]!;
      forward += node.forward_ns;
      backward += node.backward_ns;
      saved += node.saved;
      for (const leaf of parameters) leaves.add(leaf);
    }
    const last = model.nodes[chosen.at(-1)!]!;
    const pairs = this.begin();
    this.facts.add("Nodes", integer(chosen.length), `of ${integer(model.nodes.length)}${model.nodes.length < model.tape!.count ? " known" : ""}`);
    if (selection.kind === "scope" && last.plan && inScope(last.scope, selection.scope)) this.facts.code("Output", tensorText(last.plan));
    this.facts.add("Time", durationText(forward), "forward");
    if (backward > 0) this.facts.add("", durationText(backward), "backward");
    this.facts.bytes("Saved", saved);
    const parts = [this.head(selection.label, selection.kind === "scope" ? "module" : `${nodeCount(chosen.length)} of this step`), pairs];
    if (leaves.size > 0) parts.push(section("Parameters"), this.leafList([...leaves]));
    parts.push(section("Nodes"), this.list(chosen), this.links());
    this.element.replaceChildren(...parts);
  }

  private leaf(leaf: number): void {
    const { store } = this.context;
    const { model } = this;
    const found = model.leaves[leaf]!;
    const plan = store.plan(found.plan);
    const bad = model.leafBad(leaf);
    const pairs = this.begin();
    if (plan) this.facts.code("Tensor", tensorText(plan));
    this.facts.add("Gradient", bad ? "NaN" : significant(found.norm ?? NaN), bad ? `${integer(found.bad)} bad values` : found.norm === null ? "not sampled" : "norm", bad ? "fl-error" : "");
    const readers = model.nodes.flatMap((info, at) => (info.parameters.includes(leaf) || info.inputs.includes(leaf) ? [at] : []));
    this.element.replaceChildren(this.head(model.leafName(leaf, false), found.parameter ? "parameter" : "input"), pairs,
      section("Read by"), this.list(readers));
  }

  /** Nodes as rows that can be clicked: scope or op, and the norm. */
  private list(nodes: readonly number[]): HTMLElement {
    const { store, actions } = this.context;
    const list = rowList(nodes.slice(0, LIST).map((at) => {
      const info = this.model.nodes[at]!;
      const { op, scope } = info;
      const bad = this.model.arrivesBad(at) || info.health === "origin";
      return rowButton(() => {
        if (this.model.tape) actions.select(selectionOfNode(store, info.node, this.model.tape));
      }, info.plan ? `${op} ${shapeText(info.plan.shape)}` : op, scope && !scope.endsWith(op) ? `${scope.split(".").slice(-2).join(".")}.${op}` : scope || op,
      info.health === "origin" ? "NaN begins" : bad ? "NaN" : significant(info.node.norm ?? NaN), [swatch(this.context.theme, info.family)], bad);
    }));
    if (nodes.length > LIST) list.append(h("li", { class: "fl-dim", style: "padding:2px 12px" }, `and ${integer(nodes.length - LIST)} more`));
    return list;
  }

  private leafList(leaves: readonly number[]): HTMLElement {
    const { actions } = this.context;
    const { model } = this;
    return rowList(leaves.slice(0, LIST).map((leaf) => {
      const [bad, label] = [model.leafBad(leaf), model.leafName(leaf, false)];
      return rowButton(() => actions.select({ kind: "leaf", label, node: model.leaves[leaf]!.id }), label, label, bad ? "NaN" : significant(model.leaves[leaf]!.norm ?? NaN), [squareOf(this.context.theme.category(1))], bad);
    }));
  }

  private links(): HTMLElement {
    const { actions } = this.context;
    const row = h("div", "fl-links");
    if (this.context.alone) return row;
    for (const [name, key, tab] of [["Op", "O", "ops"], ["Blocks", "B", "memory"]] as const) {
      row.append(keyButton(name, key, () => actions.show(tab)));
    }
    return row;
  }
}
