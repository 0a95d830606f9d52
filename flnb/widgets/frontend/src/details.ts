/** The pane beside a view: the name of what is selected, and facts about it. */

import { h } from "./dom.ts";

export const pane = (label: string, classes = "fl-side"): HTMLElement => h("aside", { tabindex: 0, class: classes, "aria-label": label });

/** What is selected: a mark, its name, and a line about it. */
export const title = (name: string, sub: string, ...mark: Node[]): HTMLElement =>
  h("div", "fl-title", ...mark, h("div", {}, h("b", {}, name), h("div", "fl-sub", sub)));

/** The square of a category, or of any colour. */
export const squareOf = (colour: string): HTMLElement => h("i", { class: "fl-square", style: `background:${colour}` });

/** Terms with their values; `more` stands behind a value in small. */
export class Facts {
  readonly list = h("dl", "fl-pairs");

  constructor(facts: readonly (readonly [term: string, value: string])[] = []) {
    for (const [term, value] of facts) this.add(term, value);
  }

  /** `look`: classes of the value. */
  add(term: string, value: string, more = "", look = ""): void {
    this.list.append(h("dt", {}, term), h("dd", { class: look || null }, value, ...(more ? [" ", h("span", "fl-exact", more)] : [])));
  }

  unknown(term: string, why: string): void {
    this.list.append(h("dt", {}, term), h("dd", { title: why }, "–"));
  }
}
