/** Finds nodes that are not in sight: what was selected in another view, and what the search names. */

import { integer } from "../format.ts";
import type { TapeAnswer } from "../protocol.ts";
import { selectionOfNode, selectsNode } from "../selection.ts";
import type { Store } from "../store.ts";
import type { ViewContext } from "../view.ts";
import { type Group, isGroup } from "./groups.ts";
import type { Box } from "./layout.ts";
import type { TapeModel } from "./model.ts";

export class Finder {
  /** What the search gave, for the panel's title. */
  text = "";
  private selection = "";
  private searched = "";
  private answered: TapeAnswer | null = null;
  /** Id of the node that is to be brought into sight once it is known. */
  private wanted: number | null = null;

  constructor(private readonly context: ViewContext, private readonly model: TapeModel, private readonly active: boolean) {}

  /** Call once a drawing; returns the groups that must be open. */
  update(): string[] {
    if (!this.active) return [];
    const open = [...this.read(), ...this.follow()];
    this.search();
    return open;
  }

  /** What is selected now is in sight already. */
  settle(): void {
    this.selection = JSON.stringify(this.context.store.selection);
    this.wanted = null;
  }

  /** Asks for the next node that the search finds, after the one that is selected. */
  next(): void {
    const { store, actions } = this.context;
    if (store.search === "") return;
    this.searched = store.search; // its answer says how many there are, too: another, drawn with it, would hide it
    actions.ask({ type: "tape", search: store.search, after: Math.max(0, store.selection?.node ?? 0) });
  }

  /** Brings a node that is known into sight. */
  show(at: number): void {
    this.wanted = this.model.nodes[at]?.node.id ?? null;
  }

  /** Index of the node to bring into sight now, -1 for none. */
  takeTarget(): number {
    const at = this.model.indexOf(this.wanted ?? undefined);
    if (at >= 0) this.wanted = null;
    return at;
  }

  /** Takes what the kernel answered. */
  private read(): string[] {
    const { store, actions } = this.context;
    const { answer } = store;
    if (answer === null || answer === this.answered) return [];
    this.answered = answer;
    if (answer.named === null) actions.show("ops");
    if (answer.search && answer.search.text === store.search) {
      const { count, at } = answer.search;
      this.text = count === 0 ? "nothing found" : answer.reveal ? `${integer(at)} of ${integer(count)} found` : `${integer(count)} found, Enter goes to the next`;
    }
    if (!answer.reveal || answer.step !== this.model.tape?.step) return [];
    const { id, open } = answer.reveal;
    this.wanted = id;
    const at = this.model.indexOf(id);
    if ((answer.search || answer.named) && at >= 0) {
      actions.select(selectionOfNode(store, this.model.nodes[at]!.node, this.model.tape));
      this.selection = JSON.stringify(store.selection);
    }
    return open;
  }

  /** The way to a node that a list or another view has selected; it is asked for where the node is not known. */
  private follow(): string[] {
    const { store, actions } = this.context;
    const key = JSON.stringify(store.selection);
    if (key === this.selection) return [];
    this.selection = key;
    const { selection } = store;
    const { tape } = this.model;
    const id = selection?.node;
    if (id === undefined || id <= 0 || !tape) {
      const at = selection ? this.model.nodes.findIndex((info) => selectsNode(store, info.node)) : -1;
      this.wanted = at < 0 ? null : this.model.nodes[at]!.node.id;
      return [];
    }
    this.wanted = id;
    const at = this.model.indexOf(id);
    if (at < 0 && (selection?.step === undefined || selection.step === tape.step)) actions.ask({ type: "tape", reveal: id });
    return at >= 0 && selection?.kind === "node" ? this.model.wayTo(at) : [];
  }

  /** Asks how much a new search text finds. */
  private search(): void {
    const { store, actions } = this.context;
    if (store.search === this.searched) return;
    this.searched = store.search;
    this.text = "";
    if (store.search !== "") actions.ask({ type: "tape", search: store.search });
  }
}

/** Whether what a box stands for matches the search. */
export function matches(box: Box, model: TapeModel, store: Store): boolean {
  if (store.search === "") return true;
  if (box.kind === "input") return store.matches(model.leafName(box.index, false));
  if (box.group) return store.matches(box.group.name, box.group.path, ...(box.group.data?.ops.map(([op]) => op) ?? [])) || holds(box.group, model, store);
  const { op, scope } = model.nodes[box.index]!;
  return store.matches(op, scope);
}

/** Whether something that is known of a group's inside matches the search. */
function holds(group: Group, model: TapeModel, store: Store): boolean {
  return (group.level?.items ?? []).some((child) => {
    if (isGroup(child)) return store.matches(child.name, child.path) || holds(child, model, store);
    return store.matches(model.nodes[child]!.op, model.nodes[child]!.scope);
  });
}
