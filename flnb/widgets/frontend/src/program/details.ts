/** What is known of one kernel or call: its ops with their shares, what it reads and stores, and the text of a kernel. */

import { Facts, title } from "../details.ts";
import { h, section, swatch } from "../dom.ts";
import { bytesText, dtype, durationText, percentText, UNKNOWN } from "../format.ts";
import { segmented } from "../panel.ts";
import type { Theme } from "../theme.ts";
import { familyOf, type Launch, type ProgramData, totalOf } from "./model.ts";

const KINDS = { kernel: "kernel", call: "call of a method", copy: "copy at the end" } as const;

export function shareBar(theme: Theme, family: string, share: number): HTMLElement {
  return h("span", "fl-share", h("i", { style: `width:${(100 * share).toFixed(1)}%;background:${theme.family(family)}` }));
}

/** The cells of an op in a kernel: its name and shape; and its share of the kernel's time, with a bar against the `widest`. */
export const partCells = (theme: Theme, family: string, op: string, shape: string): HTMLElement[] =>
  [h("td", "fl-left", swatch(theme, family), h("span", "fl-code", op)), h("td", "fl-left fl-dim", shape)];
export const shareCell = (theme: Theme, family: string, share: number, widest: number): HTMLElement =>
  h("td", { title: "estimated" }, shareBar(theme, family, share / widest), h("span", "fl-sharetext", `≈${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`));

/** `llvm`: the text that was compiled, once the kernel has sent it; `ask` asks for it. */
export function details(theme: Theme, data: ProgramData, at: number, llvm: string | undefined, form: "loops" | "llvm", ask: (form: "loops" | "llvm") => void): HTMLElement[] {
  const launch = data.launches[at]!;
  const total = totalOf(data);
  const share = launch.ns !== null && total ? `, ${percentText(launch.ns / total)} of the program` : "";
  const rows: [string, string][] = [
    ["Time", launch.ns === null ? UNKNOWN : `${durationText(launch.ns)}${share}`],
    ...(launch.scope ? [["Module", launch.scope] as [string, string]] : []),
    ["Phase", launch.phase],
    ["Reads", launch.reads.join(", ") || "nothing"],
  ];
  return [
    title(`#${at} ${launch.name}`, KINDS[launch.kind] + (launch.own ? " · of the user's class: never fused" : ""), swatch(theme, familyOf(launch))),
    new Facts(rows).list,
    section(`Stores`),
    h("table", "fl-table fl-programstored", h("tbody", {}, ...launch.stored.map((one) => h("tr", {},
      h("td", "fl-left fl-code", one.name), h("td", "fl-left", `${one.shape} ${dtype(one.dtype)}`), h("td", {}, bytesText(one.bytes)), h("td", "fl-left", one.where))))),
    ...(launch.parts.length ? [section(launch.parts.length > 1 ? `${launch.parts.length} ops, estimated share of its time` : "Op"), ops(theme, launch)] : []),
    ...(launch.kind === "kernel" ? source(launch, llvm, form, ask) : []),
  ];
}

function ops(theme: Theme, launch: Launch): HTMLElement {
  const bar = launch.parts.length > 1;
  const widest = Math.max(...launch.parts.map(({ share }) => share));
  return h("table", "fl-table fl-ops fl-programops",
    h("caption", "fl-hidden", "ops, with the share of time that is estimated by the bytes that each would move alone"),
    h("tbody", {}, ...launch.parts.map((part) => h("tr", {},
      ...partCells(theme, part.family, part.op, part.shape), ...(bar ? [shareCell(theme, part.family, part.share, widest)] : [])))));
}

function source(launch: Launch, llvm: string | undefined, form: "loops" | "llvm", ask: (form: "loops" | "llvm") => void): HTMLElement[] {
  const choice = segmented("Text of the kernel", [["loops", "Loops"], ["llvm", "LLVM"]], form, ask);
  const shown = form === "loops" ? launch.loops : llvm ?? "asking the kernel for it";
  return [h("div", "fl-section fl-occupancy", "Source", choice), h("pre", { class: "fl-programsource", tabindex: 0 }, shown)];
}
