/** A lane for each rank: phases and blocks, ops by family, and the collectives, waiting apart from transferring. */

import { clamp } from "../clamp.ts";
import { durationText, integer } from "../format.ts";
import type { Theme } from "../theme.ts";
import { Bars } from "../timeline/bars.ts";
import { type Band, type Content, type Lane, PADDING, type Row, type Style } from "../timeline/lanes.ts";
import type { CollectivesModel } from "./model.ts";

const SPAN = 0;
/** A block that explains why its rank was late. */
const LATE = 1;
const WAITING = 2;
const TRANSFER = 3;
const FAMILIES = 4;
/** Rows of a lane before those of collectives. */
export const CALLS = 2;
/** Height of the rows before those of collectives, with what is between them. */
const UPPER = 12 + 1 + 12 + 3;
const MOST_ROWS = 5;
const LOW_ROWS = 2;
/** The share of a call that may lie under the one before it. */
const HIDDEN = 0.1;
/** Least and most height of a collective's bar. */
const BAR = [5, 11] as const;
/** More lanes than this are drawn lower. */
const ROOMY = 6;
/** Items of bars that are no collectives. */
export const NO_ITEM = -1;

export interface RankLanes {
  content: Content;
  /** The rank of each lane. */
  ranks: readonly number[];
  /** Height of a collective's bar. */
  bar: number;
  /** Row of a lane in which a collective stands. */
  rowOf(call: number): number;
  /** What the bars of phases, blocks and ops are: lane, row and index give a name. */
  name(lane: number, row: number, index: number): string;
}

export function stylesOf(model: CollectivesModel, theme: Theme): Style[] {
  const { colours } = theme;
  const communication = theme.family("communication");
  return [
    { fill: colours.line, text: colours.ink }, { fill: colours.dim, text: colours.bg }, { fill: communication, hatch: true },
    { fill: communication }, ...model.section.families.map((family) => ({ fill: theme.family(family), text: theme.labelOn(theme.family(family)) })),
  ];
}

/** The content of the timeline for these ranks, in this order; as high as `room` has place for. */
export function rankLanes(model: CollectivesModel, theme: Theme, ranks: readonly number[], chosen: number, footer: number, room: number): RankLanes {
  const low = ranks.length > ROOMY;
  const rows = callRows(model, low ? LOW_ROWS : MOST_ROWS);
  const depth = rows.reduce((most, row) => Math.max(most, row + 1), 1);
  const place = Math.floor((room / ranks.length - UPPER - 2 * PADDING) / depth);
  const gap = low || place < 9 ? 1 : 2;
  const bar = low ? 8 : clamp(place - gap, BAR[0], BAR[1]);
  const names: string[][][] = [];
  const spans = spansByRank(model);
  const acts = actsByRank(model);
  const lanes = ranks.map((rank): Lane => {
    const scopes = spans[rank] ?? [];
    const blocks = Bars.from(scopes.map(({ start, end, late }, item) => ({ start, end, kind: late ? LATE : SPAN, item })));
    const own = [Array.from(blocks.item, (item) => scopes[item]!.name), acts[rank]?.names ?? []];
    names.push(own);
    const { start, end, kind } = acts[rank] ?? { start: [], end: [], kind: [] };
    const ops = new Bars(Float64Array.from(start), Float64Array.from(end), Uint8Array.from(kind), new Int32Array(start.length).fill(NO_ITEM));
    blocks.item.fill(NO_ITEM);
    return {
      key: String(rank), title: `rank ${model.number(rank)}`, notes: low ? [notesOf(model, rank).join(" ").replace(/host |clock: /g, "")] : notesOf(model, rank),
      rows: [
        { bars: blocks, height: low ? 11 : 12, label: (index) => own[0]![index] ?? "" }, { bars: ops, height: low ? 8 : 12, gap: 3 },
        ...Array.from({ length: depth }, (_, row): Row => ({ bars: callBars(model, rank, rows, row), height: bar, gap })),
      ],
    };
  });
  const step = model.steps.find((one) => one.step === chosen) ?? model.steps.at(-1);
  return {
    content: { lanes, styles: stylesOf(model, theme), bands: bandsOf(model, step?.step), origin: step?.start ?? model.limits.t0, since: step ? `since step ${integer(step.step)}` : "", limits: model.limits, footer },
    ranks, bar, rowOf: (call) => CALLS + (rows[call] ?? 0), name: (lane, row, index) => names[lane]?.[row]?.[index] ?? "",
  };
}

export function notesOf(model: CollectivesModel, rank: number): string[] {
  const { host, bound_ns: bound } = model.section.ranks[rank]!;
  const several = new Set(model.section.ranks.map((one) => one.host)).size > 1;
  const clock = !Number.isFinite(bound) || bound < 0 ? "clock unknown" : bound === 0 ? (several ? "clock: base" : "") : `±${durationText(bound)}`;
  return [host.length < 8 ? `host ${host}` : host, clock].filter(Boolean);
}

function bandsOf(model: CollectivesModel, chosen: number | undefined): Band[] {
  return model.steps.map(({ step, start, end }) => ({
    start, end, label: `step ${integer(step)}`, strong: step === chosen, ...(step === chosen ? { note: durationText((end - start) * 1e6) } : {}),
  }));
}

/** Calls that are in flight on a rank at one time stand under each other, a call in the same row on every rank. */
export function callRows(model: CollectivesModel, most = MOST_ROWS): number[] {
  const ranks = Array.from({ length: model.ranks }, (_, rank) => rank);
  const free = Array.from({ length: most }, () => new Float64Array(model.ranks).fill(-Infinity));
  const first = Float64Array.from({ length: model.rows }, (_, call) => ranks.reduce((least, rank) => (model.begin(rank, call) < least ? model.begin(rank, call) : least), Infinity));
  const result = new Array<number>(model.rows).fill(0);
  for (const call of [...result.keys()].sort((one, two) => first[one]! - first[two]!)) {
    // A rank that is not in it (NaN) is in nobody's way; neither are ends that a call's first moments hide.
    const hides = (rank: number, until: number): boolean => until - model.begin(rank, call) > HIDDEN * (model.end(rank, call) - model.begin(rank, call));
    let row = free.findIndex((ends) => !ranks.some((rank) => hides(rank, ends[rank]!)));
    if (row < 0) row = free.map((ends) => Math.max(...ends)).reduce((best, end, at, all) => (end < all[best]! ? at : best), 0);
    for (const rank of ranks) {
      if (Number.isNaN(model.begin(rank, call))) continue;
      const end = model.end(rank, call);
      free[row]![rank] = Number.isNaN(end) ? Infinity : end;
    }
    result[call] = row;
  }
  return result;
}

function callBars(model: CollectivesModel, rank: number, rows: readonly number[], row: number): Bars {
  const bars: { start: number; end: number; kind: number; item: number }[] = [];
  const [now, hanging] = [model.section.now_ms, model.hanging];
  for (let call = 0; call < model.rows; call++) {
    const begin = model.begin(rank, call);
    if (rows[call] !== row || Number.isNaN(begin)) continue;
    const [last, end] = [call === hanging ? NaN : model.last(call), model.end(rank, call)]; // of what hangs nothing was sent
    const ready = Number.isNaN(last) ? (Number.isNaN(end) ? now : end) : Math.max(begin, Math.min(last, Number.isNaN(end) ? last : end));
    if (ready > begin) bars.push({ start: begin, end: ready, kind: WAITING, item: call });
    if (!Number.isNaN(last)) bars.push({ start: ready, end: Number.isNaN(end) ? now : end, kind: TRANSFER, item: call });
  }
  return Bars.from(bars);
}

interface Block { start: number; end: number; name: string; late: boolean; /** What hides what: blocks that explain a delay, phases, inner blocks, outer ones. */ over: number }

const PHASES = ["", "forward", "backward", "optimizer"];

/** What each rank was in at every moment: phases and named blocks, of nested ones the inner. */
function spansByRank(model: CollectivesModel): Block[][] {
  const result: Block[][] = Array.from({ length: model.ranks }, () => []);
  const blamed = model.section.reasons.filter(({ scope }) => scope !== "").map(({ rank, scope, row, ms, median_ms: median }) => ({
    excess: durationText((ms - median) * 1e6), rank: model.index(rank), scope, begin: model.begin(model.index(rank), row), step: model.stepOf(row),
  }));
  for (const kind of [1, 2, 3, 4]) {
    for (const { rank, start, end, name } of model.spans(kind)) {
      const title = kind < 4 ? PHASES[kind]! : model.section.names[name] ?? "";
      const late = kind < 4 ? undefined : blamed.find((one) => one.rank === rank && one.scope === title && start < one.begin && start >= (one.step?.start ?? start) - 1);
      result[rank]?.push({ start, end, name: late ? `${title} · ${late.excess} over the median` : title, late: late !== undefined, over: late ? 2 : kind < 4 ? 1 : 0 });
    }
  }
  return result.map(topmost);
}

/** Pieces that do not overlap: at every moment the block that hides the others, of equal ones the shorter. */
export function topmost(blocks: readonly Block[]): Block[] {
  const whole = blocks.filter(({ start, end }) => end > start);
  const begins = [...whole].sort((one, two) => one.start - two.start);
  const edges = [...new Set(whole.flatMap(({ start, end }) => [start, end]))].sort((one, two) => one - two);
  const pieces: Block[] = [];
  let [open, next, last]: [Block[], number, Block | undefined] = [[], 0, undefined];
  edges.slice(0, -1).forEach((edge, at) => {
    open = open.filter(({ end }) => end > edge);
    while (next < begins.length && begins[next]!.start <= edge) open.push(begins[next++]!);
    const top = open.reduce<Block | undefined>((best, one) => (!best || one.over > best.over || (one.over === best.over && one.end - one.start < best.end - best.start) ? one : best), undefined);
    const piece = pieces.at(-1);
    if (top && top === last && piece?.end === edge) piece.end = edges[at + 1]!;
    else if (top) pieces.push({ ...top, start: edge, end: edges[at + 1]! });
    last = top;
  });
  return pieces;
}

interface Acts { start: number[]; end: number[]; kind: number[]; names: string[] }

function actsByRank({ columns, section, ranks }: CollectivesModel): Acts[] {
  const result: Acts[] = Array.from({ length: ranks }, () => ({ start: [], end: [], kind: [], names: [] }));
  const { act_rank: rank, act_start: start, act_end: end, act_family: family } = columns;
  const order = Array.from(rank!, (_, at) => at).sort((one, two) => start![one]! - start![two]!);
  for (const at of order) {
    const mine = result[rank![at]!];
    if (!mine) continue;
    mine.start.push(section.origin_ms + start![at]!);
    mine.end.push(section.origin_ms + end![at]!);
    mine.kind.push(FAMILIES + family![at]!);
    mine.names.push(section.families[family![at]!] ?? "");
  }
  return result;
}
