/** Rows for spans of time, so that none covers another nor another's name. */

export interface Lane {
  lane: number;
  left: number;
  width: number;
  /** Where the name begins: in its span if it fits, else behind it, or before it where the right is at an end. */
  nameLeft: number;
  nameWidth: number;
  isNameInside: boolean;
}

/**
 * Each span in the first lane that is free for it and its name.
 *
 * spans:  left and width of each, and the width of its name, in pixels; in any order.
 * right:  where the room ends.
 */
export function assignLanes(
  spans: readonly { left: number; width: number; name: number }[],
  right: number,
  gap = 8,
): Lane[] {
  const ends: number[] = [];
  const lanes: Lane[] = new Array(spans.length);
  const order = spans.map((_, i) => i).sort((one, other) => spans[one]!.left - spans[other]!.left);
  for (const i of order) {
    const { left, width, name } = spans[i]!;
    const isNameInside = name <= width;
    const fitsRight = left + width + name <= right;
    const nameLeft = isNameInside ? left : fitsRight ? left + width : Math.max(0, left - name);
    const start = Math.min(left, nameLeft);
    let lane = ends.findIndex((end) => end <= start);
    if (lane < 0) lane = ends.length;
    ends[lane] = Math.max(left + width, nameLeft + name) + gap;
    lanes[i] = { lane, left, width, nameLeft, nameWidth: name, isNameInside };
  }
  return lanes;
}
