/** What a view is, and what it may use. Panels are the compact views of the Overview; views fill a tab. */

import type { CodeRequest } from "./cell.ts";
import type { FitRequest, StackRequest, TapeRequest, TimelineRequest } from "./protocol.ts";
import type { Selection } from "./selection.ts";
import type { Store } from "./store.ts";
import type { Theme } from "./theme.ts";

export type TabName = "overview" | "ops" | "memory" | "tape" | "timeline" | "collectives" | "devices" | "metrics";

/** What views may ask of the dashboard. Everything happens in the browser; recording is never touched. */
export interface Actions {
  /** Select (null clears). All views and the status line follow. */
  select(selection: Selection | null): void;
  /** Move the one time cursor (seconds since run start); this stops following. null follows the newest again. */
  setCursor(t: number | null): void;
  /** Set the one time range; this stops following. */
  setRange(t0: number, t1: number): void;
  /** Follow the newest again, and resume when paused. */
  live(): void;
  pause(paused: boolean): void;
  /** Show a tab; `meanwhile` where the chosen one has nothing to show yet, to which the dashboard then returns. */
  show(tab: TabName, meanwhile?: boolean): void;
  /** Say something in the polite live region. */
  announce(message: string): void;
  /** Go to the next thing that the search finds, in views that can. */
  find(): void;
  /** Ask what a device with another capacity (bytes) would do; null: with its own. */
  setLimit(bytes: number | null): void;
  /** Ask the kernel for more of the tape or a call stack, which arrive at the store, or for an op's code, which is shown. */
  ask(request: TapeRequest | TimelineRequest | CodeRequest | StackRequest | FitRequest): void;
}

/** `alone`: the view is all there is; there are no others to lead to. */
export interface ViewContext { readonly store: Store; readonly theme: Theme; readonly actions: Actions; readonly alone: boolean }

/** A number as a table shows it; exported files have the number itself. */
export interface Measure { readonly value: number; readonly text: string }
export type Cell = string | number | Measure;

/** The table behind a canvas: the same data, for a screen reader or for exact values. `units`: those of measures, by column. */
export interface DataTable { caption: string; columns: string[]; rows: Cell[][]; units?: readonly string[] }

/** The number of a cell; NaN of a text. */
export const numberIn = (cell: Cell): number => (typeof cell === "object" ? cell.value : typeof cell === "number" ? cell : NaN);
export const shownCell = (cell: Cell): string => (typeof cell === "object" ? cell.text : String(cell));

export interface View {
  readonly element: HTMLElement;
  /** Draw; called at most once an animation frame, only while visible. `now` is performance.now(). */
  render(now: number): void;
  /** The size of `element` in CSS pixels has changed. */
  resize(width: number, height: number): void;
  /** The data as a table. Views made with Panel pass this to it, which shows it in place of the canvas. `all`: also what is too much to show. */
  describe?(all?: boolean): DataTable;
  /** The data of its other pictures, with all rows, which an exported file has after that table. */
  furtherTables?(): DataTable[];
  /** A key while the dashboard has focus and nothing editable does; true when taken. */
  key?(event: KeyboardEvent): boolean;
  /** Bring the next thing that the search finds into sight. */
  find?(): void;
  /** What a browser test may look at. */
  probe?(): unknown;
  destroy(): void;
}
