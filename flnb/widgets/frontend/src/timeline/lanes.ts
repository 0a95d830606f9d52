/** What a timeline shows: lanes under each other, each with rows of bars; and where they stand. */

import type { Bars } from "./bars.ts";
import type { Span, TimeScale } from "./scale.ts";

/** How bars of one kind look. A kind is an index into the timeline's styles. */
export interface Style {
  /** Any colour; with `hatch` only its lines and outline have it. */
  fill: string;
  /** Colour of a label; without one, bars of this kind carry none. */
  text?: string;
  hatch?: boolean;
}

export interface Row {
  bars: Bars;
  height: number;
  /** The label of the bar at this index. */
  label?: (index: number) => string;
  /** Labels that do not fit are cut, not left out. */
  cut?: boolean;
  /** Pixels under the row. */
  gap?: number;
}

export interface Lane {
  key: string;
  title: string;
  notes: readonly string[];
  rows: readonly Row[];
}

/** A stretch of time with a name, above the axis: a step, an epoch. */
export interface Band { start: number; end: number; label: string; note?: string; strong?: boolean }

export interface Content {
  lanes: readonly Lane[];
  styles: readonly Style[];
  bands: readonly Band[];
  /** The time that the axis calls 0, and its name, such as "since step 3". */
  origin: number;
  since?: string;
  /** The first and the last time that one can look at. */
  limits: Span;
  /** Ticks of an axis that shows no time. */
  ticks?: (scale: TimeScale) => { t: number; label: string }[];
  /** Pixels at the bottom that the owner draws on the same time axis. */
  footer: number;
}

export const EMPTY: Content = { lanes: [], styles: [], bands: [], origin: 0, limits: { t0: 0, t1: 1 }, footer: 0 };

/** A bar: its lane and row, its index among the row's bars, and the item that it belongs to. */
export interface Mark { lane: number; row: number; index: number; item: number }

export const HEADING = 108;
export const BAND = 18;
/** Height of bands and axis together. */
export const HEADER = 34;
export const PADDING = 3;
export const RIGHT = 12;
/** How far from a narrow bar a pointer may be, in pixels. */
const SLACK = 3;

/** Where lanes and rows stand, from the first lane's top at 0. */
export class Layout {
  readonly tops: number[] = [];
  readonly rows: number[][] = [];
  readonly height: number;

  constructor(readonly lanes: readonly Lane[]) {
    let y = 0;
    for (const lane of lanes) {
      this.tops.push(y);
      y += PADDING;
      this.rows.push(lane.rows.map((row) => {
        const top = y;
        y += row.height + (row.gap ?? 1);
        return top;
      }));
      y = Math.max(y, this.tops.at(-1)! + 2 * PADDING + 13 + 13 * lane.notes.length) + PADDING;
    }
    this.height = y;
  }

  /** The lane at this height, or -1. */
  laneAt(y: number): number {
    if (y < 0 || y >= this.height) return -1;
    let at = this.tops.length - 1;
    while (at > 0 && this.tops[at]! > y) at--;
    return at;
  }

  bottom(lane: number): number {
    return this.tops[lane + 1] ?? this.height;
  }

  /** The bar at this place. Of rows that overlap in height the nearest wins. */
  markAt(y: number, x: number, scale: TimeScale): Mark | null {
    const lane = this.laneAt(y);
    if (lane < 0) return null;
    const tops = this.rows[lane]!;
    for (let row = 0; row < tops.length; row++) {
      const { bars, height } = this.lanes[lane]!.rows[row]!;
      if (y < tops[row]! || y > tops[row]! + height) continue;
      const index = bars.at(scale.time(x), SLACK * scale.pixel);
      if (index >= 0) return { lane, row, index, item: bars.item[index]! };
    }
    return null;
  }
}
