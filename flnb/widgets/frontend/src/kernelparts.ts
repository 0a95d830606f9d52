/** The ops that one kernel computes: their estimated shares of its time, and the user's lines. */

import { h, section } from "./dom.ts";
import { shape } from "./format.ts";
import { partCells, shareCell } from "./program/details.ts";
import type { KernelInfo } from "./protocol.ts";
import type { Store } from "./store.ts";
import type { Theme } from "./theme.ts";

/** Ops in the order in which the kernel computes them, under the lines that asked for them. */
export function kernelParts(theme: Theme, store: Store, { parts }: KernelInfo): HTMLElement[] {
  const widest = Math.max(...parts.map(([, , share]) => share), 1e-9);
  let before: string | undefined;
  const rows = parts.flatMap(([planId, contextId, share]) => {
    const [plan, context] = [store.plan(planId), store.context(contextId)];
    const line = context?.line ?? "";
    const where = [context?.scope, context && context.phase !== "other" ? context.phase : ""].filter(Boolean).join(", ");
    const key = `${line} ${where}`;
    const head = key === before ? [] : [h("tr", "fl-partline", h("td", { class: "fl-left", colspan: 3, title: `${line} ${where}` }, h("div", "fl-code", line || "line not known"), h("div", "fl-dim", where)))];
    before = key;
    const family = plan?.family ?? "";
    return [...head, h("tr", "fl-part", ...partCells(theme, family, plan?.op ?? "(unknown)", shape(plan?.shape ?? [])), shareCell(theme, family, share, widest))];
  });
  return [
    section(parts.length > 1 ? `${parts.length} ops, estimated share of its time` : "Op"),
    h("table", "fl-table fl-ops fl-programops fl-parts",
      h("caption", "fl-hidden", "ops with the user's lines, and the share of time that is estimated by the bytes that each would move alone"), h("tbody", {}, ...rows)),
  ];
}
