/** What is drawn over the lanes of ranks: where they meet, who was last, the clocks' bounds, exposed time, what hangs. */

import { fillBox, label, ring, setPen, strokeBox, vertical } from "../canvas.ts";
import { clamp } from "../clamp.ts";
import { durationText, integer } from "../format.ts";
import type { Frame } from "../timeline/paint.ts";
import type { RankLanes } from "./lanes.ts";
import type { CollectivesModel } from "./model.ts";

/** With more calls in sight than this, only the chosen one is joined. */
const JOINED = 80;
/** Lower bars carry no numbers. */
const NUMBERS = 8;
/** Narrowest bar with a number on it (pixels). */
const NUMBERED = 56;

export interface Overlay { model: CollectivesModel; lanes: RankLanes; selected: number }

export function drawOverlay(frame: Frame, { model, lanes, selected }: Overlay): void {
  const { scale } = frame;
  const calls: number[] = [];
  for (let call = 0; call < model.rows; call++) {
    const [last, exit] = [model.last(call), model.exit(call)];
    if (call === selected || scale.shows(last, Number.isNaN(exit) ? Infinity : exit)) calls.push(call);
  }
  frame.clipped(() => {
    if (calls.length <= JOINED) for (const call of calls) join(frame, model, lanes, call, call === selected);
    else if (selected >= 0) join(frame, model, lanes, selected, true);
    if (calls.length <= JOINED) for (const call of calls) entries(frame, model, lanes, call, call === selected);
    exposed(frame, model, lanes);
    if (lanes.bar >= NUMBERS) for (const call of calls) if (call !== selected) numbers(frame, model, lanes, call, false);
    if (selected >= 0) numbers(frame, model, lanes, selected, true);
    hanging(frame, model, lanes);
  });
  bounds(frame, model, lanes);
}

/** The line where one (group, sequence) meets: the last to come. Clocks that are not known are not joined. */
function join(frame: Frame, model: CollectivesModel, lanes: RankLanes, call: number, chosen: boolean): void {
  const { c, theme, scale } = frame;
  const last = model.last(call);
  if (Number.isNaN(last) || model.section.ranks.some(({ bound_ns: bound }) => !Number.isFinite(bound) || bound < 0)) return;
  const rows = lanes.ranks.map((rank, lane) => ({ rank, y: frame.row(lane, lanes.rowOf(call)) })).filter(({ rank }) => !Number.isNaN(model.begin(rank, call)));
  if (rows.length < 2) return;
  vertical(c, scale.x(last), rows[0]!.y, rows.at(-1)!.y + lanes.bar, chosen ? theme.colours.ink : theme.family("communication"), chosen ? [] : [1, 2]);
}

/** A tick where a rank came, as wide as its clock may be wrong. */
function entries(frame: Frame, model: CollectivesModel, lanes: RankLanes, call: number, chosen: boolean): void {
  const { c, theme, scale } = frame;
  c.fillStyle = theme.colours.ink;
  lanes.ranks.forEach((rank, lane) => {
    const begin = model.begin(rank, call);
    if (Number.isNaN(begin)) return;
    const wide = clamp(Math.round((2 * model.bound(rank)) / scale.pixel), 1, 40);
    c.fillRect(Math.round(scale.x(begin) - wide / 2), frame.row(lane, lanes.rowOf(call)) - (chosen ? 3 : 2), wide, chosen ? 3 : 2);
  });
}

/** The number of a call on the hatch; on the chosen one's, how long each rank waited, and who was last. */
function numbers(frame: Frame, model: CollectivesModel, lanes: RankLanes, call: number, chosen: boolean): void {
  const { c, theme, scale } = frame;
  const { colours } = theme;
  const [last, late] = [model.last(call), model.lateRank(call)];
  const number = `#${integer(model.seq(call))}`;
  const now = model.section.now_ms;
  lanes.ranks.forEach((rank, lane) => {
    const begin = model.begin(rank, call);
    if (Number.isNaN(begin)) return;
    const end = model.end(rank, call);
    const y = frame.row(lane, lanes.rowOf(call));
    const [x0, met, x1] = [scale.x(begin), scale.x(Number.isNaN(last) ? now : last), scale.x(Number.isNaN(end) ? now : end)];
    if (chosen) ring(c, Math.round(x0), y, Math.max(3, Math.round(x1 - x0)), lanes.bar, colours.ink, colours.bg);
    if (chosen && rank === late) {
      const font = theme.ui(10.5, 500);
      const said = `▸ last of ${model.members(call).length}, ${durationText(model.late(call) * 1e6)} late`;
      const room = x0 - 7 - theme.measure(said, font) > scale.left;
      plate(frame, said, room ? x0 - 8 : x1 + 9, y + lanes.bar / 2, font, room ? "right" : "left");
      return;
    }
    const from = Math.max(x0, scale.left);
    const wait = durationText(model.waiting(rank, call) * 1e6);
    const said = chosen && met - from > 110 ? `${number} waits ${wait}` : number;
    const font = theme.ui(10, chosen ? 500 : "");
    if (met - from >= NUMBERED && met - from > theme.measure(said, font) + 16) plate(frame, said, from + 9, y + lanes.bar / 2, font, "left", chosen ? Math.max(lanes.bar, 11) : lanes.bar);
  });
}

function plate({ c, theme }: Frame, said: string, x: number, y: number, font: string, align: "left" | "right", high = 11): void {
  const wide = theme.measure(said, font);
  fillBox(c, theme.colours.bg, Math.round((align === "left" ? x : x - wide) - 3), Math.round(y - high / 2), Math.ceil(wide + 6), high);
  label(c, said, x, y + 0.5, theme.colours.ink, font, align);
}

/** Where the program stood still for a call: a dimension line over the gap. */
function exposed(frame: Frame, model: CollectivesModel, lanes: RankLanes): void {
  const { c, theme, scale } = frame;
  const font = theme.ui(10.5);
  for (const { rank, start, end } of model.spans(5)) {
    const lane = lanes.ranks.indexOf(rank);
    if (lane < 0 || !scale.shows(start, end)) continue;
    const [x0, x1] = [scale.x(start) + 1, scale.x(end) - 1];
    const said = `exposed ${durationText((end - start) * 1e6)}`;
    const wide = theme.measure(said, font);
    if (x1 - x0 < 12) continue;
    const y = Math.round(frame.row(lane, 0) + 6) + 0.5;
    const [from, to] = [Math.max(x0, scale.left), Math.min(x1, scale.right)]; // of a gap that is partly in sight the name stands in that part
    const named = to - from > wide + 24;
    fillBox(c, theme.colours.bg, x0, y - 6, x1 - x0, 12);
    setPen(c, theme.colours.ink);
    c.beginPath();
    for (const x of [Math.round(x0) + 0.5, Math.round(x1) - 0.5]) {
      c.moveTo(x, y - 4);
      c.lineTo(x, y + 4);
    }
    const middle = (from + to) / 2;
    c.moveTo(x0, y);
    c.lineTo(named ? middle - wide / 2 - 5 : x1, y);
    if (named) {
      c.moveTo(middle + wide / 2 + 5, y);
      c.lineTo(x1, y);
    }
    c.stroke();
    if (named) label(c, said, middle, y + 0.5, theme.colours.ink, font, "center");
  }
}

/** A call that has begun and cannot end: a torn edge on who waits, a cross on who differs, dashes around who is not there. */
function hanging(frame: Frame, model: CollectivesModel, lanes: RankLanes): void {
  const { stuck } = model.section;
  if (!stuck) return;
  const { c, theme, scale } = frame;
  const { colours } = theme;
  const call = model.hanging;
  const now = scale.x(model.section.now_ms);
  lanes.ranks.forEach((rank, lane) => {
    const row = stuck.rows.find((one) => one.rank === model.number(rank));
    const begin = call < 0 ? NaN : model.begin(rank, call);
    if (Number.isNaN(begin)) {
      const from = Math.max(scale.left + 2, scale.x(model.section.ranks[rank]!.seen_ms) + 4);
      const y = frame.row(lane, 1);
      const high = Math.max(14, frame.row(lane, lanes.rowOf(Math.max(0, call))) + lanes.bar - y);
      strokeBox(c, colours.dim, Math.round(from) + 0.5, y + 0.5, Math.max(6, Math.round(now - from) - 2), high, 1, [3, 3]);
      const said = theme.fit(`${row?.state ?? "has not come"}${row?.last ? ` · its last: ${row.last}` : ""}`, theme.ui(10.5, 500), now - from - 14);
      if (said) plate(frame, said, from + 8, y + high / 2, theme.ui(10.5, 500), "left");
      return;
    }
    const y = frame.row(lane, lanes.rowOf(call));
    const x = Math.max(scale.left, scale.x(begin));
    if (row?.state.includes("differ")) {
      fillBox(c, colours.bg, x, y, now - x, lanes.bar);
      strokeBox(c, colours.error, x + 0.75, y + 0.75, now - x, lanes.bar - 1.5, 1.5);
      const middle = now - Math.min(40, (now - x) / 2);
      c.lineWidth = 2;
      c.beginPath();
      for (const side of [-1, 1]) {
        c.moveTo(middle - 4 * side, y + 1.5);
        c.lineTo(middle + 4 * side, y + lanes.bar - 1.5);
      }
      c.stroke();
    }
    torn(c, now, y, lanes.bar, colours.bg);
    if (row) {
      const [font, said] = [theme.code(10.5), `#${integer(stuck.seq)} ${row.call}`];
      const inside = now - x > theme.measure(said, font) + 70;
      plate(frame, said, inside ? x + 9 : x - 7, y + lanes.bar / 2, font, inside ? "left" : "right", lanes.bar);
    }
  });
}

function torn(c: CanvasRenderingContext2D, x: number, y: number, high: number, ground: string): void {
  c.fillStyle = ground;
  c.beginPath();
  c.moveTo(x + 3, y - 1);
  for (let tooth = 0; tooth <= 6; tooth++) c.lineTo(x - (tooth % 2 ? 5 : 1), y - 1 + (tooth * (high + 2)) / 6);
  c.lineTo(x + 3, y + high + 1);
  c.fill();
}

/** Beside each rank's name, how wide its clock's bound is on this axis. */
function bounds(frame: Frame, model: CollectivesModel, lanes: RankLanes): void {
  const { c, theme, scale, top, bottom } = frame;
  c.fillStyle = theme.colours.ink;
  lanes.ranks.forEach((rank, lane) => {
    const bound = model.bound(rank);
    const y = frame.lane(lane).top + (lanes.bar < NUMBERS ? 8 : 33);
    if (!(bound > 0) || y < top || y + 6 > bottom) return;
    c.fillRect(scale.left - 26, y, clamp(Math.round((2 * bound) / scale.pixel), 1, 20), 6);
  });
}
