// @vitest-environment jsdom
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { equip } from "../src/card.ts";

const CARD = `<div class="flnb-oom"><table><tr><td>del probe</td><td><span data-code="del probe" data-what="del probe" data-runs></span></td></tr>
<tr><td>lean</td><td><span data-code="with lean(model): step()"></span></td></tr></table></div>`;

const buttons = (): string[] => [...document.querySelectorAll("button")].map((button) => button.textContent!);

describe("buttons of a post-mortem", () => {
  const write = vi.fn(async () => undefined);
  beforeEach(() => {
    document.body.innerHTML = CARD;
    write.mockClear();
    Object.defineProperty(navigator, "clipboard", { value: { writeText: write }, configurable: true });
  });
  /** A notebook whose card is in its second cell, and what was done in it. */
  function opened(succeeds = true, answer: string | null = "caching has 3 MiB live"): { done: string[]; notebook: { activeCellIndex: number } } {
    const done: string[] = [];
    const model = { sharedModel: { setSource: (source: string) => done.push(source) } };
    const notebook = { activeCell: { model }, activeCellIndex: 5, widgets: [{ node: document.head }, { node: document.body }] };
    const kernel = answer === null ? null : {
      requestExecute: ({ user_expressions: { said } }: { user_expressions: { said: string } }) => {
        done.push(said);
        return { done: Promise.resolve({ content: { user_expressions: { said: { data: { "text/plain": answer } } } } }) };
      },
    };
    const currentWidget = { content: notebook, sessionContext: { session: { kernel } } };
    window.jupyterapp = {
      commands: { execute: async (command) => (done.push(command), command !== "notebook:run-cell" || succeeds) }, shell: { currentWidget },
    };
    return { done, notebook };
  }
  afterEach(() => delete window.jupyterapp);

  it("copy, where the page has no application", async () => {
    equip(document);
    equip(document); // a second card's script
    expect(buttons()).toEqual(["Copy", "Copy"]);
    document.querySelector("button")!.click();
    await vi.waitFor(() => expect(buttons()[0]).toBe("Copied"));
    expect(write).toHaveBeenCalledWith("del probe");
  });

  it("open and run a cell below the one that failed, where it has one", async () => {
    const { done, notebook } = opened();
    equip(document);
    expect(buttons()).toEqual(["Apply", "In a cell", "Copy", "In a cell", "Copy"]);
    const [apply, open] = document.querySelectorAll("button");
    apply!.click();
    apply!.click();
    await vi.waitFor(() => expect(document.querySelector("[role=status]")!.textContent).toBe("caching has 3 MiB live"));
    expect([notebook.activeCellIndex, done]).toEqual([1, ["notebook:insert-cell-below", "del probe", "notebook:run-cell",
      '__import__("flnb.show.remedying", fromlist=[""]).applied("del probe")']]);
    expect([apply!.textContent, apply!.ariaDisabled]).toEqual(["Applied", "true"]);
    open!.click();
    await vi.waitFor(() => expect(open!.textContent).toBe("Opened"));
    expect(done.slice(4)).toEqual(["notebook:insert-cell-below", "del probe"]);
    expect(apply!.getAttribute("aria-label")).toBe("Apply: run del probe in a new cell below");
  });

  it("say so where the cell fails, or the kernel has no answer", async () => {
    const { done } = opened(false);
    equip(document);
    const apply = document.querySelector("button")!;
    apply.click();
    await vi.waitFor(() => expect(apply.textContent).toBe("Failed"));
    expect([done.length, apply.ariaDisabled, document.querySelector("[role=status]")!.textContent]).toEqual(
      [3, null, "It did not run through; the new cell below says why, if there is one."]);
    opened(true, null);
    apply.click();
    await vi.waitFor(() => expect(document.querySelector("[role=status]")!.textContent).toBe("It ran in the cell below; the kernel has not said what it changed."));
  });

  it("stay away where there is no code", () => {
    document.body.innerHTML = '<div class="flnb-oom"><td>user_unlock(block 3)</td></div>';
    equip(document);
    expect(buttons()).toEqual([]);
  });
});
