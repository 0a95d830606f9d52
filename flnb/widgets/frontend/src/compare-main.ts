/** The anywidget module of two recordings beside each other. */

import styles from "./compare.css";
import { Comparison, type ComparisonState } from "./compare.ts";
import { type Place, present } from "./widget.ts";

declare global {
  interface Window { __flnbPair?: ComparisonState }
}

function render(place: Place): () => void {
  const { shown, close } = present(place, styles, (send, height) => new Comparison(send, height, place.model.get("saved_page") === true));
  window.__flnbPair = shown.testState;
  return close;
}

export default { render };
