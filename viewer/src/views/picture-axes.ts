/** Axes of a read with places on a picture: weights are drawn over one axis, entries are selected on the other. */

import type { Axis, Box, Picture, Read, Sample, SoundEvent } from "../page.js";

export interface PictureAxes<P extends Picture = Picture> {
  picture: P;
  /** Axis over which the weights are drawn. */
  heatAxis: "queries" | "keys";
  /** True if queries and keys are the same axis: entries are then selected on the picture itself. */
  isSameAxis: boolean;
}

/** Return the axes of a read on a picture of a kind, keys before queries; null if there are none. */
export function pictureAxes<K extends Picture["kind"]>(
  sample: Sample,
  read: Read,
  kind: K,
): PictureAxes<Extract<Picture, { kind: K }>> | null {
  const keys = sample.axes[read.keys];
  const queries = sample.axes[read.queries];
  for (const [heatAxis, axis, other] of [["keys", keys, queries], ["queries", queries, keys]] as const) {
    const picture = axis ? sample.pictures[axis.picture] : undefined;
    if (!axis || picture?.kind !== kind || !axis.places.some((place) => place)) continue;
    // Boxes that attend to patches are on the same image, but hovering over a patch must not select the box around it.
    const isSameAxis = other === axis;
    return { picture: picture as Extract<Picture, { kind: K }>, heatAxis, isSameAxis };
  }
  return null;
}

/** Boxes or events that were detected in a picture. */
export function detectionsOf(picture: Picture): readonly (Box | SoundEvent)[] {
  return picture.kind === "image" ? picture.boxes : picture.kind === "sound" ? picture.events : [];
}

/** Entries of an axis that have no place, such as a class token. */
export function entriesWithoutPlace(axis: Axis): number[] {
  return axis.labels.flatMap((_, i) => (axis.places[i] ? [] : [i]));
}

/** Smallest box [left, top, width, height] that contains a point; -1 if there is none. */
export function boxAt(places: readonly (number[] | null)[], x: number, y: number): number {
  let index = -1;
  let minArea = Infinity;
  places.forEach((place, i) => {
    if (!place) return;
    const [left = 0, top = 0, width = 0, height = 0] = place;
    if (x < left || x >= left + width || y < top || y >= top + height || width * height >= minArea) return;
    index = i;
    minArea = width * height;
  });
  return index;
}

/** Shortest span [start, stop] that contains a time; -1 if there is none. */
export function spanAt(places: readonly (number[] | null)[], time: number): number {
  let index = -1;
  let minLength = Infinity;
  places.forEach((place, i) => {
    if (!place) return;
    const [start = 0, stop = 0] = place;
    if (time < start || time >= stop || stop - start >= minLength) return;
    index = i;
    minLength = stop - start;
  });
  return index;
}

export interface Grid {
  columns: number;
  rows: number;
  left: number;
  top: number;
  width: number;
  height: number;
  /** Column and row of each entry; null without a place. */
  cells: ([number, number] | null)[];
}

/** Return the grid of boxes of equal size that tile a rectangle; null if they do not. */
export function gridOf(places: readonly (number[] | null)[]): Grid | null {
  const boxes = places.filter((place) => place !== null);
  const [, , width = 0, height = 0] = boxes[0] ?? [];
  if (!(width > 0 && height > 0)) return null;
  const left = Math.min(...boxes.map((box) => box[0]!));
  const top = Math.min(...boxes.map((box) => box[1]!));
  const usedCells = new Set<string>();
  let columns = 0;
  let rows = 0;
  let isEven = true;
  const cells = places.map((place): [number, number] | null => {
    if (!place) return null;
    const [across, down] = [(place[0]! - left) / width, (place[1]! - top) / height];
    const cell: [number, number] = [Math.round(across), Math.round(down)];
    const isOnGrid = Math.abs(across - cell[0]) < 0.02 && Math.abs(down - cell[1]) < 0.02;
    const isSameSize = Math.abs(place[2]! / width - 1) < 0.02 && Math.abs(place[3]! / height - 1) < 0.02;
    if (!isOnGrid || !isSameSize || usedCells.has(String(cell))) isEven = false;
    usedCells.add(String(cell));
    columns = Math.max(columns, cell[0] + 1);
    rows = Math.max(rows, cell[1] + 1);
    return cell;
  });
  const isFull = isEven && usedCells.size === columns * rows;
  return isFull ? { columns, rows, left, top, width: width * columns, height: height * rows, cells } : null;
}
