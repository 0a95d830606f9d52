/** The anywidget module: one dashboard per output. */

import { Comparison, type ComparisonState } from "./compare.ts";
import { Dashboard, type TestState } from "./dashboard.ts";
import { watchKernel } from "./kernel.ts";
import { type ProgramState, ProgramView } from "./program/view.ts";
import styles from "./style.css";
import { h } from "./dom.ts";
import type { SourceRequest } from "./program/model.ts";
import type { ToKernel } from "./protocol.ts";
import { syncTraits, type TraitModel } from "./traits.ts";
import type { TabName } from "./view.ts";

/** What is used of anywidget's model. */
interface Model extends TraitModel {
  send(content: unknown): void;
  on(event: string, listener: (content: unknown, buffers: DataView[]) => void): void;
  off(event: string, listener: (content: unknown, buffers: DataView[]) => void): void;
  widget_manager?: unknown;
}

declare global {
  interface Window { __flnb?: TestState; __flnbPair?: ComparisonState; __flnbProgram?: ProgramState }
}

/**
 * Where the model holds the tab that was shown last, in this browser: JupyterLab may draw an output anew at any time,
 * and does so before the old one goes, in which the user may still choose a tab.
 */
const TAB = "shown_tab";
/** Views that may be all there is. */
const VIEWS: readonly TabName[] = ["ops", "memory", "tape", "timeline", "metrics"];

/**
 * Hide the picture of a view that is alive: where there is a kernel, else with its first message. Until then the view is
 * hidden, as on an exported page, where no message ever comes. Returns what to call with each message.
 */
function pictured(model: Model, el: HTMLElement): () => void {
  const picture = model.get("picture");
  if (typeof picture !== "string" || !/^flnb-picture-\w+$/.test(picture)) return () => undefined;
  const reveal = (): void => {
    el.hidden = false;
    if (!document.getElementById(picture)) document.head.append(h("style", { id: picture }, `.${picture}{display:none}`));
  };
  const kernel = (model.widget_manager as { kernel?: unknown } | null | undefined)?.kernel;
  if (kernel) reveal();
  else el.hidden = true;
  return reveal;
}

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const given = model.get("height");
  const height = typeof given === "number" && given > 0 ? given : undefined;
  const only = model.get("only");
  const send = (message: ToKernel | SourceRequest): void => {
    try {
      model.send(message);
    } catch {
      // The comm is gone with its kernel; the data stays readable, and the kernel's own signal tells the reader.
    }
  };
  const shown = only === "compare" ? new Comparison(send, height, model.get("saved_page") === true) : only === "program" ? new ProgramView(send, height) : new Dashboard({ send, height, saved: model.get("saved_page") === true, only: VIEWS.find((name) => name === only), tab: model.get(TAB) as TabName | undefined, onTab: (tab) => model.set?.(TAB, tab) });
  el.append(h("style", {}, styles), shown.element);
  const reveal = pictured(model, el);
  const receive = (content: unknown, buffers: DataView[]): void => {
    reveal();
    shown.receive(content, buffers);
  };
  model.on("msg:custom", receive);
  const follow = (): void => {
    const tab = model.get(TAB) as TabName | undefined;
    if (tab && shown instanceof Dashboard && shown.testState.tab !== tab) shown.show(tab);
  };
  model.on(`change:${TAB}`, follow);
  const unwatch = watchKernel(model.widget_manager, (status) => {
    if (!(shown instanceof Dashboard)) return; // a comparison asks nothing of its kernel
    shown.store.kernel = status;
    shown.store.notify();
  });
  const unlink = shown instanceof Dashboard ? syncTraits(model, shown.store) : undefined;
  if (shown instanceof Dashboard) window.__flnb = shown.testState;
  else if (shown instanceof Comparison) window.__flnbPair = shown.testState;
  else window.__flnbProgram = shown.testState;
  return () => {
    model.off("msg:custom", receive);
    model.off(`change:${TAB}`, follow);
    unwatch();
    unlink?.();
    shown.destroy();
  };
}

export default { render };
