/** The shell: owns store and theme, draws at most once an animation frame, and turns keys and clicks into actions. */

import { CodeSheet, isCodeAnswer } from "./cell.ts";
import { RecordingBar, StatusLine, ViewBar } from "./bars.ts";
import { clamp } from "./clamp.ts";
import { h, keepKeys, on } from "./dom.ts";
import { createCollectivesView } from "./collectives/index.ts";
import { createDevicesView } from "./devices/index.ts";
import { integer } from "./format.ts";
import { Empty } from "./empty.ts";
import { ExportMenu, isExportAnswer } from "./exporting.ts";
import { createMemoryPanel, createMemoryView } from "./memory/index.ts";
import { createMetricsPanel, createMetricsView } from "./metrics.ts";
import { createOpsPanel, createOpsView } from "./ops.ts";
import { PROTOCOL, type ToKernel } from "./protocol.ts";
import { selectionParts, type StateLine, stateLine } from "./states.ts";
import { Store } from "./store.ts";
import { createTapePanel, createTapeView } from "./tape/index.ts";
import { testStateOf, type TestState } from "./teststate.ts";
import { Theme } from "./theme.ts";
import { createThreadsView } from "./threads/view.ts";
import { LEAST_SECONDS, spanOfKey } from "./timeline/scale.ts";
import type { Actions, TabName, View, ViewContext } from "./view.ts";

const TEXT_INTERVAL = 250;
/** The least time between two acknowledgements, which say "drawn", and that after which one is sent where nothing is drawn (hidden, throttled), ms. */
const [ACKNOWLEDGE_EVERY, ACKNOWLEDGE_ANYWAY] = [100, 150];

export interface DashboardOptions {
  send: (message: ToKernel) => void;
  height?: number | undefined;
  /** One view alone, without the recording around it. */
  only?: TabName | undefined;
  /** The tab to begin with. */
  tab?: TabName | undefined;
  /** The page is a saved file: there is no kernel. */
  saved?: boolean | undefined;
  /** Called with each tab that is shown. */
  onTab?: ((tab: TabName) => void) | undefined;
}

/** In place of the state of a recording: what one can do with a view that stands alone. */
const ALONE: StateLine = {
  mark: "square", title: "", head: "Tape", rest: ["▸ opens a module", "drag moves", "Ctrl and wheel zoom", "/ searches, Enter goes to the next", "F fits"], tone: "normal", stale: false, urgent: false,
};

let dashboards = 0;

export class Dashboard {
  readonly element: HTMLElement;
  readonly store = new Store();
  private readonly theme: Theme;
  private readonly context: ViewContext;
  private readonly options: DashboardOptions;
  private readonly viewBar: ViewBar;
  private readonly exportMenu: ExportMenu;
  private exporting = false;
  private readonly recordingBar: RecordingBar;
  private readonly statusLine: StatusLine;
  private readonly empty = new Empty();
  private readonly content = h("div", "fl-content");
  private readonly spoken = h("div", { class: "fl-hidden", role: "status", "aria-live": "polite" });
  private readonly pages = new Map<TabName, { element: HTMLElement; views: { view: View; slot: HTMLElement }[] }>();
  private readonly sizes: ResizeObserver;
  private readonly visibility: IntersectionObserver | null;
  private readonly slots = new Map<Element, View>();
  private readonly cleanups: (() => void)[] = [];
  private readonly prefix = `flnb-${++dashboards}`;
  private tab: TabName = "overview";
  private visible = true;
  private placed = false;
  private scheduled = 0;
  private unacknowledged: number[] = [];
  private acknowledgeTimer: ReturnType<typeof setTimeout> | undefined;
  private acknowledged = { at: -Infinity, tab: "" };
  private drawnFrame = -1;
  private updates = 0;
  private drawn: readonly [number, number | null] = [0, null];
  private textAt = -Infinity;
  private selectionSpoken = "";
  private readonly sheet = new CodeSheet();
  private asking = false;

  constructor(options: DashboardOptions) {
    this.options = options;
    this.element = h("div", { class: "fl-root fl-wide", role: "region", "aria-label": "flnb dashboard", tabindex: -1 });
    if (options.height) this.element.style.height = `${options.height}px`;
    this.theme = new Theme(this.element);
    this.context = { store: this.store, theme: this.theme, actions: this.actions(), alone: options.only !== undefined };
    this.viewBar = new ViewBar(this.context, this.prefix);
    this.exportMenu = new ExportMenu({
      name: () => this.store.latest?.run.name ?? "run",
      shown: () => this.pages.get(this.tab)!,
      ask: (request) => {
        this.exporting = true;
        options.send(request);
      },
      view: () => this.tab,
      refusal: () => this.noExport(),
      announce: (message) => (this.spoken.textContent = message),
    }, this.prefix);
    this.viewBar.element.append(this.exportMenu.element);
    this.recordingBar = new RecordingBar(this.context);
    this.statusLine = new StatusLine(this.context);
    this.content.append(this.empty.element);
    if (options.only) this.element.classList.add("fl-alone");
    this.element.append(this.viewBar.element, ...(options.only ? [] : [this.recordingBar.element]), this.content, this.statusLine.element, this.sheet.element, this.spoken);
    this.sizes = new ResizeObserver((entries) => this.resized(entries));
    this.sizes.observe(this.element);
    this.sizes.observe(this.recordingBar.brush.element);
    this.visibility = typeof IntersectionObserver === "undefined" ? null : new IntersectionObserver((entries) => {
      this.visible = entries.at(-1)!.isIntersecting;
      if (this.visible) this.schedule();
    });
    this.visibility?.observe(this.element);
    this.cleanups.push(this.store.subscribe(() => this.schedule()), this.theme.onChange(() => this.schedule()));
    const timer = setInterval(() => this.schedule(), TEXT_INTERVAL);
    const themeTimer = setInterval(this.theme.refresh, 1000);
    // On the window, before JupyterLab's own listener on the document: a key that is ours here never reaches its commands.
    on(window, "keydown", this.key, true);
    window.addEventListener("flnb-select", this.selectOp);
    this.cleanups.push(() => clearInterval(timer), () => clearInterval(themeTimer), () => window.removeEventListener("keydown", this.key, true),
      () => window.removeEventListener("flnb-select", this.selectOp));
    this.show(options.only ?? options.tab ?? "overview");
    options.send({ type: "hello", protocol: PROTOCOL });
  }

  /** Take one custom message of the kernel. */
  receive(content: unknown, buffers: readonly (DataView | ArrayBuffer | Uint8Array)[]): void {
    if (isCodeAnswer(content)) {
      if (this.asking) void this.sheet.show(content); // another view of the same dashboard asked: its cell, not ours
      this.asking = false;
      return;
    }
    if (isExportAnswer(content)) {
      if (this.exporting) this.exportMenu.receive(content, buffers[0]); // another view of the same dashboard asked otherwise
      this.exporting = false;
      return;
    }
    for (const reply of this.store.receive(content, buffers, performance.now())) {
      if (reply.type === "ack") this.unacknowledged.push(reply.seq);
      else this.options.send(reply);
    }
    if (this.unacknowledged.length && this.acknowledgeTimer === undefined) {
      this.acknowledgeTimer = setTimeout(() => this.acknowledge(), ACKNOWLEDGE_ANYWAY);
    }
  }

  /** Why the kernel cannot write a file of the recording now; empty where it can. */
  private noExport(): string {
    if (this.options.saved) return "a saved page has no kernel";
    if (this.store.kernel === "disconnected" || this.store.kernel === "restarted") return "the kernel has ended";
    return this.store.latest?.run.state === "recording" ? "the recording still runs" : "";
  }

  get testState(): TestState {
    return testStateOf(this.store, () => ({ updates: this.updates, drawn: this.drawn, tab: this.tab, view: this.pages.get(this.tab)?.views[0]?.view }));
  }

  destroy(): void {
    for (const cleanup of this.cleanups) cleanup();
    cancelAnimationFrame(this.scheduled);
    clearTimeout(this.acknowledgeTimer);
    this.sizes.disconnect();
    this.visibility?.disconnect();
    for (const { views } of this.pages.values()) for (const { view } of views) view.destroy();
    this.theme.destroy();
    this.element.remove();
  }

  // ---- pages

  show(tab: TabName, meanwhile = false): void {
    if (this.options.only && tab !== this.options.only) return;
    this.tab = tab;
    if (!meanwhile) this.options.onTab?.(tab);
    if (!this.pages.has(tab)) this.build(tab);
    for (const [name, { element }] of this.pages) element.hidden = name !== tab;
    this.viewBar.show(tab, meanwhile);
    this.schedule();
  }

  private build(tab: TabName): void {
    const { context } = this;
    const views: View[] = tab === "overview"
      ? [createOpsPanel(context), createMemoryPanel(context), createTapePanel(context), createMetricsPanel(context)]
      : [{ ops: createOpsView, memory: createMemoryView, tape: createTapeView, timeline: createThreadsView, collectives: createCollectivesView, devices: createDevicesView, metrics: createMetricsView }[tab](context)];
    const slots = views.map((view) => ({ view, slot: h("div", "fl-slot", view.element) }));
    const element = h("div", {
      class: `fl-page fl-${tab === "overview" ? "overview" : "single"}`, role: "tabpanel", "data-tab": tab,
      id: `${this.prefix}-page-${tab}`, "aria-labelledby": `${this.prefix}-tab-${tab}`,
    }, ...slots.map(({ slot }) => slot));
    this.pages.set(tab, { element, views: slots });
    this.content.prepend(element);
    for (const { view, slot } of slots) {
      this.slots.set(slot, view);
      this.sizes.observe(slot);
    }
  }

  private resized(entries: ResizeObserverEntry[]): void {
    for (const { target, contentRect: { width, height } } of entries) {
      if (!(width > 0 && height > 0)) continue; // hidden for a moment, or for good: nothing to fit
      if (target === this.element) {
        const name = width >= 1040 ? "fl-wide" : width >= 720 ? "fl-medium" : "fl-narrow";
        this.element.classList.remove("fl-wide", "fl-medium", "fl-narrow");
        this.element.classList.add(name);
      } else if (target === this.recordingBar.brush.element) this.recordingBar.brush.resize(width, height);
      else this.slots.get(target)?.resize(width, height);
    }
    this.schedule();
  }

  // ---- drawing

  private schedule(): void {
    if (!this.scheduled) this.scheduled = requestAnimationFrame(this.draw);
  }

  private readonly draw = (now: number): void => {
    this.scheduled = 0;
    if (!this.visible || !this.element.isConnected) {
      this.acknowledge();
      return;
    }
    if (!this.placed) {
      this.placed = true; // only now is the page's theme there to be read
      this.theme.refresh();
    }
    const { store } = this;
    const line = this.options.only === "tape" ? ALONE : stateLine(store, performance.now());
    const waiting = !store.run || (store.run.state === "waiting" && store.counters?.events === 0);
    this.empty.element.hidden = !waiting;
    if (waiting) this.empty.update(store);
    if (now - this.textAt >= TEXT_INTERVAL - 20 || store.versions.view !== this.viewVersion) {
      this.textAt = now;
      store.versions.text++;
      this.viewVersion = store.versions.view;
      this.viewBar.update();
      this.recordingBar.update(line);
      this.statusLine.update(line, performance.now(), this.unacknowledged.length);
      this.element.classList.toggle("fl-stale", line.stale);
      this.speak();
    }
    this.recordingBar.brush.render(now);
    if (!waiting) for (const { view } of this.pages.get(this.tab)!.views) view.render(now);
    if (store.versions.frame !== this.drawnFrame) {
      this.drawnFrame = store.versions.frame;
      this.updates++;
      this.drawn = [store.seq, store.step];
    }
    if (this.unacknowledged.length && (now - this.acknowledged.at >= ACKNOWLEDGE_EVERY || this.tab !== this.acknowledged.tab)) {
      this.acknowledged = { at: now, tab: this.tab };
      this.acknowledge();
    }
  };

  private viewVersion = -1;

  /**
   * Frames are acknowledged once drawn: a browser that cannot keep up gets fewer, larger ones. Each message costs kernel
   * and page a change of the kernel's state to busy and back, so several frames share one.
   */
  private acknowledge(): void {
    clearTimeout(this.acknowledgeTimer);
    this.acknowledgeTimer = undefined;
    const seq = this.unacknowledged.pop();
    this.unacknowledged = [];
    if (seq !== undefined) this.options.send({ type: "ack", seq, tab: this.tab });
  }

  private speak(): void {
    const said = selectionParts(this.store).map((part) => part.text).join(", ");
    if (said === this.selectionSpoken) return;
    this.selectionSpoken = said;
    this.spoken.textContent = said ? `Selected ${said}` : "Selection cleared";
  }

  // ---- what the reader does

  private actions(): Actions {
    const { store } = this;
    return {
      select: (selection) => store.select(selection),
      setCursor: (t) => store.setCursor(t),
      setRange: (t0, t1) => store.setRange(t0, t1),
      setLimit: (bytes) => store.setLimit(bytes),
      live: () => {
        store.follow();
        this.setPaused(false);
      },
      pause: (paused) => this.setPaused(paused),
      show: (tab, meanwhile) => this.show(tab, meanwhile),
      announce: (message) => (this.spoken.textContent = message),
      ask: (request) => {
        this.asking ||= request.type === "code";
        this.options.send(request);
      },
      find: () => this.pages.get(this.tab)?.views[0]?.view.find?.(),
    };
  }

  /** A click on an op in a report of this page: every dashboard shows its node on the tape, or the op where it has none. */
  private readonly selectOp = (event: Event): void => {
    const { op, scope, nth } = (event as CustomEvent<{ op?: string; scope?: string; nth?: number } | null>).detail ?? {};
    if (typeof op !== "string") return;
    this.store.select({ kind: "op", label: op, op });
    const asks = nth !== undefined && this.store.tape !== null;
    this.show(asks ? "tape" : "ops");
    if (asks) this.options.send({ type: "tape", op, scope: scope ?? "", nth });
    this.element.scrollIntoView({ block: "nearest" });
  };

  private setPaused(paused: boolean): void {
    if (paused === this.store.paused) return;
    for (const reply of this.store.pause(paused)) this.options.send(reply);
    this.spoken.textContent = paused ? "Paused; recording goes on" : "Following live";
  }

  private readonly key = (event: KeyboardEvent): void => {
    const target = event.composedPath()[0];
    if (!(target instanceof Element) || !event.composedPath().includes(this.element)) return;
    if (keepKeys(event, this.element) || target.matches("input, textarea, select, [contenteditable]") || target.closest("[role=menu]")) return;
    // The browser presses the button by itself, and in a group of choices the arrows go from one to the next.
    const press = target.closest("button, [role=radio]") !== null && (event.key === " " || event.key === "Enter");
    if (press || (event.key.startsWith("Arrow") && target.closest("[role=tablist], [role=radiogroup]"))) return;
    const views = this.pages.get(this.tab)?.views.map(({ view }) => view) ?? [];
    // Of the bar over the views the arrows move the time in sight, whatever a view does with them.
    const view = this.recordingBar.element.contains(target) ? undefined : views.find(({ element }) => element.contains(target)) ?? views[0];
    if (view?.key?.(event) || this.command(event)) {
      event.preventDefault();
      event.stopPropagation();
    }
  };

  /** The dashboard's own keys; true when taken. */
  private command(event: KeyboardEvent): boolean {
    const { store } = this;
    if (this.options.only === "tape" && !["/", "Escape"].includes(event.key)) return false;
    const onArrows = (event.target as Element).closest("[role=grid]") === null;
    switch (event.key) {
      case " ": if (!store.memory.whole) this.setPaused(!store.paused); return true;
      case "/": this.viewBar.input.focus(); this.viewBar.input.select(); return true;
      case "Escape":
        if (store.search) {
          this.viewBar.input.value = "";
          store.setSearch("");
        } else if (store.selection) store.select(null);
        else if (store.cursor !== null) store.setCursor(null);
        else return false;
        return true;
      case "f": case "F": this.fit(); return true;
      case "o": case "O": this.show("ops"); return true;
      case "t": case "T": this.show("tape"); return true;
      case "b": case "B": this.show("memory"); return true;
      case "[": this.step(-1); return true;
      case "]": this.step(1); return true;
      default: return (onArrows || !event.key.startsWith("Arrow")) && this.look(event.key);
    }
  }

  /** Zoom or pan; false for other keys. */
  private look(key: string): boolean {
    const { store } = this;
    const span = spanOfKey(key, store.range, store.cursor, store.limits, LEAST_SECONDS);
    if (!span) return false;
    if (store.following && "wWsS".includes(key)) {
      store.span = span.t1 - span.t0;
      store.setCursor(null);
    } else store.setRange(span.t0, span.t1);
    return true;
  }

  /** All of a run; of one that goes on first the newest six steps, if these are not in sight already. */
  private fit(): void {
    const { store } = this;
    const all = store.landed || store.ended || (store.following && !store.span);
    store.span = 0;
    if (all) store.setRange(0, store.now);
    else this.context.actions.live();
  }

  /** Put cursor and range on the step before or after the one under the cursor. */
  private step(by: number): void {
    const { steps } = this.store;
    const at = clamp(steps.after("t0", this.store.at) - 1 + by, 0, steps.length - 1);
    if (at < 0) return;
    const [t0, t1] = [steps.column("t0")[at]!, steps.column("t1")[at]!];
    const { range } = this.store;
    const middle = (t0 + t1) / 2;
    this.store.setCursor(middle);
    if (t0 < range.t0 || t1 > range.t1) {
      const half = (range.t1 - range.t0) / 2;
      this.store.setRange(Math.max(0, middle - half), Math.max(0, middle - half) + 2 * half);
    }
    this.store.select({ kind: "step", label: `step ${integer(steps.column("index")[at]!)}`, step: steps.column("index")[at]!, t: middle });
  }
}
