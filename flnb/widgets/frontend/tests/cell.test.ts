// @vitest-environment jsdom
import { afterEach, describe, expect, it, vi } from "vitest";
import { CodeSheet, insertCell, isCodeAnswer } from "../src/cell.ts";

afterEach(() => {
  delete window.jupyterapp;
  vi.unstubAllGlobals();
});

/** A JupyterLab whose notebook gets a cell by the command. */
function lab() {
  const cells: string[] = [];
  const executed: string[] = [];
  window.jupyterapp = {
    commands: { execute: async (command: string) => void executed.push(command) },
    shell: { currentWidget: { content: { activeCell: { model: { sharedModel: { setSource: (source: string) => void cells.push(source) } } } } } },
  };
  return { cells, executed };
}

describe("opening an op in a cell", () => {
  it("makes a cell below where JupyterLab lets it", async () => {
    const { cells, executed } = lab();
    expect(await insertCell("y = 1")).toBe(true);
    expect(executed).toEqual(["notebook:insert-cell-below"]);
    expect(cells).toEqual(["y = 1"]);
  });

  it("cannot where the page exposes no JupyterLab, or no notebook is open", async () => {
    expect(await insertCell("y = 1")).toBe(false);
    window.jupyterapp = { commands: { execute: () => Promise.reject(new Error("no such command")) }, shell: {} };
    expect(await insertCell("y = 1")).toBe(false);
    window.jupyterapp = { commands: { execute: () => Promise.resolve() }, shell: {} };
    expect(await insertCell("y = 1")).toBe(false);
  });

  it("shows the code with a way to copy it", async () => {
    const copied: string[] = [];
    vi.stubGlobal("navigator", { clipboard: { writeText: async (text: string) => void copied.push(text) } });
    const sheet = new CodeSheet();
    expect(sheet.element.hidden).toBe(true);
    await sheet.show({ type: "code", code: "y = f(x)", said: "op 3: exp" });
    expect(sheet.element.hidden).toBe(false);
    expect(sheet.element.querySelector("pre")!.textContent).toBe("y = f(x)");
    expect(sheet.element.textContent).toContain("op 3: exp: copy it into a cell");
    const [copy, close] = sheet.element.querySelectorAll("button");
    copy!.click();
    await Promise.resolve();
    expect(copied).toEqual(["y = f(x)"]);
    close!.click();
    expect(sheet.element.hidden).toBe(true);
  });

  it("says where the cell is, and why there is none", async () => {
    const { cells } = lab();
    const sheet = new CodeSheet();
    await sheet.show({ type: "code", code: "y", said: "op 3: exp" });
    expect(sheet.element.textContent).toContain("in the new cell below");
    await sheet.show({ type: "code", code: "", said: "record with inputs=True" });
    expect(sheet.element.textContent).toBe("record with inputs=TrueClose");
    expect(cells).toEqual(["y"]);
  });

  it("knows an answer", () => {
    expect(isCodeAnswer({ type: "code", code: "", said: "" })).toBe(true);
    expect(isCodeAnswer({ type: "tape" })).toBe(false);
    expect(isCodeAnswer(null)).toBe(false);
  });
});
