/** What the colours and hatches of the memory pictures stand for. */

import type { Surface } from "../canvas.ts";
import { attribute, h, setQuantity } from "../dom.ts";
import { bytes } from "../format.ts";
import type { Theme } from "../theme.ts";
import type { Band } from "./bands.ts";
import { WASTE } from "./lifetimes.ts";

export const HATCH = "background:repeating-linear-gradient(135deg,var(--fl-dim) 0 1px,transparent 1px 3px)";

export function square(theme: Theme, category: number): HTMLElement {
  return h("i", { class: "fl-square", style: category === WASTE ? HATCH : `background:${theme.category(category)}` });
}

/** Bytes of each band at the cursor, and their sum: the legend of a timeline. */
export class BandTable {
  readonly element = h("table", "fl-table fl-bands");
  private values: HTMLElement[] = [];
  private sum: HTMLElement = h("td");
  private shown = "";

  /** `values` by column of the bands. */
  update(bands: readonly Band[], values: Float64Array, allocated: number, round: boolean): void {
    const key = JSON.stringify(bands) + round;
    if (key !== this.shown) this.build(bands, round);
    this.shown = key;
    [...bands].reverse().forEach(({ column }, at) => setQuantity(this.values[at]!, bytes(values[column]!)));
    setQuantity(this.sum, bytes(allocated));
  }

  private build(bands: readonly Band[], round: boolean): void {
    const body = h("tbody");
    const line = (name: string, mark: HTMLElement | null): HTMLElement => {
      const bold = mark ? "" : "font-weight:600;border:0;";
      const value = h("td", { style: `${bold}height:18px` });
      const named = h("td", { class: "fl-left fl-bandname", title: name, style: `${bold}height:18px;padding-left:10px` }, ...(mark ? [mark] : []), name);
      body.append(h("tr", {}, named, value));
      return value;
    };
    this.values = [...bands].reverse().map(({ name, fill }) => line(name, h("i", { class: round && fill ? "fl-swatch" : "fl-square", style: fill ? `background:${fill}` : HATCH })));
    this.sum = line("allocated", null);
    this.element.replaceChildren(h("caption", "fl-hidden", "Bytes at the cursor"), h("colgroup", {}, h("col"), h("col", { style: "width:66px" })), body);
    attribute(this.element, "data-bands", bands.length);
  }
}

/** The marks of the block map; where there is little room those that nobody would guess. */
export function blockLegend(): HTMLElement {
  const item = (style: string, name: string, guessed = false): HTMLElement =>
    h("span", { class: guessed ? "fl-wideonly" : null, style: "display:inline-flex;align-items:center;gap:5px" }, h("i", { class: "fl-square", style }), name);
  return h("div", { style: "display:flex;gap:12px;font-size:11px;color:var(--fl-dim)" },
    item("border:1px dashed var(--fl-dim)", "free", true), item(HATCH, "waste", true), item("border:1px solid var(--fl-dim);border-top:3px solid var(--fl-ink)", "locked"),
    item("border:1px solid var(--fl-dim);background:repeating-linear-gradient(135deg,var(--fl-ink) 0 1px,transparent 1px 4px)", "pending"), item("width:1px;height:6px;background:var(--fl-ink);margin:0 3px", "split", true));
}

/** A key belongs to the picture that has the focus. */
export function keyOf(event: KeyboardEvent, pictures: readonly { surface: Surface; key(event: KeyboardEvent): boolean }[]): boolean {
  const target = event.composedPath()[0];
  return pictures.find(({ surface }) => surface.canvas === target)?.key(event) ?? false;
}
