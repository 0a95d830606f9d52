import { expect, test } from "vitest";

import { Finder } from "../../src/tape/finder.ts";
import type { TapeModel } from "../../src/tape/model.ts";
import type { ViewContext } from "../../src/view.ts";

function finder(search: string): { finder: Finder; asked: unknown[] } {
  const asked: unknown[] = [];
  const store = { search, selection: null, answer: null };
  const context = { store, actions: { ask: (question: unknown) => asked.push(question) } } as unknown as ViewContext;
  return { finder: new Finder(context, { nodes: [], tape: null } as unknown as TapeModel, true), asked };
}

test("asks once how much a search finds", () => {
  const { finder: found, asked } = finder("relu");
  found.update();
  found.update();
  expect(asked).toEqual([{ type: "tape", search: "relu" }]);
});

test("Enter before the next drawing asks for the node alone, whose answer no other may hide", () => {
  const { finder: found, asked } = finder("relu");
  found.next();
  found.update();
  expect(asked).toEqual([{ type: "tape", search: "relu", after: 0 }]);
});

test("the node that a report asked for is selected; where there is none, the op is shown", () => {
  const done: unknown[] = [];
  const node = { id: 7, plan: 0, context: 0, saved: 0 };
  const answer = { type: "tape", structure: "s", step: 3, levels: [], nodes: [], leaves: [], named: 7, reveal: { id: 7, open: ["/net"] } };
  const store = { search: "", selection: null as unknown, answer: answer as unknown, plan: () => ({ op: "tanh" }), context: () => ({ scope: "net" }) };
  const actions = { select: (selection: unknown) => done.push(store.selection = selection), show: (tab: string) => done.push(tab) };
  const model = { nodes: [{ node }], tape: { step: 3 }, indexOf: (id: number | undefined) => (id === 7 ? 0 : -1) } as unknown as TapeModel;
  const found = new Finder({ store, actions } as unknown as ViewContext, model, true);
  expect(found.update()).toEqual(["/net"]);
  expect(done).toEqual([{ kind: "node", label: "tanh", node: 7, step: 3, bytes: 0, op: "tanh", scope: "net" }]);
  expect(found.takeTarget()).toBe(0);
  store.answer = { ...answer, named: null, reveal: undefined };
  expect(found.update()).toEqual([]);
  expect(done.slice(1)).toEqual(["ops"]);
});
