/** Numbers as the reader sees them: three significant digits, binary units, the unit apart. Unknown is –, never 0. */

import type { Measure } from "./view.ts";

export type Quantity = readonly [value: string, unit: string];

const THIN = "\u202f";
export const UNKNOWN = "–";
const BINARY = ["KiB", "MiB", "GiB", "TiB"];
const unknown: Quantity = [UNKNOWN, ""];

const known = (value: number | null | undefined): value is number => value != null && Number.isFinite(value);

/** Three significant digits below 1000; whole numbers above, with an exponent from 1e9 on. */
export function significant(value: number): string {
  if (!known(value)) return UNKNOWN;
  if (value === 0) return "0";
  if (value < 0) return `−${significant(-value)}`;
  return (value >= 1e9 ? value.toExponential(2).replace("+", "") : value >= 99.95 ? value.toFixed(0) : value.toPrecision(3)).replace("e-", "e−");
}

/** Three significant digits of the value in the first unit in which they are below 1000. */
function scaled(value: number, base: number, units: readonly string[]): Quantity {
  let at = 0;
  for (; at < units.length - 1 && Math.abs(value) >= 999.5; at++) value /= base;
  return [significant(value), units[at]!];
}

/** Three significant digits without trailing zeros: what an axis carries (1, 0.5, 0.03, 1e−6). */
export const plain = (value: number): string => {
  if (value !== 0 && Math.abs(value) < 1e-4) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e-", "e−");
  const text = significant(value);
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
};

/** Whole number with thin spaces: 2 097 152. */
export function integer(value: number | null | undefined): string {
  if (!known(value)) return UNKNOWN;
  const text = Math.round(Math.abs(value)).toString().replace(/\B(?=(\d{3})+$)/g, THIN);
  return value < 0 && text !== "0" ? `−${text}` : text;
}

/** Nanoseconds: 640 ns, 412 µs, 1.98 ms, 3.33 s. */
export function duration(ns: number | null | undefined): Quantity {
  if (!known(ns)) return unknown;
  return scaled(Math.abs(ns) < 999.5 ? Math.round(ns) : ns, 1000, ["ns", "µs", "ms", "s"]);
}

/** Bytes: 512 B, 66.0 KiB, 9.00 MiB, 17.4 GiB. Below 1000 B whole bytes. */
export function bytes(value: number | null | undefined): Quantity {
  if (!known(value)) return unknown;
  return Math.abs(value) < 1000 ? [String(Math.round(value)), "B"] : scaled(value / 1024, 1024, BINARY);
}

/** The unit of so many bytes, and other bytes as a number in it: what a byte axis carries. */
export function inUnitOf(most: number): { unit: string; number: (value: number) => number } {
  const [, unit] = bytes(most);
  return { unit, number: (value) => Number((value / 1024 ** (BINARY.indexOf(unit) + 1)).toPrecision(3)) };
}

/** Exact bytes for details: 2 097 152 B. */
export const exactBytes = (value: number | null | undefined): string =>
  known(value) ? `${integer(value)} B` : UNKNOWN;

/** Counts and rates: 640, 10.4 k, 1.20 M. */
export function count(value: number | null | undefined): Quantity {
  if (!known(value)) return unknown;
  return Number.isInteger(value) && Math.abs(value) < 1000 ? [String(value), ""] : scaled(value, 1000, ["", "k", "M", "G"]);
}

/** A fraction 0..1 in percent, one decimal: 35.5 %. */
export const percent = (fraction: number | null | undefined): Quantity =>
  known(fraction) ? [(fraction * 100).toFixed(1), "%"] : unknown;

/** A ratio: 1.31×. */
export const ratio = (value: number | null | undefined): string =>
  known(value) ? `${value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0)}×` : UNKNOWN;

/** Length of a run: 00:07.2, 1:02:03. */
export function clock(seconds: number | null | undefined): string {
  if (!known(seconds)) return UNKNOWN;
  const tenths = Math.floor(Math.max(0, seconds) * 10);
  const [hours, minutes, rest] = [Math.floor(tenths / 36000), Math.floor(tenths / 600) % 60, tenths % 600];
  const two = (value: number): string => String(value).padStart(2, "0");
  if (hours > 0) return `${hours}:${two(minutes)}:${two(Math.floor(rest / 10))}`;
  return `${two(minutes)}:${two(Math.floor(rest / 10))}.${rest % 10}`;
}

/** A moment of a run: 32.4 ms, later 00:07.2. */
export const moment = (seconds: number): string => (seconds > 0 && seconds < 1 ? text(duration(seconds * 1e9)) : clock(seconds));

/** A shape: 256×16×8×8; a scalar's is "scalar". */
export const shape = (dims: readonly number[]): string => (dims.length ? dims.join("×") : "scalar");

/** Short dtype names as in details: f32 [256,16,8,8]. */
export const dtype = (name: string): string =>
  name.replace(/^bfloat/, "bf").replace(/^float/, "f").replace(/^uint/, "u").replace(/^int/, "i").replace(/^complex/, "c");

/** dtype and shape of a tensor: f32 [256,16,8,8]. */
export const tensorText = (tensor: { dtype: string; shape: readonly number[] }): string => `${dtype(tensor.dtype)} [${tensor.shape.join(",")}]`;

/** The place in "In [5]:14: y = x * w"; the whole of other lines. */
export const placeOf = (line: string): string => /^.*?:\d+(?=: |$)/.exec(line)?.[0] ?? line;

/** A quantity as one string: "1.98 ms". */
export const text = (quantity: Quantity): string => (quantity[1] ? `${quantity[0]} ${quantity[1]}` : quantity[0]);

/** The parts that say something, with dots between them. */
export const joined = (parts: readonly (string | false | null | undefined)[]): string => parts.filter(Boolean).join(" · ");

/** "1.98 ms", "9.00 MiB", "35.5 %". */
export const durationText = (ns: number | null | undefined): string => text(duration(ns));
export const bytesText = (value: number | null | undefined): string => text(bytes(value));
export const percentText = (fraction: number | null | undefined): string => text(percent(fraction));

/** A time, a size, a share or a plain number for a table: as it is shown, and the number of ns, bytes or parts itself. */
export const measured = {
  duration: (ns: number): Measure => ({ value: ns, text: durationText(ns) }),
  bytes: (value: number): Measure => ({ value, text: bytesText(value) }),
  percent: (value: number): Measure => ({ value, text: percentText(value) }),
  ratio: (value: number): Measure => ({ value, text: ratio(value) }),
  significant: (value: number): Measure => ({ value, text: significant(value) }),
};

/** A lower bound carries ≥: numbers of a run that dropped events. */
export const atLeast = (quantity: Quantity, lower: boolean): Quantity =>
  lower && quantity[0] !== UNKNOWN ? [`≥${quantity[0]}`, quantity[1]] : quantity;

/** 20 MiB rather than 20.0 MiB where nothing is lost. */
export function wholeBytes(value: number): string {
  return text(bytes(value)).replace(/\.0+ /, " ");
}
