/** Building DOM without a framework. */

import type { Theme } from "./theme.ts";

type Attributes = Record<string, string | number | boolean | null | undefined | ((event: MouseEvent) => void)>;

/**
 * An element: h("button", {class: "fl-button", "aria-pressed": false}, "Pause"), or with a class alone h("b", "fl-code", "exp").
 * Attributes null, undefined and true/false as HTML has them, except aria-*; `onclick` is a function. A button submits nothing.
 */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K, attributes: Attributes | string = {}, ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  if (element instanceof HTMLButtonElement) element.type = "button";
  if (typeof attributes === "string") element.className = attributes;
  else {
    for (const [name, value] of Object.entries(attributes)) {
      if (typeof value === "function") element.onclick = value;
      else attribute(element, name, value);
    }
  }
  element.append(...children);
  return element;
}

/** The heading of a part of the details. */
export const section = (...children: (Node | string)[]): HTMLElement => h("div", "fl-section", ...children);

/** What stands where there is nothing to show. */
export const nothing = (...children: (Node | string)[]): HTMLElement => h("div", "fl-none", ...children);

/** The round mark of a family of ops. */
export const swatch = (theme: Theme, family: string): HTMLElement => h("i", { class: "fl-swatch", style: `background:${theme.family(family)}` });

/** Listen to an element, or to the window. */
export function on<K extends keyof HTMLElementEventMap>(target: EventTarget, kind: K, listener: (event: HTMLElementEventMap[K]) => void, options?: AddEventListenerOptions | boolean): void {
  target.addEventListener(kind, listener as EventListener, options);
}

export function attribute(element: Element, name: string, value: string | number | boolean | null | undefined): void {
  const aria = name.startsWith("aria-");
  if (value == null || (value === false && !aria)) element.removeAttribute(name);
  else {
    const text = value === true && !aria ? "" : String(value);
    if (element.getAttribute(name) !== text) element.setAttribute(name, text);
  }
}

/** Set text only where it differs: no layout without a change. */
export function setText(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

/** A quantity with its dim unit: 1.98 <span>ms</span>. */
export function setQuantity(element: Element, quantity: readonly [string, string]): void {
  const key = quantity[0] + "\0" + quantity[1];
  const holder = element as Element & { flQuantity?: string };
  if (holder.flQuantity === key) return;
  holder.flQuantity = key;
  element.replaceChildren(quantity[0]);
  if (quantity[1]) element.append(" ", h("span", { class: "fl-unit" }, quantity[1]));
}

const NS = "http://www.w3.org/2000/svg";

/** A 12 px line icon from path data. */
export function icon(path: string, size = 12): SVGSVGElement {
  const svg = document.createElementNS(NS, "svg");
  svg.setAttribute("viewBox", "0 0 12 12");
  svg.setAttribute("width", String(size));
  svg.setAttribute("height", String(size));
  svg.setAttribute("aria-hidden", "true");
  svg.classList.add("fl-icon");
  const shape = document.createElementNS(NS, "path");
  shape.setAttribute("d", path);
  svg.append(shape);
  return svg;
}

export const icons = {
  pause: "M3.5 1.5v9M8.5 1.5v9",
  play: "M3 1.5 10 6 3 10.5z",
  peak: "M1 10.5 6 2.500 11 10.500",
  live: "M1.5 1.5 7 6l-5.5 4.5zM10 1.5v9",
  search: "M5 1.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7zM7.6 7.6 11 11",
  table: "M1 2h10v8.500H1zM1 5h10M4.500 2v8.500M1 7.800h10",
} as const;

/**
 * Mark an element so that JupyterLab leaves plain keys to it: without the mark it would cut the element's cell on "x", and
 * move to another cell on an arrow key. True for a shortcut with a modifier, which stays JupyterLab's. It must be called
 * before JupyterLab hears of the key: by a listener of the window that captures.
 */
export function keepKeys(event: KeyboardEvent, element: Element): boolean {
  const modified = event.ctrlKey || event.metaKey || event.altKey || (event.shiftKey && event.key.length > 1);
  element.toggleAttribute("data-lm-suppress-shortcuts", !modified);
  return modified;
}

/** Show or hide an element; where that changes it, call `then` once the page has its new layout. */
export function reveal(element: HTMLElement, shown: boolean, then: () => void): void {
  if (element.hidden === !shown) return;
  element.hidden = !shown;
  requestAnimationFrame(then);
}

/** Whether the focus is in a table, whose keys are its own. */
export const inTable = (): boolean => !!document.activeElement?.closest("table, .fl-data");
