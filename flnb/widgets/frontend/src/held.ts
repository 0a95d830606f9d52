/** The frames that arrive while the picture is paused. */

import type { Column, Frame } from "./protocol.ts";

const SECTIONS = ["collectives", "devices", "timeline"] as const;
const HELD_BYTES = 48 * 2 ** 20;

export class HeldFrames {
  private frames: Frame[] = [];
  private bytes = 0;
  private incomplete = false;

  add(frame: Frame): void {
    for (const section of SECTIONS) if (frame.head[section]) this.replace(section);
    this.frames.push(frame);
    this.bytes += frame.bytes;
    // A long pause must not fill the page's memory: the oldest frames give up their memory events (the keyframe asked
    // for on resuming repairs them) and keep what cannot be had again: tables, steps, metrics, tape.
    for (let at = 0; this.bytes > HELD_BYTES && at < this.frames.length; at++) {
      const old = this.frames[at]!;
      if (old.bytes === 0) continue;
      const kept: Record<string, Column> = {};
      for (const [name, column] of Object.entries(old.columns)) if (/^(step|metric)\./.test(name)) kept[name] = column.slice();
      this.bytes -= old.bytes;
      this.frames[at] = { head: { ...old.head, keyframe: false }, columns: kept, bytes: 0 };
      this.incomplete = true;
    }
  }

  /** Such a section is whole each time: only the newest is needed, and it is most of a frame. */
  private replace(section: (typeof SECTIONS)[number]): void {
    const at = this.frames.findLastIndex(({ head }) => head[section] !== undefined);
    const old = this.frames[at];
    if (!old) return;
    const { [section]: _, ...head } = old.head;
    const columns = Object.fromEntries(Object.entries(old.columns).filter(([name]) => !name.startsWith(`${section}.`)).map(([name, column]) => [name, column.slice()]));
    const bytes = Object.values(columns).reduce((sum, column) => sum + column.byteLength, 0);
    this.bytes += bytes - old.bytes;
    this.frames[at] = { head, columns, bytes };
  }

  /** All frames, which are held no longer; `incomplete`: a keyframe must repair what had to be let go of. */
  take(): { frames: Frame[]; incomplete: boolean } {
    const { frames, incomplete } = this;
    this.frames = [];
    this.bytes = 0;
    this.incomplete = false;
    return { frames, incomplete };
  }
}
