// Marks the private members of classes, so that esbuild may shorten their names: `private lanes` becomes `private lanes$`
// where it is declared and used. A name that is missed is a type error in what this writes with
//   node private.mjs  the marked sources, into build/marked/
import { cp, mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

/** Public members that are nobody else's: no browser, no message of the kernel and no test in a browser knows them. */
export const OWN = [
  "actions", "announce", "arrivesBad", "automaticSpan", "badOut", "bands", "blockOf", "blocksOf", "byCategory",
  "capacityLine", "colours", "completeSince", "consumers", "deviceSpan", "distantName", "drawnAt", "element", "gapWidth",
  "groupArrivesBad", "healthOf", "hostSpan", "hover", "incomplete", "inputWidth", "kernelInfos", "labelOn", "landed",
  "landedAt", "lane", "laneOf", "largestHole", "lastEventAt", "lastFrameAt", "lastKeyframeAt", "lateRank", "latest",
  "leafBad", "leafName", "legible", "lifetimes", "markAt", "moduleWidth", "normBar", "normText", "onHover", "onPick",
  "opWidth", "ranAs", "refusal", "remembers", "reservedSegments", "rewrittenSince", "routes", "rowOf", "rowsBefore",
  "sameInstant", "section", "setCursor", "setLimit", "setRange", "setSearch", "showTable", "stale", "stepAt", "stepOf",
  "stepsBehind", "store", "straight", "surface", "tapeless", "theme", "timelineAnswer", "totals", "totalsAt",
  "totalsBefore", "urgent", "versions",
];

/** What esbuild may shorten. */
export const SHORTENED = new RegExp(`\\$$|^(?:${OWN.join("|")})$`);

const MODIFIERS = "(?:(?:static|readonly|async|get|set) )*";
const CLASS = /^(?:export )?class .*?^\}$/gms;
/** A field that a constructor assigns: in the bundle it needs no line of its own. */
const FIELD = /^  ((?:private )?(?:readonly )?)(\w+\$?: [^=\n;]+);$/gm;
const CONSTRUCTOR = /^  constructor\([^\n]*\{\}$|^  constructor\(.*?^  (?:\}|\).*\{\})$/ms;

/** A function of a module. As a constant it is joined to the constants around it: `function name(value){}` becomes `name=value=>{}`. */
const FUNCTION = /^(export )?(async )?function (\w+)((?:<[^\n]*?>)?\(.*?) \{\n(.*?)^\}$/gms;

/** The source with `$` after the name of every private member, and functions as constants. */
export const marked = (source) => source.replace(FUNCTION, "$1const $3 = $2$4 => {\n$5};").replace(CLASS, (text) => {
  const names = new Set([...text.matchAll(new RegExp(`\\bprivate ${MODIFIERS}(\\w+)`, "g"))].map(([, name]) => name));
  if (!names.size) return text;
  const any = [...names].join("|");
  const assigned = new Set();
  return text
    .replace(CONSTRUCTOR, (body) => {
      for (const [, name] of body.matchAll(/\bprivate (?:readonly )?(\w+)/g)) assigned.add(name);
      return assigned.size ? body.replace(new RegExp(`(?<![\\w.$"']|private |readonly )(${[...assigned].join("|")})\\b(?![$:?])`, "g"), "$1$$") : body;
    })
    .replace(new RegExp(`\\b(private ${MODIFIERS})(${any})\\b`, "g"), "$1$2$$")
    .replace(new RegExp(`\\bthis(\\??\\.)(${any})\\b`, "g"), "this$1$2$$")
    .replace(/\{ ?([^\n]*?) ?\}(?= = this;)/g, (_, pattern) => `{ ${taken(pattern, names)} }`)
    .replace(FIELD, (_, modifiers, field) => `  ${modifiers.replace("private ", "private declare ").replace(/^(?!private)/, "declare ")}${field};`);
});

/** The pattern of `const { theme, store: { run } } = this;` with the keys marked. */
function taken(pattern, names) {
  let depth = 0;
  const parts = [""];
  for (const letter of pattern) {
    depth += { "{": 1, "[": 1, "}": -1, "]": -1 }[letter] ?? 0;
    if (letter === "," && !depth) parts.push("");
    else parts[parts.length - 1] += letter;
  }
  return parts.map((part) => part.trim().replace(/^(\w+)(?=$|:| =)(:?)/, (all, name, colon) => (names.has(name) ? `${name}$${colon || `: ${name}`}` : all))).join(", ");
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [from, to] = ["src/", "build/marked/"].map((path) => fileURLToPath(new URL(path, import.meta.url)));
  await rm(to, { recursive: true, force: true });
  await cp(from, to, { recursive: true });
  for (const name of await readdir(to, { recursive: true })) if (name.endsWith(".ts")) await writeFile(to + name, marked(await readFile(to + name, "utf8")));
  await mkdir(to, { recursive: true });
  await writeFile(`${to}tsconfig.json`, JSON.stringify({ extends: "../../tsconfig.json", include: ["."] }));
}
