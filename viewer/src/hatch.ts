/** Hatching of masked cells. */

import { cssVariable } from "./dom.js";

/** Distance between the lines. */
const DISTANCE = 7;

interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** Draw diagonal lines in a rectangle. */
export function hatch(
  drawing: Pick<CanvasRenderingContext2D, "beginPath" | "lineTo" | "lineWidth" | "moveTo" | "strokeStyle"> & { stroke(): void },
  { x, y, width, height }: Box,
): void {
  drawing.strokeStyle = cssVariable("--strong");
  drawing.lineWidth = 0.75;
  drawing.beginPath();
  for (let at = DISTANCE; at < width + height; at += DISTANCE) {
    const [from, to] = [Math.min(at, width), Math.max(0, at - height)];
    drawing.moveTo(x + from, y + at - from);
    drawing.lineTo(x + to, y + at - to);
  }
  drawing.stroke();
}
