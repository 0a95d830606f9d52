/** Nothing recorded yet: what is connected, and the one snippet that starts a recording. No spinner, no fake chart. */

import { Facts } from "./details.ts";
import { h } from "./dom.ts";
import { bytesText } from "./format.ts";
import type { Store } from "./store.ts";

const SNIPPET = "with flnb.record() as run:\n    train(net, loader)";

export class Empty {
  readonly element: HTMLElement;
  private readonly host = h("div");
  private drawn: string | null = "";

  constructor() {
    this.element = h("div", "fl-empty",
      h("div", {}, h("h3", {}, "Nothing recorded yet"),
        h("p", {}, "The dashboard is connected and follows the first recording that starts in this kernel. Run a cell like this:"),
        h("pre", {}, SNIPPET)),
      this.host);
  }

  update(store: Store): void {
    const latest = store.latest;
    const kernel = store.kernel === null || store.kernel === "connected" ? (latest ? "connected" : "waiting for its first message") : store.kernel;
    const facts = new Facts([["Kernel", kernel]]);
    if (latest) {
      const { run, counters } = latest;
      if (run.backend) facts.code("Backend", run.backend);
      if (run.libraries) facts.add("Libraries", run.libraries);
      if (run.manager) facts.code("Manager", run.manager);
      if (run.device) facts.add("Device", run.capacity === null ? run.device : `${run.device}, capacity ${bytesText(run.capacity)}`);
      if (counters.buffer_capacity) facts.add("Buffer", `${bytesText(counters.buffer_capacity)}, ${counters.buffer_used ? `${bytesText(counters.buffer_used)} used` : "empty"}`);
    }
    if (facts.list.textContent === this.drawn) return;
    this.drawn = facts.list.textContent;
    this.host.replaceChildren(facts.list);
  }
}
