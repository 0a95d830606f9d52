/** From the selected op to its backward ops, and down to the memory that it allocated. */

import { fillBox, label, setPen, strokeBox, tracePath } from "../canvas.ts";
import { clamp } from "../clamp.ts";
import { bytesText } from "../format.ts";
import type { TimelineEvent } from "../protocol.ts";
import type { Store } from "../store.ts";
import type { Frame } from "../timeline/paint.ts";
import type { ThreadLanes } from "./lanes.ts";
import { keyOf } from "./model.ts";

/** A block's allocation may stand this long before the op that asked for it (ms): memory is asked for first. */
const BEFORE = 0.02;

/** Rows of the blocks that an op allocated: its result, and what came and went while it ran. */
export function allocationsIn(store: Store, event: TimelineEvent): number[] {
  const { lifetimes } = store.memory;
  if (event.kind !== "op" && event.kind !== "part") return [];
  const result = event.block > 0 ? lifetimes.row(event.block) : -1;
  const found: number[] = result >= 0 ? [result] : [];
  const [t0, t1] = [(event.t0 - BEFORE) / 1e3, event.t1 / 1e3];
  for (let row = 0; row < lifetimes.used && found.length < 64; row++) {
    const start = lifetimes.start[row]!;
    if (start >= t0 && start <= t1 && row !== result && lifetimes.plan[row] === event.what) found.push(row);
  }
  return found;
}

export function drawArrows(
  frame: Frame, store: Store, event: TimelineEvent & { related?: readonly TimelineEvent[] }, lanes: ThreadLanes, level: (value: number) => number, ground: number,
): void {
  const { c, theme, scale } = frame;
  const own = lanes.find(keyOf({ ...event, rank: null }), event.number, event.t0);
  if (!own) return;
  const bottom = frame.row(own.lane, own.row) + lanes.content.lanes[own.lane]!.rows[own.row]!.height;
  const from = clamp(scale.x((event.t0 + event.t1) / 2), scale.left, scale.right);
  setPen(c, c.fillStyle = theme.colours.ink, 1.25);
  frame.clipped(() => {
    for (const other of event.related ?? []) {
      const place = lanes.find(keyOf({ ...other, rank: null }), other.number, other.t0);
      const x = scale.x((other.t0 + other.t1) / 2);
      if (!place || x < scale.left - 4000 || x > scale.right + 4000) continue;
      const to = frame.row(place.lane, place.row) + lanes.content.lanes[place.lane]!.rows[place.row]!.height;
      const dip = Math.max(bottom, to) + 26;
      c.beginPath();
      c.moveTo(from, bottom + 1);
      c.bezierCurveTo(from, dip, x, dip, x, to + 4);
      c.stroke();
      head(c, x, to + 2, -1);
    }
  }, frame.top, ground);
  const blocks = allocationsIn(store, event);
  if (!blocks.length || frame.height - ground < 30) return;
  const { lifetimes } = store.memory;
  const first = blocks.reduce((one, other) => (lifetimes.start[other]! < lifetimes.start[one]! ? other : one));
  const x = scale.x(lifetimes.start[first]! * 1e3);
  if (x < scale.left || x > scale.right) return;
  const sum = blocks.reduce((total, row) => total + lifetimes.size[row]!, 0);
  const to = clamp(level(store.memory.peak.allocated), ground + 6, frame.height - 10);
  c.strokeStyle = c.fillStyle = theme.colours.ink;
  c.beginPath();
  c.moveTo(clamp(x, scale.x(event.t0), scale.x(event.t1)), bottom + 1); // memory may be asked for before the op begins
  c.lineTo(x, ground - 20);
  c.lineTo(x, to);
  c.stroke();
  head(c, x, to + 2, 1);
  const said = `alloc ${bytesText(sum)}`;
  const font = theme.ui(10);
  const wide = theme.measure(said, font) + 8;
  const left = x + 4 + wide > scale.right ? x - 4 - wide : x + 4;
  const y = ground - 12;
  fillBox(c, theme.colours.bg, left, y - 8, wide, 16);
  strokeBox(c, theme.colours.mark, Math.round(left) + 0.5, Math.round(y - 8) + 0.5, Math.round(wide), 15);
  label(c, said, left + 4, y, theme.colours.ink, font);
}

/** The head of an arrow that points down (1) or up (-1). */
function head(c: CanvasRenderingContext2D, x: number, y: number, way: 1 | -1): void {
  tracePath(c, x, y, x - 3.5, y - way * 7, x + 3.5, y - way * 7);
  c.fill();
}
