/** Columns and tables as the hub sends them. */

import type { ArrayType, FrameHead } from "../protocol.ts";

/** An append-only intern table; id 0 is none. */
export class Table<T> {
  readonly items: T[] = [];
  private readonly ids = new Map<string, number>();
  private readonly key: (item: T) => string;

  constructor(key: (item: T) => string) {
    this.key = key;
    this.items.push("" as T);
  }

  id(item: T): number {
    const key = this.key(item);
    let id = this.ids.get(key);
    if (id === undefined) {
      this.ids.set(key, (id = this.items.length));
      this.items.push(item);
    }
    return id;
  }
}

const widths: Record<ArrayType, number> = { f64: 8, f32: 4, i32: 4, u32: 4, u8: 1 };

/** Concatenate columns, each aligned to eight bytes, as the hub does. */
export function pack(arrays: Record<string, { type: ArrayType; values: number[] }>): { arrays: FrameHead["arrays"]; buffer: DataView } {
  const layout: FrameHead["arrays"] = {};
  let end = 0;
  for (const [name, { type, values }] of Object.entries(arrays)) {
    layout[name] = [type, end, values.length];
    end += Math.ceil((values.length * widths[type]) / 8) * 8;
  }
  const buffer = new DataView(new ArrayBuffer(end));
  const setters = { f64: "setFloat64", f32: "setFloat32", i32: "setInt32", u32: "setUint32" } as const;
  for (const [name, { type, values }] of Object.entries(arrays)) {
    const offset = layout[name]![1];
    values.forEach((value, at) => {
      if (type === "u8") buffer.setUint8(offset + at, value);
      else buffer[setters[type]](offset + at * widths[type], value, true);
    });
  }
  return { arrays: layout, buffer };
}
