/**
 * Buttons on the remedies of a post-mortem. The card is HTML that says everything without them: this script adds them
 * where scripts run, as they do in the output of a cell. "Apply" and "In a cell" need a page that shows its
 * application (`flnb lab`); elsewhere code can be copied.
 */

import { insertCell } from "./cell.ts";
import { h, on } from "./dom.ts";

const DONE = 2000; // ms for which a button says that it did

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
      const into = (run: boolean): ((own: HTMLButtonElement) => Promise<string>) => async (own) => (await insertCell(code, own, run)) ? (run ? "Applied" : "Opened") : copied(code);
      place.replaceChildren(
        ...(window.jupyterapp && "runs" in place.dataset ? [button("Apply", `run ${what} in a new cell below`, into(true))] : []),
        ...(window.jupyterapp ? [button("In a cell", `${what}, below`, into(false))] : []),
        button("Copy", `the code of ${what}`, () => copied(code)));
    }
  }
}
