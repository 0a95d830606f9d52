/** The ops of the step under the time cursor: asked of the kernel once for each step. */

import { h, nothing } from "./dom.ts";
import { durationText, integer } from "./format.ts";
import type { TimelineMessage } from "./protocol.ts";
import type { ViewContext } from "./view.ts";

/** Ids of these questions, apart from those of the Timeline. */
const FIRST = 1 << 24;
const SHOWN = 60;

export class StepOps {
  private asked = FIRST;
  private step: number | null = null;
  private seen: TimelineMessage | null = null;
  private found: TimelineMessage | null = null;

  constructor(private readonly context: ViewContext) {}

  /** Ask where another step is under the cursor; what the section now depends on. */
  update(): string {
    const { store, actions } = this.context;
    const step = store.cursor === null || !store.timeline ? null : store.stepAt(store.cursor);
    if (step !== this.step) {
      this.step = step;
      this.found = null;
      const at = step === null ? -1 : store.steps.after("t0", store.cursor!) - 1;
      const [t0, t1] = [store.steps.column("t0")[at]!, store.steps.column("t1")[at]!];
      if (step !== null) actions.ask({ type: "timeline", id: ++this.asked, ops: [t0 * 1e3, t1 * 1e3] });
    }
    const message = store.timelineAnswer;
    if (message !== this.seen && message?.id === this.asked) this.found = message;
    this.seen = message;
    return `${this.step} ${this.found?.id ?? 0}`;
  }

  /** The section beside the table; empty without a cursor in a step. */
  elements(): HTMLElement[] {
    if (this.step === null) return [];
    const { found } = this;
    const title = h("div", "fl-section fl-stepops", `In step ${integer(this.step)}, under the cursor`);
    const say = (what: string): HTMLElement[] => [title, nothing(what)];
    if (found?.saved) return say("A saved page has no ops of single steps: open the recording with flnb.view.");
    if (!found?.ops) return say("The kernel has not answered yet.");
    const { rows, complete } = found.ops;
    if (!complete) return say("Its ops are no longer remembered: a live view remembers the newest ones.");
    if (!rows.length) return say("No op ran.");
    const list = h("dl", "fl-pairs fl-opstep");
    for (const [op, count, ns] of rows.slice(0, SHOWN)) {
      list.append(h("dt", { class: "fl-code", title: op }, op), h("dd", {}, `${integer(count)} × `, h("span", "fl-exact", durationText(ns))));
    }
    return [title, list, ...(rows.length > SHOWN ? [nothing(`and ${integer(rows.length - SHOWN)} other ops`)] : [])];
  }
}
