/** Thumbnails of all layers (rows) and heads (columns) of a kind of read. */

import { darkest, isSigned, scaleTo, type Scale } from "../color.js";
import { prepareCanvas, font, make, cssVariable, pixelRatio, toClient, toElement } from "../dom.js";
import { headName, formatShort } from "../format.js";
import { thumbnail } from "../heat.js";
import type { Read } from "../page.js";
import { isPresenting } from "../present.js";
import { siblings } from "../reads.js";
import { tableOf } from "../table.js";
import { hideTip, showTip } from "../tip.js";
import type { OpenView, Pane, Shown, Table, View } from "../view.js";

const LEFT = 58;
const TOP = 24;
const GAP = 4;
const LEAST_PX = 22;
const MOST_PX = 200;
/** Largest aspect ratio of a thumbnail, and largest stretch relative to its matrix. */
const SKEW = 2;
const STRETCH = 1.6;
const LARGE_PX = 260;

export const heads: View = {
  name: "heads",
  about: "All layers and heads. Click one to enlarge it.",
  fits: (sample, read) => siblings(sample, read).length > 1 || read.heads.length > 1,
  open: (host, pane) => new Heads(host, pane),
};

interface Grid {
  rows: Read[];
  columns: number;
  /** Heads per line. Presenting breaks the heads of a single layer into lines, where that makes them larger. */
  perLine: number;
  wide: number;
  high: number;
}

class Heads implements OpenView {
  private readonly canvas = make("canvas", { role: "img" });
  private readonly overlay = make("canvas", { "aria-hidden": true, class: "over" });
  private readonly stage = make("div", { class: "grid" }, this.canvas, this.overlay);
  private readonly thumbnails = new Map<string, HTMLCanvasElement>();
  private shown: Shown | null = null;
  private grid: Grid = { rows: [], columns: 1, perLine: 1, wide: 1, high: 1 };
  private tables: Table[] = [];
  private scale: Scale | null = null;

  constructor(
    private readonly host: HTMLElement,
    private readonly pane: Pane,
  ) {
    host.append(this.stage);
    this.overlay.addEventListener("pointermove", (event) => this.hover(event));
    this.overlay.addEventListener("pointerleave", () => this.leave());
    this.overlay.addEventListener("click", (event) => {
      const found = this.cellAt(event);
      if (found) this.pane.choose({ read: found.read, head: found.head }, "alignment");
    });
  }

  async show(shown: Shown): Promise<void> {
    this.shown = shown;
    const rows = siblings(shown.sample, shown.read);
    const tables = await Promise.all(rows.map((read) => tableOf(shown.sample, read)));
    if (shown !== this.shown) return;
    this.tables = tables;
    this.grid = this.gridLayout(rows, tables[0]!);
    this.scale = scaleTo(this.darkestOfAll(shown, tables), isSigned(shown.read));
    const layers = rows.map((read) => read.layer).join(", ");
    this.canvas.setAttribute("aria-label", `Thumbnails of ${this.grid.columns} heads in each of the layers ${layers}`);
    this.draw();
    this.drawOver(null);
  }

  darkest(): number | null {
    return this.scale?.most ?? null;
  }

  /** Position of the shown head. */
  place(query: number | null, key: number | null): { x: number; y: number } | null {
    const { shown } = this;
    if (!shown || query !== null || key !== null) return null;
    const [x, y] = this.corner(this.grid.rows.indexOf(shown.read), Math.max(0, shown.head));
    return toClient(this.overlay, x + this.grid.wide / 2, y + this.grid.high / 2);
  }

  handleKey(key: string): boolean {
    const { shown, grid } = this;
    const steps: Record<string, [number, number]> = {
      ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
    };
    const step = steps[key];
    if (!shown || !step) return false;
    const row = Math.max(0, Math.min(grid.rows.length - 1, grid.rows.indexOf(shown.read) + step[0]));
    const head = Math.max(0, Math.min(grid.columns - 1, Math.max(-1, shown.head) + step[1]));
    this.pane.choose({ read: grid.rows[row]!, head });
    return true;
  }

  close(): void {
    hideTip();
    this.stage.remove();
  }

  private darkestOfAll(shown: Shown, tables: Table[]): number {
    if (shown.scale === "one") return 1;
    const each = tables.flatMap((table) => Array.from({ length: table.heads }, (_, head) => darkest({ ...shown, head }, table)));
    return Math.max(...each);
  }

  private gridLayout(rows: Read[], { queries, keys }: Table): Grid {
    const columns = Math.max(...rows.map((read) => read.heads.length));
    const ratio = Math.min(SKEW, Math.max(1 / SKEW, queries / keys));
    const most = isPresenting() ? Infinity : MOST_PX;
    const mayBreak = isPresenting() && rows.length === 1;
    const layouts = Array.from({ length: mayBreak ? columns : 1 }, (_, index) => {
      const perLine = Math.ceil(columns / (index + 1));
      const lines = Math.ceil(columns / perLine);
      const across = (this.host.clientWidth - LEFT - 16) / perLine - GAP;
      const down = (this.host.clientHeight - lines * TOP) / (lines * rows.length) - GAP;
      const wide = Math.max(LEAST_PX, Math.min(across, (STRETCH * down) / ratio, most));
      const high = Math.max(LEAST_PX, Math.min(wide * ratio, down));
      return { rows, columns, perLine, wide: Math.floor(wide), high: Math.floor(high) };
    });
    return layouts.reduce((best, each) => (each.wide * each.high > best.wide * best.high ? each : best));
  }

  /** Left and top of the thumbnail of a head; each line has its labels above. */
  private corner(row: number, head: number): [number, number] {
    const { perLine, wide, high } = this.grid;
    const line = Math.floor(head / perLine);
    return [LEFT + (head % perLine) * (wide + GAP), TOP + row * (high + GAP) + line * (TOP + high + GAP)];
  }

  private get size(): [number, number] {
    const { rows, columns, perLine, wide, high } = this.grid;
    const bottom = this.corner(rows.length - 1, columns - 1)[1] + high + GAP;
    return [LEFT + perLine * (wide + GAP), bottom];
  }

  private draw(): void {
    const { grid, scale } = this;
    const drawing = prepareCanvas(this.canvas, ...this.size);
    if (!scale) return;
    this.thumbnails.clear();
    this.drawLabels(drawing);
    drawing.strokeStyle = cssVariable("--line");
    const most = Math.ceil(Math.max(grid.wide, grid.high) * pixelRatio());
    grid.rows.forEach((read, row) => {
      read.heads.forEach((_, head) => {
        const [x, y] = this.corner(row, head);
        drawing.imageSmoothingEnabled = false;
        drawing.drawImage(thumbnail(this.tables[row]!, head, scale, most), x, y, grid.wide, grid.high);
        drawing.strokeRect(x - 0.5, y - 0.5, grid.wide + 1, grid.high + 1);
      });
    });
  }

  private drawLabels(drawing: CanvasRenderingContext2D): void {
    const { grid } = this;
    drawing.font = font(12);
    drawing.fillStyle = cssVariable("--pale");
    drawing.textBaseline = "middle";
    drawing.textAlign = "right";
    grid.rows.forEach((read, row) => {
      const words = grid.high < 14 && row % 2 ? "" : `layer ${read.layer}`;
      drawing.fillText(words, LEFT - 8, this.corner(row, 0)[1] + grid.high / 2);
    });
    drawing.textAlign = "center";
    if (grid.columns === 1) return;
    const named = grid.rows.find((read) => read.heads.length === grid.columns)!;
    const { heads } = named;
    const hasFullNames = grid.wide > 54;
    heads.forEach((name, head) => {
      const words = hasFullNames ? headName(named, head) : name.replace(/^head /, "") || String(head + 1);
      const [left, top] = this.corner(0, head);
      drawing.fillText(words, left + grid.wide / 2, top - TOP / 2);
    });
    drawing.textAlign = "right";
    if (!hasFullNames) drawing.fillText("head", LEFT - 8, TOP / 2);
  }

  private drawOver(at: { row: number; head: number } | null): void {
    const { shown, grid } = this;
    const drawing = prepareCanvas(this.overlay, ...this.size);
    const frame = (row: number, head: number, color: string) => {
      const [x, y] = this.corner(row, head);
      drawing.strokeStyle = cssVariable(color);
      drawing.lineWidth = 2;
      drawing.strokeRect(x - 1, y - 1, grid.wide + 2, grid.high + 2);
    };
    if (shown && shown.head >= 0) frame(grid.rows.indexOf(shown.read), shown.head, "--pin");
    if (at) frame(at.row, at.head, "--accent");
  }

  private cellAt(event: MouseEvent): { row: number; head: number; read: Read } | null {
    const { x, y } = toElement(this.overlay, event);
    const { rows, wide, high } = this.grid;
    for (const [row, read] of rows.entries()) {
      for (let head = 0; head < read.heads.length; head++) {
        const [left, top] = this.corner(row, head);
        const isInside = Math.abs(x - left - wide / 2) <= (wide + GAP) / 2 && Math.abs(y - top - high / 2) <= (high + GAP) / 2;
        if (isInside) return { row, head, read };
      }
    }
    return null;
  }

  private hover(event: PointerEvent): void {
    const found = this.cellAt(event);
    this.drawOver(found);
    this.overlay.style.cursor = found ? "pointer" : "default";
    if (!found || !this.shown) return hideTip();
    const { row, head, read } = found;
    const name = headName(read, head);
    const more = [`Layer ${read.layer}${name ? `, ${name}` : ""}`];
    for (const [summary, numbers] of Object.entries(read.summaries)) {
      const number = numbers[head];
      if (number !== null && number !== undefined) more.push(`${summary} ${formatShort(number)}`);
    }
    const picture = this.enlarged(row, head);
    showTip({ x: event.clientX, y: event.clientY }, { ...this.shown, read, head }, null, { query: null, key: null, more, picture });
  }

  private leave(): void {
    hideTip();
    this.drawOver(null);
  }

  private enlarged(row: number, head: number): HTMLCanvasElement {
    const name = `${row} ${head}`;
    let picture = this.thumbnails.get(name);
    if (!picture) {
      picture = thumbnail(this.tables[row]!, head, this.scale!, LARGE_PX);
      const ratio = Math.min(LARGE_PX / this.grid.wide, LARGE_PX / this.grid.high);
      picture.style.cssText = `width: ${this.grid.wide * ratio}px; height: ${this.grid.high * ratio}px`;
      picture.className = "large";
      this.thumbnails.set(name, picture);
    }
    return picture;
  }
}
