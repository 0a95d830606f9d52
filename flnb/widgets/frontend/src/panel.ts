/** The frame of a panel: a 28 px header with title, one line of text, tools, and the table behind the canvas. */

import { attribute, h, icon, icons, on, setText } from "./dom.ts";
import { type Order, SortHeads, table } from "./table.ts";
import { type Cell, type DataTable, numberIn, shownCell } from "./view.ts";

export class Panel {
  readonly element: HTMLElement;
  /** What is under the header; position relative, fills the rest. */
  readonly body: HTMLElement;
  /** Right side of the header, before the table button. */
  readonly tools: HTMLElement;
  private readonly subtitle: HTMLElement;
  private readonly table: HTMLElement;
  private readonly button: HTMLButtonElement | null;
  private readonly describe: (() => DataTable) | undefined;
  private heads!: SortHeads<number>;
  /** The columns that the heads are of. */
  private headed = "";
  private shown = 0;

  /** `describe`: the data as a table; gives the header its table button. `label`: the section's name where titles repeat. */
  constructor(title: string, describe?: () => DataTable, label = title) {
    this.describe = describe;
    this.subtitle = h("span", "fl-sub");
    this.tools = h("div", "fl-tools");
    this.body = h("div", "fl-body");
    this.table = h("div", { class: "fl-data", hidden: true, tabindex: 0 });
    this.button = describe
      ? h("button", { class: "fl-iconbutton", "aria-pressed": false, "aria-label": `${title} as a table`, title: "Show as a table" }, icon(icons.table))
      : null;
    this.button?.addEventListener("click", () => this.showTable(!this.tableShown));
    this.element = h("section", { class: "fl-panel", "aria-label": label },
      h("header", "fl-head", h("h2", {}, title), this.subtitle, h("span", "fl-space"), this.tools, ...(this.button ? [this.button] : [])),
      this.body);
    this.body.append(this.table);
  }

  set sub(text: string) {
    setText(this.subtitle, text);
    attribute(this.subtitle, "title", text);
  }

  get tableShown(): boolean {
    return !this.table.hidden;
  }

  showTable(shown: boolean): void {
    this.table.hidden = !shown;
    this.button?.setAttribute("aria-pressed", String(shown));
    this.shown = 0;
    this.update(performance.now());
  }

  /** Call from render: refreshes an open table at most once a second. True while the table covers the canvas. */
  update(now: number): boolean {
    if (this.table.hidden || !this.describe) return false;
    if (this.shown && now - this.shown < 1000) return true;
    this.shown = now;
    const { caption, columns, rows } = this.describe();
    const numeric = columns.map((_, at) => rows.length > 0 && rows.every((row) => typeof row[at] !== "string" || /^[−≥\d–.]/.test(row[at])));
    const side = (at: number): string => (numeric[at] ? "fl-number" : "fl-left");
    const [key, same] = [`${columns.join()}\n${numeric.join()}`, this.headed.split("\n")[0] === columns.join()];
    if (key !== this.headed) {
      this.headed = key;
      this.heads = new SortHeads<number>(same ? this.heads.order : { key: -1, descending: false }, () => this.showTable(true));
      this.table.replaceChildren(table("fl-table", caption, columns.map((name, at) => this.heads.add(at, name, !numeric[at], side(at))), []));
    }
    const { scrollTop, scrollLeft } = this.table;
    this.table.querySelector("tbody")!.replaceChildren(...sorted(rows, this.heads.order).slice(0, 2000).map((row) =>
      h("tr", {}, ...row.map((value, at) => h("td", side(at), shownCell(value))))));
    this.table.scrollTo(scrollLeft, scrollTop);
    return true;
  }
}

/** Rows by a column: numbers by their size, what is not known last, words A to Z; as they are where the column is -1. */
export function sorted(rows: readonly Cell[][], { key, descending }: Order<number>): readonly Cell[][] {
  if (key < 0) return rows;
  const sign = descending ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [numberIn(one[key]!), numberIn(other[key]!)];
    if (Number.isNaN(a) && Number.isNaN(b)) return sign * shownCell(one[key]!).localeCompare(shownCell(other[key]!), undefined, { numeric: true });
    return Number.isNaN(a) ? 1 : Number.isNaN(b) ? -1 : sign * (a - b);
  });
}

/** Buttons side by side in a header, each with its name, what it does in words, and that. */
export function buttonGroup(label: string, buttons: readonly (readonly [string, string, () => void])[]): HTMLElement {
  return h("div", { class: "fl-segmented", role: "group", "aria-label": label }, ...buttons.map(([name, title, act]) => {
    return h("button", { title, "aria-label": title, onclick: act }, name);
  }));
}

/** Show the option at a place as the chosen one of a `segmented` group, without choosing it. */
export function markOption(group: HTMLElement, at: number): void {
  [...group.children].forEach((button, other) => {
    attribute(button, "aria-checked", other === at);
    (button as HTMLElement).tabIndex = other === at ? 0 : -1;
  });
}

/** A segmented choice in a header (role radiogroup): Op | Scope. */
export function segmented<T extends string>(label: string, options: readonly (readonly [T, string])[], chosen: T, onChoose: (value: T) => void): HTMLElement {
  const group = h("div", { class: "fl-segmented", role: "radiogroup", "aria-label": label });
  const buttons = options.map(([value, text]) => {
    return h("button", { role: "radio", "aria-checked": value === chosen, tabindex: value === chosen ? 0 : -1, onclick: () => choose(value) }, text);
  });
  const choose = (value: T): void => {
    markOption(group, options.findIndex(([other]) => other === value));
    onChoose(value);
  };
  on(group, "keydown", (event) => {
    const step = event.key === "ArrowRight" || event.key === "ArrowDown" ? 1 : event.key === "ArrowLeft" || event.key === "ArrowUp" ? -1 : 0;
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const at = (buttons.findIndex((button) => button.tabIndex === 0) + step + buttons.length) % buttons.length;
    buttons[at]!.focus();
    choose(options[at]![0]);
  });
  group.append(...buttons);
  return group;
}
