// @vitest-environment jsdom
import { describe, expect, it, vi } from "vitest";
import { Simulation } from "../../src/dev/simulate.ts";
import { CapacityLine, rounded } from "../../src/memory/capacity.ts";
import { memoryOf } from "../../src/memory/model.ts";
import { common, ProposalPanel, verdict } from "../../src/memory/proposal.ts";
import type { Proposal } from "../../src/protocol.ts";
import { Store } from "../../src/store.ts";
import type { Theme } from "../../src/theme.ts";
import type { Actions, ViewContext } from "../../src/view.ts";

const MiB = 2 ** 20;

function context(store = new Store()): { context: ViewContext; asked: unknown[] } {
  const asked: unknown[] = [];
  const actions = { setLimit: (bytes: number | null) => store.setLimit(bytes), ask: (request: unknown) => asked.push(request) } as unknown as Actions;
  return { context: { store, actions, theme: { version: 0 } as Theme, alone: false }, asked };
}

describe("the capacity line", () => {
  const settled = vi.fn();
  const { context: around } = context();
  const host = document.createElement("div");
  const line = new CapacityLine(around, host, settled);
  line.place({ top: 10, bottom: 110, most: 100 * MiB, own: null });
  const press = (key: string): boolean => {
    const event = new KeyboardEvent("keydown", { key, bubbles: true, composed: true });
    let taken = false;
    host.addEventListener("keydown", () => (taken = line.key(event)), { once: true });
    line.element.dispatchEvent(event);
    return taken;
  };

  it("reads what it asks: three figures of a binary unit", () => {
    expect([900, 1536, 20_552_089].map(rounded)).toEqual([900, 1536, Math.round(19.6 * MiB)]);
    expect(rounded(1000 * MiB)).toBe(Math.round(0.977 * 1024 * MiB));
  });

  it("is a slider that keys move, and that goes back to the device's own", () => {
    expect(line.element.getAttribute("aria-valuetext")).toBe("not below the peak");
    expect(press("PageDown")).toBe(true);
    expect(around.store.limit).toBe(90 * MiB);
    expect(press("ArrowDown")).toBe(true);
    expect([around.store.limit, settled.mock.lastCall]).toEqual([89 * MiB, [89 * MiB]]);
    line.place({ top: 10, bottom: 110, most: 100 * MiB, own: null });
    expect([line.element.getAttribute("aria-valuenow"), line.element.getAttribute("aria-valuetext")]).toEqual([String(89 * MiB), "89.0 MiB"]);
    expect(line.element.style.transform).toBe("translateY(15px)");
    expect(press("Home")).toBe(true);
    expect(around.store.limit).toBe(MiB);
    expect(press("x")).toBe(false);
    expect(press("Delete")).toBe(true);
    expect([around.store.limit, settled.mock.lastCall]).toEqual([null, [null]]);
  });

  it("follows the pointer, and says once where it was let go", () => {
    settled.mockClear();
    line.element.setPointerCapture = () => undefined;
    const point = (type: string, clientY: number): void => void line.element.dispatchEvent(Object.assign(new MouseEvent(type, { clientY, button: 0 }), { pointerId: 1 }));
    point("pointerdown", 10);
    point("pointermove", 40);
    point("pointermove", 60);
    expect(settled).not.toHaveBeenCalled();
    point("pointerup", 60);
    expect([around.store.limit, settled.mock.calls]).toEqual([50 * MiB, [[50 * MiB]]]);
    point("pointermove", 80);
    expect(around.store.limit).toBe(50 * MiB);
    point("pointerdown", 60);
    point("pointermove", -40);
    point("pointerup", -40);
    expect(around.store.limit).toBe(null);
  });
});

describe("the proposal", () => {
  const simulation = new Simulation({ steps: 3 });
  simulation.advance(2);
  const store = new Store();
  const { content, buffers } = simulation.frame();
  store.receive({ ...structuredClone(content), run: { ...content.run, state: "finished" } }, buffers, 0);
  const { context: around, asked } = context(store);
  const model = memoryOf(store);
  model.update();
  const panel = new ProposalPanel(around, model);
  const said = (): string => {
    panel.update();
    return panel.element.textContent!;
  };
  const answer: Proposal = {
    type: "fit", capacity: 8 * MiB, state: "", fits: true, peak: 7 * MiB, peak_live: 6 * MiB, before: { peak: 32 * MiB, live: 20 * MiB }, seconds: 0.002, runs: true,
    code: "with flnb.memory.lean(model, recompute=['net.block1']):\n    step()", choices: [{ scope: "net.block1", what: "recompute", bytes: 4 * MiB, seconds: 0.002 }, { scope: "net.head", what: "keep", bytes: MiB, seconds: null }],
  };

  it("is asked for only below the peak of a recording that has ended", () => {
    expect(verdict(10, 5, false)).toMatch(/Everything fits/);
    expect(verdict(5, 10, true)).toMatch(/has ended/);
    expect(said()).toBe("");
    store.setLimit(1024 * MiB);
    panel.ask(store.limit);
    expect([said(), asked]).toEqual([expect.stringMatching(/Everything fits/), []]);
    store.setLimit(8 * MiB);
    panel.ask(store.limit);
    panel.ask(store.limit);
    expect(asked).toEqual([{ type: "fit", capacity: 8 * MiB }]);
    expect(said()).toMatch(/Replaying/);
  });

  it("tells what is done to which module, and can be run", () => {
    store.receive({ ...answer, capacity: 1 }, [], 0);
    expect(said()).toMatch(/Replaying/); // an older question's
    store.receive(answer, [], 0);
    expect(said()).toMatch(/predicted7.00 MiB6.00 MiB.*Fits, if this is done:.*block1recompute4.00 MiB2.00 ms.*headkeep1.00 MiB–/);
    const [apply] = panel.element.querySelectorAll<HTMLButtonElement>(".fl-links button");
    apply!.click();
    expect(asked[1]).toEqual({ type: "apply", capacity: 8 * MiB });
    store.receive({ ...answer, state: "running" }, [], 0);
    said();
    expect(panel.element.querySelector<HTMLButtonElement>(".fl-links button")!.disabled).toBe(true);
    store.receive({ ...answer, measured: { peak: 7 * MiB, live: 6 * MiB, seconds: 0.1 } }, [], 0);
    expect(said()).toMatch(/measured7.00 MiB6.00 MiB.*Run it again/);
  });

  it("gives the code where the kernel has no step", () => {
    store.receive({ ...answer, runs: false }, [], 0);
    expect(said()).toMatch(/flnb\.memory\.lean.*Copy$/s);
    expect(panel.element.querySelector("pre")!.textContent).toBe(answer.code);
    store.receive({ ...answer, fits: false, choices: [] }, [], 0);
    expect(said()).toMatch(/Does not fit, and no choice was found/);
    store.setLimit(null);
    expect([said(), store.proposal]).toEqual(["", null]);
  });

  it("leaves out what all modules begin with", () => {
    expect([common(["net.a.x", "net.b"]), common(["net", "net.a"]), common(["a", "b"]), common([])]).toEqual(["net.", "", "", ""]);
  });
});
