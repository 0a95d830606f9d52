/** Lanes of the timeline, one for each thread: its phases, its scopes as flames, what was recorded and made, and the ops that ran. */

import { bisectLeft, bisectRight } from "d3-array";
import { clamp } from "../clamp.ts";
import { durationText, integer } from "../format.ts";
import { familyNames } from "../palette.ts";
import type { KernelInfo, TimelineEvent, TimelineRow } from "../protocol.ts";
import { familyOfKernel } from "../sections.ts";
import { baseOp, inScope, isOfNode, ranAt, type Selection } from "../selection.ts";
import type { Store } from "../store.ts";
import type { Theme } from "../theme.ts";
import { Bars } from "../timeline/bars.ts";
import { type Content, type Lane, Layout, type Row, type Style } from "../timeline/lanes.ts";
import type { Span } from "../timeline/scale.ts";
import { keyOf, type Piece, type RowColumns, type ThreadsModel } from "./model.ts";

export const [PHASE, SCOPE, RECORD, COMPILE, COMPUTE, FAINT, FAMILIES] = [0, 1, 2, 3, 4, 5, 6];
const PHASES = ["", "forward", "backward", "optimizer"];
const HEIGHTS: Readonly<Record<TimelineRow["kind"], number>> = { phase: 14, scope: 15, record: 9, compile: 15, materialize: 15, op: 19, part: 7, task: 19 };
const NONE: RowColumns = {
  start: new Float64Array(0), end: new Float64Array(0), what: new Uint32Array(0), context: new Uint32Array(0), count: new Uint32Array(0),
  number: new Float64Array(0), longest: new Float64Array(0),
};

export function stylesOf(theme: Theme): Style[] {
  const { colours } = theme;
  return [
    { fill: colours.line, text: colours.ink }, { fill: colours.hover, text: colours.ink }, { fill: colours.dim }, { fill: colours.dim, hatch: true }, { fill: colours.hover, text: colours.ink },
    { fill: colours.hover },
    ...familyNames.map((name) => ({ fill: theme.family(name), text: theme.labelOn(theme.family(name)) })),
  ];
}

/** Where there is room, rows are at most so many times as high. */
const STRETCH = 2;

/** The lanes of one piece. */
export class ThreadLanes {
  readonly content: Content & { lanes: Lane[]; bands: Content["bands"][number][]; footer: number; origin: number; limits: Content["limits"] };
  /** The rows of each lane, in the order in which they stand. */
  readonly rows: readonly (readonly TimelineRow[])[];
  /** Families of the ops in this piece. */
  readonly families = new Set<string>();
  /** The versions of what it was made from. */
  readonly themed: number;
  readonly plans: number;
  readonly marked: string;
  /** Pixels that the lanes need. */
  readonly natural: number;
  private stretched = 1;

  constructor(private readonly store: Store, theme: Theme, model: ThreadsModel, readonly piece: Piece, private readonly lit: Selection | null = null) {
    this.themed = theme.version;
    this.plans = store.plans.length;
    this.marked = markedBy(store);
    const threads = new Map<number, TimelineRow[]>();
    for (const row of model.rows) threads.set(row.thread, [...(threads.get(row.thread) ?? []), row]);
    this.rows = [...threads.values()].sort((one, other) => (one[0]!.rank ?? -1) - (other[0]!.rank ?? -1));
    const lanes = this.rows.map((rows): Lane => {
      const { thread, rank, kind, depth, name = `thread ${thread}` } = rows[0]!;
      const owner = rank === null ? name : `rank ${rank}`;
      const also = owner === name ? [] : [name];
      return {
        key: String(thread), title: kind === "task" ? `stream ${depth}` : owner, notes: kind === "task" ? [owner, ...also] : also,
        rows: rows.map((row) => this.row(row)),
      };
    });
    this.natural = new Layout(lanes).height;
    this.content = { lanes, styles: stylesOf(theme), bands: [], origin: 0, limits: model.limits, footer: 0 };
  }

  /** Make the rows so many times as high, at most twice; whether that changes anything. */
  stretch(wanted: number): boolean {
    const factor = clamp(Math.floor(wanted * 20) / 20, 1, STRETCH);
    if (factor === this.stretched) return false;
    this.stretched = factor;
    this.rows.forEach((rows, lane) => rows.forEach(({ kind }, at) => (this.content.lanes[lane]!.rows[at]!.height = Math.floor(HEIGHTS[kind] * factor))));
    return true;
  }

  columns(row: TimelineRow): RowColumns {
    return this.piece.rows.get(keyOf(row)) ?? NONE;
  }

  /** Whether a bar in sight stands for several events. */
  merged({ t0, t1 }: Span): boolean {
    return this.rows.flat().some((row) => {
      const { start, end, count } = this.columns(row);
      const last = bisectLeft(start, t1);
      for (let at = bisectRight(end, t0); at < last; at++) if (count[at]! > 1) return true;
      return false;
    });
  }

  /** The name of a bar: of a merged one that of its longest event. */
  name(row: TimelineRow, index: number): string {
    const { what, context, start, end } = this.columns(row);
    const name = nameOf(this.store, { kind: row.kind, what: what[index]!, context: context[index]! });
    return row.kind === "scope" ? name.split(".").at(-1)! : row.kind === "compile" ? `${name} ${durationText((end[index]! - start[index]!) * 1e6)}` : name;
  }

  /** Where an event stands: lane, row and index; null where it is not in sight. */
  find(key: string, number: number, t0: number): { lane: number; row: number; index: number } | null {
    for (let lane = 0; lane < this.rows.length; lane++) {
      const row = this.rows[lane]!.findIndex((one) => keyOf(one) === key);
      if (row < 0) continue;
      const { number: numbers, start, end } = this.columns(this.rows[lane]![row]!);
      const bars = this.content.lanes[lane]!.rows[row]!.bars;
      const index = bars.at(t0 + 1e-9, 1e-6);
      if (index >= 0 && (numbers[index] === number || (start[index]! <= t0 && end[index]! >= t0))) return { lane, row, index };
    }
    return null;
  }

  private row(row: TimelineRow): Row {
    const columns = this.columns(row);
    const { start, end } = columns;
    const kinds = new Uint8Array(start.length);
    for (let at = 0; at < kinds.length; at++) kinds[at] = this.styleOf(row, columns, at);
    const items = Int32Array.from(kinds, (_, at) => at);
    return {
      bars: new Bars(start, end, kinds, items), height: HEIGHTS[row.kind], gap: row.kind === "op" || row.kind === "part" ? 3 : 1, cut: true,
      label: (index) => this.name(row, index),
    };
  }

  private styleOf(row: TimelineRow, { what, context }: RowColumns, at: number): number {
    const { store } = this;
    switch (row.kind) {
      case "phase": return what[at] ? PHASE! : 255; // "other" is no phase
      case "scope": {
        const scope = store.contexts[context[at]!]?.scope;
        return (store.search && !store.matches(scope)) || (this.lit?.kind === "scope" && !inScope(scope, this.lit.scope)) ? FAINT! : SCOPE!;
      }
      case "record": return RECORD!;
      case "compile": return COMPILE!;
      case "materialize": return COMPUTE!;
      default: {
        if (store.search && !matchesOp(store, what[at]!, context[at]!)) return FAINT!;
        if (this.lit && !isLit(store, this.lit, what[at]!, context[at]!)) return FAINT!;
        const family = familyOf(store, what[at]!, context[at]!);
        this.families.add(family);
        return FAMILIES! + Math.max(0, familyNames.indexOf(family));
      }
    }
  }
}

const LIT: readonly Selection["kind"][] = ["op", "scope", "kernel", "node", "nodes", "line", "shape"];
/** The op, scope, kernel, tape node or group of nodes whose bars stand out: one that was selected in another view. What is selected here is one bar, and has a time. */
export const litOf = ({ selection }: Store): Selection | null =>
  selection && selection.t === undefined && LIT.includes(selection.kind) ? selection : null;

/** What decides which bars are faint. */
export const markedBy = (store: Store): string => {
  const lit = litOf(store);
  return JSON.stringify([store.search, lit?.kind, lit?.label, lit?.scope, lit?.line, lit?.group, store.marks?.group]);
};

/** Bars of a tape node's op in its scope stand out, in every step; merged ones do not say which node they are of. */
function isLit(store: Store, lit: Selection, plan: number, context: number): boolean {
  const [op, scope] = [store.plan(plan)?.op, store.context(context)?.scope];
  switch (lit.kind) {
    case "op": return op === lit.op;
    case "kernel": return kernelOf(store, plan, context)?.name === lit.kernel;
    case "nodes": {
      const { marks } = store;
      return marks?.group === lit.group && op !== undefined
        && (store.context(context)?.phase === "backward" ? marks!.scopes.has(scope) : marks!.contexts.has(context) && marks!.ops.has(baseOp(op)));
    }
    case "line": case "shape": return ranAt(store, plan, context, lit);
    case "node": return op !== undefined && isOfNode(op, lit.op) && scope === lit.scope;
    default: return inScope(scope, lit.scope);
  }
}

const matchesOp = (store: Store, plan: number, context: number): boolean =>
  store.matches(store.plan(plan)?.op, store.context(context)?.scope, store.context(context)?.line);

const kernels = new WeakMap<Store, { length: number; found: Map<number, KernelInfo> }>();

/** The kernel that a bar is, if it is one. */
export function kernelOf(store: Store, plan: number, context: number): KernelInfo | undefined {
  const { length } = store.kernelInfos;
  if (!length) return undefined;
  let known = kernels.get(store);
  if (known?.length !== length) kernels.set(store, (known = { length, found: new Map(store.kernelInfos.map((info) => [info.plan * 2 ** 26 + info.context, info])) }));
  return known.found.get(plan * 2 ** 26 + context);
}

function familyOf(store: Store, plan: number, context: number): string {
  const kernel = kernelOf(store, plan, context);
  return kernel ? familyOfKernel(store, kernel) : store.plan(plan)?.family ?? "";
}

/** The name of an event: of a scope its path. */
export function nameOf(store: Store, { kind, what, context }: Pick<TimelineEvent, "kind" | "what" | "context">): string {
  switch (kind) {
    case "phase": return PHASES[what] ?? "";
    case "scope": return store.contexts[context]?.scope ?? "";
    case "compile": return kind;
    case "materialize": return `computes ${integer(what)} ${what === 1 ? "value" : "values"}`;
    default: return opName(store, what, context);
  }
}

export const opName = (store: Store, plan: number, context: number): string => kernelOf(store, plan, context)?.name ?? store.plan(plan)?.op ?? "";
