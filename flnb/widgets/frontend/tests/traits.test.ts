import { describe, expect, it } from "vitest";
import type { RunInfo } from "../src/protocol.ts";
import { Store } from "../src/store.ts";
import { syncTraits } from "../src/traits.ts";

class Model {
  values = new Map<string, unknown>();
  saved: [unknown, unknown][] = [];
  listeners = new Map<string, Set<() => void>>();
  get(name: string): unknown { return this.values.get(name); }
  set(name: string, value: unknown): void { this.values.set(name, value); }
  save_changes(): void { this.saved.push([this.values.get("selection"), this.values.get("cursor")]); }
  on(event: string, listener: () => void): void { (this.listeners.get(event) ?? this.listeners.set(event, new Set()).get(event)!).add(listener); }
  off(event: string, listener: () => void): void { this.listeners.get(event)?.delete(listener); }
  /** As Python does. */
  put(name: string, value: unknown): void {
    this.values.set(name, value);
    for (const listener of this.listeners.get(`change:${name}`) ?? []) listener();
  }
}

describe("traits", () => {
  const op = { kind: "op", label: "matmul", op: "matmul" } as const;

  it("follow what is selected and the cursor, once per change", () => {
    const [model, store] = [new Model(), new Store()];
    const end = syncTraits(model, store);
    store.select(op);
    store.notify();
    store.setCursor(0.5);
    expect(model.saved).toEqual([[op, null], [op, 0.5]]);
    end();
    store.select(null);
    expect(model.saved.length).toBe(2);
    expect([...model.listeners.values()].every((set) => set.size === 0)).toBe(true);
  });

  it("set selection and cursor, and are not sent back", () => {
    const [model, store] = [new Model(), new Store()];
    store.run = { whole: false } as RunInfo;
    syncTraits(model, store);
    store.select(op);
    model.values.delete("selection");
    model.put("cursor", 1);
    expect([store.selection, store.cursor]).toEqual([op, null]); // no host with traits
    store.select(null);
    model.saved.length = 0;
    model.put("selection", op);
    model.put("cursor", 0.25);
    expect(store.selection).toEqual(op);
    expect(store.cursor).toBe(0.25);
    model.put("cursor", null);
    expect(store.cursor).toBe(null);
    expect(model.saved).toEqual([]);
  });

  it("take a selection without a kind for none, and give one without a label its most particular name", () => {
    const [model, store] = [new Model(), new Store()];
    model.values.set("selection", {});
    syncTraits(model, store);
    expect(store.selection).toBe(null);
    model.put("selection", { kind: "op", op: "matmul", scope: "net.0" });
    expect(store.selection).toMatchObject({ kind: "op", label: "matmul" });
    model.put("selection", { kind: "step", step: 3 });
    expect(store.selection!.label).toBe("step");
    model.put("selection", {});
    expect(store.selection).toBe(null);
    expect(model.saved).toEqual([]);
  });

  it("are taken when they were set before the view was drawn: the selection at once, the cursor with the data", () => {
    const [model, store] = [new Model(), new Store()];
    model.values.set("selection", op);
    model.values.set("cursor", 0.25);
    syncTraits(model, store);
    expect([store.selection, store.cursor]).toEqual([op, null]);
    store.notify(); // still without a frame
    expect([model.get("selection"), model.get("cursor"), model.saved.length]).toEqual([op, 0.25, 0]);
    store.run = { whole: true } as RunInfo;
    store.notify(); // the first part of a recording, which opens at its peak when the last has come
    expect(store.cursor).toBe(null);
    store.landed = true;
    store.cursor = 0.75;
    store.notify();
    expect([store.selection, store.cursor]).toEqual([op, 0.25]);
    expect([model.get("selection"), model.get("cursor")]).toEqual([op, 0.25]);
    store.setCursor(0.5);
    expect(model.saved.at(-1)).toEqual([op, 0.5]);
  });

  it("hold a cursor that another view sends before the data is there", () => {
    const [model, store] = [new Model(), new Store()];
    syncTraits(model, store);
    model.put("selection", op);
    model.put("cursor", 1);
    expect([store.selection, store.cursor, store.range.t1 <= 0.001]).toEqual([op, null, true]);
    store.run = { whole: false } as RunInfo;
    store.notify();
    expect([store.selection, store.cursor]).toEqual([op, 1]);
  });
});
