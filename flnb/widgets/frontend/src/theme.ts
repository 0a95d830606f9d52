/**
 * Tokens of the dashboard, derived from JupyterLab's own CSS variables, for canvases (as colours) and for the
 * stylesheet (as --fl-* variables on the root). Follows the page: themes, forced colours, scale of the screen.
 */

import { on } from "./dom.ts";
import { categories, contrast, css, families, labelOn, luminance, over, parseColour, type Rgb } from "./palette.ts";

export interface Colours {
  /** Strongest text, lines that carry data, selection. */
  ink: string;
  text: string;
  bg: string;
  /** Secondary text: ink at 62 %, or as much as gives 4.5:1 on the page, soft fills, hovered and selected rows. */
  dim: string;
  /** Separators (13 %), grid lines (7 %), soft fills (3.5 %), hover (6 %), neutral marks (24 %). */
  line: string;
  grid: string;
  soft: string;
  hover: string;
  mark: string;
  /** Tint of a selected row. */
  selected: string;
  /** Only the time cursor, the range and focus. */
  brand: string;
  /** The range's fill over a canvas: translucent brand. */
  range: string;
  error: string;
  warn: string;
}

interface Source { ink: string; text: string; bg: string; brand: string; error: string; warn: string }

const fallbacks: Readonly<Record<"light" | "dark", Source>> = {
  light: { ink: "#000", text: "rgba(0,0,0,.87)", bg: "#fff", brand: "#1976d2", error: "#d32f2f", warn: "#b45309" },
  dark: { ink: "#fff", text: "rgba(255,255,255,.87)", bg: "#111", brand: "#2196f3", error: "#ef5350", warn: "#ffa726" },
};
const forced: Source = {
  ink: "CanvasText", text: "CanvasText", bg: "Canvas", brand: "Highlight", error: "CanvasText", warn: "CanvasText",
};

/** Shares of ink in fills, of the brand in selected rows, and those tried for secondary text. */
const [SOFT, HOVER, SELECTED] = [0.035, 0.06, 0.15];
const DIM = [0.62, 0.66, 0.7, 0.74, 0.78, 0.82, 0.86];

const UI_FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif';
const CODE_FONT = 'ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace';

export class Theme {
  dark = false;
  /** The reader's system replaces colours (Windows high contrast). */
  forced = false;
  colours!: Colours;
  /** Increases with every change; views with cached drawings compare it. */
  version = 0;
  private readonly root: HTMLElement;
  private readonly probe: HTMLElement;
  private readonly observer: MutationObserver;
  private readonly queries: MediaQueryList[];
  private readonly listeners = new Set<() => void>();
  private readonly widths = new Map<string, number>();
  private readonly pencil: CanvasRenderingContext2D | null;
  private uiFamily = UI_FONT;
  private codeFamily = CODE_FONT;
  private signature = "";

  constructor(root: HTMLElement) {
    this.root = root;
    this.probe = document.createElement("span");
    this.probe.hidden = true;
    this.probe.style.forcedColorAdjust = "none";
    root.append(this.probe);
    this.pencil = document.createElement("canvas").getContext("2d");
    this.refresh();
    this.observer = new MutationObserver(() => this.refresh());
    for (const element of [document.documentElement, document.body]) {
      this.observer.observe(element, { attributes: true, attributeFilter: ["class", "style", "data-jp-theme-light", "data-jp-theme-name"] });
    }
    this.queries = ["(prefers-color-scheme: dark)", "(forced-colors: active)"].map((query) => matchMedia(query));
    for (const query of this.queries) on(query, "change", this.refresh);
  }

  /** Read the page's variables again; listeners hear only of real changes. Cheap enough to poll once a second. */
  readonly refresh = (): void => {
    const active = matchMedia("(forced-colors: active)").matches;
    const page = this.resolve("var(--jp-layout-color0, transparent)");
    const dark = page && page[3] > 0.5
      ? luminance([page[0], page[1], page[2]]) < 0.4
      : matchMedia("(prefers-color-scheme: dark)").matches;
    const fallback = fallbacks[dark ? "dark" : "light"];
    const source: Source = active ? forced : {
      ink: `var(--jp-ui-font-color0, ${fallback.ink})`,
      text: `var(--jp-ui-font-color1, ${fallback.text})`,
      bg: `var(--jp-layout-color0, ${fallback.bg})`,
      brand: `var(--jp-brand-color1, ${fallback.brand})`,
      error: `var(--jp-error-color1, ${fallback.error})`,
      warn: fallback.warn,
    };
    const style = getComputedStyle(this.root);
    this.uiFamily = style.getPropertyValue("--jp-ui-font-family").trim() || UI_FONT;
    this.codeFamily = style.getPropertyValue("--jp-code-font-family").trim() || CODE_FONT;
    const solid = (name: keyof Source, under: Rgb): Rgb => over(this.resolve(source[name]) ?? parseColour(fallback[name])!, under);
    const bg = solid("bg", dark ? [17, 17, 17] : [255, 255, 255]);
    const ink = solid("ink", bg);
    const brand = solid("brand", bg);
    const mixed = (top: Rgb, amount: number): Rgb => over([...top, 1], bg, amount);
    const mix = (top: Rgb, amount: number): string => css(mixed(top, amount));
    const fills = [bg, mixed(ink, SOFT), mixed(ink, HOVER), mixed(brand, SELECTED)];
    const dim = DIM.find((amount) => fills.every((fill) => contrast(mixed(ink, amount), fill) >= 4.5)) ?? 1;
    const colours: Colours = {
      ink: css(ink), text: css(solid("text", bg)), bg: css(bg),
      dim: mix(ink, active ? 1 : dim), line: mix(ink, active ? 1 : 0.13), grid: mix(ink, 0.07), soft: mix(ink, active ? 0 : SOFT),
      hover: mix(ink, HOVER), mark: mix(ink, 0.24), selected: mix(brand, active ? 0.35 : SELECTED),
      brand: css(brand), range: `rgba(${brand.join(", ")}, 0.16)`,
      error: css(solid("error", bg)), warn: css(solid("warn", bg)),
    };
    const signature = JSON.stringify([colours, this.uiFamily, this.codeFamily, active]);
    if (signature === this.signature) return;
    this.signature = signature;
    this.dark = luminance(bg) < 0.4;
    this.forced = active;
    this.colours = colours;
    this.version++;
    this.widths.clear();
    this.apply();
    for (const listener of this.listeners) listener();
  };

  /** Colour of an op family (round marks). Unknown families are drawn as movement. */
  family(name: string): string {
    return (families[name] ?? families["movement"]!)[this.dark ? 1 : 0];
  }

  /** Colour of a memory category (square marks) by its protocol number. */
  category(number: number): string {
    return (categories[number] ?? categories[0]!)[this.dark ? 1 : 0];
  }

  /** Black or white, whichever reads better on a fill given as #rrggbb. */
  labelOn(fill: string): string {
    return labelOn(fill);
  }

  /** Canvas font strings of the reader's fonts. */
  ui(px: number, weight: number | "" = ""): string {
    return `${weight} ${px}px ${this.uiFamily}`.trim();
  }

  code(px: number, weight: number | "" = ""): string {
    return `${weight} ${px}px ${this.codeFamily}`.trim();
  }

  /** Width of a text in CSS pixels, cached. */
  measure(text: string, font: string): number {
    const key = font + "\0" + text;
    let width = this.widths.get(key);
    if (width === undefined) {
      if (this.pencil) {
        this.pencil.font = font;
        width = this.pencil.measureText(text).width;
      } else width = text.length * 6.5;
      if (this.widths.size > 8192) this.widths.clear();
      this.widths.set(key, width);
    }
    return width;
  }

  /** The text, or its longest beginning with an ellipsis that fits; "" when nothing does. */
  fit(text: string, font: string, width: number): string {
    if (this.measure(text, font) <= width) return text;
    let [low, high] = [0, text.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.measure(text.slice(0, middle) + "…", font) <= width) low = middle;
      else high = middle - 1;
    }
    return low > 0 ? text.slice(0, low) + "…" : "";
  }

  onChange(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  destroy(): void {
    this.observer.disconnect();
    for (const query of this.queries) query.removeEventListener("change", this.refresh);
    this.listeners.clear();
    this.probe.remove();
  }

  private resolve(colour: string): readonly [number, number, number, number] | null {
    this.probe.style.color = "";
    this.probe.style.color = colour;
    return parseColour(getComputedStyle(this.probe).color);
  }

  private apply(): void {
    const style = this.root.style;
    for (const [name, value] of Object.entries(this.colours)) style.setProperty(`--fl-${name}`, value as string);
    for (const name of Object.keys(families)) style.setProperty(`--fl-op-${name}`, this.family(name));
    categories.forEach((_, number) => style.setProperty(`--fl-mem-${number}`, this.category(number)));
    style.setProperty("--fl-ui", this.uiFamily);
    style.setProperty("--fl-code", this.codeFamily);
    this.root.dataset["flTheme"] = this.dark ? "dark" : "light";
  }
}
