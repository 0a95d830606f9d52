/** Beside the timeline: what is known of the selected event, and of a measured range. */

import { Facts, rowButton, rowList, title } from "../details.ts";
import { nothing, section } from "../dom.ts";
import { bytesText, dtype, durationText, integer, shape, UNKNOWN } from "../format.ts";
import { kernelParts } from "../kernelparts.ts";
import { categoryLabels } from "../palette.ts";
import type { TimelineEvent, TimelineMeasure } from "../protocol.ts";
import { namesOf, type Selection, selectionOfKernel } from "../selection.ts";
import type { Store } from "../store.ts";
import type { ViewContext } from "../view.ts";
import { allocationsIn } from "./arrows.ts";
import { kernelOf, opName } from "./lanes.ts";

export const HELP = "Click a bar. In each lane, from above: phases, scopes, what was recorded and compiled, the ops and kernels that ran. W\u00a0S\u00a0zoom, A\u00a0D\u00a0pan, F\u00a0shows all, M measures from the cursor, / searches.";
const WORDS: Readonly<Record<TimelineEvent["kind"], string>> = {
  phase: "phase", scope: "scope", record: "recorded, computed later", compile: "compiled, before a first run", materialize: "values that had waited", op: "op", part: "inside another op or kernel", task: "run by a device",
};
const BLOCKS = 6;

/** Kinds of events that have the plan of an op. */
const PLANNED: readonly TimelineEvent["kind"][] = ["op", "part", "record", "task"];

/** `count`: how many events the bar stands for that was clicked; what is told is of the longest. */
export function aboutEvent(
  { store, theme }: ViewContext, event: TimelineEvent & { related?: readonly TimelineEvent[] }, count: number, name: string, choose: (event: TimelineEvent) => void,
): HTMLElement[] {
  const context = store.context(event.context);
  const op = PLANNED.includes(event.kind);
  const plan = op ? store.plan(event.what) : undefined;
  const kernel = event.kind === "op" ? kernelOf(store, event.what, event.context) : undefined;
  const step = store.stepAt(event.t0 / 1e3);
  const begin = step === null ? 0 : store.steps.column("t0")[store.steps.after("t0", event.t0 / 1e3) - 1]! * 1e3;
  const scope = [context?.scope, context && context.phase !== "other" ? context.phase : ""].filter(Boolean).join(", ");
  return [
    title(name, count > 1 ? `the longest of ${integer(count)} events` : kernel ? "kernel" : WORDS[event.kind]),
    new Facts([
      ["Time", durationText((event.t1 - event.t0) * 1e6)],
      ["Begins", step === null ? durationText(event.t0 * 1e6) : `${durationText((event.t0 - begin) * 1e6)} into step ${integer(step)}`],
      ...(plan ? [["Result", `${dtype(plan.dtype)} ${shape(plan.shape)}, ${bytesText(plan.nbytes)}`] as const] : []),
      ...(event.kind === "scope" || event.kind === "phase" ? [] : [["Scope", scope || UNKNOWN] as const, ["Line", context?.line || UNKNOWN] as const]),
      ...(event.node > 0 ? [["Tape node", `#${event.node}`] as const] : []),
    ]).list,
    ...related(store, event, choose), ...allocated(store, event),
    ...(kernel ? kernelParts(theme, store, kernel) : []),
  ];
}

function related(store: ViewContext["store"], event: TimelineEvent & { related?: readonly TimelineEvent[] }, choose: (event: TimelineEvent) => void): HTMLElement[] {
  const others = event.related ?? [];
  if (!others.length) return [];
  const rows = others.map((one) => {
    const apart = one.t0 - event.t0;
    const name = opName(store, one.what, one.context);
    return rowButton(() => choose(one), name, name, `${durationText((one.t1 - one.t0) * 1e6)}, ${durationText(Math.abs(apart) * 1e6)} ${apart < 0 ? "earlier" : "later"}`);
  });
  return [section("Of the same tape node"), rowList(rows)];
}

function allocated(store: ViewContext["store"], event: TimelineEvent): HTMLElement[] {
  const rows = allocationsIn(store, event);
  if (!rows.length) return [];
  const { lifetimes } = store.memory;
  const sum = rows.reduce((total, row) => total + lifetimes.size[row]!, 0);
  const told = rows.slice(0, BLOCKS).map((row): [string, string] => {
    const lives = lifetimes.end[row]! - lifetimes.start[row]!;
    return [bytesText(lifetimes.size[row]!), `${categoryLabels[lifetimes.category[row]!] ?? "unknown"}, ${Number.isFinite(lives) ? `lived ${durationText(lives * 1e9)}` : "lives"}`];
  });
  return [section(`Allocated ${bytesText(sum)}`), new Facts(told).list, ...(rows.length > BLOCKS ? [nothing(`and ${integer(rows.length - BLOCKS)} more`)] : [])];
}

export function aboutMeasure({ store }: ViewContext, { from, to, found }: { from: number; to: number; found: TimelineMeasure | null }): HTMLElement[] {
  const [t0, t1] = [Math.min(from, to), Math.max(from, to)];
  const { lifetimes } = store.memory;
  let [sum, blocks] = [0, 0];
  for (let row = 0; row < lifetimes.used; row++) {
    const start = lifetimes.start[row]! * 1e3;
    if (start < t0 || start > t1) continue;
    sum += lifetimes.size[row]!;
    blocks++;
  }
  const counted = found && found.t0 === t0 && found.t1 === t1 ? found : found && Math.abs(found.t0 - t0) + Math.abs(found.t1 - t1) < 1e-3 ? found : null;
  const ops = counted ? `${counted.complete ? "" : "≥ "}${integer(counted.counts["op"] ?? 0)}` : "M at the cursor counts them";
  return [
    title(durationText((t1 - t0) * 1e6), "measured"),
    new Facts([["Ops", ops], ...(counted ? [["Time in ops", durationText(counted.ns["op"] ?? 0)] as const] : []), ["Allocated", `${bytesText(sum)} in ${integer(blocks)} ${blocks === 1 ? "block" : "blocks"}`]]).list,
  ];
}

/** What is selected everywhere if an event of the timeline is chosen. */
export function selectionOfEvent(store: Store, event: TimelineEvent): Selection | null {
  const context = store.context(event.context);
  const step = store.stepAt(event.t0 / 1e3);
  const at = { t: event.t0 / 1e3, ...(step === null ? {} : { step }), ...(event.node > 0 ? { node: event.node } : {}) };
  if (event.kind === "scope") return context ? { kind: "scope", label: context.scope, scope: context.scope, ...at } : null;
  const kernel = kernelOf(store, event.what, event.context);
  if (kernel && event.kind === "op") return { ...selectionOfKernel(store, kernel.name), t: at.t };
  const plan = PLANNED.includes(event.kind) ? store.plan(event.what) : undefined;
  return plan ? { kind: "op", label: plan.op, ...namesOf(store, event.what, event.context), ...at } : null;
}
