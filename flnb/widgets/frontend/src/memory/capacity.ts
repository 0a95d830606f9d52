/**
 * The capacity as a line that can be moved, with the pointer or with the keys of a slider. It says "what if the device
 * had less": nothing is changed by it.
 */

import { attribute, h, on } from "../dom.ts";
import { bytesText } from "../format.ts";
import type { ViewContext } from "../view.ts";

const HALF = 6;
/** Keys move it by this share of the scale. */
const STEP = 0.01;
const LARGE = 0.1;
const PLACES = 3;

/** Where the chart's scale stands on the page: pixels of 0 and of `most` bytes; `own`: the device's capacity, if it is in sight. */
export interface Scale { readonly top: number; readonly bottom: number; readonly most: number; readonly own: number | null }

/** Bytes to the figures that are shown, so that what is read is what is asked. */
export function rounded(value: number): number {
  if (value < 1000) return Math.round(value);
  const unit = 1024 ** Math.floor(Math.log(value / 0.9765625) / Math.log(1024));
  return Math.round(Number((value / unit).toPrecision(PLACES)) * unit);
}

export class CapacityLine {
  readonly element: HTMLElement;
  private scale: Scale = { top: 0, bottom: 1, most: 1, own: null };
  private dragging = false;

  /** `settled` is called when the line has come to rest on a value. */
  constructor(private readonly context: ViewContext, host: HTMLElement, private readonly settled: (limit: number | null) => void) {
    this.element = h("div", {
      class: "fl-capacity", role: "slider", tabindex: 0, "aria-orientation": "vertical", "aria-label": "Capacity: what if the device had less",
      title: "Drag: what if the device had less? Arrow keys move it, Delete puts it back",
    }, h("i", {}));
    host.append(this.element);
    on(this.element, "pointerdown", (event) => {
      if (event.button !== 0) return;
      this.dragging = true;
      this.element.setPointerCapture(event.pointerId);
      this.element.focus({ preventScroll: true });
      event.preventDefault();
    });
    on(this.element, "pointermove", (event) => {
      if (this.dragging) this.move(this.valueAt(event.clientY - host.getBoundingClientRect().top));
    });
    const end = (): void => {
      if (this.dragging) this.settled(this.context.store.limit);
      this.dragging = false;
    };
    on(this.element, "pointerup", end);
    on(this.element, "pointercancel", end);
    on(this.element, "dblclick", () => this.rest(null));
  }

  /** Where it stands: at what the reader asks about, else at the device's capacity, else at the top. */
  private get value(): number {
    return this.context.store.limit ?? this.scale.own ?? this.scale.most;
  }

  place(scale: Scale): void {
    this.scale = scale;
    const { value } = this;
    const y = scale.bottom - (Math.min(value, scale.most) / scale.most) * (scale.bottom - scale.top);
    this.element.style.transform = `translateY(${Math.round(y) - HALF}px)`;
    attribute(this.element, "data-asked", this.context.store.limit !== null);
    attribute(this.element, "data-above", this.context.store.limit === null && this.scale.own === null);
    attribute(this.element, "aria-valuemin", 0);
    attribute(this.element, "aria-valuemax", Math.round(Math.max(scale.most, value)));
    attribute(this.element, "aria-valuenow", Math.round(value));
    attribute(this.element, "aria-valuetext", this.context.store.limit === null && scale.own === null ? "not below the peak" : bytesText(value));
  }

  key(event: KeyboardEvent): boolean {
    if (event.composedPath()[0] !== this.element) return false;
    const { most } = this.scale;
    const by = { ArrowUp: STEP, ArrowRight: STEP, ArrowDown: -STEP, ArrowLeft: -STEP, PageUp: LARGE, PageDown: -LARGE }[event.key];
    if (by !== undefined) this.rest(rounded(this.value + by * most));
    else if (event.key === "Home") this.rest(rounded(STEP * most));
    else if (event.key === "End" || event.key === "Delete" || event.key === "Backspace" || event.key === "Escape") this.rest(null);
    else return false;
    return true;
  }

  private valueAt(y: number): number {
    const { top, bottom, most } = this.scale;
    return rounded(((bottom - y) / (bottom - top)) * most);
  }

  private rest(value: number | null): void {
    this.move(value);
    this.settled(this.context.store.limit);
  }

  /** Off the scale's upper end the device has its own capacity again. */
  private move(value: number | null): void {
    const { most, own } = this.scale;
    const least = rounded(most * STEP);
    this.context.actions.setLimit(value === null || value > most || value === own ? null : Math.max(least, value));
    this.place(this.scale); // before the next drawing: who listens to the slider hears its value at once
  }
}
