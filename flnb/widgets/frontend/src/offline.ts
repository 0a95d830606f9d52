/** Answers in place of a kernel, in a saved page: about the tape, of which the page has the levels, and call stacks. */

import type { CodeAnswer, CodeRequest } from "./cell.ts";
import type { FrameHead, Plan, Proposal, StackAnswer, StepTapeAnswer, TapeAnswer, TapeGroup, TapeRequest, TimelineMessage, ToKernel } from "./protocol.ts";

/** What the page stores besides the frames: all levels of the tape, and call stacks by context. */
export interface Known { tape: TapeAnswer | null; stacks: Record<string, string[]> }
/** Names of ops and scopes by id, as the first frame told them. */
export interface Names { plans: readonly Pick<Plan, "op">[]; contexts: readonly { scope: string }[] }
export type Answer = TapeAnswer | StepTapeAnswer | StackAnswer | Proposal | CodeAnswer | TimelineMessage;

const KERNEL = "a saved page runs nothing: open the recording with flnb.view, or with flnb view --browser";

/** The names in the frames, those of ids from 0 on. */
export function namesOf(frames: readonly Pick<FrameHead, "plans" | "contexts">[]): Names {
  const names = { plans: [] as Pick<Plan, "op">[], contexts: [] as { scope: string }[] };
  for (const { plans, contexts } of frames) {
    plans?.items.forEach((plan, at) => (names.plans[plans.first + at] = plan));
    contexts?.items.forEach((context, at) => (names.contexts[contexts.first + at] = context));
  }
  return names;
}

export function answer(message: ToKernel, known: Known, names: Names): Answer | null {
  if (message.type === "tape" && message.at !== undefined) return { type: "tape", at: message.at, missing: "a saved page has one tape" };
  if (message.type === "tape") return known.tape && ofTape(message, known.tape, names);
  if (message.type === "timeline") return { type: "timeline", id: message.id, saved: true, ...(message.side === undefined ? {} : { side: message.side }) };
  if (message.type === "stack") return { type: "stack", context: message.context, lines: known.stacks[message.context] ?? [] };
  if (message.type === "fit" || message.type === "apply") return { type: "fit", capacity: message.capacity, state: "", error: KERNEL };
  return isCode(message) ? { type: "code", code: "", said: KERNEL } : null;
}

const isCode = (message: ToKernel): message is CodeRequest => message.type === "code";

function ofTape(request: TapeRequest, tape: TapeAnswer, names: Names): TapeAnswer {
  const keys = new Set(request.open ?? []);
  const found: TapeAnswer = { type: "tape", structure: tape.structure, step: tape.step, levels: [], nodes: [], leaves: tape.leaves };
  let reveal = request.reveal;
  if (request.search) {
    found.search = { text: request.search, ...matches(request.search.toLowerCase(), request.after, tape, names) };
    if (request.after !== undefined) reveal = found.search.next ?? undefined;
  }
  const node = tape.nodes.find(({ id }) => id === reveal);
  if (node) {
    const open = way(node.at, tape);
    for (const key of open) keys.add(key);
    found.reveal = { id: node.id, open };
  }
  found.levels = tape.levels.filter(({ key }) => keys.has(key));
  const rows = new Set(found.levels.flatMap(({ items }) => items.filter((item) => typeof item === "number")));
  found.nodes = tape.nodes.filter(({ at }) => rows.has(at));
  return found;
}

/** Keys of the groups around a node, the outermost first. */
function way(at: number, tape: TapeAnswer): string[] {
  const groups = tape.levels.flatMap(({ items }) => items.filter((item): item is TapeGroup => typeof item === "object"));
  const around = groups.filter(({ first, last }) => first <= at && at < last);
  return around.sort((a, b) => b.last - b.first - (a.last - a.first) || a.key.length - b.key.length).map(({ key }) => key);
}

function matches(text: string, after: number | undefined, tape: TapeAnswer, { plans, contexts }: Names): { count: number; next: number | null; at: number } {
  const has = (name: string | undefined): boolean => name !== undefined && name.toLowerCase().includes(text);
  const ids = tape.nodes.filter(({ plan, context }) => has(plans[plan]?.op) || has(contexts[context]?.scope)).map(({ id }) => id).sort((a, b) => a - b);
  if (!ids.length) return { count: 0, next: null, at: 0 };
  const at = after === undefined ? 0 : Math.max(0, ids.findIndex((id) => id > after));
  return { count: ids.length, next: ids[at]!, at: at + 1 };
}
