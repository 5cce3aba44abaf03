/** Axis labels of a matrix, as many as fit without overlap. */

import { font, cssVariable } from "./dom.js";
import { axisLabel, plural } from "./format.js";
import type { Shown } from "./view.js";
import type { Viewport } from "./viewport.js";

const SIZE = 12.5;
/** Line height. */
const LINE = 15;
/** Smallest line height of the queries' labels. */
const MIN_LINE = 13.5;
const GAP = 6;
export const MOST_PX = 150;
/** Distance from the matrix to the position of a label under the pointer. */
export const LABEL_PX = 12;
const SLANT = (55 * Math.PI) / 180;
/** Smallest distance between slanted labels. */
const MIN_SLANTED_PX = LINE / Math.sin(SLANT);

/** Room for the title of an axis. */
const TITLE = 20;

/** Margin after the last label, half of which may extend beyond the matrix. */
const END = 8;

export interface Margins {
  left: number;
  top: number;
  right: number;
  bottom: number;
}

/** Labels of one axis with all characters visible, truncated to a width. */
export class Labels {
  readonly texts: string[];
  readonly widths: number[];
  readonly longest: number;
  /** True if slanted labels fit at the right of the matrix. */
  slants = false;

  constructor(labels: string[], drawing: CanvasRenderingContext2D, most = MOST_PX) {
    drawing.font = font(SIZE);
    // Of thousands only some are drawn at a time, but the longest determines the margin.
    this.texts = labels.map(axisLabel);
    this.widths = [];
    this.longest = 0;
    for (let index = 0; index < this.texts.length; index++) {
      const [text, width] = truncate(drawing, this.texts[index]!, most);
      this.texts[index] = text;
      this.widths.push(width);
      this.longest = Math.max(this.longest, width);
    }
  }
}

/** Return a text that fits a width, and its width. */
export function truncate(drawing: Pick<CanvasRenderingContext2D, "measureText">, text: string, most: number): [string, number] {
  let width = drawing.measureText(text).width;
  let characters = [...text];
  while (width > most && characters.length > 1) {
    characters = characters.slice(0, Math.min(characters.length - 1, Math.floor((characters.length * most) / width)));
    text = `${characters.join("")}\u2026`;
    ({ width } = drawing.measureText(text));
  }
  return [text, width];
}

const UPRIGHT = Math.PI / 2;

/** Angle of labels above cells of this width; slanted only if they fit at the right. */
function angleFor(labels: Labels, cell: number, slants: boolean): number {
  if (labels.longest + GAP <= cell) return 0;
  return slants && cell >= MIN_SLANTED_PX ? SLANT : UPRIGHT;
}

/** Height of a rotated label, and its extent beyond its own cell. */
function labelExtent(labels: Labels, angle: number): { up: number; beyond: number } {
  if (angle === 0) return { up: LINE, beyond: END };
  const up = Math.sin(angle) * labels.longest + Math.cos(angle) * LINE;
  return { up, beyond: angle === UPRIGHT ? END : Math.cos(angle) * labels.longest };
}

/** Margins for labels around a matrix with cells of this width. */
export function marginsFor(down: Labels, across: Labels, cell: number): Margins {
  across.slants = angleFor(across, cell, true) === SLANT;
  const { up, beyond } = labelExtent(across, angleFor(across, cell, across.slants));
  return {
    left: Math.ceil(down.longest + GAP + 2 + TITLE),
    top: Math.ceil(up + GAP + TITLE),
    right: Math.ceil(beyond),
    bottom: END,
  };
}

/** Return k to draw every k-th label: 1, 2, 5, 10, 20, ... */
export function labelStep(cell: number, needed: number): number {
  let step = 1;
  for (let factor = 0; step * cell < needed; factor++) step = step * [2, 2.5, 2][factor % 3]!;
  return step;
}

/** Draw the queries' labels left of the matrix; the origin is the matrix's corner. */
export function drawDown(drawing: CanvasRenderingContext2D, labels: Labels, viewport: Viewport): void {
  const { y } = viewport.cell;
  const step = labelStep(y, MIN_LINE);
  const [from, to] = viewport.visible().rows;
  const { height } = viewport.matrixSize;
  drawing.textAlign = "right";
  drawing.textBaseline = "middle";
  for (let query = Math.ceil(from / step) * step; query < to; query += step) {
    const middle = viewport.y + (query + 0.5) * y;
    if (middle < 0 || middle > height) continue;
    drawing.fillText(labels.texts[query]!, -GAP, middle);
  }
}

/** Draw the keys' labels above the matrix. */
export function drawAcross(drawing: CanvasRenderingContext2D, labels: Labels, viewport: Viewport): void {
  const { x } = viewport.cell;
  const angle = angleFor(labels, x, labels.slants);
  const step = labelStep(x, angle === 0 ? labels.longest + GAP : angle === UPRIGHT ? LINE : MIN_SLANTED_PX);
  const [from, to] = viewport.visible().columns;
  const { width } = viewport.matrixSize;
  for (let key = Math.ceil(from / step) * step; key < to; key += step) {
    const middle = viewport.x + (key + 0.5) * x;
    if (middle >= 0 && middle <= width) drawTurned(drawing, labels.texts[key]!, middle, angle);
  }
}

/** Draw the label of one key at the common angle. */
function drawTurned(drawing: CanvasRenderingContext2D, text: string, middle: number, angle: number): void {
  drawing.save();
  drawing.translate(middle, -GAP);
  drawing.rotate(-angle);
  drawing.textAlign = angle === 0 ? "center" : "left";
  drawing.textBaseline = angle === 0 ? "bottom" : "middle";
  drawing.fillText(text, 0, 0);
  drawing.restore();
}

/** Draw the highlighted label of a query over its neighbors. */
export function emphasizeDown(drawing: CanvasRenderingContext2D, labels: Labels, viewport: Viewport, query: number): void {
  const middle = viewport.y + (query + 0.5) * viewport.cell.y;
  if (middle < 0 || middle > viewport.matrixSize.height) return;
  const width = labels.widths[query]! + 6;
  drawBackground(drawing, -GAP - width, middle - LINE / 2 - 1, width + 4, LINE + 2);
  drawing.textAlign = "right";
  drawing.textBaseline = "middle";
  drawing.fillText(labels.texts[query]!, -GAP, middle);
}

/** Draw the highlighted label of a key over its neighbors. */
export function emphasizeAcross(drawing: CanvasRenderingContext2D, labels: Labels, viewport: Viewport, key: number): void {
  const middle = viewport.x + (key + 0.5) * viewport.cell.x;
  if (middle < 0 || middle > viewport.matrixSize.width) return;
  const angle = angleFor(labels, viewport.cell.x, labels.slants);
  const width = labels.widths[key]! + 6;
  drawing.save();
  drawing.translate(middle, -GAP);
  drawing.rotate(-angle);
  if (angle === 0) drawBackground(drawing, -width / 2, -LINE - 1, width, LINE + 3);
  else drawBackground(drawing, -3, -LINE / 2 - 1, width, LINE + 2);
  drawing.restore();
  drawTurned(drawing, labels.texts[key]!, middle, angle);
}

function drawBackground(drawing: CanvasRenderingContext2D, x: number, y: number, width: number, height: number): void {
  const ink = drawing.fillStyle;
  drawing.fillStyle = cssVariable("--ground");
  drawing.fillRect(x, y, width, height);
  drawing.fillStyle = ink;
}

/** Titles of both axes: "queries: output tokens", "keys: source tokens"; of contributions, which have no queries and
 *  keys, "parts" and "tokens". */
export function titlesOf({ sample, read }: Shown): { down: string; across: string } {
  const title = (role: string, name: string) => {
    const kind = plural(sample.axes[name]!.kind);
    const isNamed = ["source", "output", "decoder input"].includes(name);
    if (read.measure === "contribution" || read.measure === "state") return kind;
    return kind === role ? role : `${role}: ${isNamed ? `${name} ` : ""}${kind}`;
  };
  return { down: title("queries", read.queries), across: title("keys", read.keys) };
}

/** Draw the titles beside the labels, at the middle of each side; the origin is the matrix's corner. */
export function drawTitles(
  drawing: CanvasRenderingContext2D,
  titles: { down: string; across: string },
  viewport: Viewport,
  { left, top }: Margins,
): void {
  const { width, height } = viewport.matrixSize;
  drawing.save();
  drawing.font = font(SIZE, 600);
  drawing.fillStyle = cssVariable("--pale");
  drawing.textBaseline = "middle";
  const across = drawing.measureText(titles.across).width;
  drawing.textAlign = across > width ? "left" : "center";
  drawing.fillText(titles.across, across > width ? 0 : width / 2, TITLE / 2 - top);
  const down = drawing.measureText(titles.down).width;
  drawing.translate(TITLE / 2 - left, down > height ? 0 : height / 2);
  drawing.rotate(-UPRIGHT);
  drawing.textAlign = down > height ? "right" : "center";
  drawing.fillText(titles.down, 0, 0);
  drawing.restore();
}

/** Set the color and font of labels. */
export function useLabelFont(drawing: CanvasRenderingContext2D, color = "--ink"): void {
  drawing.font = font(SIZE);
  drawing.fillStyle = cssVariable(color);
}
