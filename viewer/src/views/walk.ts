/** A read step by step: items, queries, keys and values, scores, weights and outputs of one head, number by number. */

import { scaleTo, isDark } from "../color.js";
import { cssVariable, font, isSaving, make, prepareCanvas, zoomOf } from "../dom.js";
import { axisLabel, formatCell, formatExact, formatShort } from "../format.js";
import { isPresenting } from "../present.js";
import { loadWalk, reduceCells, type Matrix, type WalkNumbers } from "../walk.js";
import type { OpenView, Pane, Shown, View } from "../view.js";
import { oncePerFrame } from "./controls.js";
import { fillArea, type CellSize, type MatrixShape } from "./walk-layout.js";

/** Largest number of columns and rows of a matrix whose cells have numbers, the size of such a cell, and of type. */
const [MOST_COLUMNS, MOST_ROWS, WIDE, HIGH, TYPE] = [16, 24, 46, 20, 11];
/** Smallest height of a row with a label, and smallest width of a column with one, in units of the font size; largest
 *  width of the label of a row. */
const [LABELED_HIGH, LABELED_WIDE, MOST_LABEL] = [1.09, 2.5, 7.6];
/** Largest side and cell of other matrices, and their largest number of cells per side. */
const [SIDE, CELL, MOST_CELLS] = [300, 14, 150];
/** When presenting: height of the title of a matrix, and the smallest and largest zoom of the table. */
const [CAPTION, LEAST_ZOOM, MOST_ZOOM] = [28, 0.75, 2.5];
/** Largest number of terms of a sum, and of rows of the table. */
const [MOST_TERMS, MOST_KEYS] = [12, 200];
const HINT = "hover over a cell for its formula; click a row to select its query";
/** Name of the last step when presenting. */
const TABLE = "table";

export const walk: View = {
  name: "walk",
  about: "From the items to the output of one head: queries, keys, values, scores, weights, and their sums.",
  hasScale: true,
  isOfHead: true,
  fits: (_, read) => read.walk !== null,
  open: (host, pane) => new Walk(host, pane),
};

/** Matrix on the page: what it is, the axes of its rows and columns, and the formula of a cell. */
interface Part {
  name: string;
  title: string;
  matrix: Matrix;
  rows: "query" | "key";
  columns: "key" | "";
  isWeights?: boolean;
  explain?: (row: number, column: number) => string[];
}

class Walk implements OpenView {
  private readonly box = make("div", { class: "walk" });
  private readonly steps = make("div", { class: "walk-steps" });
  private readonly formula = make("p", { class: "walk-formula", "aria-live": "polite" });
  private readonly asked = make("div", { class: "walk-asked" });
  private canvases = new Map<string, { canvas: HTMLCanvasElement; part: Part; cell: CellSize }>();
  /** When presenting: the step that is shown, and the names of the matrices of each; of the last, "table". */
  private step = 0;
  private screens: string[][] = [];
  private shown: Shown | null = null;
  private numbers: WalkNumbers | null = null;
  private active: { name: string; row: number; column: number } | null = null;
  private readonly repaint = oncePerFrame(() => this.paint());

  constructor(
    host: HTMLElement,
    private readonly pane: Pane,
  ) {
    host.append(this.box);
  }

  async show(shown: Shown): Promise<void> {
    const table = await this.pane.table(shown.read);
    const isNew = this.shown?.read !== shown.read || this.shown.head !== shown.head;
    await table.load(shown.head);
    const numbers = await loadWalk(shown.sample, shown.read, table, shown.head);
    this.shown = shown;
    this.numbers = numbers;
    if (isNew) this.active = null;
    this.fillTable(numbers);
    this.canvases.clear();
    this.steps.style.zoom = this.asked.style.zoom = "";
    if (isPresenting() && !isSaving()) this.buildOne(numbers);
    else this.build(numbers);
    this.paint();
    this.explain();
  }

  place(query: number | null, key: number | null): { x: number; y: number } | null {
    const isPair = query !== null && key !== null;
    const side = query !== null ? "query" : "key";
    const found = [...this.canvases.values()]
      .reverse()
      .find(({ part }) => (isPair ? part.columns === "key" : part.rows === side && part.columns === ""));
    if (!found || (query === null && key === null)) return null;
    const [row, column] = isPair ? [query, key] : [query ?? key!, 0];
    const { left, top, width, height } = found.canvas.getBoundingClientRect();
    const { rows, columns } = found.part.matrix;
    return { x: left + ((column + 0.5) * width) / columns, y: top + ((row + 0.5) * height) / rows };
  }

  /** Arrow keys, and those of a presenter, go from step to step; on the page they scroll to the next matrices. */
  handleKey(key: string): boolean {
    const by = { ArrowDown: 1, ArrowRight: 1, PageDown: 1, ArrowUp: -1, ArrowLeft: -1, PageUp: -1 }[key];
    if (!by) return false;
    if (isPresenting()) {
      this.goTo(this.step + by);
      return true;
    }
    if (key.startsWith("Page")) return false;
    // Of two sides the page scrolls, and with it both.
    if (this.box.scrollHeight <= this.box.clientHeight) return false;
    const { top } = this.box.getBoundingClientRect();
    const starts = [...this.steps.querySelectorAll("section, figure + figure")];
    const tops = starts.map((start) => start.getBoundingClientRect().top - top).sort((a, b) => a - b);
    const next = by > 0 ? tops.find((at) => at > 2) : tops.reverse().find((at) => at < -2);
    if (next !== undefined) this.box.scrollTop += next / zoomOf(this.box);
    else if (by < 0) this.box.scrollTop = 0;
    return true;
  }

  close(): void {
    this.box.remove();
  }

  private goTo(step: number): void {
    this.active = null;
    this.step = Math.max(0, Math.min(this.screens.length - 1, step));
    this.pane.choose({ part: this.screens[this.step]![0]! });
  }

  /** Create the matrices of all steps. */
  private build(numbers: WalkNumbers): void {
    const heads = this.shown!.read.heads.length;
    const steps = stepsOf(numbers).map(([title, parts], number) =>
      make("section", {}, make("h3", {}, `${number + 1}  ${title}`), ...parts.map((part) => this.figure(part, numbers, cellOf(part.matrix)))),
    );
    this.steps.replaceChildren(...steps);
    this.box.replaceChildren(
      make("p", { class: "note" }, heads > 1 ? `head ${numbers.head + 1} of ${heads}` : "", make("span", { class: "hint" }, heads > 1 ? ` \u00b7 ${HINT}` : HINT)),
      this.steps,
      this.formula,
      this.asked,
    );
  }

  /** Create one step, with the matrices as large as the window allows; the last one is the table of a query. */
  private buildOne(numbers: WalkNumbers): void {
    const heads = this.shown!.read.heads.length;
    const previous = make("button", { type: "button", click: () => this.goTo(this.step - 1) }, "\u2190 previous");
    const next = make("button", { type: "button", click: () => this.goTo(this.step + 1) }, "next \u2192");
    const title = make("strong", {});
    const tools = make("div", { class: "tools" }, previous, next, title, heads > 1 ? `head ${numbers.head + 1} of ${heads}` : "");
    this.steps.replaceChildren();
    this.box.replaceChildren(tools, this.steps, this.formula);
    const area = { width: this.steps.clientWidth, height: this.steps.clientHeight - CAPTION };
    const steps = stepsOf(numbers).flatMap(([title, parts]) => screensOf(parts, numbers, area).map((screen) => ({ title, ...screen })));
    this.screens = [...steps.map((step) => step.parts.map(({ name }) => name)), [TABLE]];
    const { length } = this.screens;
    const found = this.screens.findIndex((names) => names.includes(this.shown!.part));
    // Without the matrix that the other side shows, this one stays where it is.
    this.step = this.shown!.part ? Math.min(found < 0 ? this.step : found, length - 1) : 0;
    const shown = steps[this.step];
    if (shown) this.steps.append(make("section", {}, ...shown.parts.map((part) => this.figure(part, numbers, shown.cell))));
    else this.showTable();
    title.textContent = `step ${this.step + 1} of ${length}: ${shown?.title ?? "the keys of one query"}`;
    previous.disabled = this.step === 0;
    next.disabled = this.step === length - 1;
  }

  /** Show the table instead of matrices, as large as the window allows. */
  private showTable(): void {
    this.formula.remove();
    this.steps.append(this.asked);
    const zoom = Math.min(this.steps.clientWidth / this.asked.scrollWidth, this.steps.clientHeight / this.asked.scrollHeight);
    this.asked.style.zoom = Math.max(LEAST_ZOOM, Math.min(MOST_ZOOM, zoom - 0.01)).toFixed(2);
  }

  private figure(part: Part, numbers: WalkNumbers, cell: CellSize): HTMLElement {
    const { rows, columns } = part.matrix;
    const size = `${rows.toLocaleString("en")} \u00d7 ${columns.toLocaleString("en")}`;
    const reduced = rows > MOST_CELLS || columns > MOST_CELLS;
    const scale = part.isWeights ? "" : `, up to \u00b1${formatShort(reduceCells(part.matrix, MOST_CELLS).most)}`;
    const note = reduced
      ? `${size}${scale}, a cell: largest of ${Math.ceil(rows / MOST_CELLS)} \u00d7 ${Math.ceil(columns / MOST_CELLS)}`
      : `${size}${scale}`;
    const canvas = make("canvas", { role: "img", "data-part": part.name, "aria-label": `${part.title}, ${note}` });
    this.canvases.set(part.name, { canvas, part, cell });
    const at = (event: MouseEvent) => ({
      name: part.name,
      ...cellAt(canvas, event, rows, columns),
    });
    canvas.addEventListener("pointermove", (event) => this.hover(at(event), event));
    canvas.addEventListener("pointerleave", () => this.pane.tip(null, this.shown!, null, null));
    canvas.addEventListener("click", (event) => {
      const { row } = at(event);
      if (part.rows === "query") this.pane.choose({ query: this.shown!.query === row ? null : row });
    });
    return make(
      "figure",
      {},
      make("figcaption", {}, make("strong", {}, part.title), ` ${note}`),
      make("div", { class: "walk-matrix", style: `font-size: ${cell.type}px` }, ...labelsOf(part, numbers, cell), canvas),
    );
  }

  private hover(active: { name: string; row: number; column: number }, event: PointerEvent): void {
    const { part } = this.canvases.get(active.name)!;
    this.active = active;
    this.explain();
    const number = part.matrix.at(active.row, active.column);
    const query = part.rows === "query" ? active.row : null;
    const key = part.rows === "key" ? active.row : part.columns === "key" ? active.column : null;
    const { shown } = this;
    const isRenamed = this.numbers!.queries !== shown!.sample.axes[shown!.read.queries]!.labels;
    const more = [`${part.name}[${active.row + 1}, ${active.column + 1}] = ${exact(number)}`];
    // The labels of a tooltip are those of the axes; rows of self-attention have others.
    if (isRenamed) {
      const names = [query === null ? "" : this.numbers!.queries[query]!, key === null ? "" : this.numbers!.keys[key]!];
      more.unshift(names.filter(Boolean).map(axisLabel).join(" \u2192 "));
    }
    this.pane.tip({ x: event.clientX, y: event.clientY }, shown!, isRenamed ? null : query, isRenamed ? null : key, more);
    this.repaint();
  }

  /** Write the formula of the active cell. */
  private explain(): void {
    const found = this.active && this.canvases.get(this.active.name);
    const { row, column } = this.active ?? { row: 0, column: 0 };
    const hint = isPresenting() && !found ? [HINT] : [];
    const lines = found?.part.explain?.(row, column) ?? hint;
    this.formula.replaceChildren(...lines.map((line) => make("span", {}, line)));
    this.formula.dataset["number"] = found ? exact(found.part.matrix.at(row, column)) : "";
  }

  private paint(): void {
    for (const { canvas, part, cell } of this.canvases.values()) this.paintMatrix(canvas, part, cell);
  }

  private paintMatrix(canvas: HTMLCanvasElement, part: Part, cell: CellSize): void {
    const { matrix } = part;
    const { wide, high } = cell;
    const [width, height] = [wide * matrix.columns, high * matrix.rows];
    const drawing = prepareCanvas(canvas, Math.max(1, width), Math.max(1, height));
    const cells = reduceCells(matrix, MOST_CELLS);
    const most = part.isWeights ? 1 : cells.most || 1;
    const scale = scaleTo(most, !part.isWeights);
    const [across, down] = [width / cells.columns, height / cells.rows];
    for (let row = 0; row < cells.rows; row++) {
      for (let column = 0; column < cells.columns; column++) {
        const number = cells.at(row, column);
        drawing.fillStyle = Number.isFinite(number) ? scale.css(number) : isDark() ? "#2c2c2f" : "#d9dee4";
        drawing.fillRect(column * across, row * down, across + 0.3, down + 0.3);
        if (!cell.font) continue;
        drawing.font = font(cell.font);
        drawing.textAlign = "center";
        drawing.textBaseline = "middle";
        drawing.fillStyle = Number.isFinite(number) ? scale.ink(number) : cssVariable("--ink");
        drawing.fillText(cellNumber(number, part.isWeights), (column + 0.5) * across, (row + 0.5) * down + 1, across - 1);
      }
    }
    drawing.strokeStyle = cssVariable("--line");
    drawing.strokeRect(0.5, 0.5, width - 1, height - 1);
    this.paintMarks(drawing, part, cell);
  }

  /** Frame the row of the pinned query, and the active cell. */
  private paintMarks(drawing: CanvasRenderingContext2D, part: Part, { wide, high }: CellSize): void {
    const { query } = this.shown!;
    drawing.strokeStyle = cssVariable("--pin");
    drawing.lineWidth = 2;
    if (part.rows === "query" && query !== null) drawing.strokeRect(1, query * high + 1, wide * part.matrix.columns - 2, high - 2);
    drawing.strokeStyle = cssVariable("--ink");
    drawing.lineWidth = 1;
    if (this.active?.name === part.name)
      drawing.strokeRect(this.active.column * wide + 0.5, this.active.row * high + 0.5, wide - 1, high - 1);
  }

  /** The table of one query: its score with each key, its weight, and the norm of what the key adds. */
  private fillTable(numbers: WalkNumbers): void {
    const { shown } = this;
    const query = Math.min(shown!.query ?? 0, numbers.Q.rows - 1);
    const { S, A, V, Z } = numbers;
    const keys = Math.min(A.columns, MOST_KEYS);
    const label = axisLabel(numbers.queries[query] ?? "");
    const names = ["key", numbers.scoreName, numbers.weightName, "weight \u00d7 value (first numbers)"];
    const rows = Array.from({ length: keys }, (_, key) => {
      const weight = A.at(query, key);
      const parts = Array.from({ length: Math.min(4, V.columns) }, (_, c) => (weight ? weight * V.at(key, c) : 0));
      return make(
        "tr",
        { "data-key": key },
        make("th", { scope: "row" }, axisLabel(numbers.keys[key] ?? "")),
        numberCell(S.at(query, key)),
        numberCell(weight),
        make("td", {}, parts.map(shortNumber).join(", ")),
      );
    });
    const sum = Array.from({ length: Math.min(4, Z.columns) }, (_, c) => shortNumber(Z.at(query, c)));
    const total = make("tr", {}, make("th", { scope: "row" }, "sum"), make("td"), make("td"), make("td", {}, sum.join(", ")));
    const left = A.columns - keys;
    this.asked.replaceChildren(
      make("h3", {}, `query ${query + 1} (${label}) and ${A.columns === 1 ? "1 key" : `${A.columns} keys`}`),
      make(
        "table",
        { class: "walk-table" },
        make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)))),
        make("tbody", {}, ...rows, total),
      ),
      left > 0 ? make("p", { class: "note" }, `${left.toLocaleString("en")} more keys are not listed.`) : "",
    );
  }
}

/** Return the cell of a matrix under the pointer. */
function cellAt(canvas: HTMLCanvasElement, event: MouseEvent, rows: number, columns: number): { row: number; column: number } {
  const { left, top, width, height } = canvas.getBoundingClientRect();
  const index = (share: number, count: number) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));
  return { row: index((event.clientY - top) / height, rows), column: index((event.clientX - left) / width, columns) };
}

/** Return the size of the cells on the page: those of small matrices have numbers. */
function cellOf({ rows, columns }: Matrix): CellSize {
  if (columns <= MOST_COLUMNS && rows <= MOST_ROWS) return { wide: WIDE, high: HIGH, font: TYPE, type: TYPE };
  const side = (count: number) => {
    const cells = Math.min(count, MOST_CELLS);
    return (Math.min(CELL, SIDE / cells) * cells) / count;
  };
  return { wide: side(columns), high: side(rows), font: 0, type: TYPE };
}

/** Return the matrices of a step that are shown together: side by side, unless only one has room for its numbers. */
function screensOf(parts: Part[], numbers: WalkNumbers, area: { width: number; height: number }): { parts: Part[]; cell: CellSize }[] {
  const together = fillArea(parts.map((part) => shapeOf(part, numbers)), area);
  const alone = parts.map((part) => ({ parts: [part], cell: fillArea([shapeOf(part, numbers)], area) }));
  return !together.font && alone.every(({ cell }) => cell.font) ? alone : [{ parts, cell: together }];
}

function shapeOf(part: Part, numbers: WalkNumbers): MatrixShape {
  const measure = document.createElement("canvas").getContext("2d")!;
  measure.font = font(100);
  const widths = rowLabels(part, numbers).map((label) => measure.measureText(axisLabel(label)).width / 100);
  const { rows, columns } = part.matrix;
  return { rows, columns, label: Math.min(MOST_LABEL, Math.max(0, ...widths)) };
}

function rowLabels(part: Part, numbers: WalkNumbers): string[] {
  return (part.rows === "query" ? numbers.queries : numbers.keys).slice(0, part.matrix.rows);
}

/** Return the labels of the columns of a matrix, if they are keys, and those of its rows, if there is room. */
function labelsOf(part: Part, numbers: WalkNumbers, { wide, high, type }: CellSize): HTMLElement[] {
  const list = (kind: string, labels: readonly string[], size: string) =>
    make(
      "div",
      { class: kind, "aria-hidden": "true" },
      ...labels.map((label) => make("span", { style: size, title: axisLabel(label) }, axisLabel(label))),
    );
  const lists: HTMLElement[] = [];
  const hasColumns = part.columns === "key" && wide >= LABELED_WIDE * type;
  if (hasColumns) lists.push(list("walk-columns", numbers.keys.slice(0, part.matrix.columns), `width: ${wide}px`));
  if (high >= LABELED_HIGH * type) lists.push(list("walk-rows", rowLabels(part, numbers), `height: ${high}px; line-height: ${high}px`));
  return lists;
}

function numberCell(number: number): HTMLElement {
  return make("td", { title: exact(number), "data-number": exact(number) }, shortNumber(number));
}

/** Return the steps: a title, and the matrices of each. */
function stepsOf(numbers: WalkNumbers): [string, Part[]][] {
  const { Q, K, V, S, A, Z, X, source, output } = numbers;
  const steps: [string, Part[]][] = [];
  const items: Part[] = [];
  if (X) items.push({ name: source && !numbers.isSelf ? "X'" : "X", title: source && !numbers.isSelf ? "X'" : "X", matrix: X, rows: "query", columns: "" });
  if (source && !numbers.isSelf) items.push({ name: "X", title: "X", matrix: source, rows: "key", columns: "" });
  if (items.length) steps.push(["items", items]);
  const projected = (name: "Q" | "K" | "V", matrix: Matrix, rows: "query" | "key"): Part => ({
    name,
    title: numbers.titles[name],
    matrix,
    rows,
    columns: "",
    explain: (row, column) => explainProjection(numbers, name, row, column),
  });
  steps.push(["queries, keys, values", [projected("Q", Q, "query"), projected("K", K, "key"), projected("V", V, "key")]]);
  steps.push([
    "scores",
    [{ name: "S", title: `S = ${numbers.scoreName}`, matrix: S, rows: "query", columns: "key", explain: (i, j) => explainScore(numbers, i, j) }],
  ]);
  steps.push([
    "weights",
    [{ name: "A", title: `A = ${numbers.weightName}`, matrix: A, rows: "query", columns: "key", isWeights: true, explain: (i, j) => explainWeight(numbers, i, j) }],
  ]);
  steps.push([
    "weighted sums",
    [{ name: "Z", title: "Z = A V", matrix: Z, rows: "query", columns: "", explain: (i, c) => explainSum(numbers, i, c) }],
  ]);
  if (output) steps.push(["all heads", [{ name: "out", title: numbers.titles.out, matrix: output, rows: "query", columns: "" }]]);
  return steps;
}

function explainProjection(numbers: WalkNumbers, name: "Q" | "K" | "V", row: number, column: number): string[] {
  const matrix = numbers[name];
  const value = `${name}[${row + 1}, ${column + 1}] = ${exact(matrix.at(row, column))}`;
  const items = name === "Q" ? numbers.X : (numbers.source ?? null);
  const projection = numbers.projections?.[name];
  if (!items || !projection || (numbers.mapped && name !== "V")) return [`${numbers.titles[name]}:  ${value}`];
  const terms = Array.from({ length: items.columns }, (_, m) => [items.at(row, m), projection.weight.at(column, m)] as const);
  const bias = projection.bias ? ` + ${shortNumber(projection.bias[column]!)}` : "";
  return [value, `= ${sumText(terms)}${bias}`];
}

function explainScore(numbers: WalkNumbers, i: number, j: number): string[] {
  const { Q, K, S, formula } = numbers;
  const score = S.at(i, j);
  const value = `S[${i + 1}, ${j + 1}] = ${exact(score)}`;
  if (score === -Infinity) return [value, "masked: this query may not attend to this key; its weight is 0"];
  if (formula.scale === null) return [value, `= ${numbers.scoreName}`];
  const terms = Array.from({ length: Q.columns }, (_, c) => [Q.at(i, c), K.at(j, c)] as const);
  const product = terms.reduce((sum, [q, k]) => sum + q * k, 0);
  const scaled = formula.scale * product;
  const lines = [value, `q \u00b7 k = ${sumText(terms)} = ${shortNumber(product)}`, `\u00d7 ${formatShort(formula.scale)} = ${shortNumber(scaled)}`];
  if (formula.cap !== null) lines.push(`${formula.cap} tanh(\u00b7 / ${formula.cap}) = ${shortNumber(formula.cap * Math.tanh(scaled / formula.cap))}`);
  if (numbers.hasBias) lines.push("+ bias");
  return lines;
}

function explainWeight(numbers: WalkNumbers, i: number, j: number): string[] {
  const { A, S, formula } = numbers;
  const value = `A[${i + 1}, ${j + 1}] = ${exact(A.at(i, j))}`;
  if (formula.beta === null) return [value, `= ${formula.choice}(S), column ${j + 1} of row ${i + 1}`];
  const row = Array.from({ length: S.columns }, (_, key) => formula.beta! * S.at(i, key));
  const largest = Math.max(...row);
  if (largest === -Infinity) return [value, "all keys are masked: the read gives zeros"];
  const sum = row.reduce((total, score) => total + Math.exp(score - largest), 0);
  const power = Math.exp(row[j]! - largest);
  return [value, `= exp(s) / sum of exp(s) over ${S.columns} keys = ${shortNumber(power)} / ${shortNumber(sum)}  (both divided by exp(${shortNumber(largest)}))`];
}

function explainSum(numbers: WalkNumbers, i: number, column: number): string[] {
  const { A, V, Z } = numbers;
  const terms = Array.from({ length: A.columns }, (_, key) => [A.at(i, key), A.at(i, key) ? V.at(key, column) : 0] as const);
  return [`Z[${i + 1}, ${column + 1}] = ${exact(Z.at(i, column))}`, `= ${sumText(terms)}`];
}

/** Return "a b + c d + ...", the terms of largest magnitude first; the rest as one number. */
function sumText(terms: (readonly [number, number])[]): string {
  const sorted = [...terms].sort((one, other) => Math.abs(other[0] * other[1]) - Math.abs(one[0] * one[1]));
  const rest = sorted.slice(MOST_TERMS).reduce((sum, [a, b]) => sum + a * b, 0);
  const texts = sorted.slice(0, MOST_TERMS).map(([a, b]) => `${shortNumber(a)} \u00d7 ${shortNumber(b)}`);
  if (terms.length > MOST_TERMS) texts.push(`${shortNumber(rest)} (${terms.length - MOST_TERMS} smaller terms)`);
  return texts.join(" + ");
}

/** Return a number of at most seven characters, with three digits: of weights, three decimals. */
function cellNumber(number: number, isWeight = false): string {
  if (!Number.isFinite(number) || number === 0) return shortNumber(number);
  const size = Math.abs(number);
  if (isWeight || size < 0.01) return formatCell(number);
  return size < 1000 ? shortNumber(number) : number.toExponential(1);
}

function shortNumber(number: number): string {
  if (Number.isNaN(number)) return "";
  if (!Number.isFinite(number)) return number < 0 ? "\u2212\u221e" : "\u221e";
  return Math.abs(number) < 1e-9 ? "0" : formatShort(Number(number.toPrecision(3)));
}

function exact(number: number): string {
  if (Number.isNaN(number)) return "none";
  return Number.isFinite(number) ? formatExact(number, 9) : number < 0 ? "-\u221e" : "\u221e";
}
