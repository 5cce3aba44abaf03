/** How a plane lies on the screen: one scale for both directions, the second axis upwards. */

import type { Rectangle } from "./spread.js";

export interface Point {
  x: number;
  y: number;
}

export interface Plan {
  /** Where the plane is drawn, axes left out. */
  area: Rectangle;
  /** Least and largest coordinates that are within the area. */
  from: [number, number];
  to: [number, number];
  spot(point: readonly [number, number]): Point;
}

const [LEFT, RIGHT, TOP, BOTTOM] = [44, 28, 16, 40];
/** Free space around the points, as a share of the longer side; and the least side, so that one point has a scale. */
const [AROUND, LEAST] = [0.06, 2];

export function plan(points: readonly (readonly [number, number])[], room: { width: number; height: number }): Plan {
  const area = {
    left: LEFT,
    top: TOP,
    width: Math.max(40, room.width - LEFT - RIGHT),
    height: Math.max(40, room.height - TOP - BOTTOM),
  };
  const span = (axis: 0 | 1): [number, number] => {
    let [least, most] = [Infinity, -Infinity];
    for (const point of points) {
      least = Math.min(least, point[axis]);
      most = Math.max(most, point[axis]);
    }
    return least <= most ? [least, most] : [0, 0];
  };
  const [across, up] = [span(0), span(1)];
  const free = 1 + 2 * AROUND;
  const wide = Math.max(LEAST, (across[1] - across[0]) * free);
  const high = Math.max(LEAST, (up[1] - up[0]) * free);
  const times = Math.min(area.width / wide, area.height / high);
  const middle = [(across[0] + across[1]) / 2, (up[0] + up[1]) / 2] as const;
  const half = [area.width / times / 2, area.height / times / 2] as const;
  const from: [number, number] = [middle[0] - half[0], middle[1] - half[1]];
  const to: [number, number] = [middle[0] + half[0], middle[1] + half[1]];
  const spot = ([x, y]: readonly [number, number]): Point => ({
    x: area.left + (x - from[0]) * times,
    y: area.top + (to[1] - y) * times,
  });
  return { area, from, to, spot };
}
