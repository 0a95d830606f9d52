/** The anywidget module of a function of flnb.jit as a program. */

import styles from "./program/style.css";
import { type ProgramState, ProgramView } from "./program/view.ts";
import { type Place, present } from "./widget.ts";

declare global {
  interface Window { __flnbProgram?: ProgramState }
}

function render(place: Place): () => void {
  const { shown, close } = present(place, styles, (send, height) => new ProgramView(send, height));
  window.__flnbProgram = shown.testState;
  return close;
}

export default { render };
