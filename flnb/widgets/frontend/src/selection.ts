/** What is selected, and what of the run belongs to it: the same answer in every view. */

import { shape as shapeText } from "./format.ts";
import type { Phase, Tape, TapeGroup, TapeNode } from "./protocol.ts";
import type { Store } from "./store.ts";

/**
 * What is selected. A selection names everything it is known to be: a block knows its op, scope and node.
 * `kind` says what was clicked; views mark what matches with `selectsBlock` and `selectsNode`.
 */
export interface Selection {
  kind: "op" | "scope" | "node" | "nodes" | "leaf" | "block" | "segment" | "hole" | "step" | "collective" | "task" | "kernel" | "line" | "shape";
  label: string;
  /** First and last id of a row of tape nodes, and the key of their group. */
  nodes?: readonly [number, number];
  group?: string;
  op?: string;
  scope?: string;
  phase?: Phase;
  /** Tape node id; negative is a leaf. */
  node?: number;
  block?: number;
  segment?: number;
  /** Of a hole: where it begins in its segment. */
  offset?: number;
  step?: number;
  /** Of a collective: the name of its group, its number in it, and its bucket. */
  communicator?: string;
  sequence?: number;
  bucket?: number;
  /** The name of a kernel that computes several ops. */
  kernel?: string;
  /** The user's line with its text, as contexts have it; the shape of results, as tables show it. */
  line?: string;
  shape?: string;
  /** Of a launch or copy of a device: its number. */
  task?: number;
  t?: number;
  bytes?: number;
}

/** Ops of forward and backward share a name: conv2d_backward, conv2d_input_grad, max_pool2d_grad and relu_pull belong to nodes conv2d, max_pool2d and relu. */
export const baseOp = (name: string): string => name.replace(/((_(input|weight|bias))?_grad|_backward|_pull|′|')$/, "");

/** Whether an op is that of a tape node, or one of its backward ops: conv2d_weight_grad is of conv2d, and of conv2d_bias. */
export function isOfNode(op: string, node: string | undefined): boolean {
  const base = baseOp(op);
  return node === base || (base !== op && node === `${base}_bias`);
}

/** Op, scope and phase of a plan and a context, as far as they are known. */
export function namesOf(store: Store, planId: number, contextId: number): Pick<Selection, "op" | "scope" | "phase"> {
  const [plan, context] = [store.plan(planId), store.context(contextId)];
  return { ...(plan ? { op: plan.op } : {}), ...(context ? { scope: context.scope, phase: context.phase } : {}) };
}

export function selectionOfBlock(store: Store, row: number): Selection {
  const { lifetimes } = store.memory;
  const names = namesOf(store, lifetimes.plan[row]!, lifetimes.context[row]!);
  const { op, scope } = names;
  const node = lifetimes.node[row]!;
  const step = store.stepAt(lifetimes.start[row]!);
  const id = lifetimes.id[row]!;
  return {
    kind: "block", label: [scope, op].filter(Boolean).join(".") || `block #${id}`,
    block: id, segment: lifetimes.segment[row]!, t: lifetimes.start[row]!, bytes: lifetimes.size[row]!,
    ...names, ...(node ? { node } : {}), ...(step !== null ? { step } : {}),
  };
}

/** A kernel, with scope and phase of its last op. */
export function selectionOfKernel(store: Store, name: string): Selection {
  const kernel = store.kernelInfos.find((one) => one.name === name);
  return { kind: "kernel", label: name, kernel: name, ...(kernel && namesOf(store, 0, kernel.context)) };
}

export function selectionOfNode(store: Store, node: TapeNode, tape: Tape): Selection {
  const plan = store.plan(node.plan);
  const context = store.context(node.context);
  return {
    kind: "node", label: plan?.op ?? `node #${node.id}`, node: node.id, step: tape.step, bytes: node.saved,
    ...(plan ? { op: plan.op } : {}), ...(context ? { scope: context.scope } : {}),
  };
}

/** Whether an op of this plan and context ran at the selected line, or has a result of the selected shape. */
export function ranAt(store: Store, plan: number, context: number, { kind, line, shape }: Selection): boolean {
  if (kind === "line") return (store.context(context)?.line ?? "") === line;
  const own = store.plan(plan)?.shape;
  return own !== undefined && shapeText(own) === shape;
}

/** Whether the block in this row belongs to the selection. */
export function selectsBlock(store: Store, row: number, selection = store.selection): boolean {
  if (!selection) return false;
  const { lifetimes } = store.memory;
  switch (selection.kind) {
    case "block": return lifetimes.id[row] === selection.block;
    case "segment": return lifetimes.segment[row] === selection.segment;
    case "nodes": return within(lifetimes.node[row]!, selection.nodes);
    case "node": case "leaf": return selection.node !== undefined && selection.node !== 0 && lifetimes.node[row] === selection.node;
    case "op": return selection.op !== undefined && store.plan(lifetimes.plan[row]!)?.op === selection.op;
    case "scope": return inScope(store.context(lifetimes.context[row]!)?.scope, selection.scope);
    case "line": case "shape": return ranAt(store, lifetimes.plan[row]!, lifetimes.context[row]!, selection);
    case "step": return selection.step !== undefined && store.stepAt(lifetimes.start[row]!) === selection.step;
    case "hole": case "collective": case "task": case "kernel": return false;
  }
}

/** Whether a tape node belongs to the selection. */
export function selectsNode(store: Store, node: TapeNode, selection = store.selection): boolean {
  if (!selection) return false;
  switch (selection.kind) {
    case "node": case "leaf": return node.id === selection.node;
    case "nodes": return within(node.id, selection.nodes);
    case "block":
      // A block's node belongs to its own step's tape; another step's tape shows the same op of the same scope.
      if (selection.node !== undefined && selection.step === store.tape?.step) return node.id === selection.node;
      return selection.op !== undefined && isOfNode(selection.op, store.plan(node.plan)?.op)
        && store.context(node.context)?.scope === selection.scope;
    case "op":
      return selection.op !== undefined && (isOfNode(selection.op, store.plan(node.plan)?.op) || nodesOfOp(store, selection.op).has(node.id));
    case "scope": return inScope(store.context(node.context)?.scope, selection.scope);
    case "line": case "shape": return ranAt(store, node.plan, node.context, selection);
    default: return false;
  }
}

/** Whether a closed group of tape nodes is, holds, or belongs to what is selected. */
export function selectsGroup(store: Store, group: TapeGroup, selection = store.selection): boolean {
  if (!selection) return false;
  switch (selection.kind) {
    case "node": case "leaf": case "block": return selection.node !== undefined && selection.node > 0 && within(selection.node, group.ids);
    case "nodes": return selection.nodes !== undefined && selection.nodes[0] <= group.ids[1] && group.ids[0] <= selection.nodes[1];
    case "op": return selection.op !== undefined && group.ops.some(([op]) => isOfNode(selection.op!, op));
    case "scope": return group.path !== "" && (inScope(group.path, selection.scope) || inScope(selection.scope, group.path));
    default: return false;
  }
}

/** Tape nodes that an op worked for, as its allocations tell: a composite's node has another name than its ops. */
function nodesOfOp(store: Store, op: string): ReadonlySet<number> {
  const key = `${op} ${store.versions.tape}`;
  let known = opNodes.get(store);
  if (known?.key !== key) {
    const nodes = new Set<number>();
    const { lifetimes } = store.memory;
    for (let row = 0; row < lifetimes.used; row++) {
      if (lifetimes.node[row]! > 0 && store.plan(lifetimes.plan[row]!)?.op === op) nodes.add(lifetimes.node[row]!);
    }
    opNodes.set(store, (known = { key, nodes }));
  }
  return known.nodes;
}

const opNodes = new WeakMap<Store, { key: string; nodes: ReadonlySet<number> }>();

const within = (id: number, range: readonly [number, number] | undefined): boolean => range !== undefined && range[0] <= id && id <= range[1];

/** Whether `scope` is `outer` or lies inside it: "net.block1.conv" in "net.block1". */
export function inScope(scope: string | undefined, outer: string | undefined): boolean {
  return scope !== undefined && outer !== undefined && (scope === outer || scope.startsWith(outer + "."));
}
