import { describe, expect, it } from "vitest";
import { deviceColumns, DevicesModel, memoryAt } from "../../src/devices/model.ts";
import { decodeFrame } from "../../src/decoding.ts";
import { DeviceSimulation } from "../../src/dev/devices.ts";

function model(emulated = false): DevicesModel {
  const { content, buffers } = new DeviceSimulation({ emulated }).frame();
  return new DevicesModel(content.devices!, deviceColumns(decodeFrame(content, buffers).columns)!);
}

/** Written by hand: two streams, of which the second runs its task first. */
function small(): DevicesModel {
  const columns: Record<string, Float64Array> = {};
  const put = (prefix: string, rows: Record<string, number[]>): void => void Object.entries(rows).forEach(([name, values]) => (columns[`devices.${prefix}${name}`] = Float64Array.from(values)));
  put("", {
    seq: [1, 3, 6], route: [0, 0, 1], nbytes: [0, 0, 512], pinned: [0, 0, 1], device: [0, 0, 0], stream: [0, 1, 0], context: [0, 0, 0], plan: [0, 0, 0], kernel: [0, 0, 0],
    t0: [1, 2, 3], t1: [1.5, 2.5, 3.5], ran0: [NaN, NaN, NaN], ran1: [NaN, NaN, NaN], bound: [-1, -1, -1], slot: [1, 0, -1], seen: [4, 4, NaN],
  });
  put("event_", { seq: [2, 4, 5], event: [7, 8, 7], awaited: [0, 0, 1], device: [0, 0, 0], stream: [0, 1, 0], t: [1.6, 2.6, 2.7] });
  put("wait_", { t0: [], t1: [], event: [], device: [], stream: [] });
  put("op_", { t0: [], t1: [], plan: [], context: [] });
  put("segment_", { id: [4], size: [4096], device: [0], begin: [0], end: [Infinity] });
  put("block_", {
    id: [10, 11], segment: [4, 4], offset: [1024, 0], size: [1024, 512], category: [3, 1], plan: [0, 0], context: [0, 0], streams: [0b11, 1], begin: [1, 1],
    end: [2, Infinity], until: [3, NaN], event: [8, 0], on: [1, -1],
  });
  put("use_", { seq: [1, 1, 3], block: [10, 11, 10] });
  const section = {
    origin_ms: 100, now_ms: 110, rows: 3, devices: [{ place: "cuda:0", name: "d", emulated: true, order: "lazy", seed: 0, bound_ns: -1 }],
    kernels: [{ name: "k", grid: [2, 3], block: [32], shared: 0, registers: -1, static: -1, resident: -1, most: -1, limit: "", traffic: null }], note: "emulated", steps: [{ step: 5, t0: 0, t1: 2.2, launches: 2, copies: 0, to_device: 0, to_host: 0, waits: 0 }],
    gaps: [],
  };
  return new DevicesModel(section, deviceColumns(columns)!);
}

describe("what devices did", () => {
  it("joins the host's calls to the order in which the device ran them", () => {
    const found = small();
    expect([0, 1, 2].map((row) => found.ranAs(row))).toEqual([1, 0, -1]);
    expect(found.deviceSpan(1, "order")).toEqual([0, 1]);
    expect(found.deviceSpan(2, "order")).toBeNull();
    expect(found.hostSpan(2, "order")).toEqual([2, 3]);
    expect(found.deviceSpan(0, "time")).toBeNull();
    expect(found.queued(0)).toBeNaN();
    expect(found.limits("order")).toEqual({ t0: 0, t1: 3 });
  });

  it("knows which tasks a step asked for, and how far the host had come at a time", () => {
    const found = small();
    expect(found.steps).toEqual([{ step: 5, start: 100, end: 102.2, first: 0, last: 2 }]);
    expect([100.5, 101, 102.1, 103].map((t) => found.place(t, "order"))).toEqual([0, 1, 2, 3]);
    expect(found.place(102.1, "time")).toBe(102.1);
    expect(found.timeAt(1.5, "order")).toBe(102.5);
  });

  it("puts events between the tasks of their stream", () => {
    expect(small().events.map(({ event, awaited, after, before }) => ({ event, awaited, after, before }))).toEqual([
      { event: 7, awaited: false, after: 0, before: 2 }, { event: 8, awaited: false, after: 1, before: -1 }, { event: 7, awaited: true, after: 0, before: 2 },
    ]);
  });

  it("shows blocks at a moment, and a freed one for as long as a stream has to do with it", () => {
    const found = small();
    const at = (t: number) => memoryAt(found, t).map(({ id, blocks }) => [id, blocks.map(({ row, waits }) => [row, waits])]);
    expect(at(100.5)).toEqual([[4, []]]);
    expect(at(101.5)).toEqual([[4, [[1, false], [0, false]]]]); // by place in the segment
    expect(at(102.5)).toEqual([[4, [[1, false], [0, true]]]]);
    expect(at(103.5)).toEqual([[4, [[1, false]]]]);
    expect(found.blocksOf(0)).toEqual([0, 1]);
    expect(found.blocksOf(1)).toEqual([0]);
  });

  it("lists streams that compute before those that only copy", () => {
    const found = model();
    expect(found.streams.map(({ stream, copies }) => [stream, copies])).toEqual([[0, false], [1, true]]);
    expect(found.steps).toHaveLength(3);
    const late = Array.from({ length: found.rows }, (_, row) => found.queued(row)).filter((ms) => ms > 0.5);
    expect(late.length).toBeGreaterThan(3);
  });

  it("lacks a section whose columns are not all there", () => {
    const { content, buffers } = new DeviceSimulation().frame();
    const { columns } = decodeFrame(content, buffers);
    delete columns["devices.slot"];
    expect(deviceColumns(columns)).toBeNull();
  });
});
