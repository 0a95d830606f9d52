import { describe, expect, it } from "vitest";
import type { Column, TimelineRow } from "../../src/protocol.ts";
import { Store } from "../../src/store.ts";
import type { Theme } from "../../src/theme.ts";
import { litOf, markedBy, ThreadLanes } from "../../src/threads/lanes.ts";
import { ThreadsModel } from "../../src/threads/model.ts";

const ROWS: TimelineRow[] = [{ thread: 1, rank: null, kind: "scope", depth: 1 }, { thread: 1, rank: null, kind: "op", depth: 0 }];
const FAINT = 5;

/** A store of two ops in two scopes, and a timeline with a bar of each. */
function made(): { store: Store; model: ThreadsModel } {
  const [store, model] = [new Store(), new ThreadsModel()];
  store.plans = [null, { op: "conv2d", family: "matmul" }, { op: "relu", family: "elementwise" }] as unknown as Store["plans"];
  store.contexts = [null, { scope: "net.first" }, { scope: "net.head" }] as unknown as Store["contexts"];
  const columns: Record<string, Column> = {
    row: Float64Array.of(0, 0, 1, 1), t0: Float64Array.of(0, 5, 0, 5), t1: Float64Array.of(1, 6, 1, 6), what: Float64Array.of(0, 0, 1, 2), context: Float64Array.of(1, 2, 1, 2),
    count: Float64Array.of(1, 1, 1, 1), number: Float64Array.of(0, 1, 2, 3), longest: Float64Array.of(1, 1, 1, 1),
  };
  model.take({ rows: ROWS, t0: 0, t1: 10, pieces: [{ name: "whole", t0: 0, t1: 10, pixel: 1e-6, count: 4 }] }, Object.fromEntries(Object.entries(columns).map(([name, column]) => [`timeline.${name}`, column])));
  return { store, model };
}

const theme = { version: 1, colours: {}, family: () => "", labelOn: () => "" } as unknown as Theme;

/** Which bars are faint, of the row of scopes and of the row of ops. */
function faint(store: Store, model: ThreadsModel): boolean[][] {
  const lanes = new ThreadLanes(store, theme, model, model.best({ t0: 0, t1: 10 }, 1)!, litOf(store));
  return lanes.content.lanes[0]!.rows.map(({ bars }) => Array.from(bars.kind, (kind) => kind === FAINT));
}

describe("the bars of the timeline", () => {
  it("of a group of tape nodes stand out, forward and backward, once the kernel has answered which these are", () => {
    const { store, model } = made();
    store.contexts = [null, { scope: "net.first", phase: "forward" }, { scope: "net.head", phase: "backward" }] as unknown as Store["contexts"];
    store.select({ kind: "nodes", label: "conv2d ×4", nodes: [1, 9], group: "/0", step: 1 });
    expect(faint(store, model)).toEqual([[false, false], [true, true]]);
    const before = markedBy(store);
    const answer = (contexts: number[], ops: string[]) => store.receive({ type: "tape", structure: "", step: 1, levels: [], nodes: [], leaves: [], marks: { group: "/0", contexts, ops } }, [], 0);
    answer([1], ["conv2d"]);
    expect(markedBy(store)).not.toBe(before);
    expect(faint(store, model)).toEqual([[false, false], [false, true]]);
    answer([1], ["relu"]); // another op of the same scope
    expect(faint(store, model)).toEqual([[false, false], [true, true]]);
    answer([2], ["conv2d"]); // what ran backward has the scope of its forward op
    expect(faint(store, model)).toEqual([[false, false], [true, false]]);
  });

  it("stand out where an op or a scope was selected in another view", () => {
    const { store, model } = made();
    expect(faint(store, model)).toEqual([[false, false], [false, false]]);
    const before = markedBy(store);
    store.select({ kind: "op", label: "conv2d", op: "conv2d" });
    expect(markedBy(store)).not.toBe(before);
    expect(faint(store, model)).toEqual([[false, false], [false, true]]);
    store.select({ kind: "scope", label: "net.head", scope: "net.head" });
    expect(faint(store, model)).toEqual([[true, false], [true, false]]);
    store.select({ kind: "op", label: "relu", op: "relu", t: 0.005 }); // one bar, which was selected in the timeline itself
    expect(faint(store, model)).toEqual([[false, false], [false, false]]);
    store.select({ kind: "node", label: "conv2d", op: "conv2d", scope: "net.first", node: 7, step: 1 });
    expect(faint(store, model)).toEqual([[false, false], [false, true]]);
    store.kernelInfos.push({ name: "relu_sum", plan: 2, context: 2, parts: [[2, 2, 1]] });
    store.select({ kind: "kernel", label: "relu_sum", kernel: "relu_sum" });
    expect(faint(store, model)).toEqual([[false, false], [true, false]]);
    store.select(null);
    expect(markedBy(store)).toBe(before);
  });

  it("of what a device ran are in a lane for each stream, under the threads", () => {
    const { store } = made();
    const model = new ThreadsModel();
    const task = (stream: number, rank: number | null): TimelineRow => ({ thread: 2 ** 40 + stream, rank, kind: "task", depth: stream, name: "cuda:0" });
    const column = (values: number[]): Column => Float64Array.from(values);
    const columns = { row: [0, 1, 2], t0: [0, 1, 2], t1: [1, 2, 3], what: [1, 1, 2], context: [1, 1, 2], count: [1, 1, 1], number: [0, 0, 0], longest: [1, 1, 1] };
    model.take({ rows: [ROWS[1]!, task(0, null), task(7, null)], t0: 0, t1: 10, pieces: [{ name: "whole", t0: 0, t1: 10, pixel: 1e-6, count: 3 }] },
      Object.fromEntries(Object.entries(columns).map(([name, values]) => [`timeline.${name}`, column(values)])));
    const { content, rows } = new ThreadLanes(store, theme, model, model.best({ t0: 0, t1: 10 }, 1)!);
    expect(content.lanes.map(({ title, notes }) => [title, ...notes])).toEqual([["thread 1"], ["stream 0", "cuda:0"], ["stream 7", "cuda:0"]]);
    const lanes = new ThreadLanes(store, theme, model, model.best({ t0: 0, t1: 10 }, 1)!);
    expect(rows.slice(1).map(([row]) => lanes.name(row!, 0))).toEqual(["conv2d", "relu"]);
  });
});
