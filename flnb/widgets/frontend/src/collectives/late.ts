/** Who is late: how often a rank was the last, what that cost the others a step, and where it was meanwhile. */

import { attribute, h, on } from "../dom.ts";
import { duration, durationText, integer, UNKNOWN } from "../format.ts";
import { Panel } from "../panel.ts";
import type { LateRank } from "../protocol.ts";
import type { DataTable, ViewContext } from "../view.ts";
import type { CollectivesModel } from "./model.ts";

/** Ranks that are listed where there are more than the lanes hold. */
export const WORST = 8;
export const MANY = 32;

export class WhoIsLate {
  readonly panel: Panel;
  private readonly body = h("tbody");
  private readonly head = h("tr");
  private model: CollectivesModel | null = null;
  private drawn = "";

  constructor(private readonly context: ViewContext, private readonly pick: (rank: number) => void) {
    this.panel = new Panel("Who is late", () => this.describe());
    for (const [name, side] of [["Rank", "fl-left"], ["Host", "fl-left"], ["Calls as last", ""], ["Lost a step ↓", "fl-left"], ["Mostly in", "fl-left"]] as const) {
      this.head.append(h("th", { scope: "col", class: side || null }, name));
    }
    this.panel.body.append(h("div", "fl-scroll", h("table", "fl-table fl-ops fl-late", h("thead", {}, this.head), this.body)));
    on(this.body, "click", (event) => this.choose(event.target as Element));
    on(this.body, "keydown", (event) => {
      if (event.key !== "Enter") return;
      this.choose(event.target as Element);
      event.preventDefault();
      event.stopPropagation();
    });
  }

  update(model: CollectivesModel, chosen: number): void {
    this.model = model;
    const { section } = model;
    this.panel.sub = `${integer(section.steps.length)} ${section.steps.length === 1 ? "step" : "steps"}${model.ranks > MANY ? ` · the worst ${WORST} of ${model.ranks}` : ""}`;
    const key = JSON.stringify([section.late, chosen, this.context.theme.version]);
    if (key === this.drawn) return;
    this.drawn = key;
    const rows = model.ranks > MANY ? section.late.slice(0, WORST) : section.late;
    const most = Math.max(1e-9, ...rows.map((row) => row.lost_ms_per_step));
    this.body.replaceChildren(...rows.map((row) => this.row(row, most, model.index(row.rank) === chosen)));
  }

  private row(row: LateRank, most: number, chosen: boolean): HTMLElement {
    const bar = h("span", "fl-share", h("i", { style: `width:${row.last ? Math.max(2, (100 * row.lost_ms_per_step) / most) : 0}%;background:var(--fl-dim)` }));
    const [value, unit] = duration(row.last ? row.lost_ms_per_step * 1e6 : null);
    const element = h("tr", { tabindex: 0, "data-rank": row.rank }, h("td", "fl-left", String(row.rank)), h("td", "fl-left fl-dim", row.host),
      h("td", {}, integer(row.last)), h("td", "fl-left fl-quantity", bar, value, unit ? h("span", "fl-unit", unit) : ""),
      h("td", "fl-left fl-code", row.scope || UNKNOWN));
    attribute(element, "aria-selected", chosen);
    return element;
  }

  private choose(target: Element): void {
    const rank = target.closest("tr")?.dataset["rank"];
    if (rank !== undefined && this.model) this.pick(this.model.index(Number(rank)));
  }

  private describe(): DataTable {
    return {
      caption: "Ranks by what their coming late costs the others", columns: ["Rank", "Host", "Calls as last", "Lost a step", "Mostly in"],
      rows: (this.model?.section.late ?? []).map((row) => [row.rank, row.host, row.last, durationText(row.lost_ms_per_step * 1e6), row.scope || UNKNOWN]),
    };
  }
}
