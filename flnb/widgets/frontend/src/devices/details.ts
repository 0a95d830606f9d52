/** The selected launch or copy; without one, what the step asked of the devices. */

import { Facts, keyButton, pane, rowList, squareOf, title } from "../details.ts";
import { h, nothing, section, swatch } from "../dom.ts";
import { bytesText, durationText, exactBytes, integer, significant, UNKNOWN } from "../format.ts";
import { categoryLabels } from "../palette.ts";
import { ROUTES } from "../protocol.ts";
import type { ViewContext } from "../view.ts";
import type { Axis, DevicesModel } from "./model.ts";
import { blockName, family, sizeOf, streamsOf, taskName, waitsFor } from "./names.ts";

export interface DetailActions {
  go(by: number): void;
  gap(): void;
}

export class TaskDetails {
  readonly element = pane("Selected launch", "fl-side fl-callside");

  constructor(private readonly context: ViewContext, private readonly actions: DetailActions) {}

  update(model: DevicesModel, task: number, step: number, axis: Axis): void {
    const { store } = this.context;
    const block = store.selection?.kind === "block" ? model.columns["block_id"]!.indexOf(store.selection.block as never) : -1;
    if (task >= 0) this.element.replaceChildren(...this.task(model, task, axis));
    else if (block >= 0) this.element.replaceChildren(...this.block(model, block));
    else this.element.replaceChildren(...(store.selection?.kind === "task" ? [nothing("The selected task has left the window of steps that is kept.")] : []), ...this.step(model, step));
  }

  private task(model: DevicesModel, task: number, axis: Axis): HTMLElement[] {
    const { store, theme } = this.context;
    const kernel = model.kernel(task);
    const plan = store.plan(model.plan(task));
    const context = store.context(model.context(task));
    const what = model.route(task) ? "copy" : "kernel";
    const facts = new Facts();
    facts.add("Op", plan ? plan.op : "none", plan?.shape.length ? `${plan.dtype} [${plan.shape.join(", ")}]` : "");
    facts.add("Scope", context?.scope || UNKNOWN, context && context.phase !== "other" ? context.phase : "");
    if (model.route(task)) {
      facts.add("Route", ROUTES[model.route(task)] ?? "");
      facts.bytes("Bytes", model.bytes(task));
      if (model.route(task) < 3) facts.add("Host memory", model.pinned(task) ? "pinned" : "pageable", model.pinned(task) ? "" : "the call waits");
    }
    const step = model.stepOf(task);
    const first = step?.first ?? 0;
    const ran = model.ranAs(task);
    if (axis === "order") {
      facts.add("Asked", `${integer(task - first + 1)} of ${integer((step?.last ?? model.rows) - first)}`, step ? `in step ${integer(step.step)}` : "");
      facts.add("Ran", ran < 0 ? "not yet" : turn(ran - task));
    } else {
      const [begin, end] = model.ran(task);
      facts.add("Time", Number.isNaN(end) ? "not known yet" : durationText((end - begin) * 1e6));
      const waited = model.queued(task);
      if (!Number.isNaN(waited)) facts.add("Queued", durationText(waited * 1e6), "after its launch");
      const bound = model.section.devices[model.device(task)]?.bound_ns ?? 0;
      if (bound > 0) facts.add("Clock", `±${durationText(bound)}`, "event error");
    }
    const [from, to] = model.asked(task);
    if (axis === "time") facts.add("Call", durationText((to - from) * 1e6), "on the host");
    const head = title(taskName(model, task), `${what} · ${model.streamName({ device: model.device(task), stream: model.stream(task) })} · task ${integer(model.seq(task))}`, swatch(theme, family(model, store, task)));
    return [head, facts.list, ...this.launch(kernel), ...this.blocks(model, task), ...this.events(model, task), this.links(plan?.op)];
  }

  private launch(kernel: ReturnType<DevicesModel["kernel"]>): HTMLElement[] {
    if (!kernel) return [];
    const facts = new Facts();
    const blocks = kernel.grid.reduce((product, one) => product * one, 1);
    const threads = kernel.block.reduce((product, one) => product * one, 1);
    if (kernel.grid.length) {
      facts.add("Grid × block", `${list(kernel.grid)} × ${list(kernel.block)}`);
      facts.add("Threads", integer(blocks * threads), `${integer(blocks)} ${blocks === 1 ? "block" : "blocks"} of ${integer(threads)}`);
    } else facts.add("Grid × block", UNKNOWN, "not known");
    const why = kernel.grid.length ? NO_REGISTERS : NO_LAUNCH;
    if (kernel.registers >= 0) facts.add("Registers", String(kernel.registers), "a thread");
    else facts.unknown("Registers", why);
    if (kernel.static >= 0) facts.add("Shared memory", bytesText(kernel.static), "a block");
    else facts.unknown("Shared memory", why);
    if (kernel.grid.length) facts.add("Dynamic", bytesText(kernel.shared), "of shared memory");
    return [section("Launch"), facts.list, ...occupancy(kernel, threads, why), ...access(kernel.traffic)];
  }

  private blocks(model: DevicesModel, task: number): HTMLElement[] {
    const rows = model.blocksOf(task);
    if (!rows.length) return [];
    const { store, theme } = this.context;
    const found = rows.map((row) => h("li", "fl-deviceblock",
      squareOf(theme.category(model.columns["block_category"]![row]!)),
      h("span", "fl-code", blockName(model, store, row)), h("span", "fl-unitright", `${sizeOf(model, row)} · ${streamsOf(model, row)}`)));
    return [section("Blocks it was given"), rowList(found)];
  }

  private events(model: DevicesModel, task: number): HTMLElement[] {
    const before = model.events.filter((event) => event.awaited && event.before === task);
    const after = model.events.filter((event) => !event.awaited && event.after === task);
    if (!before.length && !after.length) return [];
    const facts = new Facts();
    if (before.length) facts.add("Waits for", before.map(({ event }) => (event ? `e${event}` : "an event")).join(", "));
    if (after.length) facts.add("Then records", after.map(({ event }) => `e${event}`).join(", "));
    return [section("Events"), facts.list];
  }

  private block(model: DevicesModel, row: number): HTMLElement[] {
    const { store, theme } = this.context;
    const { block_category: category, block_end: end, block_until: until, block_segment: segment, block_offset: offset } = model.columns;
    const facts = new Facts();
    facts.add("Bytes", sizeOf(model, row), exactBytes(model.columns["block_size"]![row]!));
    facts.add("Category", categoryLabels[category![row]!] ?? "");
    facts.add("Segment", `S${segment![row]!}`, `at ${integer(offset![row]!)}`);
    facts.add("Streams", streamsOf(model, row) || "none yet");
    facts.add("State", end![row] === Infinity ? "in use" : until![row]! > end![row]! ? `freed, ${waitsFor(model, row)}` : "freed");
    return [title(blockName(model, store, row), "block of a device", squareOf(theme.category(category![row]!))), facts.list, this.links(store.selection?.op, true)];
  }

  /** The step's sums, and what each device is. */
  private step(model: DevicesModel, number: number): HTMLElement[] {
    const sums = model.section.steps.find(({ step }) => step === number);
    const found: HTMLElement[] = [];
    if (sums) {
      const facts = new Facts();
      facts.add("Launches", integer(sums.launches));
      facts.add("Copies", integer(sums.copies));
      facts.bytes("To the device", sums.to_device);
      facts.bytes("To the host", sums.to_host);
      facts.add("Host waits", integer(sums.waits), sums.waits ? "the program stood still" : "it never stood still");
      found.push(title(`step ${integer(number)}`, "what the host asked of the devices"), facts.list);
    }
    for (const { place, name, emulated, order, seed, bound_ns: bound } of model.section.devices) {
      const facts = new Facts();
      facts.add("Name", name || UNKNOWN);
      if (emulated) facts.add("Order", order, order === "random" ? `seed ${seed}` : "");
      else facts.add("Clock", `±${durationText(bound)}`, "event error");
      found.push(section(place), facts.list);
    }
    found.push(h("div", "fl-links", keyButton("Next launch", "]", () => this.actions.go(1)), ...(model.section.gaps.length ? [keyButton("Next gap", "G", () => this.actions.gap())] : [])));
    return found;
  }

  private links(op: string | undefined, block = false): HTMLElement {
    const { actions, store } = this.context;
    const links = [...(block ? [] : [keyButton("Previous", "[", () => this.actions.go(-1)), keyButton("Next", "]", () => this.actions.go(1))])];
    if (op && store.ops.some((row) => row.name === op)) links.push(keyButton("Op", "O", () => {
      actions.select({ kind: "op", label: op, op });
      actions.show("ops");
    }));
    return h("div", "fl-links", ...links);
  }
}

const WARP = 32;
const NO_REGISTERS = "not known: g++ compiles for the emulated device, NVIDIA's compiler alone gives registers";
const NO_LAUNCH = "not known: another library launched it, only the name was seen";

/** How many of the warps that a multiprocessor can hold are there when it is full of this kernel's blocks. */
function occupancy(kernel: NonNullable<ReturnType<DevicesModel["kernel"]>>, threads: number, why: string): HTMLElement[] {
  const known = kernel.resident >= 0 && kernel.most > 0;
  const [all, blocks] = [kernel.most / WARP, kernel.resident];
  const warps = blocks * Math.ceil(threads / WARP);
  const value = known ? h("span", {}, `${((100 * warps) / all).toFixed(1)} %`) : h("span", { title: why }, UNKNOWN);
  const head = h("div", "fl-section fl-occupancy", h("span", {}, "Occupancy, theoretical"), value);
  if (!known) return [head, h("div", "fl-warpnote", why)];
  const said = `${integer(warps)} of ${integer(all)} warps, ${integer(blocks)} ${blocks === 1 ? "block" : "blocks"}${kernel.limit ? `; ${kernel.limit} limit${kernel.limit.endsWith("s") ? "" : "s"} it` : ""}`;
  const cells = Array.from({ length: all }, (_, at) => h("i", { class: at < warps ? "fl-on" : "" }));
  return [head, h("div", { class: "fl-warps", role: "img", "aria-label": said }, ...cells), h("div", "fl-warpnote", said)];
}

/** What its warps asked of memory: counted, not estimated. */
function access(traffic: readonly number[] | null): HTMLElement[] {
  if (!traffic) return [];
  const [requests, sectors, shared, conflicts] = traffic as [number, number, number, number];
  const facts = new Facts();
  if (requests) facts.add("Sectors", significant(sectors / requests), "a request, ideal 4");
  if (shared) facts.add("Conflicts", conflicts ? significant(conflicts / shared) : "none", conflicts ? "extra turns a shared request" : `in ${integer(shared)} shared requests`);
  return [section("Memory access ", h("span", "fl-exact", "counted, exact")), facts.list];
}

const list = (extent: readonly number[]): string => `[${extent.join(", ")}]`;

/** When a task ran against when it was asked for. */
export function turn(by: number): string {
  if (by === 0) return "in its turn";
  return `${integer(Math.abs(by))} ${Math.abs(by) === 1 ? "task" : "tasks"} ${by > 0 ? "later" : "earlier"} than asked`;
}
