/** The pane beside a view: the name of what is selected, and facts about it. */

import { h, swatch } from "./dom.ts";
import { bytesText, exactBytes } from "./format.ts";
import { familyLabels } from "./palette.ts";
import type { Theme } from "./theme.ts";

export const pane = (label: string, classes = "fl-side"): HTMLElement => h("aside", { tabindex: 0, class: classes, "aria-label": label });

/** What is selected: a mark, its name, and a line about it. */
export const title = (name: string, sub: string, ...mark: Node[]): HTMLElement =>
  h("div", "fl-title", ...mark, h("div", {}, h("b", {}, name), h("div", "fl-sub", sub)));

/** The square of a category, or of any colour. */
export const squareOf = (colour: string): HTMLElement => h("i", { class: "fl-square", style: `background:${colour}` });

/** A button of a pane, with the key that does the same. */
export const keyButton = (name: string, key: string, act: () => void): HTMLElement => h("button", { class: "fl-button", onclick: act }, name, h("kbd", {}, key));

/** A row of a list that selects something: a mark, its name and what stands at its right, which `bad` colours. */
export const rowButton = (act: () => void, title: string, name: string, right: string, mark: readonly Node[] = [], bad = false): HTMLElement =>
  h("li", {}, h("button", { title, onclick: act }, ...mark, h("span", "fl-code", name), h("span", bad ? "fl-unitright fl-error" : "fl-unitright", right)));

export const rowList = (rows: readonly Node[]): HTMLElement => h("ul", "fl-rowlist", ...rows);

/** Marks with the names of families of ops, after other marks; written anew where they or the colours differ. */
export function writeLegend(place: HTMLElement, theme: Theme, families: readonly string[], others: () => readonly Node[] = () => []): void {
  const key = `${theme.version} ${families}`;
  if (place.dataset["key"] === key) return;
  place.dataset["key"] = key;
  place.replaceChildren(...others(), ...families.map((family) => h("span", "fl-legenditem fl-wideonly", swatch(theme, family), familyLabels[family] ?? family)));
}

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

  /** A value in the font of code. */
  code(term: string, value: string, more = ""): void {
    this.add(term, value, more, "fl-code");
  }

  /** Bytes, exactly too where the unit rounds them; `none`: what stands for 0. */
  bytes(term: string, value: number, none = ""): void {
    this.add(term, value || !none ? bytesText(value) : none, value >= 1000 ? exactBytes(value) : "");
  }

  unknown(term: string, why: string): void {
    this.list.append(h("dt", {}, term), h("dd", { title: why }, "–"));
  }
}
