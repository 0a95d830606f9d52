/** The Export menu: the picture and the table that are shown are made in the browser, files of the recording by the kernel. */

import { attribute, h, on } from "./dom.ts";
import { picture } from "./picture.ts";
import type { Cell, DataTable, TabName, View } from "./view.ts";
import { ofType } from "./protocol.ts";

/** Formats that the kernel writes, with the words of the menu. */
const FILES = [["flnb", "Recording (.flnb)"], ["html", "Page (.html)"], ["json.gz", "Trace for Perfetto (.json.gz)"], ["svg", "Report as a picture (.svg)"]] as const;
export type FileFormat = (typeof FILES)[number][0];

/** Asks for the recording in a format; with `view`, for a figure of that view alone. */
export interface ExportRequest { type: "export"; format: FileFormat; view?: TabName }
/** The file travels as the message's buffer; `error` says why there is none, else it is empty. */
export interface ExportAnswer { type: "export"; name: string; error: string }

export const isExportAnswer = ofType<ExportAnswer>("export");

/** What the menu needs of the dashboard. */
export interface Exported {
  /** The name of the recording. */
  name(): string;
  /** The page that is shown, with its views. */
  shown(): { element: HTMLElement; views: { view: Pick<View, "element" | "describe" | "furtherTables"> }[] };
  ask(request: ExportRequest): void;
  /** The view of which the kernel can draw a figure, where there is one recording. */
  view?(): TabName;
  /** Why the kernel cannot make a file now; empty where it can. */
  refusal(): string;
  announce(message: string): void;
}

/** Let the browser save a file. */
export function download(name: string, content: Blob): void {
  const url = URL.createObjectURL(content);
  const link = h("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000); // the browser has begun to read it by then
}

/** The tables as CSV, with numbers as they are and their units in the titles; a line with each caption, where there are several. */
export function csv(tables: readonly DataTable[]): string {
  const cell = (given: Cell): string => {
    const value = typeof given === "object" ? given.value : given;
    const text = typeof value === "number" && Number.isNaN(value) ? "" : String(value);
    // A spreadsheet would compute a name that begins so.
    const safe = typeof value === "string" && /^[=+@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const line = (row: readonly Cell[]): string => row.map(cell).join(",") + "\n";
  return tables.map(({ caption, columns, rows, units = [] }) => (tables.length > 1 ? line([caption]) : "") + line(columns.map((name, at) => (units[at] ? `${name} (${units[at]})` : name))) + rows.map(line).join("")).join("\n");
}

/** The tables of the views that are shown: the data behind their pictures, else the tables that they are. */
export function tables({ views }: ReturnType<Exported["shown"]>): DataTable[] {
  return views.flatMap(({ view }) => (view.describe ? [view.describe(true), ...(view.furtherTables?.() ?? [])] : [...view.element.querySelectorAll("table")].map(asData)));
}

function asData(table: HTMLTableElement): DataTable {
  const [head, ...rows] = [...table.rows].map((row) => [...row.cells].map((cell) => cell.innerText.replaceAll("\u00a0", " ").trim()));
  return { caption: table.caption?.innerText ?? table.getAttribute("aria-label") ?? "", columns: head ?? [], rows };
}

export class ExportMenu {
  readonly element: HTMLElement;
  private readonly exported: Exported;
  private readonly button = h("button", { class: "fl-button", "aria-haspopup": "menu", "aria-expanded": false, title: "Save the picture, the table or the recording" }, "Export");
  private readonly menu: HTMLElement;
  private readonly items: { element: HTMLButtonElement; reason: HTMLElement; refusal: () => string }[] = [];

  /** `formats`: those of the recording that the kernel writes. */
  constructor(exported: Exported, prefix: string, formats: readonly FileFormat[] = FILES.map(([format]) => format)) {
    this.exported = exported;
    this.menu = h("div", { class: "fl-menu", role: "menu", "aria-label": "Export", id: `${prefix}-export`, hidden: true });
    attribute(this.button, "aria-controls", this.menu.id);
    this.element = h("div", "fl-export", this.button, this.menu);
    this.add("Picture of the view (.png)", () => this.savePicture(), () => (exported.shown().element.clientWidth > 0 ? "" : "no picture is shown"));
    this.add("Table of the view (.csv)", () => this.saveTable(), () => (exported.shown().views.some(({ view }) => view.describe ?? view.element.querySelector("table")) ? "" : "the view has no table"));
    const { view } = exported;
    if (view) this.add("Figure of the view (.svg)", () => this.ask({ type: "export", format: "svg", view: view() }), exported.refusal);
    for (const [format, title] of FILES.filter(([format]) => formats.includes(format))) this.add(title, () => this.ask({ type: "export", format }), exported.refusal);
    on(this.button, "click", () => (this.menu.hidden ? this.open() : this.close()));
    on(this.element, "keydown", this.key);
    on(this.element, "focusout", (event) => {
      if (!this.element.contains(event.relatedTarget as Node | null)) this.close(false);
    });
  }

  /** Save the file that the kernel has made, or say why it could not. */
  receive(answer: ExportAnswer, buffer: DataView | ArrayBuffer | Uint8Array | undefined): void {
    if (answer.error || !buffer) this.exported.announce(answer.error || "The kernel sent no file");
    else {
      download(answer.name, new Blob([buffer as BlobPart]));
      this.exported.announce(`Saved ${answer.name}`);
    }
  }

  private ask(request: ExportRequest): void {
    this.exported.announce("The kernel writes the file");
    this.exported.ask(request);
  }

  private add(title: string, act: () => void, refusal: () => string): void {
    const reason = h("span", "fl-dim");
    const element = h("button", { role: "menuitem", tabindex: -1 }, h("span", {}, title), reason);
    on(element, "click", () => {
      if (element.getAttribute("aria-disabled") === "true") return;
      this.close();
      act();
    });
    this.items.push({ element, reason, refusal });
    this.menu.append(element);
  }

  private open(): void {
    for (const { element, reason, refusal } of this.items) {
      reason.textContent = refusal();
      attribute(element, "aria-disabled", reason.textContent !== "");
    }
    this.menu.hidden = false;
    attribute(this.button, "aria-expanded", "true");
    this.items[0]!.element.focus();
  }

  private close(focus = true): void {
    if (this.menu.hidden) return;
    this.menu.hidden = true;
    attribute(this.button, "aria-expanded", "false");
    if (focus) this.button.focus();
  }

  private readonly key = (event: KeyboardEvent): void => {
    if (this.menu.hidden) return;
    const at = this.items.findIndex(({ element }) => element === event.target);
    const last = this.items.length - 1;
    const next = { ArrowDown: at === last ? 0 : at + 1, ArrowUp: at <= 0 ? last : at - 1, Home: 0, End: last }[event.key];
    if (next !== undefined) this.items[next]!.element.focus();
    else if (event.key === "Escape") this.close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  private get stem(): string {
    return this.exported.name().replace(/[^\w.-]+/g, "-").slice(0, 80) || "run";
  }

  private savePicture(): void {
    picture(this.exported.shown().element)?.toBlob((blob) => {
      if (blob) download(`${this.stem}.png`, blob);
    });
  }

  private saveTable(): void {
    download(`${this.stem}.csv`, new Blob([csv(tables(this.exported.shown()))], { type: "text/csv" }));
  }
}
