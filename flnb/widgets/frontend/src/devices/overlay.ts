/** What is drawn over the lanes: lines from where a task was asked for to where it ran, events, copies' bytes, idle time. */

import { fillBox, label, ring, setPen, tracePath } from "../canvas.ts";
import { clamp } from "../clamp.ts";
import { bytesText, durationText } from "../format.ts";
import { ROUTES } from "../protocol.ts";
import type { Store } from "../store.ts";
import type { Frame } from "../timeline/paint.ts";
import { ASKED, type DeviceLanes, MARK, MARKS, TASKS } from "./lanes.ts";
import type { DevicesModel } from "./model.ts";

/** With more tasks in sight than this, only the chosen one has a line. */
const LINES = 260;
const DIAMOND = 4;

export interface Overlay { model: DevicesModel; lanes: DeviceLanes; store: Store; selected: number }

/** What lies under the bars. */
export function drawUnder(frame: Frame, overlay: Overlay): void {
  frame.clipped(() => {
    shade(frame, overlay);
    lines(frame, overlay);
  });
}

export function drawOverlay(frame: Frame, overlay: Overlay): void {
  frame.clipped(() => {
    idle(frame, overlay);
    chosen(frame, overlay);
    marks(frame, overlay);
  });
}

interface Place { x0: number; x1: number; y: number }

function hostPlace({ scale, row }: Frame, { model, lanes }: Overlay, task: number): Place {
  const [start, end] = model.hostSpan(task, lanes.axis);
  return { x0: scale.x(start), x1: scale.x(end), y: row(0, ASKED) };
}

function devicePlace({ scale, row }: Frame, { model, lanes }: Overlay, task: number): Place | null {
  const span = model.deviceSpan(task, lanes.axis);
  return span && { x0: scale.x(span[0]), x1: scale.x(span[1]), y: row(lanes.laneOf(model.device(task), model.stream(task)), TASKS) };
}

/** Ticks under the host's calls, and thin lines to where the device did what they asked for. */
function lines(frame: Frame, overlay: Overlay): void {
  const { c, theme, scale } = frame;
  const { model, lanes } = overlay;
  const shown: number[] = [];
  for (let task = 0; task < model.rows; task++) {
    const [start, end] = model.hostSpan(task, lanes.axis);
    const ran = model.deviceSpan(task, lanes.axis);
    if (scale.shows(start, end) || (ran && scale.shows(ran[0], ran[1]))) shown.push(task);
  }
  setPen(c, theme.colours.mark);
  c.setLineDash([]);
  c.beginPath();
  const under = frame.row(0, ASKED) + lanes.bar;
  for (const task of shown) {
    const from = hostPlace(frame, overlay, task);
    const to = shown.length <= LINES ? devicePlace(frame, overlay, task) : null;
    const x = lanes.axis === "order" ? (from.x0 + from.x1) / 2 : from.x1;
    c.moveTo(x, under);
    c.lineTo(x, under + 5);
    if (to) c.lineTo(lanes.axis === "order" ? (to.x0 + to.x1) / 2 : to.x0, to.y - 1);
  }
  c.stroke();
}

/** Under the bars of a stream: events as diamonds, filled where recorded, hollow where awaited; and what copies move. */
function marks(frame: Frame, { model, lanes }: Overlay): void {
  const { c, theme, scale } = frame;
  const { colours } = theme;
  const font = theme.ui(10.5);
  const taken = new Map<number, number>(); // by line of marks: how far it is written
  const found: { lane: number; x: number; said: string; mark: "" | "recorded" | "awaited" }[] = [];
  for (const { event, awaited, device, stream, after, before } of model.events) {
    const span = awaited ? (before < 0 ? null : model.deviceSpan(before, lanes.axis)) : after < 0 ? null : model.deviceSpan(after, lanes.axis);
    const lane = lanes.laneOf(device, stream);
    if (!span || lane < 1) continue;
    found.push({ lane, x: scale.x(awaited ? span[0] : span[1]), said: event ? `${awaited ? "waits for " : ""}e${event}` : "waits", mark: awaited ? "awaited" : "recorded" });
  }
  for (let task = 0; task < model.rows; task++) {
    const span = model.route(task) ? model.deviceSpan(task, lanes.axis) : null;
    if (!span) continue;
    const rate = lanes.axis === "time" && span[1] > span[0] ? ` · ${((model.bytes(task) / (span[1] - span[0])) * 1e-6).toFixed(1)} GB/s` : "";
    found.push({ lane: lanes.laneOf(model.device(task), model.stream(task)), x: scale.x(span[0]), said: `${bytesText(model.bytes(task))}${rate}${lanes.axis === "time" ? ` ${ROUTES[model.route(task)]}` : ""}`, mark: "" });
  }
  for (const { lane, x: happened, said, mark } of found.sort((one, two) => one.x - two.x)) {
    if (happened < scale.left - 90 || happened > scale.right + 10) continue;
    const x = mark && happened >= scale.left - 1 ? Math.max(happened, scale.left + DIAMOND + 1) : happened; // a whole diamond
    const line = 2 * lane + (mark ? 0 : 1);
    const y = frame.row(lane, MARKS) + 7 + (mark ? 0 : MARK - 2);
    const reached = taken.get(line) ?? -Infinity;
    const wide = theme.measure(said, font);
    let start = mark ? x + DIAMOND + 3 : x;
    if (start + wide > scale.right) start = mark ? x - DIAMOND - 3 - wide : scale.right - wide;
    if (Math.min(start, mark ? x - DIAMOND : x) < reached) continue;
    fillBox(c, colours.bg, start - 1, y - 6, wide + 2, 12); // lines end at what is written
    if (mark) diamond(c, x, y, colours.ink, colours.bg, mark === "recorded");
    label(c, said, start, y + 0.5, mark === "recorded" ? colours.ink : colours.dim, font);
    taken.set(line, Math.max(start + wide, mark ? x + DIAMOND : x) + 6);
  }
}

function diamond(c: CanvasRenderingContext2D, x: number, y: number, ink: string, ground: string, filled: boolean): void {
  tracePath(c, x, y - DIAMOND, x + DIAMOND, y, x, y + DIAMOND, x - DIAMOND, y);
  c.closePath();
  c.fillStyle = filled ? ink : ground;
  c.fill();
  setPen(c, ink, 1.2);
  c.stroke();
}

interface Idle { gap: DevicesModel["section"]["gaps"][number]; x0: number; x1: number; ns: number; mine: number[] }

/** Where no stream of a device ran anything, as far as it is in sight. */
function gaps({ scale }: Frame, { model, lanes }: Overlay): Idle[] {
  if (lanes.axis === "order") return [];
  return model.section.gaps.flatMap((gap) => {
    const [start, end] = [model.section.origin_ms + gap.t0, model.section.origin_ms + gap.t1];
    const [x0, x1] = [scale.x(start), scale.x(end)];
    const mine = model.streams.flatMap(({ device }, at) => (device === gap.device ? [at + 1] : []));
    return scale.shows(start, end) && x1 - x0 >= 6 ? [{ gap, x0, x1, ns: (end - start) * 1e6, mine }] : [];
  });
}

function shade(frame: Frame, overlay: Overlay): void {
  const { c, theme } = frame;
  const top = frame.row(0, ASKED) + overlay.lanes.bar + 6;
  c.fillStyle = theme.colours.soft;
  for (const { x0, x1, mine } of gaps(frame, overlay)) c.fillRect(x0, top, x1 - x0, frame.lane(mine.at(-1) ?? 1).bottom - top);
}

/** A dimension line over idle time, with its cause. */
function idle(frame: Frame, overlay: Overlay): void {
  const { c, theme } = frame;
  const { lanes, store } = overlay;
  for (const { gap, x0, x1, ns, mine } of gaps(frame, overlay)) {
    const why = gap.cause === "host" ? `host launch-bound${gap.plan ? ` (${store.plan(gap.plan)?.op ?? ""})` : ""}` : gap.cause === "event" ? "waits for an event" : "cause not seen";
    const font = theme.ui(10.5, 500);
    const long = durationText(ns);
    const said = [`device idle ${long}: ${why}`, `device idle ${long}`, long].find((one) => theme.measure(one, font) + 16 < x1 - x0);
    const y = frame.row(mine[0] ?? 1, TASKS) + lanes.bar / 2;
    setPen(c, theme.colours.ink);
    c.beginPath();
    for (const x of [Math.round(x0) + 0.5, Math.round(x1) - 0.5]) {
      c.moveTo(x, y - 5);
      c.lineTo(x, y + 5);
    }
    c.moveTo(x0, Math.round(y) + 0.5);
    c.lineTo(x1, Math.round(y) + 0.5);
    c.stroke();
    if (said) plate(frame, said, (x0 + x1) / 2, y, font, "center");
  }
}

/** The chosen task: a ring in both lanes, and a heavy line between them with how long it waited. */
function chosen(frame: Frame, overlay: Overlay): void {
  const { c, theme } = frame;
  const { model, lanes, selected } = overlay;
  if (selected < 0) return;
  const { colours } = theme;
  const from = hostPlace(frame, overlay, selected);
  const to = devicePlace(frame, overlay, selected);
  const framed = ({ x0, x1, y }: Place): void => ring(c, Math.round(x0), y, Math.max(3, Math.round(x1 - x0) - 1), lanes.bar, colours.ink, colours.bg);
  framed(from);
  if (!to) return;
  framed(to);
  const [x0, x1] = lanes.axis === "order" ? [(from.x0 + from.x1) / 2, (to.x0 + to.x1) / 2] : [from.x1, to.x0];
  const [y0, y1] = [from.y + lanes.bar + 2, to.y - 3];
  setPen(c, colours.ink, 1.6);
  tracePath(c, x0, y0, x1, y1);
  c.stroke();
  c.fillStyle = colours.ink;
  tracePath(c, x1 - 4, y1 - 5, x1 + 4, y1 - 5, x1, y1 + 1);
  c.fill();
  const later = model.ranAs(selected) - selected;
  const waited = model.queued(selected);
  const said = lanes.axis === "order" ? (later === 0 ? "ran in its turn" : `${Math.abs(later)} ${Math.abs(later) === 1 ? "task" : "tasks"} ${later > 0 ? "later" : "earlier"}`)
    : Number.isNaN(waited) ? "" : `queued ${durationText(waited * 1e6)}`;
  const middle = Math.min((y0 + y1) / 2, frame.row(0, ASKED) + lanes.bar + 18);
  if (said) plate(frame, said, x0 + ((x1 - x0) * (middle - y0)) / Math.max(1, y1 - y0) + 8, middle, theme.ui(10.5, 500), "left");
}

function plate({ c, theme, scale }: Frame, said: string, x: number, y: number, font: string, align: "left" | "center"): void {
  const wide = theme.measure(said, font);
  const left = clamp(align === "left" ? x : x - wide / 2, scale.left + 4, scale.right - wide - 4);
  fillBox(c, theme.colours.bg, Math.round(left) - 4, Math.round(y) - 7, Math.ceil(wide) + 8, 14);
  setPen(c, theme.colours.line);
  c.strokeRect(Math.round(left) - 3.5, Math.round(y) - 6.5, Math.ceil(wide) + 7, 13);
  label(c, said, left, y + 0.5, theme.colours.ink, font);
}
