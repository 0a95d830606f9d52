/** What the status line says about the connection and the recording: every state in words, calm when all is well. */

import { clock, count, integer, moment, percentText, text, UNKNOWN } from "./format.ts";
import type { Counters } from "./protocol.ts";
import type { Store } from "./store.ts";

/** Shape beside the words, so that no state is told by colour alone. */
export type Mark = "dot" | "ring" | "bars" | "diamond" | "square" | "error";
export type StateAction = "resume" | "live";

export interface StateLine {
  mark: Mark;
  /** Word in the recording bar. */
  title: string;
  /** The strong beginning of the status line, and what follows it. */
  head: string;
  rest: string[];
  tone: "normal" | "warn" | "error";
  action?: { name: StateAction; label: string };
  /** Numbers on screen are not being refreshed: they are dimmed, never emptied. */
  stale: boolean;
  /** Worth showing although something is selected. */
  urgent: boolean;
}

/** Without a frame for this long (ms) during a recording the picture counts as behind; an idle hub sends one a second. */
export const BEHIND_AFTER = 1900;

/** A recording without new events for this long (ms) says so: mostly a cell has ended, and the next has not begun. */
const IDLE_AFTER = 3000;

export const steps = (value: number): string => `${integer(value)} ${value === 1 ? "step" : "steps"}`;

/** What follows "step 3": ", 4 steps" where that is the last one, " of 600" before it; "" where their number is not known. */
export const ofSteps = ({ step, steps_total: total }: Counters, between: string): string =>
  !total ? "" : total > (step ?? 0) + 1 ? ` of ${integer(total)}` : `${between}${steps(total)}`;

/** The state that matters most. `now` is performance.now(). */
export function stateLine(store: Store, now: number): StateLine {
  const { run, counters } = store;
  const known = store.steps.length + store.steps.evicted;
  const normal = { tone: "normal", stale: false, urgent: false } as const;
  if (store.problem) return { mark: "error", title: "Failed", head: "Unreadable frame", rest: [store.problem], tone: "error", stale: true, urgent: true };
  if (store.kernel === "restarted" || store.kernel === "disconnected") {
    const restarted = store.kernel === "restarted";
    return {
      mark: "square", title: restarted ? "Restarted" : "Disconnected", head: restarted ? "Kernel restarted" : "Kernel disconnected",
      rest: run ? [`${steps(known)} kept in the browser, read only`] : ["run the dashboard's cell again"], tone: "normal", stale: false, urgent: true,
    };
  }
  if (!run || !counters || run.state === "waiting") {
    return { mark: "ring", title: "Waiting", head: "Waiting for the first event", rest: [], ...normal };
  }
  if (run.state === "failed") {
    const [name, ...rest] = (run.error ?? "the recorded block raised").split(": ");
    const interrupted = name === "interrupted"; // the error then says what is missing
    return {
      mark: "error", title: interrupted ? "Interrupted" : "Failed", head: interrupted ? "Recording interrupted" : name!,
      rest: [...(rest.length ? [rest.join(": ")] : []), `step ${integer(counters.step)}`, ...(interrupted ? [] : ["recording closed, complete"])],
      tone: "error", stale: false, urgent: true,
    };
  }
  if (store.missing !== null) {
    return {
      mark: "ring", title: "Resyncing", head: "Resyncing", rest: [`frame ${integer(store.missing)} missing, asked for a keyframe`],
      tone: "normal", stale: true, urgent: true,
    };
  }
  if (store.paused) {
    const behind = store.stepsBehind;
    const goes = store.latest && store.latest.run.id !== run.id ? `another recording has begun: ${store.latest.run.name}` : store.latest?.run.state === "recording"
      ? `the kernel goes on: ${steps(behind)} behind live` : behind ? `the run has ended: ${steps(behind)} behind` : "nothing newer";
    return {
      mark: "bars", title: "Paused", head: "Paused", rest: [`at step ${integer(counters.step)}`, goes],
      tone: "normal", action: { name: "resume", label: "Resume" }, stale: false, urgent: false,
    };
  }
  const silent = now - store.lastFrameAt;
  if (run.state === "recording" && silent > BEHIND_AFTER) {
    return {
      mark: "diamond", title: "Behind", head: `Picture ${(silent / 1000).toFixed(1)} s behind`,
      rest: ["no frame from the kernel", "the next one catches up", "nothing lost"], tone: "warn", stale: true, urgent: true,
    };
  }
  if (counters.dropped > 0) {
    const { dropped, dropped_first_step: first, dropped_last_step: last } = counters;
    const where = first === null ? "outside of steps" : first === last ? `in step ${integer(first)}` : `in steps ${integer(first)} to ${integer(last)}`;
    return {
      mark: "diamond", title: run.state === "recording" ? "Recording" : "Finished", head: `${integer(dropped)} events dropped`,
      rest: [`${where} (${percentText(dropped / Math.max(1, counters.events + dropped))})`, "totals of these steps are lower bounds", "a larger buffer keeps them: flnb.record(buffer=…)"],
      tone: "warn", stale: false, urgent: true,
    };
  }
  const progress = counters.step === null ? [] : [`step ${integer(counters.step)}${ofSteps(counters, ", ")}`];
  if (run.state === "finished") {
    return { mark: "square", title: "Finished", head: "Finished", rest: [...progress, `${moment(counters.t)} recorded`, run.note ?? "complete, dropped 0"], ...normal };
  }
  const idle = now - store.lastEventAt;
  if (idle > IDLE_AFTER) return { mark: "ring", title: "No events", head: `No events for ${clock(idle / 1e3)}`, rest: [...progress, "a cell has ended, or one call takes long"], ...normal };
  const looking = store.following ? {} : { action: { name: "live", label: "Live" } as const };
  return {
    mark: "dot", title: "Recording", head: "Recording",
    rest: [...progress, `${text(count(counters.events_per_s))} events/s`, `telemetry ${percentText(counters.telemetry_share)}`, "dropped 0"],
    ...normal, ...looking,
  };
}

/** The selection in words: op · scope · step · tape node · bytes; code names come separately for the code font. */
export function selectionParts(store: Store): { text: string; code: boolean }[] {
  const selection = store.selection;
  if (!selection) return [];
  const parts: { text: string; code: boolean }[] = [{ text: selection.label || UNKNOWN, code: selection.kind !== "step" }];
  const add = (value: string | undefined, code: boolean): void => {
    if (value && !parts.some((part) => part.text === value)) parts.push({ text: value, code });
  };
  if (selection.kind !== "op") add(selection.op, true);
  if (selection.kind !== "scope") add(selection.scope, true);
  add(selection.phase === "backward" || selection.phase === "optimizer" ? selection.phase : undefined, false);
  if (selection.sequence !== undefined) add(`${selection.communicator} #${integer(selection.sequence)}`, false);
  if (selection.task !== undefined) add(`task ${integer(selection.task)}`, false);
  if (selection.bucket !== undefined) add(`bucket ${selection.bucket}`, false);
  if (selection.step !== undefined && selection.step >= 0) add(`step ${integer(selection.step)}`, false);
  if (selection.node !== undefined && selection.node > 0) add(`tape node #${selection.node}`, false);
  if (selection.block !== undefined) add(`block #${integer(selection.block)}`, false);
  return parts;
}
