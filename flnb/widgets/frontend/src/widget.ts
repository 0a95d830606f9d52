/** What the modules of all widgets share: how a widget's element comes to its place and hears of its kernel. */

import { h } from "./dom.ts";
import styles from "./style.css";
import type { TraitModel } from "./traits.ts";

/** What is used of anywidget's model. */
export interface Model extends TraitModel {
  send(content: unknown): void;
  on(event: string, listener: (content: unknown, buffers: DataView[]) => void): void;
  off(event: string, listener: (content: unknown, buffers: DataView[]) => void): void;
  widget_manager?: unknown;
}

/** What anywidget calls `render` with. */
export interface Place { model: Model; el: HTMLElement }

interface Shown { readonly element: HTMLElement; receive(content: unknown, buffers: DataView[]): void; destroy(): void }

/**
 * Hide the picture of a view that is alive: where there is a kernel, else with its first message. Until then the view is
 * hidden, as on an exported page, where no message ever comes. Returns what to call with each message.
 * The picture is an image whose file has the name in it: a PNG as base64, an SVG as text or as an element.
 */
function pictured(model: Model, el: HTMLElement): () => void {
  const picture = model.get("picture");
  if (typeof picture !== "string" || !/^flnb-picture-\w+$/.test(picture)) return () => undefined;
  const reveal = (): void => {
    el.hidden = false;
    if (!document.getElementById(picture)) document.head.append(h("style", { id: picture }, `img[src*="${btoa(picture)}"],img[src*="${picture}"],.${picture}{display:none!important}`));
  };
  const kernel = (model.widget_manager as { kernel?: unknown } | null | undefined)?.kernel;
  if (kernel) reveal();
  else el.hidden = true;
  return reveal;
}

/** Show what `make` returns, with these styles besides those of all widgets; the function that is returned removes it. */
export function present<T extends Shown>({ model, el }: Place, own: string, make: (send: (message: unknown) => void, height: number | undefined) => T): { shown: T; close: () => void } {
  const height = model.get("height");
  const send = (message: unknown): void => {
    try {
      model.send(message);
    } catch {
      // The comm is gone with its kernel; the data stays readable, and the kernel's own signal tells the reader.
    }
  };
  const shown = make(send, typeof height === "number" && height > 0 ? height : undefined);
  el.append(h("style", {}, styles + own), shown.element);
  const reveal = pictured(model, el);
  const receive = (content: unknown, buffers: DataView[]): void => {
    reveal();
    shown.receive(content, buffers);
  };
  model.on("msg:custom", receive);
  return {
    shown,
    close: () => {
      model.off("msg:custom", receive);
      shown.destroy();
    },
  };
}
