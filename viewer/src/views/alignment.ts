/** The attention matrix: queries as rows, keys as columns, weights as colors; with zoom and pan. */

import * as axes from "../axes.js";
import { prepareCanvas, font, make, cssVariable, toClient } from "../dom.js";
import { EMPTY, formatCell, headName, readable } from "../format.js";
import { addGestures, type Point } from "../gestures.js";
import { hatch } from "../hatch.js";
import { Heat } from "../heat.js";
import type { OpenView, Pane, Shown, Table, View } from "../view.js";
import { Viewport } from "../viewport.js";

/** Cell sizes from which grid lines, and the numbers, are drawn. */
const LINED_PX = 9;
const NUMBERED_PX = { x: 46, y: 19 };
const STEP_PX = 60;
const ZOOM_STEP = 1.3;

export const alignment: View = {
  name: "alignment",
  about: "Queries as rows, keys as columns; stronger colors are larger weights.",
  fits: () => true,
  open: (host, pane) => new Alignment(host, pane),
};

class Alignment implements OpenView {
  private readonly base = make("canvas", { role: "img" });
  private readonly overlay = make("canvas", { "aria-hidden": true, class: "over" });
  private readonly stage = make("div", { class: "stage" }, this.base, this.overlay);
  private shown: Shown | null = null;
  private table: Table | null = null;
  private heat: Heat | null = null;
  private viewport = new Viewport(1, 1, { width: 1, height: 1 });
  private margins: axes.Margins = { left: 0, top: 0, right: 0, bottom: 0 };
  private labels: { of: string; down: axes.Labels; across: axes.Labels } | null = null;
  private hovered: { query: number; key: number } | null = null;
  private frame = 0;
  private sample: Shown["sample"] | null = null;

  constructor(
    private readonly host: HTMLElement,
    private readonly pane: Pane,
  ) {
    host.append(this.stage);
    addGestures(this.overlay, {
      zoom: (factor, at) => this.zoom(factor, at),
      move: (x, y) => this.changeViewport(() => this.viewport.moveBy(x, y)),
      hover: (at) => this.hover(at),
      click: (at) => this.click(at),
      fit: () => this.changeViewport(() => this.viewport.fit()),
    });
  }

  async show(shown: Shown): Promise<void> {
    const before = this.shown;
    this.shown = shown;
    const table = await this.pane.table(shown.read);
    if (shown !== this.shown) return;
    this.table = table;
    if (!this.heat?.isFor(table, shown)) this.heat = new Heat(table, shown.head, shown);
    this.layOut(shown, table);
    const moved = before && (before.query !== shown.query || before.key !== shown.key);
    if (moved) this.viewport.reveal(shown.query, shown.key);
    this.base.setAttribute("aria-label", describe(shown, table));
    this.draw();
  }

  place(query: number | null, key: number | null): Point | null {
    const { x, y } = this.viewport.cell;
    const { width, height } = this.viewport.matrixSize;
    const across = key === null ? -axes.LABEL_PX : this.viewport.x + (key + 0.5) * x;
    const down = query === null ? -axes.LABEL_PX : this.viewport.y + (query + 0.5) * y;
    if ((key !== null && (across < 0 || across > width)) || (query !== null && (down < 0 || down > height))) return null;
    return toClient(this.overlay, this.margins.left + across, this.margins.top + down);
  }

  handleKey(key: string): boolean {
    const steps: Record<string, [number, number]> = {
      ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
    };
    const step = steps[key];
    if (step && this.viewport.isFitted) this.moveCell(step);
    else if (step) this.changeViewport(() => this.viewport.moveBy(-step[0] * STEP_PX, -step[1] * STEP_PX));
    else if (key === "+" || key === "=") this.zoom(ZOOM_STEP, this.middle());
    else if (key === "-" || key === "_") this.zoom(1 / ZOOM_STEP, this.middle());
    else if (key === "0") this.changeViewport(() => this.viewport.fit());
    else return false;
    return true;
  }

  close(): void {
    cancelAnimationFrame(this.frame);
    this.stage.remove();
  }

  /** Compute the margins and cell sizes, which depend on each other: the angle of labels depends on the cells. */
  private layOut(shown: Shown, table: Table): void {
    const size = { width: this.host.clientWidth, height: this.host.clientHeight };
    const drawing = prepareCanvas(this.base, size.width, size.height);
    const [down, across] = [shown.sample.axes[shown.read.queries]!, shown.sample.axes[shown.read.keys]!];
    const of = `${shown.read.queries} ${shown.read.keys} ${size.width}`;
    const same = this.labels?.of === of && this.viewport.queries === table.queries && this.viewport.keys === table.keys;
    if (!same || this.sample !== shown.sample) {
      const most = Math.min(axes.MOST_PX, size.width * 0.28);
      this.labels = { of, down: new axes.Labels(down.labels, drawing, most), across: new axes.Labels(across.labels, drawing) };
    }
    const fit = (cell: number) => {
      this.margins = axes.marginsFor(this.labels!.down, this.labels!.across, cell);
      const { left, top, right, bottom } = this.margins;
      return { width: Math.max(40, size.width - left - right), height: Math.max(40, size.height - top - bottom) };
    };
    const area = fit(Infinity);
    const trial = new Viewport(table.queries, table.keys, area);
    const roomy = fit(trial.cell.x);
    if (this.viewport.queries === table.queries && this.viewport.keys === table.keys) this.viewport.resize(roomy);
    else this.viewport = new Viewport(table.queries, table.keys, roomy);
    this.sample = shown.sample;
  }

  private draw(): void {
    const size = { width: this.host.clientWidth, height: this.host.clientHeight };
    const drawing = prepareCanvas(this.base, size.width, size.height);
    const { viewport, margins, heat, labels } = this;
    if (!heat || !labels) return;
    this.overlay.style.touchAction = viewport.isFitted ? "pan-y" : "none";
    drawing.translate(margins.left, margins.top);
    axes.useLabelFont(drawing);
    axes.drawDown(drawing, labels.down, viewport);
    axes.drawAcross(drawing, labels.across, viewport);
    if (this.shown) axes.drawTitles(drawing, axes.titlesOf(this.shown), viewport, this.margins);
    const { width, height } = viewport.matrixSize;
    drawing.save();
    drawing.beginPath();
    drawing.rect(0, 0, width, height);
    drawing.clip();
    const complete = heat.draw(drawing, viewport);
    this.drawMasked(drawing);
    this.drawLines(drawing);
    this.drawNumbers(drawing);
    drawing.restore();
    drawing.strokeStyle = cssVariable("--strong");
    drawing.lineWidth = 1;
    drawing.strokeRect(-0.5, -0.5, Math.round(width) + 1, Math.round(height) + 1);
    this.drawOver();
    if (!complete) this.scheduleDraw();
  }

  private drawLines(drawing: CanvasRenderingContext2D): void {
    const { viewport } = this;
    const { x, y } = viewport.cell;
    if (Math.min(x, y) < LINED_PX) return;
    const { rows, columns } = viewport.visible();
    const { width, height } = viewport.matrixSize;
    drawing.beginPath();
    for (let row = rows[0] + 1; row < rows[1]; row++) {
      const at = Math.round(viewport.y + row * y) - 0.5;
      drawing.moveTo(0, at);
      drawing.lineTo(width, at);
    }
    for (let column = columns[0] + 1; column < columns[1]; column++) {
      const at = Math.round(viewport.x + column * x) - 0.5;
      drawing.moveTo(at, 0);
      drawing.lineTo(at, height);
    }
    drawing.strokeStyle = cssVariable("--line");
    drawing.lineWidth = 1;
    drawing.stroke();
  }

  /** Hatch masked cells: their weight is -0. */
  private drawMasked(drawing: CanvasRenderingContext2D): void {
    const { viewport, shown, table } = this;
    const { x, y } = viewport.cell;
    if (!shown || !table?.isComplete || Math.min(x, y) < LINED_PX) return;
    const { rows, columns } = viewport.visible();
    for (let row = rows[0]; row < rows[1]; row++) {
      for (let column = columns[0]; column < columns[1]; column++) {
        if (!Object.is(table.value(shown.head, row, column), -0)) continue;
        hatch(drawing, { x: viewport.x + column * x, y: viewport.y + row * y, width: x, height: y });
      }
    }
  }

  /** Close enough, a cell has room for its number. */
  private drawNumbers(drawing: CanvasRenderingContext2D): void {
    const { viewport, shown, table, heat } = this;
    const { x, y } = viewport.cell;
    if (!shown || !table || !heat || x < NUMBERED_PX.x || y < NUMBERED_PX.y) return;
    const { rows, columns } = viewport.visible();
    drawing.font = font(Math.max(11, Math.min(19, x / 4.6, y / 2.4)));
    drawing.textAlign = "center";
    drawing.textBaseline = "middle";
    for (let row = rows[0]; row < rows[1]; row++) {
      for (let column = columns[0]; column < columns[1]; column++) {
        const number = table.value(shown.head, row, column);
        if (number === null || Math.abs(number) < EMPTY * heat.scale.most) continue;
        drawing.fillStyle = heat.scale.ink(number);
        drawing.fillText(formatCell(number, heat.scale.most), viewport.x + (column + 0.5) * x, viewport.y + (row + 0.5) * y, x - 2);
      }
    }
  }

  /** What is pinned and pointed at, on a canvas of its own: the numbers below need not be drawn again. */
  private drawOver(): void {
    const { shown, viewport, labels } = this;
    const drawing = prepareCanvas(this.overlay, this.host.clientWidth, this.host.clientHeight);
    if (!shown || !labels) return;
    drawing.translate(this.margins.left, this.margins.top);
    const mark = (query: number | null, key: number | null, color: string) => {
      axes.useLabelFont(drawing, color);
      if (query !== null) axes.emphasizeDown(drawing, labels.down, viewport, query);
      if (key !== null) axes.emphasizeAcross(drawing, labels.across, viewport, key);
      this.outline(drawing, query, key, cssVariable(color));
    };
    if (shown.query !== null || shown.key !== null) mark(shown.query, shown.key, "--pin");
    if (this.hovered) mark(this.hovered.query, this.hovered.key, "--accent");
  }

  private outline(drawing: CanvasRenderingContext2D, query: number | null, key: number | null, color: string): void {
    const { x, y } = this.viewport.cell;
    const { width, height } = this.viewport.matrixSize;
    drawing.save();
    drawing.beginPath();
    drawing.rect(-2, -2, width + 4, height + 4);
    drawing.clip();
    drawing.strokeStyle = color;
    drawing.lineWidth = 1.5;
    if (query !== null) drawing.strokeRect(-1, Math.round(this.viewport.y + query * y) - 0.75, width + 2, Math.max(y, 2) + 0.5);
    if (key !== null) drawing.strokeRect(Math.round(this.viewport.x + key * x) - 0.75, -1, Math.max(x, 2) + 0.5, height + 2);
    drawing.restore();
  }

  private zoom(factor: number, at: Point): boolean {
    const before = this.viewport.zoom;
    const { left, top } = this.margins;
    this.changeViewport(() => this.viewport.zoomBy(factor, { x: at.x - left, y: at.y - top }));
    return this.viewport.zoom !== before;
  }

  private middle(): Point {
    const { width, height } = this.viewport.matrixSize;
    return { x: this.margins.left + width / 2, y: this.margins.top + height / 2 };
  }

  private changeViewport(change: () => void): void {
    change();
    this.hovered = null;
    if (this.shown) this.pane.tip(null, this.shown, null, null);
    this.scheduleDraw();
  }

  private scheduleDraw(): void {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.draw());
  }

  private cellAt(at: Point): { query: number; key: number } | null {
    return this.viewport.cellAt({ x: at.x - this.margins.left, y: at.y - this.margins.top });
  }

  private hover(at: Point | null): void {
    const { shown } = this;
    if (!shown) return;
    const cell = at && this.cellAt(at);
    this.hovered = cell;
    this.drawOver();
    if (!at || !cell) this.pane.tip(null, shown, null, null);
    else this.pane.tip(toClient(this.overlay, at.x, at.y), shown, cell.query, cell.key);
  }

  private click(at: Point): void {
    const cell = this.cellAt(at);
    const query = cell && cell.query !== this.shown?.query ? cell.query : null;
    this.pane.choose({ query, key: null });
    this.hover(at);
  }

  /** Move the pinned cell by keyboard, and show its tooltip. */
  private moveCell([across, down]: [number, number]): void {
    const { shown, table } = this;
    if (!shown || !table) return;
    const query = Math.max(0, Math.min(table.queries - 1, (shown.query ?? (down > 0 ? -1 : 0)) + down));
    const key = Math.max(0, Math.min(table.keys - 1, (shown.key ?? (across > 0 ? -1 : 0)) + across));
    this.pane.choose({ query, key });
    const at = this.place(query, key);
    if (at) this.pane.tip(at, { ...shown, query, key }, query, key);
  }
}

function describe(shown: Shown, table: Table): string {
  const { sample, read } = shown;
  const [queries, keys] = [sample.axes[read.queries]!, sample.axes[read.keys]!];
  const size = `${table.queries} queries (${queries.kind}) by ${table.keys} keys (${keys.kind})`;
  const pinned = shown.query === null ? "" : `; pinned: ${readable(queries.labels[shown.query] ?? "")}`;
  const head = headName(read, shown.head);
  return `Alignment of ${size}, ${read.measure}, layer ${read.layer}${head ? `, ${head}` : ""}${pinned}`;
}
