import { describe, expect, it } from "vitest";
import { atLeast, bytes, clock, count, dtype, duration, exactBytes, integer, percent, plain, ratio, shape, significant, text, UNKNOWN } from "../src/format.ts";

describe("three significant digits", () => {
  it.each([
    [0, "0"], [0.04, "0.0400"], [1.98, "1.98"], [9.994, "9.99"], [9.996, "10.0"], [17.44, "17.4"], [99.94, "99.9"], [99.96, "100"],
    [453.4, "453"], [0.9996, "1.00"], [-2.5, "−2.50"], [123_456_789, "123456789"], [3.2166041307416044e36, "3.22e36"], [-2e9, "−2.00e9"],
  ])("%d is %s", (value, shown) => expect(significant(value)).toBe(shown));

  it("drops trailing zeros on axes only", () => {
    expect([plain(1), plain(0.1), plain(50), plain(100), plain(0.03)]).toEqual(["1", "0.1", "50", "100", "0.03"]);
    expect([plain(0.0001), plain(1e-6), plain(2.5e-8), plain(0)]).toEqual(["0.0001", "1e−6", "2.5e−8", "0"]);
  });
});

describe("durations", () => {
  it.each([
    [640, "640 ns"], [999.4, "999 ns"], [999.6, "1.00 µs"], [412_000, "412 µs"], [1_980_000, "1.98 ms"], [999.6e3, "1.00 ms"], [3.33e9, "3.33 s"], [120e9, "120 s"],
  ])("%d ns is %s", (ns, shown) => expect(text(duration(ns))).toBe(shown));
});

describe("bytes", () => {
  it.each([
    [0, "0 B"], [999, "999 B"], [1024, "1.00 KiB"], [66 * 1024, "66.0 KiB"], [9 * 2 ** 20, "9.00 MiB"], [999.6 * 1024, "0.976 MiB"], [17.4 * 2 ** 30, "17.4 GiB"], [2 ** 41, "2.00 TiB"],
  ])("%d is %s", (value, shown) => expect(text(bytes(value))).toBe(shown));

  it("are exact in details", () => expect(exactBytes(2_097_152)).toBe("2\u202f097\u202f152 B"));
});

it("shows what is unknown as –, never as 0", () => {
  expect([text(duration(null)), text(bytes(undefined)), text(count(NaN)), text(percent(null)), ratio(null), clock(null), integer(null), exactBytes(null)])
    .toEqual(Array(8).fill(UNKNOWN));
});

it("shows counts, percent, ratios, times, shapes and dtypes as documented", () => {
  expect(text(count(10_432))).toBe("10.4 k");
  expect(text(count(1_200_000))).toBe("1.20 M");
  expect(integer(1236)).toBe("1\u202f236");
  expect(integer(-1236)).toBe("−1\u202f236");
  expect(text(percent(0.3549))).toBe("35.5 %");
  expect(ratio(1.311)).toBe("1.31×");
  expect([clock(7.25), clock(75), clock(3723)]).toEqual(["00:07.2", "01:15.0", "1:02:03"]);
  expect([shape([256, 16, 8, 8]), shape([])]).toEqual(["256×16×8×8", "scalar"]);
  expect([dtype("float32"), dtype("bfloat16"), dtype("uint8"), dtype("int64"), dtype("bool")]).toEqual(["f32", "bf16", "u8", "i64", "bool"]);
});

it("marks lower bounds, but not the unknown", () => {
  expect(text(atLeast(duration(3.33e9), true))).toBe("≥3.33 s");
  expect(text(atLeast(duration(3.33e9), false))).toBe("3.33 s");
  expect(text(atLeast(duration(null), true))).toBe(UNKNOWN);
});
