/** The anywidget module: one dashboard per output. */

import { Dashboard, type TestState } from "./dashboard.ts";
import { watchKernel } from "./kernel.ts";
import styles from "./style.css";
import { h } from "./dom.ts";
import type { ToKernel } from "./protocol.ts";

/** What is used of anywidget's model. */
interface Model {
  get(name: string): unknown;
  send(content: unknown): void;
  on(event: "msg:custom", listener: (content: unknown, buffers: DataView[]) => void): void;
  off(event: "msg:custom", listener: (content: unknown, buffers: DataView[]) => void): void;
  widget_manager?: unknown;
}

declare global {
  interface Window { __flnb?: TestState }
}

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const height = model.get("height");
  const only = model.get("only");
  const dashboard = new Dashboard({
    send: (message: ToKernel) => {
      try {
        model.send(message);
      } catch {
        // The comm is gone with its kernel; the data stays readable, and the kernel's own signal tells the reader.
      }
    },
    height: typeof height === "number" && height > 0 ? height : undefined,
    only: only === "tape" ? only : undefined,
  });
  el.append(h("style", {}, styles), dashboard.element);
  const receive = (content: unknown, buffers: DataView[]): void => dashboard.receive(content, buffers);
  model.on("msg:custom", receive);
  const unwatch = watchKernel(model.widget_manager, (status) => {
    dashboard.store.kernel = status;
    dashboard.store.notify();
  });
  window.__flnb = dashboard.testState;
  return () => {
    model.off("msg:custom", receive);
    unwatch();
    dashboard.destroy();
  };
}

export default { render };
