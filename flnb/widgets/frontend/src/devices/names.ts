/** What tasks and blocks are called, and the colours of their families. */

import { bytesText } from "../format.ts";
import { categoryLabels } from "../palette.ts";
import { ROUTES } from "../protocol.ts";
import type { Store } from "../store.ts";
import type { DevicesModel } from "./model.ts";

/** Names of kernels that no op asked for tell their family, where they are ours or a library's. */
const KNOWN: readonly (readonly [RegExp, string])[] = [
  [/gemm|matmul|conv|im2col/, "matmul"], [/norm|softmax/, "norm"], [/sum|reduce|max|min|arg|scan|cum|pool/, "reduction"],
  [/copy|gather|scatter|take|transpose|concat|fill|arange|sort/, "movement"], [/adam|sgd|optimizer/, "optimizer"],
];

export function family(model: DevicesModel, store: Store, row: number): string {
  if (model.route(row)) return "movement";
  const plan = store.plan(model.plan(row));
  const name = model.kernel(row)?.name ?? "";
  return plan?.family || KNOWN.find(([pattern]) => pattern.test(name))?.[1] || "elementwise";
}

/** The kernel, or where a copy goes. */
export function taskName(model: DevicesModel, row: number): string {
  const route = model.route(row);
  return route ? `copy ${ROUTES[route]}` : model.kernel(row)?.name || "kernel";
}

/** What the host asked for: the op, or the kernel itself. */
export function askedName(model: DevicesModel, store: Store, row: number): string {
  return store.plan(model.plan(row))?.op ?? taskName(model, row);
}

/** What stands on its bar. */
export function taskLabel(model: DevicesModel, row: number): string {
  return model.route(row) ? ["", "to device", "to host", "copy", "to device"][model.route(row)]! : taskName(model, row).replace(/^cupy /, "");
}

export function blockName(model: DevicesModel, store: Store, row: number): string {
  const { block_plan: plans, block_context: contexts, block_category: categories } = model.columns;
  const [plan, context] = [store.plan(plans![row]!), store.context(contexts![row]!)];
  const parts = [context?.scope, plan?.op].filter(Boolean);
  return parts.length ? parts.join(".") : categoryLabels[categories![row]!] ?? "block";
}

/** The streams that used a block: "s0 s2". */
export function streamsOf(model: DevicesModel, row: number): string {
  const bits = model.columns["block_streams"]![row]!;
  const found: string[] = [];
  for (let stream = 0; stream < 63; stream++) if (Math.floor(bits / 2 ** stream) % 2) found.push(`s${stream}`);
  return found.join(" ");
}

/** What a freed block waits for. */
export function waitsFor(model: DevicesModel, row: number): string {
  const { block_event: event, block_on: on } = model.columns;
  return event![row] ? `waits for e${event![row]}` : `waits for stream ${on![row]}`;
}

export const sizeOf = (model: DevicesModel, row: number): string => bytesText(model.columns["block_size"]![row]!);
