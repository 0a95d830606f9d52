/** Which modules of a tape stand open. */

import type { Actions } from "../view.ts";
import { boxes, openAll, openAtFirst } from "./groups.ts";
import type { TapeModel } from "./model.ts";

/** Boxes shown at first, and at most. */
const FIRST = 60;
const MOST = 20_000;

export class Opening {
  open: ReadonlySet<string> = new Set();
  /** What the reader opened or closed, by group; the rest follows the automatic choice. */
  readonly chosen = new Map<string, boolean>();
  private automatic: { key: string; open: ReadonlySet<string> } = { key: "", open: new Set() };
  /** All modules are to be open: asked for until nothing is unknown. */
  private everything = false;

  constructor(private readonly model: TapeModel, private readonly actions: Actions) {}

  /** What stands open: as much as fits where something may open by itself, then what the reader chose. */
  choose(measured: string | null, fits: (open: ReadonlySet<string>) => boolean): void {
    const { model } = this;
    const { root } = model.tree;
    // Chosen anew only for another graph, size or NaN: what opened by itself does not close by itself.
    const key = `${measured} ${model.origin}`;
    if (measured !== null && key !== this.automatic.key) this.automatic = { key, open: openAtFirst(root, FIRST, fits) };
    const open = new Set(this.automatic.open);
    for (const [name, chosen] of this.chosen) {
      if (chosen) open.add(name);
      else open.delete(name);
    }
    // The reader's choice too keeps to what can be drawn.
    if (boxes(root, open) > MOST) {
      const allowed = openAll(root, MOST).open;
      for (const name of open) if (!allowed.has(name)) open.delete(name);
    }
    this.open = open;
    if (this.everything) this.more();
  }

  all(): void {
    this.everything = true;
    this.more();
  }

  none(): void {
    this.everything = false;
    for (const key of this.model.groups.keys()) this.chosen.set(key, false);
  }

  /** Opens all that is known and fits, and asks for the rest of it. */
  private more(): void {
    const every = openAll(this.model.tree.root, MOST);
    for (const key of this.model.groups.keys()) this.chosen.set(key, every.open.has(key));
    for (const key of every.unknown) this.chosen.set(key, true);
    this.open = every.open;
    if (every.unknown.length > 0) this.actions.ask({ type: "tape", open: every.unknown });
    else this.everything = false;
  }
}
