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

/** Lay out words; the font shrinks to fit the width, and longer lines scroll. Widths are in units of the font size. */
export function layOutColumns(widths: readonly number[], room: number): Columns {
  const boxes = widths.map((width) => Math.max(0.7, width) + 2 * MARGIN);
  const total = boxes.reduce((sum, width) => sum + width + GAP, 0);
  const font = Math.min(FONT, Math.max(MIN_FONT, room / total));
  const lefts: number[] = [];
  let left = 0;
  for (const width of boxes) {
    lefts.push(left * font);
    left += width + GAP;
  }
  const wide = boxes.map((width) => width * font);
  return { font, line: LINE * font, lefts, widths: wide, width: (left - GAP) * font };
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
