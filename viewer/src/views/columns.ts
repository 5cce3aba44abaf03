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

/** When lines fill a height: the largest font, also of lines that scroll, the height of a line at least and at most, and
 *  the largest stretch of words. */
const [LARGEST, LARGEST_SCROLLED, LEAST_LINE, MOST_LINE, STRETCH] = [40, 24, 1.3, 3, 4];

/** Lay out words; the font shrinks to fit the width, and longer lines scroll. Widths are in units of the font size. With
 *  a height, one line per word fills it and the width as far as possible; lines that are too many for it scroll. */
export function layOutColumns(widths: readonly number[], room: number, height: number | null = null): Columns {
  const boxes = widths.map((width) => Math.max(0.7, width) + 2 * MARGIN);
  const total = boxes.reduce((sum, width) => sum + width + GAP, 0);
  const count = Math.max(1, widths.length);
  const down = height === null ? Infinity : height / (LEAST_LINE * count);
  const isScrolled = down < MIN_FONT;
  const largest = height === null ? FONT : isScrolled ? LARGEST_SCROLLED : Math.min(LARGEST, down);
  const font = Math.min(largest, Math.max(MIN_FONT, room / total));
  const line = height === null || isScrolled ? LINE * font : Math.min(MOST_LINE * font, height / count);
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
