/** What threads recorded, compiled and ran: the section `programs` of a frame. Times are milliseconds of the run. */

import { ACTIVITIES, type Column, type ProgramsSection } from "../protocol.ts";
import type { Span } from "../timeline/scale.ts";

export type Activity = (typeof ACTIVITIES)[number];
const NAMES = ["kind", "lane", "t0", "t1", "plan", "context", "number"] as const;
type Columns = Record<(typeof NAMES)[number], Column>;

export class ActivityModel {
  readonly limits: Span;
  readonly steps: { step: number; start: number; end: number }[];

  constructor(readonly section: ProgramsSection, private readonly columns: Columns) {
    const { origin_ms: origin, now_ms: now } = section;
    this.steps = section.steps.map(({ step, t0, t1 }) => ({ step, start: origin + t0, end: origin + t1 }));
    let last = this.steps.at(-1)?.end ?? origin;
    for (let row = 0; row < section.rows; row++) last = Math.max(last, this.span(row)[1]);
    this.limits = { t0: origin, t1: Math.max(Math.min(now, last + 0.02 * (last - origin)), origin + 1e-3) };
  }

  get rows(): number {
    return this.section.rows;
  }

  kind(row: number): Activity {
    return ACTIVITIES[this.columns.kind[row]!]!;
  }

  lane(row: number): number {
    return this.columns.lane[row]!;
  }

  span(row: number): [number, number] {
    return [this.section.origin_ms + this.columns.t0[row]!, this.section.origin_ms + this.columns.t1[row]!];
  }

  plan(row: number): number {
    return this.columns.plan[row]!;
  }

  context(row: number): number {
    return this.columns.context[row]!;
  }

  number(row: number): number {
    return this.columns.number[row]!;
  }

  stepAt(t: number): { step: number; start: number; end: number } | undefined {
    return this.steps.find(({ start, end }) => t >= start && t <= end);
  }
}

export function activityColumns(columns: Record<string, Column>): Columns | null {
  const found = Object.fromEntries(NAMES.map((name) => [name, columns[`programs.${name}`]]));
  return NAMES.every((name) => found[name]) ? found as Columns : null;
}
