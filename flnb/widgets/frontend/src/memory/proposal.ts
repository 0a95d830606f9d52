/** What would make the recorded step fit below the capacity that the reader asks about, beside the memory view. */

import { insertCell } from "../cell.ts";
import { h, on } from "../dom.ts";
import { bytesText, durationText, UNKNOWN } from "../format.ts";
import { heading, table } from "../table.ts";
import type { Proposal } from "../protocol.ts";
import type { ViewContext } from "../view.ts";
import type { MemoryModel } from "./model.ts";

const SCOPES = 12;

/** What is known without the kernel; null where it must be asked. */
export function verdict(limit: number, most: number, recording: boolean): string | null {
  if (limit >= most) return "Everything fits: no more was reserved.";
  return recording ? "A proposal needs a recording that has ended." : null;
}

/** What all scopes begin with, whole parts: "net." of "net.stem" and "net.block1.conv". */
export function common(scopes: readonly string[]): string {
  const parts = (scopes[0] ?? "").split(".").slice(0, -1);
  while (parts.length > 0 && !scopes.every((scope) => scope.startsWith(`${parts.join(".")}.`))) parts.pop();
  return parts.length > 0 ? `${parts.join(".")}.` : "";
}

export class ProposalPanel {
  readonly element = h("section", { class: "fl-proposal", "aria-label": "What if the device had less", hidden: true });
  private drawn = "";
  private asked: number | null = null;

  constructor(private readonly context: ViewContext, private readonly model: MemoryModel) {}

  /** Ask the kernel what to do about a capacity, once the line has come to rest there. */
  ask(limit: number | null): void {
    const { actions } = this.context;
    if (limit === null || limit === this.asked || this.known(limit) !== null) return;
    this.asked = limit;
    actions.ask({ type: "fit", capacity: limit });
  }

  update(): void {
    const { store, theme } = this.context;
    const key = `${store.limit} ${JSON.stringify(store.proposal)} ${store.run?.state} ${theme.version} ${store.limit === null ? 0 : this.most()}`;
    if (key === this.drawn) return;
    this.drawn = key;
    const { limit } = store;
    this.element.hidden = limit === null;
    if (limit === null) {
      this.asked = null;
      this.element.replaceChildren();
      return;
    }
    const close = h("button", { class: "fl-iconbutton", "aria-label": "Put the capacity back", title: "Put the capacity back (Delete)", onclick: () => this.context.actions.setLimit(null) }, "✕");
    const head = h("div", "fl-proposalhead", h("b", {}, `What if ${bytesText(limit)}`), close);
    this.element.replaceChildren(head, ...this.said(limit));
  }

  /** The most that was reserved in what is known of the run. */
  private most(): number {
    return this.model.timeline({ t0: 0, t1: Math.max(this.context.store.now, 1e-9) }, 1).reserved[0]!;
  }

  private known(limit: number): string | null {
    return verdict(limit, this.most(), this.context.store.latest?.run.state === "recording");
  }

  private said(limit: number): HTMLElement[] {
    const line = (...what: (string | HTMLElement)[]): HTMLElement => h("p", {}, ...what);
    const peak = line("Reserved at most ", h("b", {}, bytesText(this.most())));
    const known = this.known(limit);
    if (known !== null) return [peak, line(known)];
    const { proposal } = this.context.store;
    if (proposal === null || proposal.capacity !== limit) return [peak, line(h("span", "fl-dim", "Replaying the recorded step …"))];
    if (proposal.peak === undefined) return [peak, line(proposal.error ?? "Replaying the recorded step …")];
    return this.plan(proposal);
  }

  private plan(found: Proposal): HTMLElement[] {
    const does = found.choices?.some(({ what }) => what !== "keep");
    const mark = h("p", { class: found.fits ? "" : "fl-warn" }, found.fits ? (does ? "Fits, if this is done:" : "Fits as it is.") : does ? "Does not fit. The least that was found:" : "Does not fit, and no choice was found that lowers the peak.");
    const parts: HTMLElement[] = [this.peaks(found), mark];
    if (found.choices?.length) parts.push(this.choices(found));
    if (found.error) parts.push(h("p", "fl-error", found.error));
    return [...parts, ...this.tools(found)];
  }

  /** The peak as it was recorded, is predicted, and was measured. */
  private peaks({ before, peak, peak_live, measured }: Proposal): HTMLElement {
    const row = (name: string, reserved: number | undefined, live: number | undefined): HTMLElement =>
      h("tr", {}, h("th", { class: "fl-left", scope: "row" }, name), h("td", {}, bytesText(reserved)), h("td", {}, bytesText(live)));
    return table("fl-table", "Peaks", [heading("Peak"), heading("reserved", false), heading("live", false)],
      [row("recorded", before?.peak, before?.live), row("predicted", peak, peak_live), ...(measured ? [row("measured", measured.peak, measured.live)] : [])]);
  }

  private choices({ choices, seconds }: Proposal): HTMLElement {
    const root = common(choices!.map(({ scope }) => scope));
    const rows = choices!.slice(0, SCOPES).map(({ scope, what, bytes: held, seconds: takes }) => h("tr", { class: what === "keep" ? "fl-dim" : null },
      h("td", { class: "fl-left fl-code", title: scope }, scope.slice(root.length)), h("td", "fl-left", what), h("td", {}, bytesText(held)), h("td", {}, takes ? durationText(takes * 1e9) : UNKNOWN)));
    const left = choices!.length - rows.length;
    if (left > 0) rows.push(h("tr", "fl-dim", h("td", { class: "fl-left", colspan: 4 }, `and ${left} more`)));
    return table("fl-table", "What is done to what modules keep for backward",
      [heading("Module"), heading("Choice"), heading("At peak", false, "What it holds at the peak"), heading("Cost", false, `All together ${durationText((seconds ?? 0) * 1e9)}`)], rows);
  }

  private tools(found: Proposal): HTMLElement[] {
    if (!found.code || !found.choices?.some(({ what }) => what !== "keep")) return [];
    const { actions } = this.context;
    const button = (name: string, act: (own: HTMLButtonElement) => void): HTMLButtonElement => {
      const made = h("button", "fl-button", name);
      on(made, "click", () => act(made));
      return made;
    };
    const code = found.code;
    const tools = [
      button("Copy", (own) => void navigator.clipboard?.writeText(code).then(() => (own.textContent = "Copied"))),
      ...(window.jupyterapp ? [button("In a cell", (own) => void insertCell(code, own))] : []),
    ];
    if (found.runs) {
      const apply = button(found.state === "running" ? "Running …" : found.measured ? "Run it again" : "Apply", () => actions.ask({ type: "apply", capacity: found.capacity }));
      apply.disabled = found.state === "running";
      apply.title = "Run the step once under this plan and measure its peak";
      tools.unshift(apply);
    }
    return [...(found.runs ? [] : [h("pre", {}, code)]), h("div", "fl-links", ...tools)];
  }
}
