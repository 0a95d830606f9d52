/** The anywidget module of the dashboard and of its single views. */

import { Dashboard } from "./dashboard.ts";
import type { TestState } from "./teststate.ts";
import { watchKernel } from "./kernel.ts";
import { syncTraits } from "./traits.ts";
import type { TabName } from "./view.ts";
import { type Place, present } from "./widget.ts";

declare global {
  interface Window { __flnb?: TestState }
}

/**
 * Where the model holds the tab that was shown last, in this browser: JupyterLab may draw an output anew at any time,
 * and does so before the old one goes, in which the user may still choose a tab.
 */
const TAB = "shown_tab";
/** Views that may be all there is. */
const VIEWS: readonly TabName[] = ["ops", "memory", "tape", "timeline", "metrics"];

function render(place: Place): () => void {
  const { model } = place;
  const only = VIEWS.find((name) => name === model.get("only"));
  const tab = (): TabName | undefined => model.get(TAB) as TabName | undefined;
  const { shown, close } = present(place, "", (send, height) =>
    new Dashboard({ send, height, saved: model.get("saved_page") === true, only, tab: tab(), onTab: (name) => model.set?.(TAB, name) }));
  const follow = (): void => {
    const chosen = tab();
    if (chosen && shown.testState.tab !== chosen) shown.show(chosen);
  };
  model.on(`change:${TAB}`, follow);
  const unwatch = watchKernel(model.widget_manager, (status) => {
    shown.store.kernel = status;
    shown.store.notify();
  });
  const unlink = syncTraits(model, shown.store);
  window.__flnb = shown.testState;
  return () => {
    model.off(`change:${TAB}`, follow);
    unwatch();
    unlink();
    close();
  };
}

export default { render };
