import { describe, expect, it } from "vitest";
import { pack } from "../src/dev/packing.ts";
import { Simulation } from "../src/dev/simulate.ts";
import { decodeFrame, ProtocolError } from "../src/decoding.ts";
import { isFrame, type FrameHead } from "../src/protocol.ts";

const head = (arrays: FrameHead["arrays"]): FrameHead => ({ ...new Simulation().frame().content, arrays });

describe("decodeFrame", () => {
  const packed = pack({
    "a": { type: "f64", values: [1.5, -2, 1e300] }, "b": { type: "u8", values: [1, 2, 255] }, "c": { type: "u32", values: [4294967295] },
    "d": { type: "i32", values: [-7] }, "e": { type: "f32", values: [0.5] },
  });

  it("gives typed columns over the received buffer", () => {
    const { columns } = decodeFrame(head(packed.arrays), [packed.buffer]);
    expect([...columns["a"]!]).toEqual([1.5, -2, 1e300]);
    expect(columns["b"]).toBeInstanceOf(Uint8Array);
    expect([...columns["b"]!]).toEqual([1, 2, 255]);
    expect([...columns["c"]!, ...columns["d"]!, ...columns["e"]!]).toEqual([4294967295, -7, 0.5]);
    expect(columns["a"]!.buffer).toBe(packed.buffer.buffer);
  });

  it("copies when the message gives a buffer that is not aligned", () => {
    const shifted = new Uint8Array(packed.buffer.byteLength + 5);
    shifted.set(new Uint8Array(packed.buffer.buffer), 5);
    const { columns } = decodeFrame(head(packed.arrays), [new DataView(shifted.buffer, 5)]);
    expect([...columns["a"]!]).toEqual([1.5, -2, 1e300]);
  });

  it("takes a frame without arrays and without a buffer", () => {
    expect(decodeFrame(head({}), []).columns).toEqual({});
  });

  it("names what does not fit", () => {
    expect(() => decodeFrame({ ...head({}), protocol: 2 }, [])).toThrow("the kernel speaks frame protocol 2, this dashboard 1; restart the kernel and reload the page");
    expect(() => decodeFrame(head({ x: ["f64", 0, 3] }), [new DataView(new ArrayBuffer(16))])).toThrow(/column x spans bytes 0 to 24 of a buffer of 16/);
    expect(() => decodeFrame(head({ x: ["f64", 4, 1] }), [new DataView(new ArrayBuffer(16))])).toThrow(ProtocolError);
    expect(() => decodeFrame(head({ x: ["f16" as "f32", 0, 1] }), [new DataView(new ArrayBuffer(16))])).toThrow("column x has unknown type f16");
  });
});

it("knows frames from other messages", () => {
  expect([isFrame({ type: "frame" }), isFrame({ type: "other" }), isFrame(null), isFrame("frame")]).toEqual([true, false, false, false]);
});
