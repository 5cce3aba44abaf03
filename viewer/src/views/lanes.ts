/** Lanes for spans of time, so that neither spans nor their labels overlap. */

export interface Lane {
  lane: number;
  left: number;
  width: number;
  /** Left edge of the label: inside the span if it fits, else after it, or before it at the right edge. */
  nameLeft: number;
  nameWidth: number;
  isNameInside: boolean;
}

/**
 * Assign each span to the first lane that is free for it and its label.
 *
 * spans:  left, width, and width of the label, in pixels; in any order.
 * right:  right edge of the area.
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
