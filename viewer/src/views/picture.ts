/** Drawing of pictures, and of weights, boxes and outlines over them. */

import { category, isDark } from "../color.js";
import { font, cssVariable } from "../dom.js";
import { formatScore, readable } from "../format.js";
import type { Box, Page } from "../page.js";
import { overlap } from "./label-placement.js";
import { detectionsOf, gridOf } from "./picture-axes.js";
import { overlayColor, type Strength } from "./selection.js";

export interface Area {
  left: number;
  top: number;
  width: number;
  height: number;
}

const images = new Map<string, Promise<HTMLImageElement | null>>();

/** Load an image from a data URL; null if it is invalid. */
export function loadImage(url: string): Promise<HTMLImageElement | null> {
  let image = images.get(url);
  if (!image) {
    const element = new Image();
    element.src = url;
    image = element.decode().then(() => element, () => null);
    images.set(url, image);
  }
  return image;
}

/** Fit a shape into an area, centered, with its aspect ratio. */
export function fitInto(shape: { width: number; height: number }, room: Area): Area {
  const times = Math.min(room.width / shape.width, room.height / shape.height);
  const [width, height] = [shape.width * times, shape.height * times];
  return { left: room.left + (room.width - width) / 2, top: room.top + (room.height - height) / 2, width, height };
}

/** Opacity of a picture on white, below signed numbers: dark places would hide their colors. */
const PALE = 0.6;

/** Draw an image, without smoothing if it is tiny; `gray`: degree of the grayscale filter. */
export function drawPicture(
  drawing: CanvasRenderingContext2D,
  image: HTMLImageElement | null,
  area: Area,
  gray: number,
  isPale = false,
): void {
  const { left, top, width, height } = area;
  if (!image) {
    drawing.fillStyle = isDark() ? "#2c2c2f" : "#eeede9";
    drawing.fillRect(left, top, width, height);
    drawing.fillStyle = cssVariable("--ink");
    drawing.font = font(13);
    drawing.textAlign = "left";
    drawing.textBaseline = "top";
    drawing.fillText("This image is damaged.", left + 8, top + 8, width - 16);
    return;
  }
  drawing.save();
  drawing.imageSmoothingEnabled = Math.max(image.naturalWidth, image.naturalHeight) > 128;
  drawing.imageSmoothingQuality = "high";
  if (isPale) {
    drawing.fillStyle = "#ffffff";
    drawing.fillRect(left, top, width, height);
    drawing.globalAlpha = PALE;
  }
  if (gray > 0) drawing.filter = `grayscale(${gray})`;
  drawing.drawImage(image, left, top, width, height);
  drawing.restore();
}

/** Convert a place in fractions of an area's sides to pixels. */
export function toArea(area: Area, place: readonly number[]): Area {
  const [left = 0, top = 0, width = 0, height = 0] = place;
  return {
    left: area.left + left * area.width,
    top: area.top + top * area.height,
    width: width * area.width,
    height: height * area.height,
  };
}

export interface Overlay extends Strength {
  numbers: ArrayLike<number>;
  isSmooth: boolean;
}

export function drawHeat(
  drawing: CanvasRenderingContext2D,
  places: readonly (number[] | null)[],
  area: Area,
  { numbers, isSmooth, ...strength }: Overlay,
): void {
  const grid = isSmooth ? gridOf(places) : null;
  if (!grid) {
    places.forEach((place, i) => {
      if (!place || !numbers[i]) return;
      const { left, top, width, height } = snapToPixels(toArea(area, place));
      drawing.fillStyle = overlayColor(numbers[i]!, strength);
      drawing.fillRect(left, top, width, height);
    });
    return;
  }
  const small = document.createElement("canvas");
  [small.width, small.height] = [grid.columns, grid.rows];
  const points = small.getContext("2d")!;
  grid.cells.forEach((cell, i) => {
    if (!cell || !numbers[i]) return;
    points.fillStyle = overlayColor(numbers[i]!, strength);
    points.fillRect(cell[0], cell[1], 1, 1);
  });
  const { left, top, width, height } = toArea(area, [grid.left, grid.top, grid.width, grid.height]);
  drawing.imageSmoothingEnabled = true;
  drawing.drawImage(small, left, top, width, height);
}

/** Round edges to whole pixels, so that neighbors neither overlap nor leave gaps. */
function snapToPixels({ left, top, width, height }: Area): Area {
  const [x, y] = [Math.round(left), Math.round(top)];
  return { left: x, top: y, width: Math.round(left + width) - x, height: Math.round(top + height) - y };
}

/** Draw an outline that is visible on light and dark pictures. */
export function outline(drawing: CanvasRenderingContext2D, { left, top, width, height }: Area): void {
  drawing.lineWidth = 4;
  drawing.strokeStyle = "#14181d";
  drawing.strokeRect(left, top, width, height);
  drawing.lineWidth = 2;
  drawing.strokeStyle = "#ffffff";
  drawing.strokeRect(left, top, width, height);
}

const labelLists = new WeakMap<Page, string[]>();

/** Return the color of a label, which is the same in all pictures of the page. */
export function labelColor(page: Page, label: string): string {
  const labels = labelLists.get(page) ?? labelsOf(page);
  labelLists.set(page, labels);
  return category(Math.max(0, labels.indexOf(label)));
}

/** Return the labels of the models of a page in their order, then those that no model names. */
export function labelsOf(page: Page): string[] {
  const pictures = page.captures.flatMap(({ samples }) => samples.flatMap((sample) => Object.values(sample.pictures)));
  const own = pictures.flatMap((picture) => (picture.kind === "plane" ? [] : picture.labels));
  const others = pictures.flatMap((picture) => (picture.kind === "plane" ? [] : detectionsOf(picture).map(({ label }) => label)));
  return [...new Set([...own, ...others.sort()])];
}

/** Draw boxes with label and score; if one is selected, the others are faint and without label. Labels do not overlap:
 *  where many boxes leave no room, only those of larger scores are drawn. */
export function drawBoxes(
  drawing: CanvasRenderingContext2D,
  boxes: readonly Box[],
  area: Area,
  { selected, color }: { selected: number | null; color: (label: string) => string },
): void {
  const hasSelected = selected !== null && boxes.some(({ query }) => query === selected);
  const order = [...boxes].sort((one, other) => Number(one.query === selected) - Number(other.query === selected));
  for (const box of order) {
    const isSelected = box.query === selected;
    const frame = toArea(area, box.place);
    drawing.globalAlpha = hasSelected && !isSelected ? 0.3 : 1;
    drawing.lineWidth = isSelected ? 5 : 3.5;
    drawing.strokeStyle = "rgba(255, 255, 255, 0.85)";
    drawing.strokeRect(frame.left, frame.top, frame.width, frame.height);
    drawing.lineWidth = isSelected ? 3 : 2;
    drawing.strokeStyle = color(box.label);
    drawing.strokeRect(frame.left, frame.top, frame.width, frame.height);
  }
  drawing.globalAlpha = 1;
  const placed: Area[] = [];
  for (const box of [...boxes].sort((one, other) => other.score - one.score)) {
    if (hasSelected && box.query !== selected) continue;
    const tag = drawTag(drawing, box, area, color(box.label), placed);
    if (tag) placed.push(tag);
  }
}

/** Draw the label of a box at a corner where it overlaps no other, and return its place; null if there is none. */
function drawTag(drawing: CanvasRenderingContext2D, box: Box, area: Area, color: string, placed: readonly Area[]): Area | null {
  const text = `${readable(box.label, 24, " ")} ${formatScore(box.score)}`;
  drawing.font = font(12, 600);
  const [width, height] = [drawing.measureText(text).width + 10, 18];
  const frame = toArea(area, box.place);
  const bottom = frame.top + frame.height;
  const lefts = [frame.left - 1, frame.left + frame.width + 1 - width];
  const tops = [frame.top - height - 1, frame.top + 1, bottom - height - 1, bottom + 1];
  const free = tops
    .flatMap((top) => lefts.map((left) => ({ left: Math.max(area.left, Math.min(left, area.left + area.width - width)), top, width, height })))
    .find((tag) => tag.top >= area.top && tag.top + height <= area.top + area.height && placed.every((other) => !overlap(tag, other)));
  if (!free) return null;
  drawing.fillStyle = color;
  drawing.fillRect(free.left, free.top, width, height);
  drawing.fillStyle = textColor(color);
  drawing.textBaseline = "middle";
  drawing.textAlign = "left";
  drawing.fillText(text, free.left + 5, free.top + 9.5);
  return free;
}

/** Text color, black or white, with more contrast on a color such as "#0072b2". */
export function textColor(color: string): string {
  const number = Number.parseInt(color.slice(1), 16);
  const linear = (byte: number) => ((byte & 255) / 255) ** 2.2;
  const bright = 0.2126 * linear(number >> 16) + 0.7152 * linear(number >> 8) + 0.0722 * linear(number);
  return bright > 0.18 ? "#14181d" : "#ffffff";
}
