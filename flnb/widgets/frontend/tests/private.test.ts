import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { marked, OWN } from "../private.mjs";

describe("names that the bundles shorten", () => {
  it("are private members, where they are declared and used, and nothing else", () => {
    const source = `export class Lane {
  private readonly bars: number[];
  private open = false;

  constructor(private readonly store: Store, readonly bars_: number) {
    this.bars = store.bars;
  }

  private toggle(): void {
    const { bars, open: was, bars_ } = this;
    this.open = !was || bars.length > other.open;
  }
}`;
    expect(marked(source)).toBe(`export class Lane {
  private declare readonly bars$: number[];
  private open$ = false;

  constructor(private readonly store$: Store, readonly bars_: number) {
    this.bars$ = store$.bars;
  }

  private toggle$(): void {
    const { bars$: bars, open$: was, bars_ } = this;
    this.open$ = !was || bars.length > other.open;
  }
}`);
  });

  it("stand in functions that are constants, which stay exported, asynchronous and typed", () => {
    const source = (head: string): string => `${head} {\n  if (a) {\n    return b;\n  }\n  return c;\n}\n`;
    const body = "{\n  if (a) {\n    return b;\n  }\n  return c;\n};\n";
    expect(marked(source("function of(a: A): a is B"))).toBe(`const of = (a: A): a is B => ${body}`);
    expect(marked(source("export async function of<T>(\n  a: (n: T) => A,\n): Promise<B>"))).toBe(`export const of = async <T>(\n  a: (n: T) => A,\n): Promise<B> => ${body}`);
  });

  it("are in no message of the kernel", () => {
    const words = new Set(readFileSync(new URL("../src/protocol.ts", import.meta.url), "utf8").replace(/\/\*.*?\*\/|\/\/.*/gs, "").match(/\w+/g));
    expect(OWN.filter((name: string) => words.has(name))).toEqual([]);
  });
});
