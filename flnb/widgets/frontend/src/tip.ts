/** A tooltip that stays inside its host: one line, or as many as a long text needs there. */

import { h, setText } from "./dom.ts";

export class Tip {
  private readonly element = h("div", { class: "fl-tip", hidden: true });

  constructor(host: HTMLElement) {
    host.append(this.element);
  }

  show(text: string, x: number, y: number, width: number): void {
    setText(this.element, text);
    this.element.hidden = false;
    this.element.style.maxWidth = `${Math.round(width)}px`;
    const { offsetWidth: own, offsetHeight: high } = this.element;
    const left = x + 12 + own > width ? Math.max(0, x - 12 - own) : x + 12;
    this.element.style.transform = `translate(${Math.round(left)}px, ${Math.round(y - 8 - high < 0 ? y + 16 : y - 8 - high)}px)`;
    this.element.style.left = this.element.style.top = "0";
  }

  hide(): void {
    this.element.hidden = true;
  }
}
