/** Lanes of the timeline: what the host asked for, and for each stream what its device ran. */

import { clamp } from "../clamp.ts";
import { durationText, integer, joined } from "../format.ts";
import { familyNames } from "../palette.ts";
import type { Store } from "../store.ts";
import type { Theme } from "../theme.ts";
import { Bars } from "../timeline/bars.ts";
import { type Band, type Content, HEADER, type Lane, PADDING, type Row, type Style } from "../timeline/lanes.ts";
import type { TimeScale } from "../timeline/scale.ts";
import type { Axis, DevicesModel, Stream } from "./model.ts";
import { askedName, family, taskLabel } from "./names.ts";

const PHASE = 0;
const WAITING = 1;
const FAMILIES = 2;
/** Rows of the host's lane: phases, and what it asked for. Streams have one row of tasks, and one of marks. */
export const [PHASES, ASKED] = [0, 1] as const;
export const [TASKS, MARKS] = [0, 1] as const;
/** Items of bars that are no tasks. */
export const NO_ITEM = -1;
/** Least and most height of a task's bar, and what lanes have besides: marks under the bars, room for arrows. */
const BAR = [14, 24] as const;
/** Events; and where a stream copies, a line for bytes. */
export const MARK = 15;
const ARROWS = 64;
const LEAST_ARROWS = 22;
const TICKS = 70;

export interface DeviceLanes {
  content: Content;
  axis: Axis;
  bar: number;
  /** The lane of a stream; the host's is 0. */
  laneOf(device: number, stream: number): number;
  name(lane: number, row: number, index: number): string;
}

const lines = (stream: Stream): number => (stream.moves ? 2 * MARK - 2 : MARK);
const fixedHeight = (streams: readonly Stream[]): number => 12 + 1 + 4 * PADDING + LEAST_ARROWS + streams.reduce((sum, one) => sum + lines(one) + 1 + 2 * PADDING, 0);

/** What the lanes can use at most: what is left is the memory's. */
export const lanesHeight = (streams: readonly Stream[]): number => HEADER + fixedHeight(streams) + ARROWS - LEAST_ARROWS + (streams.length + 1) * BAR[1];

function stylesOf(theme: Theme): Style[] {
  const { colours } = theme;
  return [
    { fill: colours.line, text: colours.ink }, { fill: colours.dim, hatch: true },
    ...familyNames.map((name) => ({ fill: theme.family(name), text: theme.labelOn(theme.family(name)) })),
  ];
}

const kindOf = (name: string): number => FAMILIES + Math.max(0, familyNames.indexOf(name));

/** The content of the timeline, as high as `room` has place for. */
export function deviceLanes(model: DevicesModel, store: Store, theme: Theme, axis: Axis, step: number, footer: number, room: number): DeviceLanes {
  const count = model.streams.length;
  const fixed = fixedHeight(model.streams);
  const bar = Math.floor(clamp((room - footer - HEADER - fixed) / (count + 1), BAR[0], BAR[1]));
  const gap = clamp(room - footer - HEADER - fixed + LEAST_ARROWS - (count + 1) * bar, LEAST_ARROWS, ARROWS);
  const names: string[][][] = [];
  const phases = phaseBars(model, store, axis);
  const asked = askedBars(model, store, axis);
  names.push([phases.names, asked.names]);
  const lanes: Lane[] = [{
    key: "host", title: "host", notes: [axis === "order" ? "as it asked" : "main thread"],
    rows: [row(phases, 12), { ...row(asked, bar), gap }],
  }];
  const several = model.section.devices.length > 1;
  for (const stream of model.streams) {
    const tasks = taskBars(model, store, axis, stream.device, stream.stream);
    names.push([tasks.names, []]);
    lanes.push({
      key: `${stream.device} ${stream.stream}`, title: `stream ${stream.stream}`, notes: [joined([several ? model.section.devices[stream.device]?.place : "", stream.copies ? "copies" : stream.stream ? "compute" : "default"])],
      rows: [{ ...row(tasks, bar), gap: 1 }, { bars: Bars.from([]), height: lines(stream) }],
    });
  }
  const first = model.steps.find((one) => one.step === step)?.first ?? 0;
  return {
    content: {
      lanes, styles: stylesOf(theme), bands: bandsOf(model, axis, step), origin: axis === "order" ? first : model.steps.find((one) => one.step === step)?.start ?? model.limits(axis).t0,
      limits: model.limits(axis), footer, ...(axis === "order" ? { ticks: (scale) => orderTicks(scale, first) } : step === undefined ? {} : { since: `since step ${integer(step)}` }),
    },
    axis, bar,
    laneOf: (device, stream) => 1 + model.streams.findIndex((one) => one.device === device && one.stream === stream),
    name: (lane, at, index) => names[lane]?.[at]?.[index] ?? "",
  };
}

interface Named { bars: Bars; names: string[] }
interface Entry { start: number; end: number; kind: number; item: number; name: string }

function named(entries: readonly Entry[]): Named {
  const bars = Bars.from(entries.map(({ start, end, kind }, item) => ({ start, end, kind, item })));
  const names = Array.from(bars.item, (item) => entries[item]!.name);
  bars.item.forEach((item, at) => (bars.item[at] = entries[item]!.item));
  return { bars, names };
}

const row = ({ bars, names }: Named, height: number): Row => ({ bars, height, cut: true, label: (index) => names[index] ?? "" });

/** Phases of the program, and where it stood still for a device. */
function phaseBars(model: DevicesModel, store: Store, axis: Axis): Named {
  const entries: Entry[] = [];
  const add = (start: number, end: number, phase: string): void => {
    const last = entries.at(-1);
    if (last?.name === phase && (axis === "order" ? last.end === start : start - last.end < 0.05)) last.end = end;
    else entries.push({ start, end, kind: PHASE, item: NO_ITEM, name: phase });
  };
  const { op_t0: begins, op_t1: ends, op_context: contexts, wait_t0: from, wait_t1: to } = model.columns;
  const origin = model.section.origin_ms;
  if (axis === "order") {
    for (let task = 0; task < model.rows; task++) {
      const context = store.context(model.context(task));
      const phase = context?.phase ?? "other";
      const scope = context?.scope.split(".")[0] ?? "";
      if (phase !== "other" || scope) add(task, task + 1, phase === "other" ? scope : phase);
    }
  } else {
    begins!.forEach((begin, at) => {
      const phase = store.context(contexts![at]!)?.phase ?? "other";
      if (phase !== "other") add(origin + begin, origin + ends![at]!, phase);
    });
    from!.forEach((begin, at) => entries.push({ start: origin + begin, end: origin + to![at]!, kind: WAITING, item: NO_ITEM, name: "waits for the device" }));
  }
  return named(entries);
}

function askedBars(model: DevicesModel, store: Store, axis: Axis): Named {
  const entries: Entry[] = [];
  if (axis === "time") {
    const { op_t0: begins, op_t1: ends, op_plan: plans } = model.columns;
    begins!.forEach((begin, at) => {
      const plan = store.plan(plans![at]!);
      entries.push({ start: model.section.origin_ms + begin, end: model.section.origin_ms + ends![at]!, kind: kindOf(plan?.family ?? "elementwise"), item: NO_ITEM, name: plan?.op ?? "" });
    });
  }
  const inside = Bars.from(entries);
  for (let task = 0; task < model.rows; task++) {
    const [start, end] = model.hostSpan(task, axis);
    const op = inside.at(start);
    if (axis === "time" && op >= 0) entries[inside.item[op]!] = { ...entries[inside.item[op]!]!, item: task };
    else entries.push({ start, end, kind: kindOf(family(model, store, task)), item: task, name: store.plan(model.plan(task)) ? askedName(model, store, task) : taskLabel(model, task) });
  }
  return named(entries);
}

function taskBars(model: DevicesModel, store: Store, axis: Axis, device: number, stream: number): Named {
  const entries: Entry[] = [];
  for (let task = 0; task < model.rows; task++) {
    const span = model.device(task) === device && model.stream(task) === stream ? model.deviceSpan(task, axis) : null;
    if (span) entries.push({ start: span[0], end: span[1], kind: kindOf(family(model, store, task)), item: task, name: taskLabel(model, task) });
  }
  return named(entries);
}

function bandsOf(model: DevicesModel, axis: Axis, chosen: number): Band[] {
  return model.steps.map(({ step, start, end, first, last }) => ({
    ...(axis === "order" ? { start: first, end: last } : { start, end }), label: `step ${integer(step)}`, strong: step === chosen,
    note: axis === "order" ? `${last - first} tasks` : durationText((end - start) * 1e6),
  }));
}

/** The number of the task that begins there, from the first of the step on. */
function orderTicks(scale: TimeScale, first: number): { t: number; label: string }[] {
  const most = Math.max(1, (scale.right - scale.left) / TICKS);
  const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000].find((one) => (scale.t1 - scale.t0) / one <= Math.max(most, 8)) ?? 5000;
  const found: { t: number; label: string }[] = [];
  for (let at = first + Math.ceil((scale.t0 - first) / every) * every; at < scale.t1; at += every) found.push({ t: at, label: integer(at - first + 1) });
  return found;
}
