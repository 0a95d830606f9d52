/**
 * The script of a page with a dashboard but without a notebook: a saved file, which has all frames in elements of its
 * own, or the page of `flnb view --browser`, which posts each message to its server and reads the answers line by line.
 */

import { answer, type Known, type Names, namesOf } from "./offline.ts";
import type { FrameHead, ToKernel } from "./protocol.ts";

type Listener = (content: unknown, buffers: DataView[]) => void;
type Render = (given: { model: unknown; el: HTMLElement }) => unknown;

const listeners = new Set<Listener>();
const dark = matchMedia("(prefers-color-scheme: dark)");
const COLOURS: Record<string, [string, string]> = {
  "--jp-layout-color0": ["#fff", "#111"], "--jp-layout-color1": ["#fff", "#212121"], "--jp-ui-font-color0": ["rgba(0,0,0,1)", "rgba(255,255,255,1)"],
  "--jp-ui-font-color1": ["rgba(0,0,0,.87)", "rgba(255,255,255,.87)"], "--jp-brand-color1": ["#1976d2", "#2196f3"], "--jp-error-color1": ["#d32f2f", "#ef5350"],
};

function paint(): void {
  document.body.dataset["jpThemeLight"] = String(!dark.matches);
  for (const [name, pair] of Object.entries(COLOURS)) document.body.style.setProperty(name, pair[dark.matches ? 1 : 0]);
  document.body.style.background = "var(--jp-layout-color0)";
}

/** The bytes of base64 that zlib compressed; empty for none. */
async function inflated(data: string): Promise<DataView> {
  if (!data) return new DataView(new ArrayBuffer(0));
  const packed = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  return new DataView(await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer());
}

async function deliver(line: string): Promise<unknown> {
  const { content, data } = JSON.parse(line) as { content: unknown; data: string };
  const buffer = await inflated(data);
  for (const listener of listeners) listener(content, [buffer]);
  return content;
}

const texts = (kind: string): string[] => [...document.querySelectorAll(`script.${kind}`)].map((element) => element.textContent ?? "");

/** Deliver the frames of this file, then answer from it. */
function fromFile(known: Known): (message: ToKernel) => Promise<void> {
  const frames: FrameHead[] = [];
  let names: Names = { plans: [], contexts: [] };
  return async (message) => {
    if (message.type === "hello" && !frames.length) {
      for (const line of texts("flnb-message")) frames.push((await deliver(line)) as FrameHead);
      names = namesOf(frames);
      return;
    }
    const found = answer(message, known, names);
    if (found) for (const listener of listeners) listener(found, []);
  };
}

async function toServer(message: ToKernel): Promise<void> {
  if (message.type === "ack") return;
  const response = await fetch(location.href, { method: "POST", body: JSON.stringify(message) });
  if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
  for (const line of (await response.text()).split("\n")) if (line) await deliver(line);
}

async function begin(): Promise<void> {
  const el = document.getElementById("at")!;
  const url = URL.createObjectURL(new Blob([JSON.parse(texts("flnb-dashboard")[0]!) as string], { type: "text/javascript" }));
  const { default: dashboard } = (await import(url)) as { default: { render: Render } };
  const [known] = texts("flnb-known");
  const send = known ? fromFile(JSON.parse(known) as Known) : toServer;
  let waiting = Promise.resolve();
  const model = {
    get: (name: string): unknown => (name === "height" ? innerHeight : name === "saved_page" ? known !== undefined : undefined),
    send: (message: ToKernel): void => void (waiting = waiting.then(() => send(message)).catch((error: unknown) => console.error("flnb:", error))),
    on: (event: string, listener: Listener): void => void (event === "msg:custom" && listeners.add(listener)),
    off: (_: string, listener: Listener): void => void listeners.delete(listener),
  };
  dashboard.render({ model, el });
  addEventListener("resize", () => {
    const root = el.querySelector<HTMLElement>(".fl-root");
    if (root) root.style.height = `${innerHeight}px`;
  });
}

paint();
dark.addEventListener("change", paint);
void begin();
