/**
 * The colours of data, for a light and a dark page, and the arithmetic on them.
 * Round swatch = op family, square = memory category; a mark never carries both.
 * tests/palette.test.ts recomputes why they are safe: contrast, and distance under colour blindness.
 */

export type Rgb = readonly [red: number, green: number, blue: number];
type Pair = readonly [light: string, dark: string];

export const families: Readonly<Record<string, Pair>> = {
  elementwise: ["#359cdf", "#519df7"],
  matmul: ["#a35226", "#b86c31"],
  reduction: ["#5c906b", "#82bb84"],
  movement: ["#8c9299", "#6c7278"],
  norm: ["#6658c2", "#8660ab"],
  memory: ["#811e49", "#e481aa"],
  communication: ["#086d74", "#31d1de"],
  optimizer: ["#af8d0e", "#c6af29"],
};

export const familyNames = Object.keys(families);
export const familyLabels: Readonly<Record<string, string>> = {
  ...Object.fromEntries(familyNames.map((name) => [name, name])), matmul: "matmul / conv", norm: "norm / softmax",
};

/** By category number of the protocol: 0 unknown, 1 parameter, 2 gradient, 3 activation, 4 optimizer state, 5 input, 6 temporary. */
export const categories: readonly Pair[] = [
  ["#6f757b", "#969ba2"],
  ["#5d61c9", "#5c85f2"],
  ["#9d472d", "#c05614"],
  ["#3ca378", "#178567"],
  ["#a38abc", "#9b548f"],
  ["#03516d", "#4fcbf3"],
  ["#a2891a", "#c7b241"],
];

export const categoryLabels: readonly string[] = [
  "unknown", "parameter", "gradient", "activation", "optimizer state", "input", "temporary",
];

/** Bands from the bottom up: what is steady lies low. */
export const categoryOrder: readonly number[] = [1, 4, 5, 0, 3, 2, 6];

/** "#rrggbb", "rgb(...)", "rgba(...)" or "color(srgb ...)" as computed styles give them; null when it is none of these. */
export function parseColour(text: string): readonly [red: number, green: number, blue: number, alpha: number] | null {
  const hex = /^#([0-9a-f]{3,8})$/i.exec(text.trim());
  if (hex) {
    const digits = hex[1]!.length < 6 ? [...hex[1]!].map((digit) => digit + digit).join("") : hex[1]!;
    const part = (at: number): number => parseInt(digits.slice(at, at + 2), 16);
    return [part(0), part(2), part(4), digits.length === 8 ? part(6) / 255 : 1];
  }
  const call = /^(rgba?|color)\(\s*(srgb\s+)?([^)]*)\)$/i.exec(text.trim());
  if (!call) return null;
  const parts = call[3]!.split(/[\s,/]+/).filter(Boolean);
  const scale = call[2] ? 255 : 1;
  const [red, green, blue] = parts.slice(0, 3).map((part) => parseFloat(part) * (part.endsWith("%") ? 2.55 : scale));
  if (red === undefined || green === undefined || blue === undefined || Number.isNaN(red + green + blue)) return null;
  const last = parts[3];
  return [red, green, blue, last === undefined ? 1 : last.endsWith("%") ? parseFloat(last) / 100 : parseFloat(last)];
}

/** The opaque colour seen when `top`, with its alpha times `amount`, lies over `bottom`. */
export function over(top: readonly [number, number, number, number], bottom: Rgb, amount = 1): Rgb {
  const alpha = top[3] * amount;
  const channel = (at: 0 | 1 | 2): number => Math.round(top[at] * alpha + bottom[at] * (1 - alpha));
  return [channel(0), channel(1), channel(2)];
}

export const css = (colour: Rgb): string => `rgb(${colour[0]}, ${colour[1]}, ${colour[2]})`;

export function luminance(colour: Rgb): number {
  const [red, green, blue] = colour.map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

export function contrast(one: Rgb, other: Rgb): number {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b) as [number, number];
  return (high + 0.05) / (low + 0.05);
}

export function rgb(text: string): Rgb {
  const parsed = parseColour(text);
  if (!parsed) throw new Error(`not a colour: ${text}`);
  return [parsed[0], parsed[1], parsed[2]];
}

const DARK_LABEL: Rgb = [17, 17, 17];
const LIGHT_LABEL: Rgb = [255, 255, 255];

/** The label colour on a fill: black or white, whichever contrasts more. */
export function labelOn(fill: string): string {
  const colour = rgb(fill);
  return contrast(colour, DARK_LABEL) >= contrast(colour, LIGHT_LABEL) ? "#111" : "#fff";
}
