/**
 * Pure functions over the lifetimes of blocks: what was allocated when, by category, and what every segment held.
 *
 * A lifetime is the half-open interval [start, end) of one block; `end` is Infinity while it lives. All byte
 * counts are integers in float64, so sums are exact and the categories add up to what is allocated, bit for bit.
 */

/** Blocks as columns. Rows may stand in any order; row numbers are stable within one generation of the store. */
export interface Lifetimes {
  readonly used: number; // rows in use
  readonly id: Float64Array;
  readonly start: Float64Array; // seconds since the start of the run
  readonly end: Float64Array; // seconds; Infinity while the block lives
  readonly segment: Uint32Array;
  readonly offset: Float64Array; // bytes from the start of the segment
  readonly size: Float64Array; // bytes, as the manager rounded them
  readonly requested: Float64Array; // bytes, as the tensor asked for them
  readonly category: Uint8Array;
}

/** Segments as columns; `end` is Infinity while the device has not got it back. */
export interface Segments {
  readonly used: number; // rows in use
  readonly id: Uint32Array;
  readonly start: Float64Array;
  readonly end: Float64Array;
  readonly size: Float64Array;
}

export const CATEGORY_COUNT = 7;
/** Columns of a row of totals: requested bytes by category, then these. */
export const WASTE = CATEGORY_COUNT; // size - requested, summed over live blocks
export const RESERVED = CATEGORY_COUNT + 1;
export const TOTALS_WIDTH = CATEGORY_COUNT + 2;

/** Bytes allocated: the sum of the categories and of the rounding waste. */
export function allocatedOf(totals: Float64Array, at = 0): number {
  let sum = 0;
  for (let k = 0; k <= WASTE; k++) sum += totals[at + k]!;
  return sum;
}

/** The same values with room for at least `needed`. */
export function grown<T extends Float64Array | Int32Array>(array: T, needed: number): T {
  if (needed <= array.length) return array;
  const larger = new (array.constructor as new (n: number) => T)(Math.max(needed, array.length * 2));
  larger.set(array);
  return larger;
}
