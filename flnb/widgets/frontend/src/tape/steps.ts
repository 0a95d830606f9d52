/** Of which step the tape is: it follows the cursor, and says where it cannot. */

import { h, setText } from "../dom.ts";
import { integer } from "../format.ts";
import type { Store } from "../store.ts";
import type { ViewContext } from "../view.ts";
import type { TapeModel } from "./model.ts";

/** The tape of a step is asked for again after so long without an answer, ms. */
const AGAIN = 2000;

export class TapeSteps {
  readonly newest = h("button", { class: "fl-button", hidden: true, title: "Show the newest tape in place of the one with NaN", onclick: () => this.context.actions.ask({ type: "tape", newest: true }) });
  /** The step whose tape was asked for last, and when. */
  private asked: { step: number; at: number } | null = null;

  constructor(private readonly context: ViewContext, private readonly model: TapeModel) {}

  update(): void {
    const { newest } = this.context.store;
    this.newest.hidden = newest === null;
    if (newest !== null) setText(this.newest, `to step ${integer(newest)}`);
  }

  /** Where the time cursor is in another step than the tape's: which, and why its tape is not shown. */
  get elsewhere(): string {
    const { tapeless } = this.context.store;
    const step = this.step;
    if (step === null) return "";
    return `not that of step ${integer(step)} under the cursor${tapeless?.step === step ? `: ${tapeless.why}` : ""}`;
  }

  /** The step under the cursor, where the tape that is shown is of another one. */
  private get step(): number | null {
    const { store } = this.context;
    const step = store.cursor === null ? null : store.stepAt(store.cursor);
    return !this.model.tape || step === this.model.tape.step ? null : step;
  }

  /** Ask for the tape of the step under the cursor, once the question before is answered. A run opened after its end begins with where a NaN begins or the forward ended, in whatever step. */
  follow(): void {
    const { store, actions } = this.context;
    const step = this.step;
    if (step === null || (store.cursor === store.landedAt && this.model.alarm >= 0) || store.tapeless?.step === step) return;
    const now = performance.now();
    const answered = this.asked === null || this.asked.step === this.model.tape?.step || this.asked.step === store.tapeless?.step;
    if (!answered && now - this.asked!.at < AGAIN) return;
    this.asked = { step, at: now };
    actions.ask({ type: "tape", at: step });
  }
}

/** Why no graph is there. */
export function whyNone(store: Store): string {
  if (store.kernels.length) return "No tape: these steps ran as programs, which compute their gradients inside. Ops by kernel and the Timeline show what they ran, flnb.program(f) how a function became one.";
  if (store.run?.state === "failed") return "No tape: the run failed before anything was differentiated.";
  return store.ended ? "No tape: nothing was differentiated in this recording." : "No tape yet: the graph of a step appears after its backward().";
}
