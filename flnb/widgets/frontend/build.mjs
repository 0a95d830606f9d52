// Builds ../static: minified ES modules with their styles inlined, one for each kind of widget, so that none carries another's
// views; card.js, the script of a post-mortem, and page.js, that of a saved page. licenses.txt holds the licences of the packages inside the bundles.
//   node build.mjs          write the bundles
//   node build.mjs --check  fail when a committed bundle differs from what the sources give
//   node build.mjs --dev    the developer page with simulated data, into build/
import { build, transform } from "esbuild";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { SHORTENED, marked } from "./private.mjs";

const BUNDLES = [
  ["src/index.ts", "dashboard.js", "esm"], ["src/compare-main.ts", "comparison.js", "esm"], ["src/program-main.ts", "program.js", "esm"],
  ["src/card-main.ts", "card.js", "iife"], ["src/page-main.ts", "page.js", "iife"],
];
const at = (path) => fileURLToPath(new URL(path, import.meta.url));
/** Imports of a .css file give its minified text. There `$line` stands for `var(--fl-line)`,
 *  `&` for `.fl-` and `~` for `.fl-root .fl-`; they are written out where it is imported. */
const styles = {
  name: "styles",
  setup: ({ onLoad }) => onLoad({ filter: /\.css$/ }, async ({ path }) => {
    const { code } = await transform(await readFile(path, "utf8"), { loader: "css", minify: true, charset: "utf8" });
    if (/[$&~]/.test(code)) throw new Error(`${path} has a $, & or ~, which stand for other text in the bundle; write the rule without them`);
    const short = JSON.stringify(code.replace(/var\(--fl-(\w+)\)/g, "$$$1").replaceAll(".fl-root .fl-", "~").replaceAll(".fl-", "&"));
    return { contents: `export default ${short}.replace(/\\$(\\w+)/g, "var(--fl-$1)").replaceAll("~", "&root &").replaceAll("&", ".fl-")`, loader: "js" };
  }),
};
/** Names of private members may be shortened. */
const privates = {
  name: "privates",
  setup: ({ onLoad }) => onLoad({ filter: /src\/.*\.ts$/ }, async ({ path }) => ({ contents: marked(await readFile(path, "utf8")), loader: "ts" })),
};
const options = {
  absWorkingDir: at("."),
  bundle: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  plugins: [styles, privates],
  mangleProps: SHORTENED,
  inject: [at("builtins.mjs")],
  legalComments: "none",
  write: false,
};

if (process.argv.includes("--dev")) {
  const { outputFiles } = await build({ ...options, entryPoints: ["src/dev/page.ts"], sourcemap: "inline" });
  await mkdir(at("build"), { recursive: true });
  await writeFile(at("build/page.js"), outputFiles[0].contents);
  await writeFile(at("build/index.html"), await readFile(at("src/dev/page.html")));
  console.log(`open file://${at("build/index.html")}`);
} else {
  const packages = new Set();
  const files = [];
  for (const [from, name, format] of BUNDLES) {
    const { outputFiles, metafile } = await build({ ...options, format, entryPoints: [from], minify: true, metafile: true });
    files.push([name, Buffer.from(outputFiles[0].contents)]);
    for (const input of Object.keys(metafile.inputs)) if (input.startsWith("node_modules/")) packages.add(input.split("/")[1]);
  }
  const licences = [...packages].sort().map(async (name) => `${name}\n\n${await readFile(at(`node_modules/${name}/LICENSE`), "utf8")}`);
  files.push(["licenses.txt", Buffer.from((await Promise.all(licences)).join("\n"))]);
  for (const [name, fresh] of files) {
    const target = at(`../static/${name}`);
    if (process.argv.includes("--check")) {
      const committed = await readFile(target).catch(() => Buffer.alloc(0));
      if (!committed.equals(fresh)) {
        console.error(`flnb/widgets/static/${name} is not what the sources give; run: npm run build`);
        process.exit(1);
      }
      console.log(`the committed ${name} is current`);
    } else {
      await mkdir(at("../static"), { recursive: true });
      await writeFile(target, fresh);
      console.log(`${name} ${(fresh.length / 1024).toFixed(1)} KiB`);
    }
  }
}
