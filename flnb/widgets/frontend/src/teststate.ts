/** What browser tests may read of a dashboard. */

import type { Selection } from "./selection.ts";
import type { Store } from "./store.ts";
import type { TabName, View } from "./view.ts";

/** Read-only state for browser tests: `window.__flnb`, of the dashboard mounted last. */
export interface TestState {
  readonly seq: number;
  readonly frames: number;
  readonly paused: boolean;
  /** Drawings that showed new data; stands still while paused. */
  readonly updates: number;
  /** The frame and the step that the last of these shows. */
  readonly drawn: readonly [seq: number, step: number | null];
  /** Times that all texts were written, after which pictures are drawn. */
  readonly texts: number;
  readonly state: string;
  readonly tab: TabName;
  readonly step: number | null;
  readonly events: number;
  readonly dropped: number;
  readonly selection: Readonly<Selection> | null;
  /** The time cursor, seconds since the run began. */
  readonly cursor: number | null;
  /** All of a recording that has ended is there. */
  readonly whole: boolean;
  /** What the view that is shown tells of itself. */
  readonly view: unknown;
}

/** `shown` says what the dashboard shows now. */
export const testStateOf = (store: Store, shown: () => { updates: number; drawn: TestState["drawn"]; tab: TabName; view: View | undefined }): TestState => ({
  get seq() { return store.seq; },
  get frames() { return store.frames; },
  get paused() { return store.paused; },
  get updates() { return shown().updates; },
  get drawn() { return shown().drawn; },
  get texts() { return store.versions.text; },
  get state() { return store.latest?.run.state ?? "waiting"; },
  get tab() { return shown().tab; },
  get step() { return store.step; },
  get events() { return store.latest?.counters.events ?? 0; },
  get dropped() { return store.latest?.counters.dropped ?? 0; },
  get selection() { return store.selection; },
  get cursor() { return store.cursor; },
  get whole() { return store.landed; },
  get view() { return shown().view?.probe?.(); },
});
