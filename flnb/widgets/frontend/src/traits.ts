/** Selection and time cursor of a dashboard as traits of its widget: Python and other widgets read, set and link them. */

import type { Selection } from "./selection.ts";
import type { Store } from "./store.ts";

/** What is used of anywidget's model. */
export interface TraitModel {
  get(name: string): unknown;
  set?(name: string, value: unknown): void;
  save_changes?(): void;
  on(event: string, listener: () => void): void;
  off(event: string, listener: () => void): void;
}

const same = (one: unknown, two: unknown): boolean => JSON.stringify(one ?? null) === JSON.stringify(two ?? null);

/** A selection as a program writes it: without a kind it selects nothing, without a label its most particular name is one. */
const named = (selection: unknown): Selection | null => {
  const one = selection as Selection | null;
  return one?.kind ? { ...one, label: one.label ?? one.kernel ?? one.op ?? one.scope ?? one.line ?? one.shape ?? one.kind } : null;
};

/** Whether a cursor can be set: the data is there and, of a recording that has ended, all of it, since it then opens at its peak. */
const ready = (store: Store): boolean => store.run !== null && (store.landed || !store.run.whole);

/**
 * Keep the traits "selection" and "cursor" (seconds since the run began) equal to the store's; returns the function that ends it.
 * What they are at the start was set before this view was drawn and is taken, a cursor as soon as the data is there.
 */
export function syncTraits(model: TraitModel, store: Store): () => void {
  let held: number | null = null;
  let sent: { selection: unknown; cursor: unknown } = { selection: store.selection, cursor: store.cursor };
  const send = (): void => {
    if (held !== null && ready(store)) {
      const cursor = held;
      held = null;
      sent.cursor = cursor;
      if (cursor !== store.cursor) return store.setCursor(cursor);
    }
    const now = { selection: store.selection, cursor: held ?? store.cursor };
    if (same(now.selection, sent.selection) && same(now.cursor, sent.cursor)) return;
    sent = now;
    model.set?.("selection", now.selection);
    model.set?.("cursor", now.cursor);
    model.save_changes?.();
  };
  const take = (): void => {
    if (model.get("selection") === undefined) return; // a host without these traits, such as a page without a kernel
    const [selection, cursor] = [named(model.get("selection")), (model.get("cursor") ?? null) as number | null];
    if (same(selection, store.selection) && same(cursor, store.cursor)) return;
    sent = { selection, cursor };
    held = ready(store) ? null : cursor;
    if (!same(selection, store.selection)) store.select(selection);
    if (held === null && !same(cursor, store.cursor)) store.setCursor(cursor);
  };
  take();
  const ends = [store.subscribe(send)];
  for (const name of ["change:selection", "change:cursor"]) {
    model.on(name, take);
    ends.push(() => model.off(name, take));
  }
  return () => ends.forEach((end) => end());
}
