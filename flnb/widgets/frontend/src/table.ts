/** Tables: their parts, rows that are chosen by a click or by keys, and heads that sort. */

import { attribute, h, on, setText } from "./dom.ts";

/** The head of a column: its name, or a button; a column of words is to the left. */
export const heading = (name: Node | string, left: unknown = true, title?: string): HTMLElement => h("th", { scope: "col", class: left ? "fl-left" : null, title }, name);

/** A table with a caption for those who hear it. */
export const table = (classes: string, caption: string, heads: readonly Node[], body: readonly Node[]): HTMLElement =>
  h("table", classes, h("caption", "fl-hidden", caption), h("thead", {}, h("tr", {}, ...heads)), h("tbody", {}, ...body));

/** A click or Enter chooses a row of `body`; arrows, Home and End go to another one, which then is where Tab stops. */
export function chooseRows(body: HTMLElement, choose: (row: HTMLElement) => void): void {
  on(body, "click", (event) => {
    const row = (event.target as Element).closest("tr");
    if (row) choose(row);
  });
  on(body, "keydown", (event) => {
    const row = (event.target as Element).closest("tr");
    if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
    const next = event.key === "ArrowDown" ? row.nextElementSibling : event.key === "ArrowUp" ? row.previousElementSibling
      : event.key === "Home" ? body.firstElementChild : event.key === "End" ? body.lastElementChild : undefined;
    if (event.key === "Enter") choose(row);
    else if (next === undefined) return;
    else if (next) {
      attribute(row, "tabindex", -1);
      attribute(next, "tabindex", 0);
      (next as HTMLElement).focus();
    }
    event.preventDefault();
    event.stopPropagation();
  });
}

/** The one place where Tab stops in the rows of `body`: at the row that has the focus, else at the first. */
export function stopAt(body: HTMLElement): void {
  const active = document.activeElement;
  if (!active || !body.contains(active)) [...body.children].forEach((row, at) => attribute(row, "tabindex", at === 0 ? 0 : -1));
}

/** By which column rows are sorted, and whether the largest come first. */
export interface Order<K> { key: K; descending: boolean }

/** The order after a click on a column: first click largest first, words A to Z; a second one turns it round. */
export const toggled = <K>(order: Order<K>, key: K, words: boolean): Order<K> => ({ key, descending: order.key === key ? !order.descending : !words });

/** Heads of columns that sort by a click. */
export class SortHeads<K> {
  private readonly cells = new Map<K, HTMLElement>();

  /** `sorted` is called after a click, with the new `order`. */
  constructor(public order: Order<K>, private readonly sorted: () => void) {}

  /** The head of another column; `words`: it holds no numbers; `about`: what it says, where its name is short. */
  add(key: K, name: string, words: boolean, classes: string, about?: string): HTMLElement {
    const button = h("button", { title: about, "aria-label": about && `${name}: ${about}`, onclick: () => {
      this.order = toggled(this.order, key, words);
      this.mark();
      this.sorted();
    } }, name, h("span", { "aria-hidden": true }));
    const cell = h("th", { scope: "col", class: classes }, button);
    this.cells.set(key, cell);
    this.mark();
    return cell;
  }

  /** Give a column another name. */
  rename(key: K, name: string): void {
    this.cells.get(key)!.querySelector("button")!.firstChild!.textContent = name;
  }

  private mark(): void {
    for (const [key, cell] of this.cells) {
      const [is, { descending }] = [key === this.order.key, this.order];
      attribute(cell, "aria-sort", is ? (descending ? "descending" : "ascending") : "none");
      setText(cell.querySelector("span")!, is ? (descending ? " ↓" : " ↑") : "");
    }
  }
}
