/** A captured program as the kernel tells it, and what the view computes from it. */

import { ofType } from "../protocol.ts";

/** One op of a kernel or call; `share` is its part of the time, estimated by the bytes that it would move alone. */
export interface Part { op: string; family: string; shape: string; dtype: string; share: number; scope: string }

/** A value in memory: in the program's block from `offset` on, or (null) in new memory or in place of what exists. */
export interface Stored { name: string; shape: string; dtype: string; where: string; bytes: number; offset: number | null; last: number; category: number }

export interface Launch {
  kind: "kernel" | "call" | "copy";
  name: string;
  phase: string;
  scope: string;
  parts: Part[];
  reads: string[];
  stored: Stored[];
  /** A method of the user's class computes it. */
  own: boolean;
  /** What a kernel computes, as loops. */
  loops: string;
  /** Median nanoseconds in the recording; null without one. */
  ns: number | null;
}

/** A recorded op. `rule`: the row of the rules that replaced it, −1 if it stayed; `by`: the call of what is taken for it. */
export interface Recorded { text: string; family: string; phase: string; scope: string; rule: number; by: string; launch: number }

export interface Rule { name: string; reason: string; where: string; count: number }

export interface ProgramData {
  backend: string;
  recorded: Recorded[];
  rules: Rule[];
  /** Ops after rewriting, views left out. */
  after: number;
  views: number;
  launches: Launch[];
  /** Bytes of the block that all values share, of kernels' scratch memory, and of results in new memory. */
  block: number;
  scratch: number;
  results: number;
  /** How many runs of the program the recording has, and the name of that. */
  runs: number;
  run: string;
}

export interface ProgramMessage { type: "program"; name: string; programs: ProgramData[] }
export interface SourceRequest { type: "source"; program: number; launch: number }
export interface SourceAnswer { type: "source"; program: number; launch: number; text: string }

export const isProgram = ofType<ProgramMessage>("program");
export const isSource = ofType<SourceAnswer>("source");

/** The life of a value in the block: from the launch that writes it to before `end`. */
export interface Span { launch: number; stored: Stored; begin: number; end: number }

/** Lives of all values in the block. One that is written in the place of another ends that one's life. */
export function spansOf(launches: readonly Launch[]): Span[] {
  const spans: Span[] = [];
  const heirs = new Set<string>();
  launches.forEach(({ stored }, at) => { for (const { offset } of stored) if (offset !== null) heirs.add(`${at} ${offset}`); });
  launches.forEach(({ stored }, launch) => {
    for (const one of stored) {
      if (one.offset === null) continue;
      const replaced = one.last > launch && heirs.has(`${one.last} ${one.offset}`);
      spans.push({ launch, stored: one, begin: launch, end: replaced ? one.last : one.last + 1 });
    }
  });
  return spans;
}

/** Bytes of the block that are in use during each launch. */
export function liveOf(spans: readonly Span[], count: number): number[] {
  const change = new Array<number>(count + 1).fill(0);
  for (const { begin, end, stored } of spans) {
    change[begin]! += stored.bytes;
    change[Math.min(end, count)]! -= stored.bytes;
  }
  let sum = 0;
  return change.slice(0, count).map((by) => (sum += by));
}

/** Launches that follow each other in one phase and scope. */
export interface Run { phase: string; scope: string; first: number; last: number }

export function runsOf(launches: readonly Launch[]): Run[] {
  const runs: Run[] = [];
  launches.forEach(({ phase, scope }, at) => {
    const before = runs.at(-1);
    if (before && before.phase === phase && before.scope === scope) before.last = at;
    else runs.push({ phase, scope, first: at, last: at });
  });
  return runs;
}

/** Rows of the table of what takes the time: calls of one name together, the slowest first, else the most frequent. */
export interface Cost { name: string; family: string; count: number; ns: number | null; first: number }

export function costsOf(launches: readonly Launch[]): Cost[] {
  const found = new Map<string, Cost>();
  launches.forEach((launch, at) => {
    const row = found.get(launch.name);
    if (row) {
      row.count++;
      row.ns = row.ns === null || launch.ns === null ? null : row.ns + launch.ns;
    } else found.set(launch.name, { name: launch.name, family: familyOf(launch), count: 1, ns: launch.ns, first: at });
  });
  return [...found.values()].sort((a, b) => (b.ns ?? 0) - (a.ns ?? 0) || b.count - a.count);
}

/** The family of the op that has the largest part of a launch. */
export const familyOf = ({ parts }: Launch): string => parts.reduce<Part | null>((most, part) => (most && most.share >= part.share ? most : part), null)?.family ?? "movement";

/** Parts of a launch by family, in the order of their first ops. */
export function stripOf({ parts }: Launch): [family: string, share: number][] {
  const shares = new Map<string, number>();
  for (const { family, share } of parts) shares.set(family, (shares.get(family) ?? 0) + share);
  return [...shares];
}

export const totalOf = ({ launches }: ProgramData): number | null =>
  launches.reduce<number | null>((sum, { ns }) => (sum === null || ns === null ? null : sum + ns), launches.length ? 0 : null);
