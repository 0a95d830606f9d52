/** Totals by pixel: what a stacked timeline shows. */

import { bisectRight } from "d3-array";
import type { MemoryIndex } from "./events.ts";
import { allocatedOf, CATEGORY_COUNT, RESERVED, TOTALS_WIDTH, WASTE } from "./lifetimes.ts";

/**
 * Totals known at single times, each holding until the next: what remains of a time whose lifetimes have left, and
 * of ticks with too many events to send them all. Here a category's bytes include its rounding waste.
 */
export interface SampledTotals {
  readonly length: number;
  readonly time: ArrayLike<number>;
  readonly allocated: ArrayLike<number>;
  readonly reserved: ArrayLike<number>;
  readonly categories: readonly ArrayLike<number>[]; // one column per category
  /** The last one holds until this time. */
  readonly until: number;
}

/** A stacked timeline, one column of totals for each pixel. */
export interface Timeline {
  readonly from: number;
  readonly to: number;
  readonly pixels: number;
  /** (pixels, TOTALS_WIDTH): the state with the largest allocated bytes in each pixel; its columns add up to `allocated`. */
  readonly totals: Float64Array;
  readonly allocated: Float64Array;
  /** Largest reserved bytes in each pixel. */
  readonly reserved: Float64Array;
  /** When the state that the pixel shows was reached (at least `from` of the pixel). */
  readonly time: Float64Array;
  /** Events inside the window. */
  readonly events: number;
}

/** The timeline over [from, to) at `pixels` columns. A pixel shows the largest state that it holds, so no peak is lost. */
export function timeline(index: MemoryIndex, from: number, to: number, pixels: number, ...sampled: readonly SampledTotals[]): Timeline {
  const totals = new Float64Array(pixels * TOTALS_WIDTH);
  const allocated = new Float64Array(pixels);
  const reserved = new Float64Array(pixels);
  const time = new Float64Array(pixels);
  const start = index.totalsAt(from);
  const now = start.totals;
  let live = 0;
  let e = start.next;
  for (let k = 0; k < pixels; k++) {
    const begin = from + ((to - from) * k) / pixels;
    const end = from + ((to - from) * (k + 1)) / pixels;
    const at = k * TOTALS_WIDTH;
    while (e < index.length && index.time[e]! <= begin) index.apply(e++, now);
    live = allocatedOf(now);
    let best = live;
    let largestReserved = now[RESERVED]!;
    time[k] = begin;
    totals.set(now, at);
    while (e < index.length && index.time[e]! < end) {
      index.apply(e++, now);
      if (index.sameInstant(e)) continue; // what stands between two events of one instant was never there
      live = allocatedOf(now);
      if (live > best) {
        best = live;
        totals.set(now, at);
        time[k] = index.time[e - 1]!;
      }
      if (now[RESERVED]! > largestReserved) largestReserved = now[RESERVED]!;
    }
    allocated[k] = best;
    reserved[k] = largestReserved;
  }
  const result: Timeline = { from, to, pixels, totals, allocated, reserved, time, events: e - start.next };
  for (const samples of sampled) if (samples.length > 0) overlay(result, samples);
  return result;
}

/** Puts sampled totals where they show more than the lifetimes do. */
function overlay(line: Timeline, sampled: SampledTotals): void {
  let i = Math.max(0, bisectRight(sampled.time, line.from, 0, sampled.length) - 1);
  const show = (k: number): void => {
    if (sampled.reserved[i]! > line.reserved[k]!) line.reserved[k] = sampled.reserved[i]!;
    if (sampled.allocated[i]! <= line.allocated[k]!) return;
    const at = k * TOTALS_WIDTH;
    let rest = sampled.allocated[i]!;
    for (let c = 0; c < CATEGORY_COUNT; c++) {
      line.totals[at + c] = sampled.categories[c]![i]!;
      rest -= sampled.categories[c]![i]!;
    }
    line.totals[at + WASTE] = rest;
    line.allocated[k] = sampled.allocated[i]!;
    line.time[k] = Math.max(line.time[k]!, sampled.time[i]!);
  };
  for (let k = 0; k < line.pixels; k++) {
    const begin = line.from + ((line.to - line.from) * k) / line.pixels;
    const end = line.from + ((line.to - line.from) * (k + 1)) / line.pixels;
    while (i + 1 < sampled.length && sampled.time[i + 1]! <= begin) i++;
    if (begin >= sampled.until) break;
    if (sampled.time[i]! < end) show(k);
    while (i + 1 < sampled.length && sampled.time[i + 1]! < end) {
      i++;
      show(k);
    }
  }
}
