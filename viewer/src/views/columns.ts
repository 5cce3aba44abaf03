/** Column layout of a chain: each word has the same position in all lines. */

export interface Columns {
  font: number;
  line: number;
  lefts: number[];
  widths: number[];
  /** Width of the longest line. */
  width: number;
}

const [FONT, MIN_FONT] = [17, 11];
/** Line height, gap between boxes, and horizontal padding of a box, in units of the font size. */
const [LINE, GAP, MARGIN] = [1.8, 0.35, 0.4];

/** When lines fill a height: the largest font, the smallest line and the largest stretch of words. */
const [LARGEST, LEAST_LINE, STRETCH] = [40, 1.5, 2.5];

/** Lay out words; the font shrinks to fit the width, and longer lines scroll. Widths are in units of the font size. With
 *  a height, one line per word fills it and the width as far as possible. */
export function layOutColumns(widths: readonly number[], room: number, height: number | null = null): Columns {
  const boxes = widths.map((width) => Math.max(0.7, width) + 2 * MARGIN);
  const total = boxes.reduce((sum, width) => sum + width + GAP, 0);
  const count = Math.max(1, widths.length);
  const fits = Math.min(room / total, height === null ? Infinity : height / (LEAST_LINE * count));
  const font = Math.min(height === null ? FONT : LARGEST, Math.max(MIN_FONT, fits));
  const line = height === null ? LINE * font : Math.max(LEAST_LINE * font, Math.min(LINE * font, height / count));
  const wide = font * (height === null ? 1 : Math.max(1, Math.min(STRETCH, room / (total * font))));
  const lefts: number[] = [];
  let left = 0;
  for (const width of boxes) {
    lefts.push(left * wide);
    left += width + GAP;
  }
  return { font, line, lefts, widths: boxes.map((width) => width * wide), width: (left - GAP) * wide };
}

/** Column at a horizontal position, including half of the gaps beside it; -1 if there is none. */
export function columnAt(columns: Columns, x: number): number {
  const half = (GAP * columns.font) / 2;
  if (x < -half || x > columns.width + half) return -1;
  let [low, high] = [0, columns.lefts.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (columns.lefts[middle]! - half <= x) low = middle;
    else high = middle - 1;
  }
  return low;
}
