/** The three bars around the views: tabs and search above, the recording under them, the status line below. */

import { Brush } from "./brush.ts";
import { attribute, h, icon, icons, on, setText } from "./dom.ts";
import { bytes, bytesText, clock, count, integer, joined, moment, percentText, text, UNKNOWN } from "./format.ts";
import { ofSteps, selectionParts, stateLine, type StateLine } from "./states.ts";
import type { Counters } from "./protocol.ts";
import type { TabName, ViewContext } from "./view.ts";

export const WINDOW = 4;

const tabs: readonly (readonly [TabName, string])[] = [
  ["overview", "Overview"], ["ops", "Ops"], ["memory", "Memory"], ["tape", "Tape"], ["timeline", "Timeline"], ["collectives", "Collectives"], ["devices", "Devices"], ["metrics", "Metrics"],
];

export class ViewBar {
  readonly element: HTMLElement;
  readonly input: HTMLInputElement;
  private readonly context: ViewContext;
  private readonly name = h("span", "fl-run fl-narrowhide");
  private readonly meta = h("span", "fl-meta fl-narrowhide");
  private readonly buttons = new Map<TabName, HTMLButtonElement>();

  /** `prefix` makes ids unique on the page: tabs name their panels. */
  constructor(context: ViewContext, prefix: string) {
    this.context = context;
    const list = h("div", { class: "fl-tabs", role: "tablist", "aria-label": "Views" });
    for (const [tab, title] of context.alone ? [] : tabs) {
      const button = h("button", { role: "tab", id: `${prefix}-tab-${tab}`, "aria-controls": `${prefix}-page-${tab}` }, title);
      on(button, "click", () => context.actions.show(tab));
      this.buttons.set(tab, button);
      list.append(button);
    }
    on(list, "keydown", (event) => {
      const names = tabs.map(([tab]) => tab).filter((tab) => !this.buttons.get(tab)!.hidden);
      const at = names.findIndex((tab) => this.buttons.get(tab) === event.target);
      const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
      if (!by || at < 0) return;
      const next = names[(at + by + names.length) % names.length]!;
      context.actions.show(next);
      this.buttons.get(next)!.focus();
      event.preventDefault();
      event.stopPropagation();
    });
    this.input = h("input", { type: "search", placeholder: "Op, scope, tensor", "aria-label": "Search ops, scopes and tensors", spellcheck: "false", autocomplete: "off" });
    on(this.input, "input", () => context.store.setSearch(this.input.value));
    on(this.input, "keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter") context.actions.find();
      if (event.key !== "Escape") return;
      this.input.value = "";
      context.store.setSearch("");
      this.buttons.get(this.current)?.focus();
    });
    this.element = h("div", "fl-viewbar", this.name, this.meta, list, h("span", "fl-space"),
      h("label", "fl-search", icon(icons.search), this.input, h("kbd", {}, "/")));
  }

  private current: TabName = "overview";
  /** The tab that was chosen, while it has nothing to show: at the beginning of a recording, before its first frames. */
  private chosen: TabName | null = null;

  show(tab: TabName, meanwhile = false): void {
    this.chosen = meanwhile ? this.current : null;
    this.current = tab;
    for (const [name, button] of this.buttons) {
      attribute(button, "aria-selected", name === tab);
      button.tabIndex = name === tab ? 0 : -1;
      if (name === tab) showTab(button);
    }
  }

  update(): void {
    const { store } = this.context;
    const run = store.latest?.run;
    for (const [tab, what] of [["collectives", "collectives"], ["devices", "devices"], ["timeline", "timeline"]] as const) { // a run of one rank, without a device, without ops has nothing to tell
      const button = this.buttons.get(tab);
      if (!button) continue;
      button.hidden = store[what] === null;
      if (button.hidden && this.current === tab && store.run) this.context.actions.show("overview", true); // before the first frame nothing is known
      else if (!button.hidden && this.chosen === tab) this.context.actions.show(tab);
    }
    setText(this.name, run?.name ?? "flnb");
    attribute(this.name, "title", run?.name);
    setText(this.meta, run ? joined([run.backend, run.manager, run.capacity === null ? run.device : `${run.device} ${bytesText(run.capacity)}`, run.libraries]) : "");
    this.meta.title = [this.meta.textContent, ...(run?.settings ? [`Recorded ${run.settings}`] : []), ...store.exchanges.slice(-9).map(({ t, text: what }) => `${clock(t)} ${what}`)].join("\n");
  }
}

/** Scroll the row of tabs, where it is narrower than they are, so that this one is whole. */
function showTab(tab: HTMLElement): void {
  const row = tab.parentElement!;
  const [left, right] = [tab.offsetLeft - row.offsetLeft, tab.offsetLeft - row.offsetLeft + tab.offsetWidth];
  if (left < row.scrollLeft) row.scrollLeft = left;
  else if (right > row.scrollLeft + row.clientWidth) row.scrollLeft = right - row.clientWidth;
}

class Stat {
  readonly element: HTMLElement;
  private readonly value = h("b");
  private readonly caption: HTMLElement;

  constructor(caption: string, hide = "", about: string | null = null) {
    this.caption = h("i", {}, caption);
    this.element = h("div", { class: `fl-stat ${hide}`.trim(), title: about }, this.value, this.caption);
  }

  set(value: string, caption?: string, tone = ""): void {
    setText(this.value, value);
    this.value.className = tone;
    if (caption !== undefined) setText(this.caption, caption);
  }
}

export class RecordingBar {
  readonly element: HTMLElement;
  readonly brush: Brush;
  private readonly context: ViewContext;
  private readonly mark = h("i", "fl-mark");
  private readonly state = h("span");
  private readonly pauseButton: HTMLButtonElement;
  private readonly step = new Stat("step");
  private readonly recorded = new Stat("recorded", "fl-wideonly");
  private readonly events = new Stat("events/s", "fl-narrowhide");
  private readonly telemetry = new Stat("telemetry", "fl-narrowhide", "Processor time of emitting events and making frames, as a share of the time. A program becomes slower by more than that where it waits for the thread that makes frames.");
  private readonly dropped = new Stat("dropped");
  private readonly liveButton: HTMLButtonElement;
  private pausedShown: boolean | null = null;
  private wholeShown = false;

  constructor(context: ViewContext) {
    this.context = context;
    this.pauseButton = h("button", { class: "fl-pause", title: "Stop the picture; recording goes on (Space)", onclick: () => context.actions.pause(!context.store.paused) });
    const strip = h("div", "fl-strip fl-narrowhide");
    this.brush = new Brush(context, strip);
    this.liveButton = h("button", { title: "Follow the newest again", onclick: () => context.actions.live() }, icon(icons.live), "Live");
    this.element = h("div", "fl-recbar", h("div", "fl-state", this.mark, this.state), this.pauseButton,
      this.step.element, this.recorded.element, this.events.element, this.telemetry.element, this.dropped.element, strip, this.liveButton);
  }

  update(line: StateLine): void {
    const { store } = this.context;
    this.mark.className = `fl-mark fl-mark-${line.mark}`;
    setText(this.state, line.title);
    if (this.pausedShown !== store.paused) {
      this.pausedShown = store.paused;
      this.pauseButton.replaceChildren(icon(store.paused ? icons.play : icons.pause), store.paused ? "Resume" : "Pause", h("kbd", "fl-narrowhide", "Space"));
      attribute(this.pauseButton, "aria-pressed", store.paused);
    }
    attribute(this.liveButton, "aria-pressed", store.following && !store.paused);
    if (store.memory.whole !== this.wholeShown) this.showWhole(store.memory.whole);
    // A live run that has ended: there is nothing to pause, and nothing to follow but what is not yet shown.
    const { ended } = store;
    this.pauseButton.hidden = this.wholeShown || (ended && !store.paused);
    this.liveButton.hidden = !this.wholeShown && ended && store.following && !store.paused;
    // Counters tell of the recording, which goes on while the picture is paused; only the step is the picture's.
    const counters = store.latest?.counters;
    const waiting = !counters || store.latest?.run.state === "waiting";
    const { step } = store;
    this.step.set(waiting ? UNKNOWN : integer(step), `step${waiting ? "" : ofSteps(counters, " · ")}`);
    this.recorded.set(waiting ? UNKNOWN : counters.t < 1 ? moment(counters.t) : clock(counters.t) + (counters.t < 3600 ? " s" : ""));
    this.events.set(counters ? text(count(counters.events_per_s < 10 ? Math.round(counters.events_per_s) : counters.events_per_s)) : "0");
    this.telemetry.set(waiting ? UNKNOWN : percentText(counters.telemetry_share));
    this.dropped.set(integer(counters?.dropped ?? 0), undefined, counters?.dropped ? "fl-warn" : "");
  }

  /** Of a recording that has ended nothing can be paused or followed: there is its peak. */
  private showWhole(whole: boolean): void {
    this.wholeShown = whole;
    this.telemetry.element.hidden = whole;
    this.liveButton.replaceChildren(icon(whole ? icons.peak : icons.live), whole ? "Peak" : "Live");
    this.liveButton.title = whole ? "Go to where most memory is live" : "Follow the newest again";
  }
}

export class StatusLine {
  readonly element: HTMLElement;
  private readonly context: ViewContext;
  private readonly left = h("span", "fl-statusleft");
  private readonly right = h("span", "fl-statusright");
  private leftKey = "";
  private rightKey = "";

  constructor(context: ViewContext) {
    this.context = context;
    this.element = h("div", "fl-status", this.left, this.right);
  }

  update(line: StateLine, now: number, unacknowledged: number): void {
    this.updateLeft(line);
    this.updateRight(now, unacknowledged);
  }

  private updateLeft(line: StateLine): void {
    const { store, actions } = this.context;
    const parts = selectionParts(store);
    const key = JSON.stringify([line, parts]);
    if (key === this.leftKey) return;
    this.leftKey = key;
    const content: (Node | string)[] = [];
    const selected = parts.length > 0;
    if (!selected || line.urgent) {
      content.push(h("i", { class: `fl-mark fl-mark-${line.mark}`, style: "margin:0 6px 0 1px" }), h("b", { class: line.tone === "normal" ? null : `fl-${line.tone}` }, line.head));
      // "Paused at step 388 · …", "1 204 events dropped in steps 301 to 303 · …": the first part may continue the head.
      line.rest.forEach((part, at) => content.push(at === 0 && /^(at|in) /.test(part) ? " " : " · ", part));
      if (line.action) {
        const button = h("button", { class: "fl-link", onclick: () => (line.action!.name === "resume" ? actions.pause(false) : actions.live()) }, line.action.label);
        content.push(" · ", button);
      }
    }
    if (selected) {
      if (content.length) content.push("\u2003");
      content.push("Selected ");
      parts.forEach((part, at) => {
        if (at) content.push(" · ");
        content.push(part.code ? h("b", "fl-code", part.text) : h("b", {}, part.text));
      });
      content.push("\u2003Esc clears");
    }
    const line_ = h("span", "fl-text", ...content);
    line_.title = line_.textContent ?? "";
    this.left.replaceChildren(line_);
  }

  private updateRight(now: number, unacknowledged: number): void {
    const { store, alone } = this.context;
    if (alone) return;
    const counters = store.latest?.counters;
    const parts: [string, string, string, string][] = [];
    if (!counters) parts.push(["", store.kernel === "connected" || store.kernel === null ? "no frame yet" : "", "", ""]);
    else {
      if (store.paused && store.stepsBehind && store.selection) parts.push(["the kernel goes on:", `${integer(store.stepsBehind)} steps`, "behind live", ""]);
      if (store.cursor !== null) parts.push(["cursor", `${store.cursor.toFixed(3)} s`, "", ""]);
      if (store.memory.whole) parts.push(["events", integer(counters.events), "", ""]);
      else this.connection(parts, counters, now, unacknowledged);
    }
    const key = JSON.stringify(parts);
    if (key === this.rightKey) return;
    this.rightKey = key;
    this.right.replaceChildren(...parts.map(([before, value, after, hide]) =>
      h("span", { class: hide || null }, before ? `${before} ` : "", h("b", {}, value), after ? ` ${after}` : "")));
  }

  /** How the frames of a run that goes on arrive. */
  private connection(parts: [string, string, string, string][], counters: Counters, now: number, unacknowledged: number): void {
    const { store } = this.context;
    parts.push(["frame", integer(store.seq), "", "fl-wideonly"]);
    const rate = store.rate(now);
    parts.push(["", rate ? String(Math.round(rate)) : UNKNOWN, "Hz", "fl-narrowhide"]);
    parts.push(["credit", `${Math.max(0, WINDOW - unacknowledged)} / ${WINDOW}`, "", "fl-narrowhide"]);
    if (store.lastKeyframeAt) {
      const age = (now - store.lastKeyframeAt) / 1000;
      parts.push(["keyframe", age < 60 ? `${age.toFixed(1)} s` : clock(age).replace(/\.\d$/, ""), "ago", "fl-wideonly"]);
    }
    const [used, capacity] = [bytes(counters.buffer_used), bytes(counters.buffer_capacity)];
    parts.push(["buffer", `${used[1] === capacity[1] ? used[0] : text(used)} / ${text(capacity)}`, "", "fl-narrowhide"]);
  }
}

export { stateLine };
