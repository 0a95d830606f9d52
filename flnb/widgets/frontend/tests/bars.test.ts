// @vitest-environment jsdom
import { expect, test } from "vitest";

import { ViewBar } from "../src/bars.ts";
import type { TabName, ViewContext } from "../src/view.ts";

test("the chosen tab waits in the overview while it has nothing to show, and is shown as soon as it has", () => {
  const store: Record<string, unknown> = { run: {}, latest: null, collectives: null, devices: null, timeline: {}, exchanges: [] };
  const shown: [TabName, boolean | undefined][] = [];
  const show = (tab: TabName, meanwhile?: boolean): void => {
    shown.push([tab, meanwhile]);
    bar.show(tab, meanwhile);
  };
  const bar = new ViewBar({ store, actions: { show } } as unknown as ViewContext, "test");
  bar.show("timeline");
  bar.update();
  store.timeline = null; // another recording begins
  bar.update();
  bar.update();
  store.timeline = {};
  bar.update();
  bar.update();
  expect(shown).toEqual([["overview", true], ["timeline", undefined]]);

  store.timeline = null;
  bar.update();
  bar.show("ops"); // chosen meanwhile
  store.timeline = {};
  bar.update();
  expect(shown.slice(2)).toEqual([["overview", true]]);
});
