/** One of two recordings on the axis that their timelines share. */

import type { ToKernel } from "./protocol.ts";
import type { Store } from "./store.ts";
import type { Theme } from "./theme.ts";
import { ThreadLanes } from "./threads/lanes.ts";
import { Piece, type RowColumns, Windows } from "./threads/model.ts";
import type { Span } from "./timeline/scale.ts";

/** A window is asked for with so many of its lengths on each side: panning stays within it. */
const MARGIN = 1;

/** The begin and end (ms of the run) of the step with a number, or null. */
export function stepSpan({ steps }: Store, index: number): Span | null {
  for (let at = 0; at < steps.length; at++) {
    if (steps.column("index")[at] === index) return { t0: steps.column("t0")[at]! * 1e3, t1: steps.column("t1")[at]! * 1e3 };
  }
  return null;
}

/** A piece with all its times moved by so many ms. */
export function shifted(piece: Piece, by: number): Piece {
  const moved = (times: Float64Array): Float64Array => times.map((t) => t + by);
  const rows = [...piece.rows].map(([key, row]): [string, RowColumns] => [key, { ...row, start: moved(row.start), end: moved(row.end) }]);
  return new Piece(piece.t0 + by, piece.t1 + by, piece.pixel, new Map(rows));
}

/** One recording on the shared axis. */
export class Half {
  lanes: ThreadLanes | null = null;
  /** The time of the run (ms) at which the axis has its 0. */
  zero = 0;
  readonly windows = new Windows();
  private made = "";

  constructor(readonly side: 0 | 1, readonly letter: string, readonly store: Store) {}

  get limits(): Span {
    const { limits } = this.store.timeline!;
    return { t0: Math.min(0, limits.t0) - this.zero, t1: Math.max(limits.t1, this.store.now * 1e3) - this.zero };
  }

  /** Lanes of the best piece for a span of the axis; whether they are new. */
  arrange(span: Span, pixel: number, theme: Theme): boolean {
    const model = this.store.timeline!;
    const piece = model.best({ t0: span.t0 + this.zero, t1: span.t1 + this.zero }, pixel);
    const key = `${model.version} ${theme.version} ${this.zero} ${piece?.t0} ${piece?.t1} ${piece?.pixel}`;
    if (!piece || key === this.made) return false;
    this.made = key;
    this.lanes = new ThreadLanes(this.store, theme, model, shifted(piece, -this.zero));
    for (const lane of this.lanes.content.lanes) [lane.key, lane.title] = [`${this.letter} ${lane.key}`, `${this.letter} · ${lane.title}`];
    return true;
  }

  /** What to ask the kernel for, where the lanes are too coarse for this span of the axis. */
  wish(span: Span, pixel: number, pixels: number): ToKernel | null {
    const { limits } = this;
    const [t0, t1, piece] = [Math.max(span.t0, limits.t0), Math.min(span.t1, limits.t1), this.lanes?.piece];
    if (t1 <= t0 || (piece && piece.pixel <= pixel * 1.01 && piece.t0 <= t0 && piece.t1 >= t1 - pixel)) {
      this.windows.forget();
      return null;
    }
    const [from, margin] = [span.t0 + this.zero, MARGIN * (span.t1 - span.t0)];
    const id = this.windows.next(`${from} ${span.t1 - span.t0} ${pixels}`, performance.now());
    return id === null ? null : { type: "timeline", side: this.side, id, window: [from - margin, span.t1 + this.zero + margin, Math.ceil(pixels * (1 + 2 * MARGIN))] };
  }
}
