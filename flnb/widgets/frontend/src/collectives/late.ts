/** Who is late: how often a rank was the last, what that cost the others a step, and where it was meanwhile. */

import { attribute, h } from "../dom.ts";
import { duration, durationText, integer, UNKNOWN } from "../format.ts";
import { Panel } from "../panel.ts";
import { chooseRows, heading, stopAt, table } from "../table.ts";
import type { LateRank } from "../protocol.ts";
import type { DataTable, ViewContext } from "../view.ts";
import type { CollectivesModel } from "./model.ts";

/** Ranks that are listed where there are more than the lanes hold. */
export const WORST = 8;
export const MANY = 32;

const CAPTION = "Ranks by what their coming late costs the others";

export class WhoIsLate {
  readonly panel: Panel;
  private readonly body: HTMLElement;
  private model: CollectivesModel | null = null;
  private drawn = "";

  constructor(private readonly context: ViewContext, private readonly pick: (rank: number) => void) {
    this.panel = new Panel("Who is late", () => this.describe());
    const shown = table("fl-table fl-ops fl-late", CAPTION, ["Rank", "Host", "Calls as last", "Lost a step ↓", "Mostly in"].map((name, at) => heading(name, at !== 2)), []);
    this.body = shown.querySelector("tbody")!;
    this.panel.body.append(h("div", "fl-scroll", shown));
    chooseRows(this.body, (row) => this.model && this.pick(this.model.index(Number(row.dataset["rank"]))));
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
    stopAt(this.body);
  }

  private row(row: LateRank, most: number, chosen: boolean): HTMLElement {
    const bar = h("span", "fl-share", h("i", { style: `width:${row.last ? Math.max(2, (100 * row.lost_ms_per_step) / most) : 0}%;background:var(--fl-dim)` }));
    const [value, unit] = duration(row.last ? row.lost_ms_per_step * 1e6 : null);
    const element = h("tr", { tabindex: -1, "data-rank": row.rank }, h("td", "fl-left", String(row.rank)), h("td", "fl-left fl-dim", row.host),
      h("td", {}, integer(row.last)), h("td", "fl-left fl-quantity", bar, value, unit ? h("span", "fl-unit", unit) : ""),
      h("td", { class: "fl-left fl-code", title: row.scope }, row.scope || UNKNOWN));
    attribute(element, "aria-selected", chosen);
    return element;
  }

  private describe(): DataTable {
    return {
      caption: CAPTION, columns: ["Rank", "Host", "Calls as last", "Lost a step", "Mostly in"],
      rows: (this.model?.section.late ?? []).map((row) => [row.rank, row.host, row.last, durationText(row.lost_ms_per_step * 1e6), row.scope || UNKNOWN]),
    };
  }
}
