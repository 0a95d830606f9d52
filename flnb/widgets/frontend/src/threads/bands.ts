/** The ruler over the lanes: the steps of the run. */

import { durationText, integer } from "../format.ts";
import type { Store } from "../store.ts";
import type { Band } from "../timeline/lanes.ts";
import type { Span } from "../timeline/scale.ts";

/** So many steps back another rank's begin of the same step is looked for. */
const RANKS = 8;

/** The steps in sight; time counts from the first of them, where it began before, or else from the beginning of the run. */
export function stepBands(store: Store, { t0, t1 }: Span): { bands: Band[]; origin: number; since: string } {
  const { steps } = store;
  const first = Math.max(0, steps.after("t0", t0 / 1e3) - 1);
  const found: Band[] = [];
  const step = store.cursor === null ? null : store.stepAt(store.cursor);
  for (let at = first; at < steps.length && steps.column("t0")[at]! * 1e3 <= t1 && found.length < 2000; at++) {
    const [start, end, index] = [steps.column("t0")[at]! * 1e3, steps.column("t1")[at]! * 1e3, steps.column("index")[at]!];
    if (end < t0) continue;
    const [before, label] = [found.at(-1), `step ${integer(index)}`];
    if (found.slice(-RANKS).some((other) => other.label === label && start < other.end)) { // ranks are in the same step, each at its own pace
      if (before!.label === label) [before!.end, before!.note] = [Math.max(before!.end, end), ""];
      continue;
    }
    if (before && start < before.end) [before.end, before.note] = [start, ""];
    found.push({ start, end, label, strong: index === step, note: durationText((end - start) * 1e6) });
  }
  const ended = Math.max(...Array.from(steps.column("t1").subarray(Math.max(0, steps.length - RANKS), steps.length))) * 1e3;
  if (steps.length && store.run?.state === "recording" && ended < t1) { // what goes on is in no step yet
    found.push({ start: ended, end: Math.max(store.now * 1e3, ended), label: `after step ${integer(steps.last("index")!)}`, strong: false });
  }
  const begins = found[0];
  if (!begins || begins.start > t0) return { bands: found, origin: 0, since: "since the start" };
  return { bands: found, origin: begins.start, since: begins.label.replace(/^(?=step)/, "since ") };
}
