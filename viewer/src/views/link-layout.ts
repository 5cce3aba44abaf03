/** Layout of words in two rows or columns, with lines between them. */

export interface Rect {
  left: number;
  top: number;
  width: number;
  height: number;
}

export interface LinkLayout {
  /** True: two rows, keys above queries. False: two columns, queries left of keys. */
  isHorizontal: boolean;
  queries: Rect[];
  keys: Rect[];
  width: number;
  height: number;
}

/** Width of a number beside a word, and smallest and largest gap for lines. */
const NUMBER_PX = 52;
const [LEAST_GAP, MOST_GAP] = [96, 420];
const [LINE, SPACE, MARGIN] = [26, 6, 16];
/** Height of a heading. */
export const HEADING = 22;

/**
 * Lay out words in two rows, keys above, if both fit the width and there is enough height; else in two columns, each as
 * wide as its widest word, truncated if necessary. Widths include padding.
 */
export function layOutLinks(queries: number[], keys: number[], room: { width: number; height: number }): LinkLayout {
  const lengths = [queries, keys].map((widths) => sum(widths.map((width) => Math.max(width, NUMBER_PX) + SPACE)));
  const isShort = room.height < 340;
  const fits = Math.max(...lengths) + 2 * MARGIN <= room.width;
  return fits && !isShort ? layOutRows(queries, keys, room) : layOutColumns(queries, keys, room);
}

function layOutRows(queries: number[], keys: number[], room: { width: number; height: number }): LinkLayout {
  const gap = Math.min(MOST_GAP, Math.max(LEAST_GAP, room.height * 0.6));
  // Numbers are above the keys and below the queries.
  const top = HEADING + 22;
  const bottom = top + LINE + gap;
  return {
    isHorizontal: true,
    keys: rowOf(keys, top, room.width),
    queries: rowOf(queries, bottom, room.width),
    width: room.width,
    height: bottom + LINE + 22 + HEADING,
  };
}

/** Lay out words in a centered row. */
function rowOf(widths: number[], top: number, room: number): Rect[] {
  const slotWidths = widths.map((width) => Math.max(width, NUMBER_PX) + SPACE);
  const length = sum(slotWidths);
  const spare = Math.min(28, (room - 2 * MARGIN - length) / Math.max(1, widths.length - 1));
  let left = (room - length - spare * (widths.length - 1)) / 2;
  return widths.map((width, i) => {
    const slot = slotWidths[i]!;
    const spot = { left: left + (slot - width) / 2, top, width, height: LINE };
    left += slot + spare;
    return spot;
  });
}

function layOutColumns(queries: number[], keys: number[], room: { width: number; height: number }): LinkLayout {
  const most = Math.max(48, (room.width - LEAST_GAP - 2 * (NUMBER_PX + MARGIN)) / 2);
  const [wide, other] = [queries, keys].map((widths) => Math.min(most, Math.max(24, ...widths)));
  const spare = room.width - wide! - other! - 2 * (NUMBER_PX + MARGIN);
  const gap = Math.min(MOST_GAP, Math.max(LEAST_GAP, spare));
  const width = Math.max(room.width, wide! + other! + gap + 2 * (NUMBER_PX + MARGIN));
  const left = (width - wide! - other! - gap) / 2;
  const longest = Math.max(queries.length, keys.length);
  // The shorter column is stretched, at most to twice its height; both are vertically centered.
  const steps = [queries, keys].map((widths) => Math.min(2 * LINE, (longest / Math.max(1, widths.length)) * LINE));
  const heights = [queries, keys].map((widths, i) => widths.length * steps[i]!);
  const height = Math.max(...heights);
  const stack = (widths: number[], side: 0 | 1): Rect[] =>
    widths.map((natural, i) => {
      const cut = Math.min(natural, side ? other! : wide!);
      const start = side ? left + wide! + gap : left + wide! - cut;
      const middle = HEADING + 6 + (height - heights[side]!) / 2 + (i + 0.5) * steps[side]!;
      return { left: start, top: middle - LINE / 2 + 1, width: cut, height: LINE - 2 };
    });
  return {
    isHorizontal: false,
    queries: stack(queries, 0),
    keys: stack(keys, 1),
    width,
    height: height + HEADING + 6 + MARGIN,
  };
}

function sum(numbers: number[]): number {
  return numbers.reduce((total, number) => total + number, 0);
}

/** End points of the line between two words, at their facing edges. */
export function lineEnds(all: LinkLayout, query: number, key: number): { x: number; y: number }[] {
  const [from, to] = [all.queries[query]!, all.keys[key]!];
  if (all.isHorizontal)
    return [
      { x: from.left + from.width / 2, y: from.top - 2 },
      { x: to.left + to.width / 2, y: to.top + to.height + 2 },
    ];
  return [
    { x: from.left + from.width + 3, y: from.top + from.height / 2 },
    { x: to.left - 3, y: to.top + to.height / 2 },
  ];
}
