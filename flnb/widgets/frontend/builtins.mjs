// Injected into the bundles: what is called often has a name of a letter or two there, not `Math.max`.
const { abs, ceil, floor, max, min, round } = Math;
const { isFinite, isNaN } = Number;
const { entries, keys } = Object;
const { stringify } = JSON;

export {
  abs as "Math.abs", ceil as "Math.ceil", floor as "Math.floor", max as "Math.max", min as "Math.min", round as "Math.round",
  isFinite as "Number.isFinite", isNaN as "Number.isNaN", entries as "Object.entries", keys as "Object.keys", stringify as "JSON.stringify",
};
