/** Nothing recorded yet: what is connected, and the one snippet that starts a recording. No spinner, no fake chart. */

import { h } from "./dom.ts";
import { bytesText } from "./format.ts";
import type { Store } from "./store.ts";

const SNIPPET = "with flnb.record() as run:\n    train(net, loader)";

export class Empty {
  readonly element: HTMLElement;
  private readonly facts = h("dl", "fl-pairs");
  private drawn = "";

  constructor() {
    this.element = h("div", "fl-empty",
      h("div", {}, h("h3", {}, "Nothing recorded yet"),
        h("p", {}, "The dashboard is connected and follows the first recording that starts in this kernel. Run a cell like this:"),
        h("pre", {}, SNIPPET)),
      h("div", {}, this.facts));
  }

  update(store: Store): void {
    const latest = store.latest;
    const kernel = store.kernel === null || store.kernel === "connected" ? (latest ? "connected" : "waiting for its first message") : store.kernel;
    const rows: [string, string, boolean][] = [["Kernel", kernel, false]];
    if (latest) {
      const { run, counters } = latest;
      if (run.backend) rows.push(["Backend", run.backend, true]);
      if (run.libraries) rows.push(["Libraries", run.libraries, false]);
      if (run.manager) rows.push(["Manager", run.manager, true]);
      if (run.device) rows.push(["Device", run.capacity === null ? run.device : `${run.device}, capacity ${bytesText(run.capacity)}`, false]);
      if (counters.buffer_capacity) rows.push(["Buffer", `${bytesText(counters.buffer_capacity)}, ${counters.buffer_used ? `${bytesText(counters.buffer_used)} used` : "empty"}`, false]);
    }
    const key = JSON.stringify(rows);
    if (key === this.drawn) return;
    this.drawn = key;
    this.facts.replaceChildren(...rows.flatMap(([term, value, code]) => [h("dt", {}, term), h("dd", { class: code ? "fl-code" : null }, value)]));
  }
}
