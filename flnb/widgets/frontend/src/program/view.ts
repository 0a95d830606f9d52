/** A function of flnb.jit as a program: how it was rewritten, its kernels and calls, and the plan of its memory. */

import { clamp } from "../clamp.ts";
import { attribute, h, keepKeys, nothing, on, section, setText, swatch } from "../dom.ts";
import { bytesText, dtype, durationText, integer, percentText, UNKNOWN } from "../format.ts";
import { square } from "../memory/legend.ts";
import { categoryLabels, familyLabels } from "../palette.ts";
import { Panel, segmented } from "../panel.ts";
import { chooseRows, heading, table } from "../table.ts";
import { Theme } from "../theme.ts";
import { details, shareBar } from "./details.ts";
import { costsOf, familyOf, isProgram, isSource, type Launch, type ProgramData, type ProgramMessage, runsOf, type SourceRequest, stripOf, totalOf } from "./model.ts";
import { MemoryPlan } from "./plan.ts";

const STAGES = ["recorded", "rewritten", "fused", "planned"] as const;
type Stage = (typeof STAGES)[number];
const MOST_ROWS = 3000;
const WIDE = 1060;

/** Read-only state for browser tests: `window.__flnbProgram`. */
export interface ProgramState {
  readonly stage: Stage;
  readonly selected: number | null;
  readonly launches: number;
  readonly live: readonly number[];
  readonly program: number;
}

/** The last parts of a module's path. */
const tail = (scope: string, parts: number): string => {
  const names = scope.split(".");
  return names.length > parts ? `…${names.slice(-parts).join(".")}` : scope || "–";
};

export class ProgramView {
  readonly element: HTMLElement;
  private readonly theme: Theme;
  private message: ProgramMessage | null = null;
  private program = 0;
  private stage: Stage = "fused";
  private selected: number | null = null;
  private form: "loops" | "llvm" = "loops";
  private changed = true;
  private readonly texts = new Map<string, string>();
  private readonly name = h("span", "fl-run");
  private readonly meta = h("span", "fl-meta");
  private readonly chooser = h("span", {});
  private readonly stages = h("ol", { class: "fl-stages", role: "listbox", "aria-label": "Stages", tabindex: 0 });
  private readonly below = h("div", { class: "fl-programbelow", tabindex: 0 });
  private readonly main = h("div", { class: "fl-scroll fl-programmain", tabindex: 0 });
  private readonly side = h("div", { class: "fl-side", tabindex: 0, "aria-label": "Details" });
  private readonly status = h("div", { class: "fl-status", role: "status", "aria-live": "polite" });
  private readonly planned: Panel;
  private readonly middle: Panel;
  private readonly plan: MemoryPlan;
  private readonly sizes: ResizeObserver;

  constructor(private readonly send: (message: { type: "hello"; protocol: number } | SourceRequest) => void, height?: number) {
    this.element = h("div", { class: "fl-root fl-program", role: "region", "aria-label": "program of a function", tabindex: -1 });
    if (height) this.element.style.height = `${height}px`;
    this.theme = new Theme(this.element);
    const left = new Panel("Stages");
    left.tools.append(h("kbd", {}, "["), h("kbd", {}, "]"));
    left.body.append(h("div", "fl-column", this.stages, this.below));
    this.middle = new Panel("Program", () => this.callTable());
    this.middle.body.append(this.main);
    this.planned = new Panel("Memory plan", () => this.planTable());
    const host = h("div", "fl-callhost");
    this.planned.body.append(host);
    this.plan = new MemoryPlan(this.theme, host, (launch) => this.select(launch));
    this.element.append(
      h("div", "fl-viewbar", this.name, this.meta, h("span", "fl-space"), this.chooser),
      h("div", "fl-programgrid", left.element, this.middle.element, this.side, this.planned.element), this.status);
    this.sizes = new ResizeObserver(() => this.resize());
    for (const element of [this.element, host]) this.sizes.observe(element);
    this.theme.onChange(() => this.draw());
    on(window, "keydown", this.key, true);
    on(this.stages, "click", ({ target }) => {
      const item = target instanceof Element ? target.closest("li") : null;
      if (item) this.show(item.dataset["stage"] as Stage);
    });
    on(this.main, "click", ({ target }) => {
      const card = target instanceof Element ? target.closest<HTMLElement>("[data-launch]") : null;
      if (card) this.select(Number(card.dataset["launch"]));
    });
    setText(this.status, "waiting for the program");
    this.send({ type: "hello", protocol: 1 });
  }

  receive(content: unknown): void {
    if (isSource(content)) {
      this.texts.set(`${content.program} ${content.launch}`, content.text);
      this.tell();
    } else if (isProgram(content)) {
      this.message = content;
      this.texts.clear();
      this.open(content.programs.length - 1);
    }
  }

  get testState(): ProgramState {
    const now = (): ProgramState => ({ stage: this.stage, selected: this.selected, program: this.program, launches: this.data?.launches.length ?? 0, live: this.plan.live });
    return {
      get stage() { return now().stage; }, get selected() { return now().selected; }, get program() { return now().program; },
      get launches() { return now().launches; }, get live() { return now().live; },
    };
  }

  destroy(): void {
    this.sizes.disconnect();
    window.removeEventListener("keydown", this.key, true);
    this.theme.destroy();
    this.element.remove();
  }

  private get data(): ProgramData | null {
    return this.message?.programs[this.program] ?? null;
  }

  private open(program: number): void {
    this.program = program;
    this.selected = null;
    const { data, message } = this;
    if (!data || !message) return;
    const programs = message.programs.map((_, at) => [String(at), String(at)] as const);
    this.chooser.replaceChildren(...(programs.length > 1 ? [h("span", "fl-dim", "program "), segmented("Program", programs, String(program), (chosen) => this.open(Number(chosen)))] : []));
    this.plan.show(data);
    const slowest = data.launches.reduce((most, { ns, parts }, at) => {
      const best = data.launches[most]!;
      return (ns ?? parts.length) > (best.ns ?? best.parts.length) ? at : most;
    }, 0);
    this.draw();
    if (data.launches.length) this.select(slowest, false);
  }

  private show(stage: Stage): void {
    this.stage = stage;
    this.draw();
  }

  private select(launch: number | null, reveal = true): void {
    this.selected = launch;
    this.form = "loops";
    this.plan.select(launch);
    for (const card of this.main.querySelectorAll<HTMLElement>("[data-launch]")) {
      const own = Number(card.dataset["launch"]) === launch;
      attribute(card, "aria-pressed", own);
      if (own && reveal && card.classList.contains("fl-card")) card.scrollIntoView({ block: "nearest" });
    }
    this.tell();
  }

  private readonly key = (event: KeyboardEvent): void => {
    const target = event.composedPath()[0];
    if (!event.composedPath().includes(this.element) || keepKeys(event, this.element) || !this.data) return;
    const within = (element: HTMLElement): boolean => target instanceof Node && element.contains(target);
    if (event.key.startsWith("Arrow") && target instanceof Element && target.closest("[role=radiogroup], select")) return;
    const step = (by: number): void => this.show(STAGES[clamp(STAGES.indexOf(this.stage) + by, 0, STAGES.length - 1)]!);
    const move = (by: number): void => this.select(clamp((this.selected ?? -1) + by, 0, this.data!.launches.length - 1));
    const commands: Record<string, (() => void) | undefined> = {
      "[": () => step(-1), "]": () => step(1), Escape: () => this.select(null),
      ...(within(this.stages) ? { ArrowUp: () => step(-1), ArrowDown: () => step(1) } : {}),
      ...(within(this.main) || within(this.plan.surface.canvas) ? { ArrowLeft: () => move(-1), ArrowRight: () => move(1) } : {}),
    };
    const command = commands[event.key];
    if (!command) return;
    command();
    event.preventDefault();
    event.stopPropagation();
  };

  private resize(): void {
    const wide = this.element.clientWidth;
    this.element.classList.toggle("fl-programsmall", wide > 0 && wide < WIDE);
    this.plan.resize();
  }

  private draw(): void {
    const { data, message } = this;
    if (!data || !message) return;
    this.theme.refresh();
    setText(this.name, message.name);
    setText(this.meta, `flnb.jit · ${data.backend} · ${this.timed(data)}`);
    this.drawStages(data);
    this.drawMain(data);
    this.plan.draw();
    const most = Math.max(0, ...this.plan.live);
    const size = (value: number): string => bytesText(value);
    this.planned.sub = `block ${size(data.block)}, most in use ${size(most)} · besides it: results ${size(data.results)}, scratch ${size(data.scratch)}`;
    const categories = [...new Set(data.launches.flatMap(({ stored }) => stored.filter(({ offset }) => offset !== null).map(({ category }) => category)))];
    this.planned.tools.replaceChildren(...categories.map((one) => h("span", "fl-legenditem fl-sub", square(this.theme, one), categoryLabels[one] ?? "")),
      h("span", "fl-legenditem fl-sub", h("i", "fl-programline"), "in use"));
    this.tell();
  }

  private timed(data: ProgramData): string {
    const total = totalOf(data);
    return total === null ? "no times: give it a recording of calls, flnb.program(f, run)" : `${durationText(total)} a run, median of ${data.runs} in ${data.run}`;
  }

  private drawStages(data: ProgramData): void {
    const { length } = data.launches;
    const kernels = data.launches.filter(({ kind }) => kind === "kernel").length;
    const held = data.launches.reduce((sum, { stored }) => sum + stored.filter(({ offset }) => offset !== null).length, 0);
    const compute = data.after - data.views;
    const rows: [Stage, string, number][] = [
      ["recorded", `${integer(data.recorded.length)} ops`, data.recorded.length],
      ["rewritten", data.recorded.length === data.after && !data.rules.length ? "unchanged" : `${integer(data.recorded.length)} → ${integer(data.after)}`, data.after],
      ["fused", `${integer(compute)} that compute → ${integer(length)}: ${integer(kernels)} ${kernels === 1 ? "kernel" : "kernels"}, ${integer(length - kernels)} ${length - kernels === 1 ? "call" : "calls"}`, length],
      ["planned", `${integer(held)} ${held === 1 ? "value" : "values"} in ${bytesText(data.block)}`, length],
    ];
    const most = Math.max(1, data.recorded.length, data.after);
    this.stages.replaceChildren(...rows.map(([stage, words, count], at) => {
      const before = at ? rows[at - 1]![2] : count;
      const percentOf = (value: number): string => `${(100 * value / most).toFixed(1)}%`;
      return h("li", { role: "option", "aria-selected": stage === this.stage, "data-stage": stage },
        h("i", "fl-stagedot"), h("div", {}, h("b", {}, stage), h("div", "fl-dim", words)),
        h("span", "fl-stagebar", h("i", { style: `width:${percentOf(count)}` }), h("i", { class: "fl-stagegone", style: `width:${percentOf(Math.max(0, before - count))}` })));
    }));
    this.below.replaceChildren(...(this.stage === "recorded" || this.stage === "rewritten" ? this.rules(data) : this.costs(data)));
  }

  private rules(data: ProgramData): HTMLElement[] {
    const gone = data.rules.reduce((sum, { count }) => sum + count, 0);
    if (!data.rules.length) return [section("Rules"), nothing("No rule found anything to replace.")];
    return [section(`Rules: ${integer(gone)} ops replaced`),
      h("ul", "fl-rulelist", ...data.rules.map(({ name, reason, where, count }) => h("li", { title: where },
        h("span", "fl-code", name), h("b", {}, integer(count)), h("span", "fl-dim", where ? `${reason} (${where})` : reason))))];
  }

  private costs(data: ProgramData): HTMLElement[] {
    const total = totalOf(data);
    const rows = costsOf(data.launches).slice(0, 60);
    const body = h("tbody", {}, ...rows.map(({ name, family, count, ns, first }, at) => h("tr", { tabindex: at ? -1 : 0, title: `first: #${first}`, "data-launch": first },
      h("td", "fl-left", swatch(this.theme, family), h("span", "fl-code", name)), h("td", {}, `${integer(count)}×`),
      h("td", {}, ...(total && ns !== null ? [shareBar(this.theme, family, ns / total), h("span", "fl-sharetext", percentText(ns / total))] : [UNKNOWN])))));
    chooseRows(body, (row) => this.select(Number(row.dataset["launch"])));
    return [section(total === null ? "Calls" : "What takes the time"), h("table", "fl-table fl-ops fl-programcosts", body)];
  }

  private drawMain(data: ProgramData): void {
    const cards = this.stage === "fused" || this.stage === "planned";
    const { tools } = this.middle;
    if (this.stage === "rewritten") tools.replaceChildren(segmented("Ops", [["changed", "Changed"], ["all", "All"]], this.changed ? "changed" : "all", (chosen) => {
      this.changed = chosen === "changed";
      this.drawMain(data);
    }));
    else tools.replaceChildren();
    if (cards) {
      this.middle.sub = this.stage === "fused" ? "each box is one kernel or one call; n→1: ops that one kernel computes" : "each box is one kernel or one call; where it stores its results";
      this.main.replaceChildren(...this.boxes(data), this.legend(data));
      return;
    }
    const rewritten = this.stage === "rewritten";
    const rows = data.recorded.filter(({ rule }) => !rewritten || !this.changed || rule >= 0);
    this.middle.sub = rewritten ? `${integer(rows.length)} of ${integer(data.recorded.length)} ops` : "ops in the order in which they were recorded";
    if (rows.length > MOST_ROWS) this.middle.sub += `, the first ${integer(MOST_ROWS)}`;
    this.main.replaceChildren(rows.length ? this.recordedTable(data, rows.slice(0, MOST_ROWS), rewritten) : nothing("Rewriting changed nothing."));
  }

  private recordedTable(data: ProgramData, rows: ProgramData["recorded"], rewritten: boolean): HTMLElement {
    const fate = ({ rule, by }: ProgramData["recorded"][number]): string => (rule < 0 ? "" : by ? `${data.rules[rule]!.name}: ${by}` : data.rules[rule]!.name);
    return table("fl-table fl-ops fl-programrecorded", "Ops in the order in which they were recorded",
      ["Op", ...(rewritten ? ["Replaced by"] : []), "In", "Phase", "Module"].map((name) => heading(name)),
      rows.map((row) => h("tr", { class: row.rule >= 0 && rewritten ? "fl-changed" : null, "data-launch": row.launch >= 0 ? row.launch : null },
        h("td", "fl-left", swatch(this.theme, row.family), h("span", { class: "fl-code", title: row.text }, row.text)),
        ...(rewritten ? [h("td", "fl-left fl-code", fate(row))] : []),
        h("td", "fl-left", row.launch >= 0 ? `#${row.launch}` : ""), h("td", "fl-left fl-dim", row.phase), h("td", "fl-left fl-dim", row.scope))));
  }

  private boxes(data: ProgramData): HTMLElement[] {
    const made: HTMLElement[] = [];
    let flow: HTMLElement | null = null;
    let phase = "";
    for (const run of runsOf(data.launches)) {
      if (run.phase !== phase || !flow) {
        phase = run.phase;
        flow = h("div", "fl-flow");
        made.push(h("h3", "fl-phase", phase), flow);
      }
      const cards = data.launches.slice(run.first, run.last + 1).map((launch, at) => this.card(launch, run.first + at));
      flow.append(h("div", "fl-module", h("div", { class: "fl-modulename fl-dim", title: run.scope }, run.scope ? tail(run.scope, run.first === run.last ? 1 : 3) : "outside of modules"), h("div", "fl-cards", ...cards)));
    }
    return made;
  }

  private card(launch: Launch, at: number): HTMLElement {
    const { theme, stage } = this;
    const { parts, stored, ns, kind } = launch;
    const shape = parts.at(-1)?.shape ?? stored[0]?.shape ?? "";
    const where = [...new Set(stored.map((one) => one.where))];
    const line = stage === "planned" ? where.slice(0, 2).join(", ") + (where.length > 2 ? ", …" : "") : ns === null ? kind : durationText(ns);
    const badge = stage === "fused" && kind === "kernel" && parts.length > 1 ? h("span", "fl-fusedcount", `${parts.length}→1`) : "";
    return h("button", {
      type: "button", class: `fl-card${kind === "kernel" && parts.length > 1 && stage === "fused" ? " fl-fused" : ""}${launch.own ? " fl-own" : ""}`, "data-launch": at, "aria-pressed": at === this.selected,
      title: `#${at} ${launch.name}${launch.own ? ", of the user's class" : ""}`,
    },
    h("i", { class: "fl-cardedge", style: `background:${theme.family(familyOf(launch))}` }),
    h("span", "fl-cardhead", h("span", "fl-code", launch.name), badge),
    h("span", "fl-dim", shape), h("span", "fl-dim", line),
    h("span", "fl-cardstrip", ...stripOf(launch).map(([family, share]) => h("i", { style: `flex:${share.toFixed(4)};background:${theme.family(family)}` }))));
  }

  private legend(data: ProgramData): HTMLElement {
    const families = [...new Set(data.launches.flatMap(({ parts }) => parts.map(({ family }) => family)))];
    const item = (mark: HTMLElement, words: string): HTMLElement => h("span", "fl-legenditem", mark, words);
    return h("div", "fl-legend fl-programlegend",
      ...families.map((family) => item(swatch(this.theme, family), familyLabels[family] ?? family)),
      ...(data.launches.some(({ own }) => own) ? [item(h("i", "fl-ownmark"), "of the user's class")] : []),
      h("span", {}, "strip: ops inside, by estimated share"));
  }

  private tell(): void {
    const { data, selected } = this;
    if (!data) return;
    if (selected === null || !data.launches[selected]) {
      this.side.replaceChildren(nothing("Select a kernel or a call."));
      setText(this.status, `${integer(data.launches.length)} calls · [ and ] step through the stages · click a box, an op or a part of the memory plan`);
      return;
    }
    const key = `${this.program} ${selected}`;
    const held = this.side.matches(":focus-within");
    this.side.replaceChildren(...details(this.theme, data, selected, this.texts.get(key), this.form, (form) => {
      this.form = form;
      if (form === "llvm" && !this.texts.has(key)) this.send({ type: "source", program: this.program, launch: selected });
      this.tell();
    }));
    if (held) this.side.focus(); // what had the focus is gone
    const { name, kind, scope } = data.launches[selected]!;
    this.status.replaceChildren(h("span", "fl-text", "Selected ", h("b", "fl-code", name), ` · ${kind} #${selected} of ${integer(data.launches.length)}${scope ? ` · ${scope}` : ""} · Esc clears`));
  }

  private callTable(): { caption: string; columns: string[]; rows: (string | number)[][] } {
    const rows = (this.data?.launches ?? []).map(({ name, kind, phase, scope, parts, ns, stored }, at) =>
      [at, name, kind, parts.length, phase, scope, ns === null ? UNKNOWN : durationText(ns), stored.map(({ name: own, where }) => `${own} ${where}`).join(", ")]);
    return { caption: "Kernels and calls", columns: ["#", "Call", "Kind", "Ops", "Phase", "Module", "Time", "Stores"], rows };
  }

  private planTable(): { caption: string; columns: string[]; rows: (string | number)[][] } {
    const rows = (this.data?.launches ?? []).flatMap(({ stored }, at) => stored.map((one) => [one.name, `${one.shape} ${dtype(one.dtype)}`, bytesText(one.bytes), one.where, at, one.last]));
    return { caption: "Values in memory", columns: ["Value", "Shape", "Bytes", "Where", "Written by #", "Last read by #"], rows };
  }
}
