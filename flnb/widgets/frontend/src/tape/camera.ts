/** Which part of the tape is in sight, and how large: scale, and where the picture begins on the canvas. */

import { clamp } from "../clamp.ts";
import { EDGE, READABLE } from "./measures.ts";
import type { Camera } from "./pen.ts";

interface Size { readonly width: number; readonly height: number }

const [SMALLEST, LARGEST] = [0.06, 2.5]; // scales
/** So many pixels of the picture always stay in sight. */
const KEPT = 60;

/** The whole picture where it stays readable, or `everything`; otherwise its height, and it scrolls. */
export function fitted(wide: number, high: number, { width, height }: Size, everything: boolean): Camera {
  const tall = height / high;
  const whole = Math.min(1, (width - 2 * EDGE) / Math.max(1, wide + 4), tall);
  const scale = Math.max(SMALLEST, everything || whole >= READABLE ? whole : clamp(tall, READABLE * 0.86, 1));
  return { scale, x: wide * scale <= width ? (width - wide * scale) / 2 : EDGE, y: 0 };
}

/** Larger or smaller around a place on the canvas. */
export function zoomAt(camera: Camera, factor: number, x: number, y: number): void {
  const scale = clamp(camera.scale * factor, SMALLEST, LARGEST);
  camera.x = x - ((x - camera.x) * scale) / camera.scale;
  camera.y = y - ((y - camera.y) * scale) / camera.scale;
  camera.scale = scale;
}

/** Some of the picture always stays in sight. */
export function keepInSight(camera: Camera, wide: number, high: number, { width, height }: Size): void {
  camera.x = clamp(camera.x, KEPT - wide * camera.scale, width - KEPT);
  const tall = high * camera.scale;
  camera.y = tall <= height + 1 ? (height - tall) / 2 : clamp(camera.y, height - tall, 0);
}
