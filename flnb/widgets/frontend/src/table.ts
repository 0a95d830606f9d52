/** Tables: their parts, rows that are chosen by a click or by keys, and heads that sort. */

import { attribute, h, on } from "./dom.ts";

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
