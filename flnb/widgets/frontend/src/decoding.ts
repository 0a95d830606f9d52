/** Frames and other messages with columns, decoded. */

import { type Column, type Frame, type FrameHead, PROTOCOL } from "./protocol.ts";

export class ProtocolError extends Error {
  override readonly name = "ProtocolError";
}

const constructors = {
  f64: Float64Array, f32: Float32Array, i32: Int32Array, u32: Uint32Array, u8: Uint8Array,
} as const;

/**
 * Decode one message into typed columns without copying, where the buffer's alignment allows.
 * Throws ProtocolError when version, types or bounds are not what version 1 promises.
 */
export function decodeFrame(head: FrameHead, buffers: readonly (DataView | ArrayBuffer | Uint8Array)[]): Frame {
  if (head.protocol !== PROTOCOL) {
    throw new ProtocolError(
      `the kernel speaks frame protocol ${head.protocol}, this dashboard ${PROTOCOL}; restart the kernel and reload the page`);
  }
  const [columns, bytes] = decodeColumns(head.arrays, buffers, `frame ${head.seq}`);
  return { head, columns, bytes };
}

/** The columns of a message by name, and the bytes of its buffer; `what` names the message in errors. */
export function decodeColumns(arrays: FrameHead["arrays"], buffers: readonly (DataView | ArrayBuffer | Uint8Array)[], what: string): [Record<string, Column>, number] {
  const names = Object.keys(arrays);
  const source = buffers[0];
  let data: ArrayBufferLike = new ArrayBuffer(0);
  let base = 0;
  let length = 0;
  if (source instanceof ArrayBuffer) {
    data = source;
    length = source.byteLength;
  } else if (source) {
    data = source.buffer;
    base = source.byteOffset;
    length = source.byteLength;
  }
  if (base % 8 !== 0) {
    data = data.slice(base, base + length);
    base = 0;
  }
  const columns: Record<string, Column> = {};
  for (const name of names) {
    const [type, offset, count] = arrays[name]!;
    const constructor = constructors[type];
    if (!constructor) throw new ProtocolError(`${what}: column ${name} has unknown type ${String(type)}`);
    const end = offset + count * constructor.BYTES_PER_ELEMENT;
    if (offset < 0 || count < 0 || end > length || offset % 8 !== 0) {
      throw new ProtocolError(
        `${what}: column ${name} spans bytes ${offset} to ${end} of a buffer of ${length} (aligned to 8)`);
    }
    columns[name] = new constructor(data as ArrayBuffer, base + offset, count);
  }
  return [columns, length];
}
