/** Which blocks users have locked, and when what was cached went back to the device: told beside blocks and segments. */

import { bisectRight } from "d3-array";
import type { Column } from "./protocol.ts";

/** One call of `release_cached`: when, how many bytes it gave back, in how many segments. */
export interface Given { readonly t: number; readonly bytes: number; readonly segments: number }

const KEPT = 4096;

export class Locks {
  readonly given: Given[] = [];
  private readonly told = new Map<number, { t: number[]; count: number[] }>();

  /** The number of locks on a block at a time. */
  on(block: number, t: number): number {
    const told = this.told.get(block);
    if (told === undefined) return 0;
    const at = bisectRight(told.t, t) - 1;
    return at < 0 ? 0 : told.count[at]!;
  }

  /** Whether anything was ever locked. */
  get any(): boolean {
    return this.told.size > 0;
  }

  /** Take in a frame; a keyframe repeats what is still so. */
  apply(columns: Record<string, Column>): void {
    const { "locked.alloc_id": ids, "locked.t": times, "locked.locks": counts, "released.t": given, "released.nbytes": sizes, "released.segments": segments } = columns;
    for (let at = 0; at < (ids?.length ?? 0); at++) {
      const known = this.told.get(ids![at]!) ?? { t: [], count: [] };
      this.told.set(ids![at]!, known);
      if (times![at]! <= (known.t.at(-1) ?? -Infinity)) continue;
      known.t.push(times![at]!);
      known.count.push(counts![at]!);
    }
    for (let at = 0; at < (given?.length ?? 0); at++) {
      if (given![at]! > (this.given.at(-1)?.t ?? -Infinity)) this.given.push({ t: given![at]!, bytes: sizes![at]!, segments: segments![at]! });
    }
    if (this.given.length > KEPT) this.given.splice(0, KEPT / 2);
  }

  clear(): void {
    this.told.clear();
    this.given.length = 0;
  }
}
