/** Growing columns of numbers, kept contiguous so that views can search and slice them without copies. */

import { bisectRight } from "d3-array";

/**
 * Rows of float64 columns in order of arrival, at most `keep` of them (older rows leave first).
 * Rows 0..length-1 are valid and contiguous in every column.
 */
export class Columns<Name extends string> {
  length = 0;
  /** Rows that left because of the limit. */
  evicted = 0;
  private readonly names: readonly Name[];
  private readonly keep: number;
  private data: Record<Name, Float64Array>;

  constructor(names: readonly Name[], keep: number) {
    this.names = names;
    this.keep = keep;
    this.data = this.allocate(256);
  }

  /** The whole column; only its first `length` values are valid, and only until the next append. */
  column(name: Name): Float64Array {
    return this.data[name];
  }

  append(row: Readonly<Record<Name, number>>): void {
    if (this.length === this.capacity) this.makeRoom();
    for (const name of this.names) this.data[name][this.length] = row[name];
    this.length++;
  }

  /** First row whose `name` is greater than `value`; the column must be sorted. */
  after(name: Name, value: number): number {
    return bisectRight(this.data[name], value, 0, this.length);
  }

  last(name: Name): number | undefined {
    return this.length ? this.data[name][this.length - 1] : undefined;
  }

  clear(): void {
    this.length = 0;
    this.evicted = 0;
  }

  private get capacity(): number {
    return this.data[this.names[0]!].length;
  }

  private makeRoom(): void {
    if (this.capacity < 2 * this.keep) {
      const grown = this.allocate(Math.min(2 * this.capacity, 2 * this.keep));
      for (const name of this.names) grown[name].set(this.data[name]);
      this.data = grown;
    } else {
      const gone = this.length - this.keep;
      for (const name of this.names) this.data[name].copyWithin(0, gone, this.length);
      this.length = this.keep;
      this.evicted += gone;
    }
  }

  private allocate(rows: number): Record<Name, Float64Array> {
    return Object.fromEntries(this.names.map((name) => [name, new Float64Array(rows)])) as Record<Name, Float64Array>;
  }
}

/** The value of a key, made where there is none yet. */
export function entry<K, V>(map: Map<K, V>, key: K, make: () => V): V {
  let value = map.get(key);
  if (value === undefined) map.set(key, (value = make()));
  return value;
}

/** The columns of a frame whose names begin with the prefix, by the rest of the name; null where one is missing. */
export function columnsOf<C>(columns: Readonly<Record<string, C>>, prefix: string, names: readonly string[]): Record<string, C> | null {
  const found: Record<string, C> = {};
  for (const name of names) {
    const column = columns[prefix + name];
    if (!column) return null;
    found[name] = column;
  }
  return found;
}
