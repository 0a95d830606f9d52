/** Two recordings op by op: the table of flnb.compare_runs, sorted by a click on a column. */

import { h, on, setText } from "./dom.ts";
import { bytesText, count, durationText, percentText, significant, text, UNKNOWN } from "./format.ts";
import type { ComparedRow, ComparedRuns } from "./protocol.ts";
import { SortHeads } from "./table.ts";
import type { DataTable } from "./view.ts";

interface Column { readonly unit?: string; readonly title: string; readonly about: string; readonly value: (row: ComparedRow) => number | string; readonly show: (row: ComparedRow) => string; /** The least width of the page that shows it. */ readonly from?: "medium" | "wide" }

const calls = (value: number): string => (Number.isInteger(value) ? text(count(value)) : significant(value));
const signed = (value: number): string => (value === 0 ? "0" : `${value < 0 ? "−" : "+"}${durationText(Math.abs(value))}`);
/** Amdahl: how many times as quick the run could become if this took no time. */
export const bound = (share: number): number => 1 / Math.max(1e-12, 1 - share);

function rate(work: number, ns: number, peak: number, unit: string): string {
  if (!work || !ns) return UNKNOWN;
  const found = (work / ns) * 1e9;
  return `${text(count(found))}${unit} · ${percentText(found / peak)}`;
}

/** The columns, given the machine's peaks. */
export function columnsOf([flops, memory]: readonly [number, number]): Column[] {
  return [
    { title: "Op", about: "op", value: (row) => row[0], show: (row) => row[0] },
    { title: "Scope", about: "module in which it ran", value: (row) => row[1], show: (row) => row[1] || UNKNOWN },
    { title: "Calls A", about: "calls in A", from: "medium", value: (row) => row[2], show: (row) => calls(row[2]) },
    { title: "Calls B", about: "calls in B", from: "medium", value: (row) => row[5], show: (row) => calls(row[5]) },
    { title: "Time A", about: "time in A", unit: "ns", value: (row) => row[3], show: (row) => durationText(row[3]) },
    { title: "Time B", about: "time in B", unit: "ns", value: (row) => row[6], show: (row) => durationText(row[6]) },
    { title: "B − A", about: "time in B less that in A", unit: "ns", value: (row) => row[6] - row[3], show: (row) => signed(row[6] - row[3]) },
    { title: "Bytes A", about: "bytes of results in A", value: (row) => row[4], show: (row) => bytesText(row[4]), from: "wide" },
    { title: "Bytes B", about: "bytes of results in B", value: (row) => row[7], show: (row) => bytesText(row[7]), from: "wide" },
    { title: "Changed", about: "what differs by a tenth or more", value: (row) => row[11], show: (row) => row[11] },
    { title: "Bound", about: "Amdahl: the speed-up of B if this took no time", value: (row) => bound(row[10]), show: (row) => `${significant(bound(row[10]))}×`, from: "wide" },
    { title: "FLOP/s B", about: "FLOPs a second in B, and the share of the machine's measured peak", unit: "FLOP/s", value: (row) => (row[8] / row[6]) * 1e9 || 0, show: (row) => rate(row[8], row[6], flops, "FLOP/s"), from: "wide" },
    { title: "Bytes/s B", about: "bytes a second in B, and the share of what memory was measured to deliver", unit: "bytes/s", value: (row) => (row[9] / row[6]) * 1e9 || 0, show: (row) => rate(row[9], row[6], memory, "B/s"), from: "wide" },
  ];
}

const classOf = ({ from }: Column, at: number): string =>
  `${at > 1 && at !== 9 ? "fl-number" : "fl-left"} ${from === "wide" ? "fl-wideonly" : from ? "fl-narrowhide" : ""}`.trim();

/** The rows in the order of a column; by the size of a difference, not by its sign. */
export function sortCompared(rows: readonly ComparedRow[], column: Column, descending: boolean): ComparedRow[] {
  const sign = descending ? -1 : 1;
  const key = (row: ComparedRow): number | string => {
    const value = column.value(row);
    return typeof value === "number" && column.title === "B − A" ? Math.abs(value) : value;
  };
  return [...rows].sort((one, two) => {
    const [first, second] = [key(one), key(two)];
    return sign * (typeof first === "string" ? first.localeCompare(String(second)) : first - Number(second)) || one[0].localeCompare(two[0]);
  });
}

export class ComparedOps {
  readonly element: HTMLElement;
  private readonly words = h("p", "fl-sub fl-comparedwords", "waiting for the kernel's comparison");
  private readonly table = h("table", "fl-table");
  private content: ComparedRuns | null = null;
  private readonly heads = new SortHeads<number>({ key: 6, descending: true }, () => this.draw());
  private readonly body = h("tbody");
  private chosen: string | null = null;

  /** `onSelect`: called with the op of a row that was clicked. */
  constructor(private readonly onSelect: (op: string) => void) {
    this.element = h("div", { class: "fl-compared", tabindex: 0, role: "region", "aria-label": "ops of both recordings" }, this.words, this.table);
  }

  set(content: ComparedRuns): void {
    this.content = content;
    this.draw();
  }

  select(op: string | null): void {
    this.chosen = op;
    for (const row of this.table.querySelectorAll<HTMLElement>("tbody tr")) row.classList.toggle("fl-chosen", row.dataset["op"] === op);
  }

  /** The table as numbers, for a file. */
  describe(): DataTable {
    const columns = columnsOf(this.content?.peaks ?? [1, 1]);
    const rows = sortCompared(this.content?.rows ?? [], columns[this.heads.order.key]!, this.heads.order.descending).map((row) => columns.map(({ value }) => value(row)));
    return { caption: "Ops of both recordings by scope", columns: columns.map(({ about }) => about), rows, units: columns.map(({ unit }) => unit ?? "") };
  }

  private draw(): void {
    if (!this.content) return;
    const { summary, peaks, rows } = this.content;
    const columns = columnsOf(peaks);
    setText(this.words, summary);
    if (!this.table.childElementCount) {
      const heads = columns.map((column, at) => this.heads.add(at, column.title, at < 2, classOf(column, at), column.about));
      this.table.append(h("caption", "fl-hidden", "Ops of both recordings by scope"), h("thead", {}, h("tr", {}, ...heads)), this.body);
    }
    this.body.replaceChildren(...sortCompared(rows, columns[this.heads.order.key]!, this.heads.order.descending).map((row) => {
      const line = h("tr", { class: row[0] === this.chosen ? "fl-chosen" : null },
        ...columns.map((column, at) => h("td", { class: `${classOf(column, at)} ${at < 2 ? "fl-code" : ""}`.trim() },
          at ? column.show(row) : h("button", { title: "Select in both recordings" }, column.show(row)))));
      line.dataset["op"] = row[0];
      on(line, "click", () => this.onSelect(row[0]));
      return line;
    }));
  }
}
