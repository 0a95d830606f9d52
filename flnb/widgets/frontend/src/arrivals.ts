/** What arrives with frames: how many a second, and the rows of append-only tables. */

import type { TableDelta } from "./protocol.ts";

const RECENT_FRAMES = 64;

/** Frames a second that arrived over the last two seconds. */
export class FrameRate {
  private readonly arrivals: number[] = [];

  add(now: number): void {
    this.arrivals.push(now);
    if (this.arrivals.length > RECENT_FRAMES) this.arrivals.shift();
  }

  at(now: number): number {
    const recent = this.arrivals.filter((at) => now - at < 2000);
    return recent.length < 2 ? 0 : ((recent.length - 1) * 1000) / Math.max(now - recent[0]!, 1);
  }
}

/** Whether the delta goes on where the table ends. */
export const follows = (table: readonly unknown[], delta: TableDelta<unknown> | undefined): boolean => !delta || delta.first <= Math.max(table.length, 1);

export function intern<T>(table: T[], delta: TableDelta<T> | undefined): void {
  delta?.items.forEach((item, at) => (table[delta.first + at] = item));
}
