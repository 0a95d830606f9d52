/** The value, or the end of the range that is nearer to it; of a range that is empty its high end. */
export const clamp = (value: number, low: number, high: number): number => Math.min(Math.max(value, low), high);
