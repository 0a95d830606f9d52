/** The buckets of one step under the backward that fills them, on the timeline's axis: what of them is hidden, what exposed. */

import { fillBox, horizontal, label, setPen, tracePath } from "../canvas.ts";
import { bytesText, percentText } from "../format.ts";
import { type Frame, paintHatched } from "../timeline/paint.ts";
import type { CollectivesModel } from "./model.ts";

const HEAD = 18;
const LINE = 13;
const MOST = 6;

export interface Buckets {
  rank: number;
  /** Rows of the section with a bucket, in the order of their numbers. */
  calls: readonly number[];
  /** When the rank's backward ended in that step, and when the last bucket had come; NaN: unknown. */
  backward: number;
  exit: number;
}

/** The buckets of a step as one rank saw them; null where the step has none. */
export function bucketsOf(model: CollectivesModel, step: number, rank: number): Buckets | null {
  const calls: number[] = [];
  for (let call = 0; call < model.rows; call++) {
    if (model.step(call) === step && model.bucket(call) >= 0 && !Number.isNaN(model.begin(rank, call))) calls.push(call);
  }
  if (!calls.length) return null;
  calls.sort((one, two) => model.bucket(one) - model.bucket(two) || one - two);
  const first = Math.min(...calls.map((call) => model.begin(rank, call)));
  let backward = NaN;
  for (const span of model.spans(2)) if (span.rank === rank && span.start <= first && span.end >= first) backward = span.end;
  return { rank, calls, backward, exit: Math.max(...calls.map((call) => model.end(rank, call))) };
}

export const bucketsHeight = (buckets: Buckets | null): number => (buckets ? HEAD + LINE * Math.min(MOST, buckets.calls.length) + 4 : 0);

/** The share of a transfer that the backward hides; NaN where it is unknown. */
export function hidden(model: CollectivesModel, { rank, backward }: Buckets, call: number): number {
  const [start, end] = [Math.max(model.last(call), model.begin(rank, call)), model.end(rank, call)];
  return end > start ? Math.max(0, Math.min(end, backward) - start) / (end - start) : NaN;
}

export function drawBuckets(frame: Frame, model: CollectivesModel, buckets: Buckets, selected: number): void {
  const { c, theme, scale, width, height } = frame;
  const { colours } = theme;
  const top = height - bucketsHeight(buckets);
  fillBox(c, colours.bg, 0, top, width, height - top);
  horizontal(c, 0, width, top, colours.line);
  const shade = [Math.max(scale.left, scale.x(buckets.backward)), Math.min(scale.right, scale.x(buckets.exit))] as const;
  if (shade[1] > shade[0]) {
    fillBox(c, colours.hover, shade[0], top + 1, shade[1] - shade[0], height - top - 1);
    const said = "after backward: exposed";
    if (shade[1] - shade[0] > theme.measure(said, theme.ui(10, 500)) + 10) label(c, said, shade[0] + 5, top + 11, colours.ink, theme.ui(10, 500));
  }
  label(c, "Buckets", 12, top + 11, colours.ink, theme.ui(11, 600));
  const from = 18 + theme.measure("Buckets", theme.ui(11, 600));
  for (const of of [`of rank ${model.number(buckets.rank)}   ▸ sent`, `of rank ${model.number(buckets.rank)}`]) {
    if (shade[1] > shade[0] && from + theme.measure(of, theme.ui(10)) > shade[0]) continue;
    label(c, of, from, top + 11, colours.dim, theme.ui(10));
    break;
  }
  const shown = window(buckets.calls, selected);
  shown.forEach((call, at) => line(frame, model, buckets, call, top + HEAD + 6 + LINE * at, call === selected));
  rightAligned(frame, shown.length < buckets.calls.length ? `${shown.length} of ${buckets.calls.length} · hidden` : "hidden", top + 11, colours.dim, theme.ui(10));
}

/** As many buckets as there is place for, the chosen one among them. */
function window(calls: readonly number[], selected: number): readonly number[] {
  const from = Math.max(0, Math.min(calls.indexOf(selected) - 2, calls.length - MOST));
  return calls.slice(from, from + MOST);
}

function line(frame: Frame, model: CollectivesModel, buckets: Buckets, call: number, y: number, chosen: boolean): void {
  const { c, theme, scale } = frame;
  const { colours } = theme;
  const colour = chosen ? colours.ink : colours.text;
  label(c, String(model.bucket(call)), 12, y, colour, theme.ui(10.5, chosen ? 600 : ""));
  label(c, bytesText(model.bytes(call)), scale.left - 8, y, colour, theme.ui(10.5), "right");
  const { rank } = buckets;
  const room = Math.min(scale.x(model.begin(rank, call)), scale.right) - scale.left - 12;
  const holds = model.holds(call);
  const fits = [holds, holds.split(" · ")[0]!].find((said) => theme.measure(said, theme.ui(10.5)) <= room);
  if (fits) label(c, fits, scale.left + 4, y, chosen ? colours.ink : colours.dim, theme.ui(10.5));
  const [begin, end] = [model.begin(rank, call), model.end(rank, call)];
  const met = Math.max(begin, model.last(call));
  frame.clipped(() => {
    const x = scale.x(begin);
    if (met > begin) paintHatched(c, x, scale.x(met), y - 4.5, BAR, theme.family("communication"), colours.bg);
    if (end > met) {
      fillBox(c, theme.family("communication"), scale.x(met), y - 4.5, Math.max(2, scale.x(end) - scale.x(met)), BAR);
    }
    c.fillStyle = colours.ink;
    setPen(c, colours.bg);
    tracePath(c, x, y - 4.5, x + 6, y, x, y + 4.5);
    c.closePath();
    c.fill();
    c.stroke();
  }, y - LINE, y + LINE);
  rightAligned(frame, percentText(hidden(model, buckets, call)), y, colour, theme.ui(10.5));
}

/** A text at the right edge, on the page's ground. */
function rightAligned({ c, theme, width }: Frame, said: string, y: number, colour: string, font: string): void {
  const wide = theme.measure(said, font);
  fillBox(c, theme.colours.bg, width - 16 - wide, y - 6, wide + 16, 12);
  label(c, said, width - 12, y, colour, font, "right");
}

const BAR = 9;
