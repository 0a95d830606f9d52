/** What the tape says in words: tooltips, the table behind the canvas, the legend. */

import { h, swatch } from "../dom.ts";
import { bytesText, durationText, integer, joined, measured, shape as shapeText, significant } from "../format.ts";
import { familyLabels } from "../palette.ts";
import type { Theme } from "../theme.ts";
import type { Cell, DataTable, ViewContext } from "../view.ts";
import { type Group, isGroup, isOpen } from "./groups.ts";
import type { Layout } from "./layout.ts";
import { nodeCount, type NodeInfo, type TapeModel } from "./model.ts";
import type { Target } from "./targets.ts";

/** "4 ops", "41 667 ops". */
export const sizeOf = (group: Group): string => `${integer(group.last - group.first)} ops`;

const health = { fine: "", spread: "NaN", origin: "NaN begins" } as const;
const normOf = (info: NodeInfo): string => health[info.health] || significant(info.node.norm ?? NaN);

export function tipOf(target: Target, model: TapeModel, { store }: ViewContext): string {
  if (target.kind === "input" || target.kind === "parameter") {
    const leaf = model.leaves[target.index]!;
    const dims = store.plan(leaf.plan)?.shape;
    const norm = model.leafBad(target.index) ? "gradient NaN" : leaf.norm === null ? "" : `gradient norm ${significant(leaf.norm)}`;
    return joined([model.leafName(target.index, false), dims ? shapeText(dims) : "", norm]);
  }
  if (target.group) {
    const { group } = target;
    const { data } = group;
    const what = data === null ? [] : [data.forward_ns > 0 ? `${durationText(data.forward_ns)} forward` : "", data.backward_ns > 0 ? `${durationText(data.backward_ns)} backward` : ""];
    const ops = data && !group.path ? data.ops.slice(0, 4).map(([op, count]) => `${integer(count)} ${op}`).join(", ") + (data.different > 4 ? " …" : "") : "";
    return joined([group.path || group.name, group.repeat ? `${integer(group.repeat)} equal blocks` : "", sizeOf(group), ops, ...what]);
  }
  const info = model.nodes[target.index]!;
  const { node } = info;
  if (node.failed) return joined([info.op, info.scope, node.failed.message.split("\n")[0]!.replace(/^(.{240}).+$/, "$1…")]);
  const what = target.row === "backward"
    ? [`gradient norm ${info.health === "origin" ? "NaN begins here" : normOf(info)}`, node.backward_ns > 0 ? durationText(node.backward_ns) : ""]
    : [info.plan ? `${shapeText(info.plan.shape)} ${info.plan.dtype}` : "", node.forward_ns > 0 ? durationText(node.forward_ns) : "", node.saved > 0 ? `saves ${bytesText(node.saved)}` : ""];
  return joined([`${info.op}${target.row === "backward" ? "′" : ""}`, info.scope, ...what]);
}

/** What the picture shows, in order: ops, and closed modules as a whole. */
export function tableOf(layout: Layout | null, model: TapeModel, { store }: ViewContext): DataTable {
  const columns = ["Node", "Op", "Scope", "Shape", "dtype", "Forward", "Backward", "Gradient norm", "Saved", "Reads"];
  const boxes = (layout?.boxes ?? []).filter((box) => box.kind !== "input").map((box) => ({ box, at: box.group?.first ?? model.nodes[box.index]!.node.at }));
  const time = (ns: number): Cell => measured.duration(ns > 0 ? ns : NaN);
  const rows: Cell[][] = boxes.sort((a, b) => a.at - b.at).map(({ box }) => {
    if (box.group?.data) {
      const { data } = box.group;
      const plan = store.plan(data.plan);
      const norm = { value: data.norm ?? NaN, text: health[model.healthOf(box.group)] || significant(data.norm ?? NaN) };
      return [`#${data.ids[0]}–${data.ids[1]}`, box.group.repeat ? `${box.group.name} ×${box.group.repeat}` : box.group.name, box.group.path || "–", plan ? shapeText(plan.shape) : "–",
        plan?.dtype ?? "–", time(data.forward_ns), time(data.backward_ns), norm, measured.bytes(data.saved), "–"];
    }
    const info = model.nodes[box.index]!;
    const reads = info.node.parents.map((id) => (id > 0 ? `#${id}` : leafName(model, id)));
    return [`#${info.node.id}`, info.op, info.scope || "–", info.plan ? shapeText(info.plan.shape) : "–", info.plan?.dtype ?? "–", time(info.node.forward_ns), time(info.node.backward_ns),
      { value: info.node.norm ?? NaN, text: normOf(info) }, measured.bytes(info.node.saved), reads.join(" ") || "–"];
  });
  return { caption: model.tape ? `Tape of step ${integer(model.tape.step)}` : "Tape", columns, rows, units: ["", "", "", "", "", "ns", "ns", "", "bytes"] };
}

function leafName(model: TapeModel, id: number): string {
  const leaf = model.leaves.findIndex((one) => one.id === id);
  return leaf < 0 ? `leaf ${-id}` : model.leafName(leaf, false);
}

export function legend(): HTMLElement {
  const item = (mark: HTMLElement, name: string): HTMLElement => h("span", { style: "display:inline-flex;align-items:center;gap:7px;white-space:nowrap" }, mark, name);
  const box = (style: string): HTMLElement => h("i", { style: `display:inline-block;flex:none;${style}` });
  return h("div", { style: "display:flex;flex-wrap:wrap;gap:0 18px;padding:6px 12px;border-top:1px solid var(--fl-grid);font-size:11px;color:var(--fl-dim);flex:none" },
    item(box("width:34px;height:4px;background:linear-gradient(90deg,var(--fl-ink) 60%,var(--fl-grid) 60%)"), "gradient norm, log 10⁻⁴ to 10"),
    item(box("width:22px;border-top:1px dashed var(--fl-dim)"), "saved for backward"),
    item(box("width:18px;height:10px;border:2px solid var(--fl-error);border-radius:3px;background:repeating-linear-gradient(135deg,color-mix(in srgb,var(--fl-error) 40%,transparent) 0 1px,transparent 1px 4px)"), "NaN or Inf, or failed; heavy: its origin"),
    item(h("b", { style: "font-weight:600;color:var(--fl-text)" }, "×12"), "equal blocks"),
    item(h("b", { style: "font-weight:600;color:var(--fl-text)" }, "op′"), "its backward"));
}

/** What a tape is and where it fails, for the header of its panel and for a screen reader. */
export function about(model: TapeModel, open: ReadonlySet<string>): { said: string; label: string } {
  const tape = model.tape!;
  const groups = (model.tree.root.level?.items ?? []).filter(isGroup);
  const opened = groups.filter((group) => isOpen(group, open)).length;
  const what = groups.some((group) => group.path) ? "modules" : "groups";
  const modules = groups.length === 0 ? "no modules" : opened === 0 ? `${what} collapsed` : `${opened} of ${groups.length} ${what} open`;
  const left = tape.truncated > 0 ? `${integer(tape.truncated)} older ${tape.truncated === 1 ? "node" : "nodes"} left out` : "";
  const origin = model.nodes[model.origins[0] ?? -1];
  const bad = !origin && tape.gradient_bad > 0 ? "NaN in gradients" : "";
  const failed = model.nodes.find((info) => info.node.failed);
  const parts = [failed ? `failed at ${failed.op}` : "", tape.step >= 0 ? `step ${integer(tape.step)}` : "", origin ? `NaN begins at ${origin.op}` : bad, nodeCount(tape.count), modules, left];
  return {
    said: joined(parts),
    label: `Tape graph${tape.step >= 0 ? ` of step ${integer(tape.step)}` : ""}: ${nodeCount(tape.count)}, ${modules}${origin ? `, NaN begins at ${origin.op} ${origin.scope}` : ""}. Arrow keys move between boxes, Enter opens a module.`,
  };
}

/** The op families that a tape has, with their colours. */
export function showFamilies(element: HTMLElement, model: TapeModel, theme: Theme): void {
  const present = new Set([...model.nodes.map((info) => info.family), ...[...model.groups.values()].flatMap((group) => group.data?.families.map(([family]) => family) ?? [])]);
  const shown = Object.entries(familyLabels).filter(([family]) => present.has(family));
  const key = `${shown.map(([family]) => family).join()} ${theme.version}`;
  if (element.dataset["key"] === key) return;
  element.dataset["key"] = key;
  element.replaceChildren(...shown.map(([family, name]) =>
    h("span", { style: "display:inline-flex;align-items:center;gap:5px" }, swatch(theme, family), name)));
}
