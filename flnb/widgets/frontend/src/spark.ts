/** The line of a row's history in the table of ops. */

import { setPen } from "./canvas.ts";

const SPARK_WIDTH = 68;
const SPARK_HEIGHT = 16;

/** A line from the least to the largest value of the history; what is steady lies flat near the bottom. */
export function spark(canvas: HTMLCanvasElement, history: readonly number[], colour: string, scale: number): void {
  canvas.width = SPARK_WIDTH * scale;
  canvas.height = SPARK_HEIGHT * scale;
  const c = canvas.getContext("2d");
  if (!c || history.length < 2) return;
  c.scale(scale, scale);
  const most = Math.max(...history);
  const least = Math.min(...history) * 0.9;
  setPen(c, colour, 1.1);
  c.beginPath();
  history.forEach((value, at) => {
    const x = 1 + (at / (history.length - 1)) * (SPARK_WIDTH - 2);
    const y = SPARK_HEIGHT - 2 - ((value - least) / (most - least || 1)) * (SPARK_HEIGHT - 4);
    if (at) c.lineTo(x, y);
    else c.moveTo(x, y);
  });
  c.stroke();
}
