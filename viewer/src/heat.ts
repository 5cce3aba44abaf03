/** Heatmap of a matrix, painted in cached tiles: panning only copies them. */

import { css, isDark, scaleOf, omittedColor, type Scale } from "./color.js";
import { pixelRatio } from "./dom.js";
import { blockBorders } from "./table.js";
import type { Shown, Table } from "./view.js";
import type { Viewport } from "./viewport.js";

/** Cells per side of a tile; a cell is one number, or the largest of a block. */
const TILE = 256;
const MOST_TILES = 160;
/** Time for painting tiles in one frame; the other tiles are painted in the next frames. */
const BUDGET_MS = 7;
/** Size of a cell from which a reduced table shows its single numbers; below, its overview. */
const EXACT_FROM_PX = 0.5;
/** Blocks per side of the overview that is drawn until the tiles are painted. */
const COARSE = 512;

/** Numbers per cell of a tile, a power of two for each side. */
interface Level {
  across: number;
  down: number;
}

export class Heat {
  readonly scale: Scale;
  private readonly tiles = new Map<string, HTMLCanvasElement>();
  private coarse: HTMLCanvasElement | null = null;

  constructor(
    private readonly table: Table,
    private readonly head: number,
    shown: Shown,
    readonly dark = isDark(),
  ) {
    this.scale = scaleOf(shown, table);
  }

  /** Return true if this heatmap is valid for a table, a head and the current colors. */
  isFor(table: Table, shown: Shown): boolean {
    const scale = scaleOf(shown, table);
    const same = scale.most === this.scale.most && scale.signed === this.scale.signed && isDark() === this.dark;
    return same && table === this.table && shown.head === this.head;
  }

  /** Return true if single numbers are drawn, false for the overview. */
  isExact(viewport: Viewport): boolean {
    const { x, y } = viewport.cell;
    return this.table.isComplete || Math.min(x, y) >= EXACT_FROM_PX;
  }

  /** Draw the visible part; return false if some tiles are left for a later frame. */
  draw(drawing: CanvasRenderingContext2D, viewport: Viewport): boolean {
    drawing.imageSmoothingEnabled = false;
    if (!this.isExact(viewport)) {
      this.drawCoarse(drawing, viewport);
      return true;
    }
    const level = levelOf(viewport);
    const until = performance.now() + BUDGET_MS;
    const missing: (() => void)[] = [];
    let left = 0;
    for (const [row, column] of tilesOf(viewport, level)) {
      const name = `${level.across} ${level.down} ${row} ${column}`;
      let tile = this.tiles.get(name);
      if (!tile && performance.now() < until) tile = this.paint(name, level, row, column);
      if (!tile) left++;
      else missing.push(() => drawTile(drawing, viewport, tile, { level, row, column }));
    }
    if (left) this.drawCoarse(drawing, viewport);
    missing.forEach((put) => put());
    return left === 0;
  }

  private drawCoarse(drawing: CanvasRenderingContext2D, viewport: Viewport): void {
    this.coarse ??= this.paintCoarse();
    const { x, y } = viewport.cell;
    drawing.drawImage(this.coarse, viewport.x, viewport.y, x * viewport.keys, y * viewport.queries);
  }

  private paintCoarse(): HTMLCanvasElement {
    const { rows, columns, numbers } = this.table.overview(this.head, COARSE);
    return paintCanvas(columns, rows, (pixels) => {
      for (let index = 0; index < numbers.length; index++) pixels[index] = this.scale.bytes(numbers[index]!);
    });
  }

  private paint(name: string, level: Level, row: number, column: number): HTMLCanvasElement {
    const fromQuery = row * TILE * level.down;
    const fromKey = column * TILE * level.across;
    const rows = Math.min(TILE, Math.ceil((this.table.queries - fromQuery) / level.down));
    const columns = Math.min(TILE, Math.ceil((this.table.keys - fromKey) / level.across));
    const area = { fromQuery, fromKey, rows, columns };
    const tile = paintCanvas(columns, rows, (pixels) => {
      if (this.table.isComplete) this.paintComplete(pixels, area, level);
      else this.paintTopK(pixels, area, level);
    });
    if (this.tiles.size >= MOST_TILES) this.tiles.delete(this.tiles.keys().next().value!);
    this.tiles.set(name, tile);
    return tile;
  }

  private paintComplete(pixels: Uint32Array, area: Area, level: Level): void {
    const largest = new Float32Array(area.columns);
    for (let row = 0; row < area.rows; row++) {
      largest.fill(0);
      const from = area.fromQuery + row * level.down;
      for (let query = from; query < Math.min(from + level.down, this.table.queries); query++) {
        const numbers = this.table.row(this.head, query);
        const to = Math.min(this.table.keys, area.fromKey + area.columns * level.across);
        for (let key = area.fromKey; key < to; key++) {
          const column = Math.floor((key - area.fromKey) / level.across);
          if (Math.abs(numbers[key]!) > Math.abs(largest[column]!)) largest[column] = numbers[key]!;
        }
      }
      for (let column = 0; column < area.columns; column++) {
        pixels[row * area.columns + column] = this.scale.bytes(largest[column]!);
      }
    }
  }

  private paintTopK(pixels: Uint32Array, area: Area, level: Level): void {
    const largest = new Float32Array(area.columns);
    const ground = this.omittedColors(area, level);
    for (let row = 0; row < area.rows; row++) {
      largest.fill(0);
      const from = area.fromQuery + row * level.down;
      for (let query = from; query < Math.min(from + level.down, this.table.queries); query++) {
        const { keys, numbers } = this.table.topK(this.head, query)!;
        for (let index = 0; index < keys.length; index++) {
          const column = Math.floor((keys[index]! - area.fromKey) / level.across);
          if (column < 0 || column >= area.columns) continue;
          if (Math.abs(numbers[index]!) > Math.abs(largest[column]!)) largest[column] = numbers[index]!;
        }
      }
      for (let column = 0; column < area.columns; column++) {
        const number = largest[column]!;
        pixels[row * area.columns + column] = number ? this.scale.bytes(number) : ground(row, column);
      }
    }
  }

  /** Color of omitted numbers; that of zero in blocks whose largest number is zero. */
  private omittedColors(area: Area, level: Level): (row: number, column: number) => number {
    const { rows, columns, numbers } = this.table.overview(this.head, Infinity);
    const down = blockOf(this.table.queries, rows);
    const across = blockOf(this.table.keys, columns);
    const [zero, cut] = [this.scale.bytes(0), omittedColor(this.dark)];
    return (row, column) => {
      const query = Math.min(this.table.queries - 1, area.fromQuery + row * level.down);
      const key = Math.min(this.table.keys - 1, area.fromKey + column * level.across);
      return numbers[down[query]! * columns + across[key]!] ? cut : zero;
    };
  }
}

interface Area {
  fromQuery: number;
  fromKey: number;
  rows: number;
  columns: number;
}

const blocks = new Map<string, Uint32Array>();

/** Index of the block of each entry. */
function blockOf(entries: number, count: number): Uint32Array {
  const name = `${entries} ${count}`;
  let entryBlocks = blocks.get(name);
  if (!entryBlocks) {
    entryBlocks = new Uint32Array(entries);
    const edges = blockBorders(entries, count);
    for (let block = 0; block < count; block++) entryBlocks.fill(block, edges[block]!, edges[block + 1]!);
    blocks.set(name, entryBlocks);
  }
  return entryBlocks;
}

/** Pool numbers to about one per pixel of the screen. */
function levelOf(viewport: Viewport): Level {
  const ratio = pixelRatio();
  const pool = (size: number) => 2 ** Math.max(0, Math.ceil(-Math.log2(size * ratio)));
  return { across: pool(viewport.cell.x), down: pool(viewport.cell.y) };
}

function* tilesOf(viewport: Viewport, level: Level): Generator<[number, number]> {
  const { rows, columns } = viewport.visible();
  const [high, wide] = [TILE * level.down, TILE * level.across];
  for (let row = Math.floor(rows[0] / high); row * high < rows[1]; row++) {
    for (let column = Math.floor(columns[0] / wide); column * wide < columns[1]; column++) yield [row, column];
  }
}

/** Draw a tile; its borders are rounded to whole pixels, so that there are no seams. */
function drawTile(
  drawing: CanvasRenderingContext2D,
  viewport: Viewport,
  tile: HTMLCanvasElement,
  { level, row, column }: { level: Level; row: number; column: number },
): void {
  const ratio = pixelRatio();
  const snap = (place: number) => Math.round(place * ratio) / ratio;
  const { x, y } = viewport.cell;
  const left = viewport.x + column * TILE * level.across * x;
  const top = viewport.y + row * TILE * level.down * y;
  const right = snap(left + tile.width * level.across * x);
  const bottom = snap(top + tile.height * level.down * y);
  drawing.drawImage(tile, snap(left), snap(top), right - snap(left), bottom - snap(top));
}

/** Create a canvas from pixels (32-bit integers). */
export function paintCanvas(width: number, height: number, fill: (pixels: Uint32Array) => void): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const drawing = canvas.getContext("2d")!;
  const image = drawing.createImageData(width, height);
  fill(new Uint32Array(image.data.buffer));
  drawing.putImageData(image, 0, 0);
  return canvas;
}

/** Return the overview of a table as a small canvas, one pixel per block. */
export function thumbnail(table: Table, head: number, scale: Scale, most: number): HTMLCanvasElement {
  const { rows, columns, numbers } = table.overview(head, most);
  return paintCanvas(columns, rows, (pixels) => {
    for (let index = 0; index < numbers.length; index++) pixels[index] = scale.bytes(numbers[index]!);
  });
}

/** CSS color of zero. */
export function zero(scale: Scale): string {
  return css(scale.bytes(0));
}
