/**
 * "Open in a cell": the kernel gives the code of a recorded op; it goes into a new cell below, where the page lets us
 * (`flnb lab` starts JupyterLab so that it does), and is shown here to be copied.
 */

import { h, on } from "./dom.ts";
import { ofType } from "./protocol.ts";

/** Asks for code that runs the last recorded op of this name again, in this scope where one is given. */
export interface CodeRequest { type: "code"; op: string; scope?: string }
/** `code` is empty where there is none; `said` then says why, else which op it is. */
export interface CodeAnswer { type: "code"; code: string; said: string }

export const isCodeAnswer = ofType<CodeAnswer>("code");

/** What is used of JupyterLab's application, which it exposes as `jupyterapp` when it is told to. */
interface Lab {
  commands: { execute(command: string): Promise<unknown> };
  shell: { currentWidget?: { content?: Notebook } };
}
interface Cell { node?: HTMLElement; model?: { sharedModel?: { setSource(source: string): void } } }
interface Notebook { activeCell?: Cell; activeCellIndex?: number; widgets?: readonly Cell[] }

declare global {
  interface Window { jupyterapp?: Lab }
}

/** Put code into a new cell, below the one that `from` is in, else the active one, and run it; whether that was possible, and its code raised no error. */
export async function insertCell(code: string, from?: HTMLElement, run = false): Promise<boolean> {
  const lab = window.jupyterapp;
  if (!lab) return false;
  try {
    const notebook = lab.shell.currentWidget?.content;
    const at = from ? notebook?.widgets?.findIndex(({ node }) => node?.contains(from)) ?? -1 : -1;
    if (notebook && at >= 0) notebook.activeCellIndex = at;
    await lab.commands.execute("notebook:insert-cell-below");
    const model = lab.shell.currentWidget?.content?.activeCell?.model?.sharedModel;
    model?.setSource(code);
    return model !== undefined && (!run || await lab.commands.execute("notebook:run-cell") !== false);
  } catch {
    return false;
  }
}

/** The sheet over the dashboard that shows an answer. */
export class CodeSheet {
  readonly element = h("div", { class: "fl-sheet", role: "dialog", "aria-label": "Code of a recorded op", hidden: true });

  /** Show an answer; the promise is kept once it is known whether a cell was made. */
  async show(answer: CodeAnswer): Promise<void> {
    const made = answer.code !== "" && await insertCell(answer.code);
    const close = h("button", { class: "fl-button", onclick: () => (this.element.hidden = true) }, "Close");
    const tools = h("div", "fl-sheettools", close);
    if (answer.code) {
      const copy = h("button", "fl-button", "Copy");
      on(copy, "click", () => {
        void navigator.clipboard?.writeText(answer.code).then(() => (copy.textContent = "Copied"));
      });
      tools.prepend(copy);
    }
    const told = made ? `${answer.said}: in the new cell below` : answer.code ? `${answer.said}: copy it into a cell` : answer.said;
    this.element.replaceChildren(h("div", "fl-title", told), ...(answer.code ? [h("pre", {}, answer.code)] : []), tools);
    this.element.hidden = false;
    close.focus({ preventScroll: true });
  }
}
