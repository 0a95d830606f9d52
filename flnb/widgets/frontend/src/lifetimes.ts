/** The lifetimes of blocks as the browser keeps them: struct of arrays, capped. */

const numberColumns = ["id", "start", "end", "asked", "offset", "size", "requested", "node"] as const;
const indexColumns = ["segment", "plan", "context"] as const;

/**
 * Times are seconds since run start; a live block's `end` is Infinity. Rows 0..used-1 are filled, in order of arrival.
 * Row numbers hold within one `generation`: when the cap is reached the older half of the finished lifetimes leaves.
 */
export class Lifetimes {
  id!: Float64Array;
  start!: Float64Array;
  end!: Float64Array;
  /** When its array went or the program freed it; Infinity where that is not known. From then to its end it is pending. */
  asked!: Float64Array;
  segment!: Uint32Array;
  offset!: Float64Array;
  size!: Float64Array;
  requested!: Float64Array;
  category!: Uint8Array;
  plan!: Uint32Array;
  context!: Uint32Array;
  node!: Float64Array;
  used = 0;
  live = 0;
  /** Increases when rows have moved. */
  generation = 0;
  /** Every lifetime that ended after this time is here. */
  completeSince = -Infinity;
  /** Nothing leaves; the columns grow instead. */
  everything = false;
  private readonly rows = new Map<number, number>();

  constructor(capacity: number) {
    this.allocate(capacity);
  }

  get capacity(): number {
    return this.id.length;
  }

  /** Row of a block's lifetime, or -1 when it is unknown or has left. */
  row(id: number): number {
    return this.rows.get(id) ?? -1;
  }

  isLive(row: number, t: number): boolean {
    return this.start[row]! <= t && this.end[row]! > t;
  }

  /** A fresh row for a block that begins now. */
  insert(id: number, start: number): number {
    if (this.used === this.capacity) this.makeRoom();
    const row = this.used++;
    this.id[row] = id;
    this.start[row] = start;
    this.end[row] = this.asked[row] = Infinity;
    this.rows.set(id, row);
    this.live++;
    return row;
  }

  finish(row: number, t: number): void {
    if (this.end[row] === Infinity) this.live--;
    this.end[row] = t;
  }

  clear(): void {
    this.rows.clear();
    this.used = this.live = 0;
    this.completeSince = -Infinity;
    this.generation++;
  }

  private makeRoom(): void {
    const finished = this.everything ? [] : this.end.subarray(0, this.used).filter((end) => end !== Infinity).sort();
    // Live blocks are never dropped: where they fill most rows, the columns grow instead.
    if (finished.length < this.capacity / 2) {
      const old = { ...this };
      this.allocate(this.capacity * 2);
      for (const name of numberColumns) this[name].set(old[name]);
      for (const name of indexColumns) this[name].set(old[name]);
      this.category.set(old.category);
      return;
    }
    const before = finished[finished.length >> 1]!;
    this.completeSince = Math.max(this.completeSince, before);
    this.rows.clear();
    let kept = 0;
    for (let row = 0; row < this.used; row++) {
      if (this.end[row]! <= before) continue;
      for (const name of numberColumns) this[name][kept] = this[name][row]!;
      for (const name of indexColumns) this[name][kept] = this[name][row]!;
      this.category[kept] = this.category[row]!;
      this.rows.set(this.id[kept]!, kept++);
    }
    this.used = kept;
    this.generation++;
  }

  private allocate(capacity: number): void {
    for (const name of numberColumns) this[name] = new Float64Array(capacity);
    for (const name of indexColumns) this[name] = new Uint32Array(capacity);
    this.category = new Uint8Array(capacity);
  }
}
