/** Lanes of the timeline, one for each thread: phases, what was recorded, compiled and computed, and what ran. */

import { duration, integer, text } from "../format.ts";
import type { Store } from "../store.ts";
import type { Theme } from "../theme.ts";
import { Bars } from "../timeline/bars.ts";
import type { Content, Lane, Row, Style } from "../timeline/lanes.ts";
import type { ActivityModel } from "./model.ts";

const [PHASE, RECORD, COMPILE, COMPUTE, FAMILIES] = [0, 1, 2, 3, 4];
const FAMILY = ["elementwise", "matmul", "reduction", "movement", "norm", "memory", "communication", "optimizer"];
/** The row of a lane with what ran. */
export const RAN = 3;
/** Items of bars that are no events. */
export const NO_ITEM = -1;
/** Ops of one phase that are no further apart (ms) are one bar. */
const PAUSE = 0.05;

interface Entry { start: number; end: number; kind: number; item: number; name: string }

const kindOf = (family: string): number => FAMILIES + Math.max(0, FAMILY.indexOf(family));

export function stylesOf(theme: Theme): Style[] {
  const { colours } = theme;
  return [
    { fill: colours.line, text: colours.ink }, { fill: colours.dim }, { fill: colours.dim, hatch: true }, { fill: colours.hover, text: colours.ink },
    ...FAMILY.map((name) => ({ fill: theme.family(name), text: theme.labelOn(theme.family(name)) })),
  ];
}

/** The name of what an event is. */
export function nameOf(model: ActivityModel, store: Store, row: number): string {
  const number = model.number(row);
  const [start, end] = model.span(row);
  switch (model.kind(row)) {
    case "compile": return `compile ${text(duration((end - start) * 1e6))}`;
    case "materialize": return `computes ${integer(number)} ${number === 1 ? "value" : "values"}`;
    case "kernel": return store.kernelInfos[number]?.name ?? store.plan(model.plan(row))?.op ?? "kernel";
    default: return store.plan(model.plan(row))?.op ?? "";
  }
}

export interface ActivityLanes { content: Content; name(lane: number, row: number, index: number): string }

/** The content of the timeline; `chosen` is the step that is told of. */
export function activityLanes(model: ActivityModel, store: Store, theme: Theme, chosen: number): ActivityLanes {
  const rows: Entry[][][] = model.section.lanes.map(() => [[], [], [], [], []]);
  for (let row = 0; row < model.rows; row++) {
    const [start, end] = model.span(row);
    const lane = rows[model.lane(row)]!;
    const add = (to: number, kind: number): void => void lane[to]!.push({ start, end, kind, item: row, name: nameOf(model, store, row) });
    switch (model.kind(row)) {
      case "record": add(1, RECORD!); break;
      case "compile": add(2, COMPILE!); break;
      case "materialize": add(2, COMPUTE!); break;
      case "op": add(RAN, kindOf(store.plan(model.plan(row))?.family ?? "")); break;
      case "kernel": addKernel(model, store, row, lane);
    }
    if (model.kind(row) === "op" || model.kind(row) === "kernel") addPhase(lane[0]!, start, end, store.context(model.context(row))?.phase ?? "other");
  }
  const order = model.section.lanes.map((_, at) => at).sort((a, b) => (model.section.lanes[a]!.rank ?? -1) - (model.section.lanes[b]!.rank ?? -1));
  const names: string[][][] = [];
  const lanes = order.map((at): Lane => {
    const { thread, rank } = model.section.lanes[at]!;
    const made = rows[at]!.map(named);
    names.push(made.map(({ names: own }) => own));
    const row = (number: number, height: number, gap = 1): Row => ({ bars: made[number]!.bars, height, gap, cut: true, label: (index) => made[number]!.names[index] ?? "" });
    return {
      key: String(thread), title: rank === null ? `thread ${thread}` : `rank ${rank}`, notes: rank === null ? [] : [`thread ${thread}`],
      rows: [row(0, 13, 3), row(1, 9, 3), row(2, 15, 3), row(3, 18), { bars: made[4]!.bars, height: 5, gap: 8 }],
    };
  });
  return {
    content: {
      lanes, styles: stylesOf(theme), origin: model.steps.find(({ step }) => step === chosen)?.start ?? model.limits.t0, limits: model.limits, footer: 0,
      bands: model.steps.map(({ step, start, end }) => ({ start, end, label: `step ${integer(step)}`, strong: step === chosen, note: text(duration((end - start) * 1e6)) })),
    },
    name: (lane, row, index) => names[lane]?.[row]?.[index] ?? "",
  };
}

/** A kernel, in the colour of its largest part, and under it the strip of its parts by their estimated shares. */
function addKernel(model: ActivityModel, store: Store, row: number, lane: Entry[][]): void {
  const [start, end] = model.span(row);
  const info = store.kernelInfos[model.number(row)];
  const parts = info?.parts ?? [];
  const family = (plan: number): string => store.plan(plan)?.family ?? "";
  const most = parts.reduce<(typeof parts)[number] | null>((one, other) => (one && one[2] >= other[2] ? one : other), null);
  lane[RAN]!.push({ start, end, kind: kindOf(most ? family(most[0]) : ""), item: row, name: nameOf(model, store, row) });
  let from = start;
  for (const [plan, , share] of parts) {
    const to = from + share * (end - start);
    const last = lane[4]!.at(-1);
    if (last?.item === row && last.kind === kindOf(family(plan))) last.end = to;
    else lane[4]!.push({ start: from, end: to, kind: kindOf(family(plan)), item: row, name: store.plan(plan)?.op ?? "" });
    from = to;
  }
}

function addPhase(phases: Entry[], start: number, end: number, phase: string): void {
  const last = phases.at(-1);
  if (last?.name === phase && start - last.end < PAUSE) last.end = Math.max(end, last.end);
  else if (phase !== "other") phases.push({ start, end, kind: PHASE!, item: NO_ITEM, name: phase });
}

function named(entries: readonly Entry[]): { bars: Bars; names: string[] } {
  const bars = Bars.from(entries.map(({ start, end, kind }, item) => ({ start, end, kind, item })));
  const names = Array.from(bars.item, (item) => entries[item]!.name);
  bars.item.forEach((item, at) => (bars.item[at] = entries[item]!.item));
  return { bars, names };
}
