/** Projection of a plane to the canvas, with equal scale in both directions; the second axis points upwards. */

import type { Rectangle } from "./label-placement.js";

export interface Point {
  x: number;
  y: number;
}

export interface Projection {
  /** Area of the plane, without axis labels. */
  area: Rectangle;
  /** Smallest and largest coordinates in the area. */
  min: [number, number];
  max: [number, number];
  toCanvas(point: readonly [number, number]): Point;
}

const [LEFT, RIGHT, TOP, BOTTOM] = [44, 28, 16, 40];
/** Margin as a fraction of each side, and smallest side: a single point needs a scale. */
const [MARGIN, MIN_SIDE] = [0.06, 2];

export function project(points: readonly (readonly [number, number])[], room: { width: number; height: number }): Projection {
  const area = {
    left: LEFT,
    top: TOP,
    width: Math.max(40, room.width - LEFT - RIGHT),
    height: Math.max(40, room.height - TOP - BOTTOM),
  };
  const rangeOf = (axis: 0 | 1): [number, number] => {
    let [least, most] = [Infinity, -Infinity];
    for (const point of points) {
      least = Math.min(least, point[axis]);
      most = Math.max(most, point[axis]);
    }
    return least <= most ? [least, most] : [0, 0];
  };
  const [across, up] = [rangeOf(0), rangeOf(1)];
  const factor = 1 + 2 * MARGIN;
  const wide = Math.max(MIN_SIDE, (across[1] - across[0]) * factor);
  const high = Math.max(MIN_SIDE, (up[1] - up[0]) * factor);
  const scale = Math.min(area.width / wide, area.height / high);
  const middle = [(across[0] + across[1]) / 2, (up[0] + up[1]) / 2] as const;
  const half = [area.width / scale / 2, area.height / scale / 2] as const;
  const min: [number, number] = [middle[0] - half[0], middle[1] - half[1]];
  const max: [number, number] = [middle[0] + half[0], middle[1] + half[1]];
  const toCanvas = ([x, y]: readonly [number, number]): Point => ({
    x: area.left + (x - min[0]) * scale,
    y: area.top + (max[1] - y) * scale,
  });
  return { area, min, max, toCanvas };
}
