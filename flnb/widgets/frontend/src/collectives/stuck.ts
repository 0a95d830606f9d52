/** A call that not all ranks have joined: which ranks, which calls, since when. */

import { h } from "../dom.ts";
import { durationText, integer, UNKNOWN } from "../format.ts";
import { Panel } from "../panel.ts";
import { heading, table } from "../table.ts";
import type { StuckCall } from "../protocol.ts";
import type { DataTable } from "../view.ts";

export class Stuck {
  readonly panel: Panel;
  private readonly scroll = h("div", "fl-scroll");
  private call: StuckCall | null = null;
  private drawn = "";

  constructor() {
    this.panel = new Panel("What each rank does", () => this.describe());
    this.panel.body.append(this.scroll);
  }

  update(call: StuckCall): void {
    this.call = call;
    const key = JSON.stringify(call);
    if (key === this.drawn) return;
    this.drawn = key;
    this.panel.sub = `${stuckTitle(call)} · for ${durationText(call.seconds * 1e9)}`;
    const title = stuckTitle(call);
    this.scroll.replaceChildren(h("p", { class: "fl-stucktext", title: call.text }, h("b", "fl-error", `✕ ${title}: `), call.text),
      table("fl-table", title, this.columns(call).map((name) => heading(name)), call.rows.map((row) => h("tr", {}, ...this.cells(row).map((value, at) =>
        h("td", `fl-left ${at === 2 || at === 3 ? "fl-code" : at === 1 && differs(row.state) ? "fl-error" : ""}`, value))))));
  }

  private columns(call: StuckCall): string[] {
    return ["Rank", "State", `Call ${integer(call.seq)}`, "Last that ended", "For"];
  }

  private cells(row: StuckCall["rows"][number]): string[] {
    return [String(row.rank), differs(row.state) ? `✕ ${row.state}` : row.state, row.call || "not called", row.last || UNKNOWN, durationText(row.seconds * 1e9)];
  }

  private describe(): DataTable {
    const { call } = this;
    return { caption: call ? stuckTitle(call) : "Nothing is stuck", columns: call ? this.columns(call) : [], rows: call ? call.rows.map((row) => this.cells(row)) : [] };
  }
}

export const differs = (state: string): boolean => /differ|mismatch/.test(state);

/** The finding in a few words: "Collective 118 does not match" where a rank asks for another one, else that it waits. */
export const stuckTitle = ({ seq, rows }: StuckCall): string =>
  `Collective ${integer(seq)} ${rows.some(({ state }) => differs(state)) ? "does not match" : "waits"}`;
