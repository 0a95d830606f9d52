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
    const done: string[] = [];
    const model = { sharedModel: { setSource: (source: string) => done.push(source) } };
    const notebook = { activeCell: { model }, activeCellIndex: 5, widgets: [{ node: document.head }, { node: document.body }] };
    window.jupyterapp = { commands: { execute: async (command) => done.push(command) }, shell: { currentWidget: { content: notebook } } };
    equip(document);
    expect(buttons()).toEqual(["Apply", "In a cell", "Copy", "In a cell", "Copy"]);
    const [apply, open] = document.querySelectorAll("button");
    apply!.click();
    await vi.waitFor(() => expect(apply!.textContent).toBe("Applied"));
    expect([notebook.activeCellIndex, done]).toEqual([1, ["notebook:insert-cell-below", "del probe", "notebook:run-cell"]]);
    open!.click();
    await vi.waitFor(() => expect(open!.textContent).toBe("Opened"));
    expect(done.slice(3)).toEqual(["notebook:insert-cell-below", "del probe"]);
    expect(apply!.getAttribute("aria-label")).toBe("Apply: run del probe in a new cell below");
  });

  it("stay away where there is no code", () => {
    document.body.innerHTML = '<div class="flnb-oom"><td>user_unlock(block 3)</td></div>';
    equip(document);
    expect(buttons()).toEqual([]);
  });
});
