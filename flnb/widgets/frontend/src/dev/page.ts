/**
 * The dashboard on simulated data: ?theme=dark, ?state=waiting|dropped|behind|resync|restarted|failed|paused|nan, ?seconds=5,
 * ?still (stop after the first seconds),
 * ?devices=gpu|emulated, ?ranks=4|64 (ranks in place of memory; with state=stuck one of them hangs). Build with `npm run dev`.
 */

import module from "../index.ts";
import type { FrameHead } from "../protocol.ts";
import { DeviceSimulation } from "./devices.ts";
import { RankSimulation } from "./ranks.ts";
import { Simulation } from "./simulate.ts";

const query = new URLSearchParams(location.search);
document.body.dataset["jpThemeLight"] = String(query.get("theme") !== "dark");
const state = query.get("state") ?? "";
const simulation = new Simulation({
  ...(state === "dropped" ? { dropped: 1204 } : {}), ...(state === "nan" ? { nanStep: 240 } : {}), steps: Number(query.get("steps") ?? 600),
});
type Listener = (content: unknown, buffers: DataView[]) => void;
const listeners = new Set<Listener>();
let keyframe = false;
const statusSlots = new Set<() => void>();
const kernel = { status: "busy", connectionStatus: "connected", statusChanged: { connect: (slot: () => void) => statusSlots.add(slot), disconnect: (slot: () => void) => statusSlots.delete(slot) } };
const model = {
  get: (): unknown => undefined,
  send: (message: unknown): void => {
    const { type } = message as { type: string };
    if (type === "resync" || type === "hello") keyframe = true;
  },
  on: (_: string, listener: Listener): void => void listeners.add(listener),
  off: (_: string, listener: Listener): void => void listeners.delete(listener),
  widget_manager: { kernel },
};
const deliver = ({ content, buffers }: { content: FrameHead; buffers: [DataView] }): void => {
  for (const listener of listeners) listener(structuredClone(content), buffers);
};
const tick = (seconds: number): void => {
  simulation.advance(seconds);
  deliver(simulation.frame(keyframe));
  keyframe = false;
};
module.render({ model, el: document.getElementById("at")! });

if (query.has("devices")) {
  deliver(new DeviceSimulation({ emulated: query.get("devices") === "emulated" }).frame());
} else if (query.has("ranks")) {
  const many = Number(query.get("ranks"));
  const delay = many <= 32 ? undefined : (rank: number, step: number): number => (rank === 37 ? 5 + (step % 3) * 3 : rank >= 16 && rank < 20 && step > 55 ? 9 : rank === 51 && step % 4 === 0 ? 11 : 0);
  const ranks = new RankSimulation({ ranks: many, ...(delay ? { delay } : {}), ...(state === "stuck" ? { stuckAt: 60 } : {}) });
  ranks.advance(6400);
  deliver(ranks.frame(true));
  if (!query.has("still")) setInterval(() => {
    ranks.advance(100);
    deliver(ranks.frame());
  }, 100);
} else if (state === "waiting") {
  simulation.state = "waiting";
  deliver(simulation.frame(true));
} else {
  const seconds = Number(query.get("seconds") ?? 5);
  for (let t = 0; t < seconds; t += 1 / 25) tick(1 / 25);
  if (state === "failed") {
    simulation.state = "failed";
    simulation.error = "OutOfMemoryError: conv2d asked for 18.0 MiB; 29.6 MiB are free, the largest hole is 11.2 MiB";
    deliver(simulation.frame(false));
  } else if (state === "restarted") {
    kernel.status = "restarting";
    for (const slot of statusSlots) slot();
  } else if (state === "resync") {
    simulation.frame(false);
    deliver(simulation.frame(false));
  } else if (!query.has("still") && state !== "behind") setInterval(() => tick(1 / 25), 40);
}
