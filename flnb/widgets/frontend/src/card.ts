/**
 * Buttons on the remedies of a post-mortem. The card is HTML that says everything without them: this script adds them
 * where scripts run, as they do in the output of a cell. "Apply" and "In a cell" need a page that shows its
 * application (`flnb lab`); elsewhere code can be copied.
 */

import { insertCell } from "./cell.ts";
import { h, on } from "./dom.ts";

const DONE = 2000; // ms for which "Copy" and "In a cell" say that they did
const PATIENCE = 10_000; // ms that the kernel has to describe what a remedy did

/** What is used of a kernel beside its cells. */
interface Future { done: Promise<{ content: { user_expressions?: Record<string, { data?: Record<string, string> }> } }> }
interface Kernel { requestExecute(content: object): Future }
interface Widget { sessionContext?: { session?: { kernel?: Kernel | null } | null } }

function button(name: string, title: string, act: (own: HTMLButtonElement) => Promise<string>): HTMLButtonElement {
  const made = h("button", { class: "do", title, "aria-label": `${name}: ${title}` }, name);
  on(made, "click", () => {
    void act(made).then((said) => {
      made.textContent = said;
      setTimeout(() => (made.textContent = name), DONE);
    });
  });
  return made;
}

/** "Apply": runs the remedy in a new cell, once, and then says for good what that changed, as the kernel describes it. */
function applier(code: string, what: string, place: HTMLElement): HTMLElement {
  const said = h("div", { class: "dim", role: "status" });
  const title = `run ${what} in a new cell below`;
  const made = h("button", { class: "do", title, "aria-label": `Apply: ${title}` }, "Apply");
  on(made, "click", async () => {
    if (made.ariaDisabled) return;
    made.ariaDisabled = "true";
    made.textContent = "Running";
    const ran = await insertCell(code, made, true);
    made.textContent = ran ? "Applied" : "Failed";
    said.textContent = ran ? await described(what) : "It did not run through; the new cell below says why, if there is one.";
    if (!ran) made.ariaDisabled = null;
  });
  place.closest("tr")!.cells[0]!.append(said);
  return made;
}

/** Ask the kernel what a remedy that ran has changed. */
async function described(what: string): Promise<string> {
  const unknown = "It ran in the cell below; the kernel has not said what it changed.";
  const widget = window.jupyterapp?.shell.currentWidget as Widget | undefined;
  const expression = `__import__("flnb.show.remedying", fromlist=[""]).applied(${JSON.stringify(what)})`;
  try {
    const asked = widget!.sessionContext!.session!.kernel!.requestExecute({ code: "", silent: true, store_history: false, user_expressions: { said: expression } });
    const late = new Promise<undefined>((resolve) => setTimeout(resolve, PATIENCE));
    const answer = await Promise.race([asked.done, late]);
    return answer?.content.user_expressions?.["said"]?.data?.["text/plain"] ?? unknown;
  } catch {
    return unknown;
  }
}

async function copied(code: string): Promise<string> {
  try {
    await navigator.clipboard.writeText(code);
    return "Copied";
  } catch {
    return "Not allowed";
  }
}

/** Equip all cards of the page that have no buttons yet. */
export function equip(page: ParentNode): void {
  for (const card of page.querySelectorAll<HTMLElement>(".flnb-oom:not([data-buttons])")) {
    card.dataset["buttons"] = "";
    for (const place of card.querySelectorAll<HTMLElement>("[data-code]")) {
      const code = place.dataset["code"]!;
      const what = place.dataset["what"] ?? code;
      const opened = async (own: HTMLButtonElement): Promise<string> => (await insertCell(code, own)) ? "Opened" : copied(code);
      place.replaceChildren(
        ...(window.jupyterapp && "runs" in place.dataset ? [applier(code, what, place)] : []),
        ...(window.jupyterapp ? [button("In a cell", `${what}, below`, opened)] : []),
        button("Copy", `the code of ${what}`, () => copied(code)));
    }
  }
}
