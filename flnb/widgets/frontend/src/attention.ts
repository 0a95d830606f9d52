/** What the reader has chosen to look at: a selection, a search, a time cursor, a range of time. */

import type { MemoryLog } from "./memorylog.ts";
import type { Proposal, RunInfo, Tape } from "./protocol.ts";
import type { Selection } from "./selection.ts";
import type { Steps } from "./store.ts";

export interface Range { t0: number; t1: number }

export abstract class Attention {
  abstract readonly run: RunInfo | null;
  abstract readonly steps: Steps;
  abstract readonly memory: MemoryLog;
  abstract readonly tape: Tape | null;
  /** Index of the step that contains t, or null. */
  abstract stepAt(t: number): number | null;
  abstract readonly versions: { view: number };
  /** Seconds since run start of the newest data under the views. */
  abstract readonly now: number;

  selection: Selection | null = null;
  search = "";
  /** The one time cursor (seconds since run start); null follows the newest. */
  cursor: number | null = null;
  /** The capacity that the reader asks about, bytes; null: the device's own. */
  limit: number | null = null;
  /** What the kernel proposed for such a capacity last. */
  proposal: Proposal | null = null;
  /** A fixed range; null follows the newest with `span` seconds. */
  protected fixed: Range | null = null;
  /** Where the cursor was put when the whole recording had come: no wish of the reader. */
  landedAt: number | null = null;
  /** All of a recording that has ended is there. */
  landed = false;
  /** Seconds seen while following; 0 chooses six steps. */
  span = 0;

  /** For whoever changes a public field of the connection (kernel, span). */
  abstract notify(): void;

  select(selection: Selection | null): void {
    this.selection = selection;
    this.changed();
  }

  setSearch(text: string): void {
    this.search = text.trim().toLowerCase();
    this.changed();
  }

  setLimit(bytes: number | null): void {
    this.limit = bytes;
    if (bytes === null) this.proposal = null;
    this.changed();
  }

  /** A cursor outside of the range takes the range along. */
  setCursor(t: number | null): void {
    if (t !== null && this.fixed === null) this.fixed = this.range;
    if (t === null) this.fixed = null;
    else if (this.fixed && (t < this.fixed.t0 || t > this.fixed.t1)) {
      const span = this.fixed.t1 - this.fixed.t0;
      const t0 = Math.max(0, t - span / 2);
      this.fixed = { t0, t1: t0 + span };
    }
    this.cursor = t;
    this.changed();
  }

  setRange(t0: number, t1: number): void {
    const least = 1e-6;
    this.fixed = { t0: Math.max(0, Math.min(t0, t1 - least)), t1 };
    this.changed();
  }

  /** The newest again; of a recording that has ended, where most is live. */
  follow(): void {
    this.fixed = null;
    this.cursor = null;
    if (this.landed) this.land();
    this.changed();
  }

  get following(): boolean {
    return this.fixed === null && this.cursor === null;
  }

  /** The one time range that time views show. */
  get range(): Range {
    if (this.fixed) return this.fixed;
    const t1 = this.now;
    const span = this.span || this.automaticSpan();
    const running = this.run?.state === "recording"; // what has ended is shown without time that never was
    return { t0: Math.max(0, t1 - span), t1: running ? Math.max(t1, span) : t1 };
  }

  /** What a range can show: the run, or a range that already reaches beyond it. */
  get limits(): Range {
    return { t0: 0, t1: Math.max(this.now, this.range.t1, 1e-3) };
  }

  /** The time that block map and details describe: the cursor, or the newest. */
  get at(): number {
    return this.cursor ?? this.now;
  }

  /** Whether a text matches the search; everything matches an empty one. */
  matches(...texts: (string | undefined)[]): boolean {
    return this.search === "" || texts.some((text) => text !== undefined && text.toLowerCase().includes(this.search));
  }

  /** A recording that has ended opens where most is live, in the steps around that. */
  protected land(): void {
    if (this.memory.peak.allocated === 0) return;
    const t = this.top;
    const { t0, t1 } = this.range;
    const begin = Math.max(0, Math.min(t - (t1 - t0) / 2, this.now - (t1 - t0)));
    this.fixed = { t0: begin, t1: begin + t1 - t0 };
    this.cursor = this.landedAt = t;
    this.versions.view++;
  }

  /** When most is live: where several steps need as much, in the one with the tape, whose gradients were measured. */
  private get top(): number {
    const { series, peak } = this.memory;
    const [times, allocated] = [series.column("t"), series.column("allocated")];
    const at = allocated.findIndex((bytes, row) => bytes === peak.allocated && row < series.length && this.stepAt(times[row]!) === this.tape?.step);
    return at < 0 ? peak.t : times[at]!;
  }

  /** Nothing is chosen any more: another run has come. */
  protected forget(): void {
    this.selection = this.proposal = this.fixed = null;
    this.cursor = this.limit = this.landedAt = null;
  }

  private automaticSpan(): number {
    const { steps } = this;
    const n = Math.min(steps.length, 6);
    if (n < 2) return Math.max(this.now, 0.5);
    const [first, last] = [steps.column("t0")[steps.length - n]!, steps.last("t1")!];
    return Math.max((6 * (last - first)) / n, 1e-3);
  }

  protected changed(): void {
    this.versions.view++;
    this.notify();
  }
}
