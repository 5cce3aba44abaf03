/** Zoom and pan of a matrix in an area: size of its cells, and the visible range. All in CSS pixels. */

const LARGEST_FITTED = { x: 110, y: 68 };
const LARGEST = { x: 160, y: 96 };
/** Cells are at most so much wider than high, or higher than wide, unless there are few of them. */
const SKEW = 4;
const FEW = 200;

export interface Size {
  width: number;
  height: number;
}

export class Viewport {
  /** Where the first cell's corner lies; at most 0. */
  x = 0;
  y = 0;
  /** How much closer than all of it. */
  zoom = 1;
  private fittedCell = { x: 1, y: 1 };

  constructor(
    readonly queries: number,
    readonly keys: number,
    private area: Size,
  ) {
    this.resize(area);
  }

  /** The width and height of a cell. */
  get cell(): { x: number; y: number } {
    return { x: this.zoomed(this.fittedCell.x, LARGEST.x), y: this.zoomed(this.fittedCell.y, LARGEST.y) };
  }

  /** The part of the area that cells cover. */
  get matrixSize(): Size {
    const { x, y } = this.cell;
    return { width: Math.min(this.area.width, x * this.keys), height: Math.min(this.area.height, y * this.queries) };
  }

  get isFitted(): boolean {
    return this.zoom === 1;
  }

  resize(area: Size): void {
    this.area = area;
    const wide = Math.min(area.width / this.keys, LARGEST_FITTED.x);
    const high = Math.min(area.height / this.queries, LARGEST_FITTED.y);
    this.fittedCell = {
      x: Math.min(wide, Math.max(SKEW * high, FEW / this.keys)),
      y: Math.min(high, Math.max(SKEW * wide, FEW / this.queries)),
    };
    this.moveBy(0, 0);
  }

  fit(): void {
    this.zoom = 1;
    this.moveBy(0, 0);
  }

  /** Zoom by a factor around a fixed point of the area. */
  zoomBy(factor: number, at: { x: number; y: number }): void {
    const before = this.cell;
    const most = Math.max(LARGEST.x / this.fittedCell.x, LARGEST.y / this.fittedCell.y);
    this.zoom = Math.min(Math.max(1, most), Math.max(1, this.zoom * factor));
    const { x, y } = this.cell;
    this.x = at.x - ((at.x - this.x) / before.x) * x;
    this.y = at.y - ((at.y - this.y) / before.y) * y;
    this.moveBy(0, 0);
  }

  moveBy(x: number, y: number): void {
    const cell = this.cell;
    this.x = Math.min(0, Math.max(this.x + x, this.area.width - cell.x * this.keys));
    this.y = Math.min(0, Math.max(this.y + y, this.area.height - cell.y * this.queries));
  }

  /** Bring a cell into the area, if it lies outside; null leaves that side as it is. */
  reveal(query: number | null, key: number | null): void {
    const { x, y } = this.cell;
    const isOutside = (place: number, size: number, room: number) => place < 0 || place + size > room;
    const left = key === null ? 0 : this.x + key * x;
    const top = query === null ? 0 : this.y + query * y;
    const across = key !== null && isOutside(left, x, this.area.width) ? this.area.width / 2 - left : 0;
    const down = query !== null && isOutside(top, y, this.area.height) ? this.area.height / 2 - top : 0;
    this.moveBy(across, down);
  }

  /** Cell at a point of the area; null outside of the matrix. */
  cellAt(place: { x: number; y: number }): { query: number; key: number } | null {
    const { width, height } = this.matrixSize;
    if (place.x < 0 || place.y < 0 || place.x >= width || place.y >= height) return null;
    const { x, y } = this.cell;
    const query = Math.min(this.queries - 1, Math.floor((place.y - this.y) / y));
    const key = Math.min(this.keys - 1, Math.floor((place.x - this.x) / x));
    return { query, key };
  }

  /** The first cell that shows, and the one after the last. */
  visible(): { rows: [number, number]; columns: [number, number] } {
    const { x, y } = this.cell;
    return {
      rows: [Math.floor(-this.y / y), Math.min(this.queries, Math.ceil((this.area.height - this.y) / y))],
      columns: [Math.floor(-this.x / x), Math.min(this.keys, Math.ceil((this.area.width - this.x) / x))],
    };
  }

  private zoomed(fitted: number, largest: number): number {
    return Math.max(fitted, Math.min(largest, fitted * this.zoom));
  }
}
