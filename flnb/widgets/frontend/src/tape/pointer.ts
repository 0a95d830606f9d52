/** Mouse and touch on the tape: hover, click, double click, wheel; dragging moves a box or, beside boxes, the picture. */

import { on } from "../dom.ts";
import { panOf, takesWheel, zoomOf } from "../timeline/scale.ts";
import type { Target } from "./targets.ts";

export interface Hands {
  hit(x: number, y: number): Target | null;
  /** What lies under the pointer has changed, or the pointer left. */
  hover(target: Target | null, x: number, y: number): void;
  click(target: Target, x: number, y: number): void;
  open(target: Target): void;
  pan(byX: number, byY: number): void;
  drag(target: Target, byX: number, byY: number): void;
  zoom(factor: number, x: number, y: number): void;
}

const CLICK = 3; // pixels a click may wander

export function bind(canvas: HTMLCanvasElement, hands: Hands): void {
  canvas.tabIndex = 0;
  canvas.style.touchAction = "none";
  let press: { x: number; y: number; fromX: number; fromY: number; moved: boolean; target: Target | null } | null = null;
  on(canvas, "pointerdown", (event) => {
    if (event.button !== 0) return;
    const { offsetX: x, offsetY: y } = event;
    press = { x, y, fromX: x, fromY: y, moved: false, target: hands.hit(x, y) };
    canvas.setPointerCapture(event.pointerId);
  });
  on(canvas, "pointermove", (event) => {
    const { offsetX: x, offsetY: y } = event;
    if (!press) {
      const target = hands.hit(x, y);
      canvas.style.cursor = target ? "pointer" : "grab";
      return hands.hover(target, x, y);
    }
    if (Math.hypot(x - press.fromX, y - press.fromY) > CLICK) press.moved = true;
    if (!press.moved) return;
    canvas.style.cursor = "grabbing";
    const movable = press.target !== null && press.target.kind !== "frame" && press.target.kind !== "parameter";
    if (movable && !event.shiftKey) hands.drag(press.target!, x - press.x, y - press.y);
    else hands.pan(x - press.x, y - press.y);
    press.x = x;
    press.y = y;
  });
  const release = (event: PointerEvent): void => {
    if (press?.target && !press.moved && event.type === "pointerup") hands.click(press.target, event.offsetX, event.offsetY);
    press = null;
    canvas.style.cursor = "default";
  };
  on(canvas, "pointerup", release);
  on(canvas, "pointercancel", release);
  on(canvas, "pointerleave", () => hands.hover(null, 0, 0));
  on(canvas, "dblclick", (event) => {
    const target = hands.hit(event.offsetX, event.offsetY);
    if (target?.kind === "module") hands.open(target);
  });
  on(canvas, "wheel", (event) => {
    if (!takesWheel(event, canvas)) return;
    event.preventDefault();
    const pan = panOf(event);
    if (pan === null) hands.zoom(1 / zoomOf(event), event.offsetX, event.offsetY);
    else hands.pan(-pan, 0);
  }, { passive: false });
}
