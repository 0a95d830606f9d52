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
