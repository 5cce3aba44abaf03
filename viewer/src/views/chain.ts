/** Attention of a sequence to its own past: one line per step, with the tokens so far. */

import { scaleOf, type Scale } from "../color.js";
import { font, cssVariable } from "../dom.js";
import { headName, axisLabel } from "../format.js";
import { isPresenting } from "../present.js";
import type { OpenView, Pane, Shown, Table, View } from "../view.js";
import { columnAt, layOutColumns, type Columns } from "./columns.js";
import { ScrollCanvas, type Rect } from "./scroll-canvas.js";

/** Largest number of tokens of other self-attention: there is one box per pair. */
const MOST = 120;
const [LEFT, TOP] = [20, 14];

export const chain: View = {
  name: "chain",
  about: "The text at each step: the current token in a red frame, earlier tokens darker for larger weights.",
  fits: (sample, read) => {
    const size = sample.axes[read.queries]?.labels.length ?? 0;
    if (read.queries !== read.keys || size < 1) return false;
    return read.kind === "chain" || (size <= MOST && !sample.axes[read.queries]!.picture);
  },
  open: (host, pane) => new Chain(host, pane),
};

class Chain implements OpenView {
  private readonly canvas: ScrollCanvas;
  private shown: Shown | null = null;
  private table: Table | null = null;
  private scale: Scale | null = null;
  private words: string[] = [];
  private columns: Columns = layOutColumns([], 0);
  /** True if tokens attend to later ones: then whole lines are drawn. */
  private isBidirectional = false;
  private size = "";
  private hovered: { step: number; word: number } | null = null;

  constructor(
    private readonly host: HTMLElement,
    private readonly pane: Pane,
  ) {
    this.canvas = new ScrollCanvas(host, (drawing, area) => this.paint(drawing, area));
    this.canvas.scroller.classList.add("chain");
    const { content, scroller } = this.canvas;
    content.addEventListener("pointermove", (event) => this.onHover(event));
    content.addEventListener("pointerleave", () => this.onHover(null));
    content.addEventListener("click", (event) => this.onClick(event));
    scroller.tabIndex = 0;
  }

  async show(shown: Shown): Promise<void> {
    const table = await this.pane.table(shown.read);
    const isNewRead = this.shown?.read !== shown.read;
    const isPinned = this.shown?.query !== shown.query || this.shown?.key !== shown.key;
    this.shown = shown;
    this.table = table;
    this.scale = scaleOf(shown, table);
    this.words = shown.sample.axes[shown.read.keys]!.labels.map(axisLabel);
    this.isBidirectional = shown.read.kind !== "chain" && attendsToLater(table, shown.head);
    const measure = document.createElement("canvas").getContext("2d")!;
    measure.font = font(100, 700);
    const widths = this.words.map((word) => measure.measureText(word).width / 100);
    const room = this.host.clientHeight - 2 * TOP;
    this.columns = layOutColumns(widths, this.host.clientWidth - 2 * LEFT - 16, isPresenting() ? room : null);
    const height = this.words.length * this.columns.line;
    this.canvas.setSize(this.columns.width + 2 * LEFT, height + 2 * TOP);
    const { canvas, scroller } = this.canvas;
    const description = `${this.words.length} lines, one per token: its weights on earlier tokens`;
    const { direction } = shown.read;
    canvas.setAttribute("aria-label", [description, direction, headName(shown.read, shown.head)].filter(Boolean).join(", "));
    scroller.setAttribute("aria-label", "chain; arrow keys move between tokens");
    if (isNewRead) this.hovered = null;
    const isResized = this.size !== `${this.host.clientWidth} ${this.host.clientHeight}`;
    this.size = `${this.host.clientWidth} ${this.host.clientHeight}`;
    if ((isPinned || isResized) && shown.query !== null) this.scrollToCell(shown.query, shown.key ?? shown.query);
    this.canvas.draw();
  }

  private lineTop(step: number): number {
    return TOP + step * this.columns.line;
  }

  private scrollToCell(step: number, word: number): void {
    const { lefts, widths, line } = this.columns;
    if (lefts[word] === undefined) return;
    this.canvas.scrollIntoView({ left: LEFT + lefts[word], top: this.lineTop(step), width: widths[word]!, height: line });
  }

  private paint(drawing: CanvasRenderingContext2D, area: Rect): void {
    const { shown, table, columns } = this;
    if (!shown || !table) return;
    drawing.textAlign = "center";
    drawing.textBaseline = "middle";
    const first = Math.max(0, Math.floor((area.top - TOP) / columns.line));
    const last = Math.min(this.words.length - 1, Math.floor((area.top + area.height - TOP) / columns.line));
    for (let step = first; step <= last; step++) this.paintLine(drawing, area, step);
  }

  private paintLine(drawing: CanvasRenderingContext2D, area: Rect, step: number): void {
    const { columns, words, shown, table } = this;
    const row = table!.row(shown!.head, step);
    const from = Math.max(0, columnAt(columns, Math.max(0, area.left - LEFT)));
    const end = this.isBidirectional ? words.length - 1 : step;
    const line = this.hovered?.step ?? shown!.query;
    if (line === step) this.paintHighlight(drawing, area, step);
    for (let word = from; word <= end; word++) {
      if (columns.lefts[word]! + LEFT > area.left + area.width) break;
      this.paintWord(drawing, step, word, row[word] ?? 0);
    }
  }

  private paintHighlight(drawing: CanvasRenderingContext2D, area: Rect, step: number): void {
    drawing.fillStyle = cssVariable("--pale");
    drawing.globalAlpha = 0.14;
    drawing.fillRect(area.left, this.lineTop(step), area.width, this.columns.line);
    drawing.globalAlpha = 1;
  }

  private paintWord(drawing: CanvasRenderingContext2D, step: number, word: number, weight: number): void {
    const { columns, scale, shown, hovered } = this;
    const isCurrent = step === word;
    const [left, width] = [LEFT + columns.lefts[word]!, columns.widths[word]!];
    const height = Math.round(0.82 * columns.line);
    const top = Math.round(this.lineTop(step) + (columns.line - height) / 2);
    if (weight !== 0) {
      drawing.fillStyle = scale!.css(weight);
      drawing.fillRect(left, top, width, height);
    }
    const red = cssVariable("--red");
    if (isCurrent) {
      drawing.strokeStyle = red;
      drawing.lineWidth = 2;
      drawing.strokeRect(left + 1, top + 1, width - 2, height - 2);
    }
    const isPointed = hovered?.step === step && hovered.word === word;
    if (isPointed || (!hovered && shown!.query === step && shown!.key === word)) {
      drawing.strokeStyle = cssVariable("--ink");
      drawing.lineWidth = 2;
      drawing.strokeRect(left - 2, top - 2, width + 4, height + 4);
    }
    // Red text is legible only on pale boxes; on others only the frame is red.
    const isPale = Math.abs(weight) < 0.12 * scale!.most;
    const plain = weight === 0 ? cssVariable("--ink") : scale!.ink(weight);
    drawing.fillStyle = isCurrent && isPale ? red : plain;
    drawing.font = font(columns.font, isCurrent ? 700 : 400);
    drawing.fillText(this.words[word]!, left + width / 2, top + height / 2 + 0.5);
  }

  private cellAt(event: MouseEvent): { step: number; word: number } | null {
    const { x, y } = this.canvas.toContent(event);
    const step = Math.floor((y - TOP) / this.columns.line);
    const word = columnAt(this.columns, x - LEFT);
    if (step < 0 || step >= this.words.length || word < 0 || (word > step && !this.isBidirectional)) return null;
    return { step, word };
  }

  private onHover(event: PointerEvent | null): void {
    const at = event && this.cellAt(event);
    const isSame = at?.step === this.hovered?.step && at?.word === this.hovered?.word;
    this.hovered = at;
    if (!isSame) this.canvas.redraw();
    if (!this.shown) return;
    if (event && at) this.pane.tip({ x: event.clientX, y: event.clientY }, this.shown, at.step, at.word);
    else this.pane.tip(null, this.shown, null, null);
  }

  private onClick(event: MouseEvent): void {
    const at = this.cellAt(event);
    const isPinned = at && this.shown?.query === at.step && this.shown.key === at.word;
    this.pane.choose(at && !isPinned ? { query: at.step, key: at.word } : { query: null, key: null });
  }

  place(query: number | null, key: number | null): { x: number; y: number } | null {
    const step = query ?? key;
    const word = key ?? query;
    if (step === null || word === null || !this.words[step] || !this.words[word]) return null;
    if (word > step && !this.isBidirectional) return null;
    const { lefts, widths, line } = this.columns;
    return this.canvas.toClient(LEFT + lefts[word]! + widths[word]! / 2, this.lineTop(step) + line / 2);
  }

  handleKey(key: string): boolean {
    const { shown } = this;
    const steps: Record<string, [number, number]> = {
      ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1],
    };
    const step = steps[key];
    if (!shown || !step) return false;
    const last = this.words.length - 1;
    const query = Math.min(last, Math.max(0, (shown.query ?? -step[0]) + step[0]));
    const most = this.isBidirectional ? last : query;
    const word = Math.min(most, Math.max(0, (shown.key ?? query) + step[1]));
    this.scrollToCell(query, word);
    this.pane.choose({ query, key: word });
    const at = this.place(query, word);
    if (at) this.pane.tip(at, shown, query, word);
    return true;
  }

  close(): void {
    if (this.shown) this.pane.tip(null, this.shown, null, null);
    this.canvas.close();
  }
}

function attendsToLater(table: Table, head: number): boolean {
  for (let query = 0; query < table.queries; query++) {
    const row = table.row(head, query);
    for (let key = query + 1; key < row.length; key++) if (row[key] !== 0) return true;
  }
  return false;
}
