// Injected into the bundles: what is called often has a name of a letter or two there, not `Math.max`.
const { abs, ceil, floor, max, min, round } = Math;
const { isFinite, isNaN } = Number;
const { entries, fromEntries, keys } = Object;
const { stringify } = JSON;
const [doubles, words, integers, octets, text, page] = [Float64Array, Uint32Array, Int32Array, Uint8Array, String, document];
const from = (...given) => Array.from(...given);
const now = () => performance.now();

export {
  abs as "Math.abs", ceil as "Math.ceil", floor as "Math.floor", max as "Math.max", min as "Math.min", round as "Math.round",
  isFinite as "Number.isFinite", isNaN as "Number.isNaN", entries as "Object.entries", fromEntries as "Object.fromEntries", keys as "Object.keys", stringify as "JSON.stringify",
  doubles as Float64Array, words as Uint32Array, integers as Int32Array, octets as Uint8Array, text as String, page as document,
  from as "Array.from", now as "performance.now",
};
