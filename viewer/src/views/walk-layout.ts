/** Sizes of the cells of matrices that fill the window when presenting. */

/** A matrix: its rows and columns, and the width of its longest row label in units of the font size. */
export interface MatrixShape {
  rows: number;
  columns: number;
  label: number;
}

/** Size of the cells of a matrix; `font`: that of their numbers, 0 for none; `type`: font size of the labels. */
export interface CellSize {
  wide: number;
  high: number;
  font: number;
  type: number;
}

/** Smallest and largest font size of numbers; width and height of a cell with a number in units of it, at least and at
 *  most. */
const [SMALLEST, LARGEST] = [9, 36];
const [LEAST_WIDE, LEAST_HIGH, MOST_WIDE, MOST_HIGH] = [4.4, 1.5, 9, 4];
/** Font sizes of labels: the smallest of cells without numbers, and the largest. */
const [SMALLEST_TYPE, LARGEST_TYPE] = [11, 16];
/** Between matrices, and between labels and cells. */
const [GAP, LABEL_GAP] = [26, 6];
/** Height of the labels of columns, in units of the font size. */
const COLUMN_LABELS = 1.8;

/** Return the largest cells of matrices side by side in an area: with numbers if they fit, else without. */
export function fillArea(shapes: readonly MatrixShape[], area: { width: number; height: number }): CellSize {
  const columns = shapes.reduce((sum, shape) => sum + shape.columns, 0);
  const rows = Math.max(...shapes.map((shape) => shape.rows));
  const labels = shapes.reduce((sum, shape) => sum + shape.label, 0);
  const sizeWith = (type: number) => ({
    wide: (area.width - labels * type - shapes.length * (GAP + LABEL_GAP)) / columns,
    high: (area.height - COLUMN_LABELS * type) / rows,
    type,
  });
  for (let font = LARGEST; font >= SMALLEST; font -= 0.5) {
    const { wide, high, type } = sizeWith(Math.min(font, LARGEST_TYPE));
    if (wide < LEAST_WIDE * font || high < LEAST_HIGH * font) continue;
    return { wide: Math.min(wide, MOST_WIDE * font), high: Math.min(high, MOST_HIGH * font), font, type };
  }
  const type = Math.max(SMALLEST_TYPE, Math.min(LARGEST_TYPE, sizeWith(SMALLEST_TYPE).high / LEAST_HIGH));
  const { wide, high } = sizeWith(type);
  return { wide: Math.max(1 / columns, wide), high: Math.max(1 / rows, high), font: 0, type };
}
