/** The memory of a whole run in a fixed number of bins. */

export const CATEGORIES = 7;

/** The whole run in a fixed number of bins, each holding the moment of its largest allocation. The bins widen as the run grows. */
export class Overview {
  /** Seconds a bin covers, and bins in use; bin i covers [i * width, (i + 1) * width). */
  width = 1 / 128;
  count = 0;
  readonly allocated: Float64Array;
  readonly reserved: Float64Array;
  readonly byCategory: Float64Array[];
  readonly bins: number;
  private readonly state = { allocated: 0, reserved: 0, sums: new Float64Array(CATEGORIES) };

  constructor(bins = 2048) {
    this.bins = bins;
    this.allocated = new Float64Array(bins);
    this.reserved = new Float64Array(bins);
    this.byCategory = Array.from({ length: CATEGORIES }, () => new Float64Array(bins));
  }

  add(t: number, allocated: number, reserved: number, sums: ArrayLike<number>): void {
    if (!(t >= 0)) return;
    while (t >= this.width * this.bins) this.widen();
    const bin = Math.floor(t / this.width);
    // Between two events memory stays as it is: bins without an event begin and end with the state before.
    for (; this.count <= bin; this.count++) this.set(this.count, this.state.allocated, this.state.reserved, this.state.sums);
    Object.assign(this.state, { allocated, reserved });
    this.state.sums.set(sums);
    if (allocated >= this.allocated[bin]!) this.set(bin, allocated, reserved, sums);
  }

  clear(): void {
    this.width = 1 / 128;
    this.count = 0;
    this.state.allocated = this.state.reserved = 0;
    this.state.sums.fill(0);
    for (const column of [this.allocated, this.reserved, ...this.byCategory]) column.fill(0);
  }

  private set(bin: number, allocated: number, reserved: number, sums: ArrayLike<number>): void {
    this.allocated[bin] = allocated;
    this.reserved[bin] = reserved;
    for (let category = 0; category < CATEGORIES; category++) this.byCategory[category]![bin] = sums[category]!;
  }

  private copy(from: number, to: number): void {
    for (const column of [this.allocated, this.reserved, ...this.byCategory]) column[to] = column[from]!;
  }

  private widen(): void {
    const half = Math.ceil(this.count / 2);
    for (let bin = 0; bin < half; bin++) {
      const [one, two] = [2 * bin, 2 * bin + 1];
      this.copy(two < this.count && this.allocated[two]! > this.allocated[one]! ? two : one, bin);
    }
    this.count = half;
    this.width *= 2;
  }
}
