/** Placement of labels beside points without overlap, where possible; and ticks of axes. */

export interface Label {
  /** Point that is labeled. */
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Rectangle {
  left: number;
  top: number;
  width: number;
  height: number;
}

/** Place each label, in order, at the nearest free position beside its point, or where it overlaps least. */
export function placeLabels(names: readonly Label[], bounds: Rectangle, gap = 6): Rectangle[] {
  const points = names.map(({ x, y }) => ({ left: x - 4, top: y - 4, width: 8, height: 8 }));
  const placed: Rectangle[] = [];
  for (const [i, name] of names.entries()) {
    const others = [...placed, ...points.filter((_, j) => j !== i)];
    let best: Rectangle | null = null;
    let minCost = Infinity;
    for (const rectangle of candidates(name, gap)) {
      const cost = others.reduce((sum, other) => sum + overlap(rectangle, other), outsideArea(rectangle, bounds));
      if (cost < minCost) [best, minCost] = [rectangle, cost];
      if (cost === 0) break;
    }
    placed.push(best!);
  }
  return placed;
}

function candidates({ x, y, width, height }: Label, gap: number): Rectangle[] {
  const rectangles: Rectangle[] = [];
  for (const factor of [1, 2.5, 4]) {
    const distance = gap * factor;
    const [right, left, middle] = [x + distance, x - distance - width, x - width / 2];
    const [above, below, level] = [y - distance - height, y + distance, y - height / 2];
    const corners: [number, number][] = [
      [right, above + height / 2], [right, level], [right, below - height / 2], [middle, above], [middle, below],
      [left, above + height / 2], [left, level], [left, below - height / 2],
    ];
    rectangles.push(...corners.map(([at, top]) => ({ left: at, top, width, height })));
  }
  return rectangles;
}

/** Area of the intersection of two rectangles. */
export function overlap(one: Rectangle, other: Rectangle): number {
  const wide = Math.min(one.left + one.width, other.left + other.width) - Math.max(one.left, other.left);
  const high = Math.min(one.top + one.height, other.top + other.height) - Math.max(one.top, other.top);
  return wide > 0 && high > 0 ? wide * high : 0;
}

/** Area outside of the bounds, doubled: a truncated label is worse than an overlap. */
function outsideArea(rectangle: Rectangle, bounds: Rectangle): number {
  return 2 * (rectangle.width * rectangle.height - overlap(rectangle, bounds));
}

/** Ticks at multiples of 1, 2 or 5 times a power of ten, about `count` of them. */
export function ticks(from: number, to: number, count: number): number[] {
  if (!(to > from)) return [];
  const rough = (to - from) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough * 0.999) ?? rough;
  const values: number[] = [];
  const first = Math.ceil(from / step - 1e-9);
  for (let i = first; i * step <= to + step * 1e-9; i++) values.push(Number((i * step).toPrecision(12)));
  return values;
}
