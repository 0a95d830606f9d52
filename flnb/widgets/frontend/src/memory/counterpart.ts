/**
 * Which moment and which block of one recording stand for those of another. Where a step (or else the whole run) makes
 * as many allocations in both, they are the same allocations in order, and a moment is the same part of the way from one
 * to the next; elsewhere it is the same part of the step.
 */

import { bisectLeft, bisectRight } from "d3-array";
import { clamp } from "../clamp.ts";
import type { Store } from "../store.ts";

/** A stretch of time and the rows [first, last) of the blocks that were allocated in it. */
interface Span { readonly t0: number; readonly t1: number; readonly first: number; readonly last: number }

/** What both sides do at time t of the first: `step` is its number, null for the whole run; `same`: the same allocations. */
export interface Match { readonly a: Span; readonly b: Span; readonly step: number | null; readonly same: boolean }

function span({ memory }: Store, t0: number, t1: number): Span {
  const { start, used } = memory.lifetimes;
  return { t0, t1, first: bisectLeft(start, t0, 0, used), last: bisectLeft(start, t1, 0, used) };
}

/** The step in row `at`, until the next begins. */
function stepSpan(store: Store, at: number): Span {
  const begins = store.steps.column("t0");
  return span(store, begins[at]!, at + 1 < store.steps.length ? begins[at + 1]! : Math.max(store.now, store.steps.last("t1")!) + 1e-9);
}

function whole(store: Store): Span {
  const { start, used } = store.memory.lifetimes;
  return span(store, Math.min(0, used > 0 ? start[0]! : 0), store.now + 1e-9);
}

const matched = (a: Span, b: Span, step: number | null): Match => ({ a, b, step, same: a.last - a.first === b.last - b.first && a.last > a.first });

/** What stands for time t of recording `a` in recording `b`. Both are told whole: their rows are in order of birth. */
export function match(a: Store, b: Store, t: number): Match {
  const run = matched(whole(a), whole(b), null);
  const at = a.steps.after("t0", t) - 1;
  if (run.same || at < 0) return run;
  const step = a.steps.column("index")[at]!;
  const there = bisectLeft(b.steps.column("index"), step, 0, b.steps.length);
  if (there >= b.steps.length || b.steps.column("index")[there] !== step) return run;
  return matched(stepSpan(a, at), stepSpan(b, there), step);
}

/** The time of `b` that stands for time t of `a`. */
export function counterpartTime(a: Store, b: Store, t: number): number {
  const found = match(a, b, t);
  let [from, to] = [found.a.t0, found.a.t1];
  let [begin, end] = [found.b.t0, found.b.t1];
  if (found.same) {
    const { first, last } = found.a;
    const [starts, others] = [a.memory.lifetimes.start, b.memory.lifetimes.start];
    const next = clamp(bisectRight(starts, t, 0, a.memory.lifetimes.used), first, last);
    const shift = found.b.first - first;
    if (next > first) [from, begin] = [starts[next - 1]!, others[next - 1 + shift]!];
    if (next < last) [to, end] = [starts[next]!, others[next + shift]!];
  }
  const part = to > from ? clamp((t - from) / (to - from), 0, 1) : 0;
  // Not the next allocation itself: at its very time it has happened.
  return part === 0 ? begin : Math.min(begin + part * (end - begin), end - (part < 1 ? Math.min(1e-9, (end - begin) / 2) : 0));
}

/** The row of the same allocation in `b`, or -1. */
export function counterpartRow(a: Store, b: Store, row: number): number {
  const found = match(a, b, a.memory.lifetimes.start[row]!);
  const other = row - found.a.first + found.b.first;
  return found.same && b.memory.lifetimes.requested[other] === a.memory.lifetimes.requested[row] ? other : -1;
}

/** The moment in words: "allocation 12 of step 3", "the same part of step 3", "allocation 1 234 of the run, step 3". */
export function inWords(a: Store, b: Store, t: number, number: (value: number) => string): string {
  const { a: side, step, same } = match(a, b, t);
  const made = Math.max(0, bisectRight(a.memory.lifetimes.start, t, 0, a.memory.lifetimes.used) - side.first);
  const inside = a.stepAt(t);
  const [what, where] = [same ? `allocation ${number(made)}` : "the same part", step === null ? "the run" : `step ${number(step)}`];
  return `${what} of ${where}${same && step === null && inside !== null ? `, step ${number(inside)}` : ""}`;
}
