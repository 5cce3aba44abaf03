/** Queries and keys as words, connected by lines; stronger lines are larger weights. */

import { DrawnPath } from "../svg.js";
import { titlesOf, truncate } from "../axes.js";
import { isDark, scaleOf, type Scale } from "../color.js";
import { font, make, cssVariable } from "../dom.js";
import { headName, formatShort, axisLabel } from "../format.js";
import type { OpenView, Pane, Shown, Table, View } from "../view.js";
import { isPresenting } from "../present.js";
import { largestIndices, maxMagnitude, threshold } from "./largest.js";
import { addEntryHandlers, centerOf, addRovingFocus } from "./controls.js";
import { ScrollCanvas } from "./scroll-canvas.js";
import { lineEnds, HEADING, layOutLinks, type LinkLayout } from "./link-layout.js";

const MOST = 400;
/** Largest number of lines without a selection, and their least fraction of the largest weight. */
const [FAINT_LINES, FAINT_SHARE] = [1500, 0.06];
const NUMBERS = 5;

type Side = "query" | "key";
interface Entry {
  side: Side;
  entry: number;
}

export const links: View = {
  name: "links",
  about: "Lines between queries and keys; stronger lines are larger weights.",
  fits: (sample, read) => {
    const sizes = [read.queries, read.keys].map((name) => sample.axes[name]?.labels.length ?? 0);
    return Math.min(...sizes) > 0 && Math.max(...sizes) <= MOST;
  },
  open: (host, pane) => new Links(host, pane),
};

class Links implements OpenView {
  private readonly canvas: ScrollCanvas;
  private readonly sides: Record<Side, HTMLElement> = { query: column("query"), key: column("key") };
  private buttons: Record<Side, HTMLElement[]> = { query: [], key: [] };
  private layout: LinkLayout | null = null;
  private shown: Shown | null = null;
  private table: Table | null = null;
  private scale: Scale | null = null;
  private hovered: Entry | null = null;
  /** Entry under the pointer on the other side of the pinned entry: the pair has a weight. */
  private opposite: number | null = null;
  private layoutKey = "";
  /** Key of the cached faint lines. */
  private linesKey = "";
  private faintLines: { path: DrawnPath; share: number }[] = [];

  constructor(
    private readonly host: HTMLElement,
    private readonly pane: Pane,
  ) {
    this.canvas = new ScrollCanvas(host, (drawing) => this.paint(drawing));
    this.canvas.scroller.classList.add("links");
    this.canvas.content.append(this.sides.query, this.sides.key);
    for (const side of ["query", "key"] as const) this.addHandlers(side);
  }

  private addHandlers(side: Side): void {
    addEntryHandlers(this.sides[side], {
      hover: (entry, at) => this.onHover(entry === null ? null : { side, entry }, at),
      select: (entry) => {
        const isPinned = this.shown?.[side] === entry && this.shown?.[other(side)] === null;
        this.pane.choose({ query: null, key: null, [side]: isPinned ? null : entry });
      },
    });
  }

  async show(shown: Shown): Promise<void> {
    const table = await this.pane.table(shown.read);
    const isNewRead = this.shown?.read !== shown.read || this.shown.sample !== shown.sample;
    this.shown = shown;
    this.table = table;
    this.scale = scaleOf(shown, table);
    if (isNewRead) {
      this.hovered = null;
      this.createWords(shown);
    }
    this.layOut(shown);
    this.updateFaintLines(shown, table);
    this.shadeWords();
    this.canvas.draw();
    if (!isNewRead) return;
    const active = this.activeEntry();
    for (const { side, entry } of active ? [active] : this.hiddenStrongest()) {
      this.canvas.scrollIntoView(this.layout![side === "query" ? "queries" : "keys"][entry]!);
    }
  }

  /** Return the ends of the strongest line, the one in the shorter column last, if that column begins below the window. */
  private hiddenStrongest(): Entry[] {
    const { layout: places } = this;
    const side: Side = places!.queries.length < places!.keys.length ? "query" : "key";
    if (places![side === "query" ? "queries" : "keys"][0]!.top < this.host.clientHeight / 2) return [];
    const rows = this.buttons[side].map((_, entry) => this.numbers({ side, entry }));
    const largest = rows.map((row) => Math.abs(maxMagnitude(row)));
    const entry = largest.indexOf(Math.max(...largest));
    const [opposite = 0] = largestIndices(rows[entry]!, 1);
    return [{ side: other(side), entry: opposite }, { side, entry }];
  }

  /** Create a button for each word. */
  private createWords({ sample, read }: Shown): void {
    for (const side of ["query", "key"] as const) {
      const axis = sample.axes[side === "query" ? read.queries : read.keys]!;
      this.buttons[side] = axis.labels.map((label, i) =>
        make("button", { type: "button", class: "link-word", "data-entry": i, title: label }, axisLabel(label)),
      );
      const name = side === "query" ? `queries (${axis.kind})` : `keys (${axis.kind})`;
      this.sides[side].setAttribute("aria-label", name);
      this.sides[side].replaceChildren(...this.buttons[side]);
      addRovingFocus(this.sides[side]);
    }
    this.layoutKey = this.linesKey = "";
  }

  private layOut(shown: Shown): void {
    const { clientWidth: width, clientHeight: height } = this.host;
    const key = `${width} ${height}`;
    if (this.layoutKey === key) return;
    this.layoutKey = key;
    const style = getComputedStyle(this.buttons.query[0] ?? this.host);
    const measure = document.createElement("canvas").getContext("2d")!;
    measure.font = `600 ${style.fontSize} ${style.fontFamily}`;
    const widths = (side: Side) =>
      this.buttons[side].map((button) => Math.ceil(measure.measureText(button.textContent ?? "").width) + 18);
    // The width of a scroll bar is reserved.
    this.layout = layOutLinks(widths("query"), widths("key"), { width: width - 16, height });
    this.canvas.setSize(this.layout.width, this.layout.height);
    this.canvas.scroller.dataset["across"] = String(this.layout.isHorizontal);
    for (const side of ["query", "key"] as const) {
      const places = this.layout[side === "query" ? "queries" : "keys"];
      this.buttons[side].forEach((button, i) => {
        const { left, top, width: wide, height: high } = places[i]!;
        Object.assign(button.style, { left: `${left}px`, top: `${top}px`, width: `${wide}px`, height: `${high}px` });
      });
    }
    this.canvas.canvas.setAttribute(
      "aria-label",
      `Lines from ${this.buttons.query.length} queries to ${this.buttons.key.length} keys, ` +
        `${headName(shown.read, shown.head)}; hover over a word to see its weights`,
    );
  }

  /** Group the faint lines by weight: thousands of lines are drawn as a few paths. */
  private updateFaintLines(shown: Shown, table: Table): void {
    const linesKey = `${shown.head} ${this.scale!.most} ${this.layoutKey}`;
    if (linesKey === this.linesKey) return;
    this.linesKey = linesKey;
    const rows = Array.from({ length: table.queries }, (_, query) => table.row(shown.head, query));
    const all = new Float32Array(table.queries * table.keys);
    rows.forEach((row, query) => all.set(row, query * table.keys));
    const least = threshold(all, FAINT_LINES, FAINT_SHARE);
    const { most } = this.scale!;
    const paths = new Map<number, DrawnPath>();
    rows.forEach((row, query) => {
      row.forEach((number, key) => {
        if (!(Math.abs(number) >= least)) return;
        const step = Math.sign(number) * Math.max(1, Math.round(Math.min(1, Math.abs(number) / most) * 8));
        if (!paths.has(step)) paths.set(step, new DrawnPath());
        addCurve(paths.get(step)!, this.layout!, query, key);
      });
    });
    this.faintLines = [...paths].map(([step, path]) => ({ path, share: step / 8 }));
  }

  private activeEntry(): Entry | null {
    return this.hovered ?? this.pinned();
  }

  private pinned(): Entry | null {
    if (this.shown?.query != null && this.shown.query < this.buttons.query.length)
      return { side: "query", entry: this.shown.query };
    if (this.shown?.key != null && this.shown.key < this.buttons.key.length)
      return { side: "key", entry: this.shown.key };
    return null;
  }

  private numbers({ side, entry }: Entry): Float32Array {
    const { shown, table } = this;
    return side === "query" ? table!.row(shown!.head, entry) : table!.column(shown!.head, entry);
  }

  /** Shade the words of the other side by their weights for the selected one. */
  private shadeWords(): void {
    const { shown, scale } = this;
    if (!shown || !scale) return;
    const active = this.activeEntry();
    const numbers = active && this.numbers(active);
    for (const side of ["query", "key"] as const)
      this.buttons[side].forEach((button, i) => {
        const isSelected = active?.side === side && active.entry === i;
        const number = active && active.side !== side ? numbers![i]! : 0;
        button.style.backgroundColor = number ? scale.css(number) : "";
        button.style.color = number ? scale.ink(number) : "";
        button.classList.toggle("is-active", isSelected);
        button.setAttribute("aria-pressed", String(shown[side] === i && isSelected));
      });
  }

  private paint(drawing: CanvasRenderingContext2D): void {
    const { shown, scale, layout: places } = this;
    if (!shown || !scale || !places) return;
    drawing.lineCap = "round";
    const active = this.activeEntry();
    if (active) this.paintEntry(drawing, active, scale);
    else this.paintFaint(drawing, scale);
    drawing.globalAlpha = 1;
    this.paintHeadings(drawing);
  }

  private paintFaint(drawing: CanvasRenderingContext2D, scale: Scale): void {
    for (const { path, share } of this.faintLines) {
      drawing.globalAlpha = 0.05 + 0.55 * Math.abs(share) ** 0.7;
      drawing.strokeStyle = lineColor(scale, share);
      drawing.lineWidth = thickness() * (0.75 + 2 * Math.abs(share));
      drawing.stroke(path);
    }
  }

  private paintEntry(drawing: CanvasRenderingContext2D, active: Entry, scale: Scale): void {
    const numbers = this.numbers(active);
    numbers.forEach((number, i) => {
      const share = Math.max(-1, Math.min(1, number / scale.most));
      if (Math.abs(share) < 0.004) return;
      const path = new DrawnPath();
      addCurve(path, this.layout!, active.side === "query" ? active.entry : i, active.side === "query" ? i : active.entry);
      drawing.globalAlpha = 0.25 + 0.7 * Math.sqrt(Math.abs(share));
      drawing.strokeStyle = lineColor(scale, share);
      drawing.lineWidth = thickness() * (0.75 + 6.5 * Math.abs(share));
      drawing.stroke(path);
    });
    drawing.globalAlpha = 1;
    const entries = largestIndices(numbers, NUMBERS);
    if (this.opposite !== null && !entries.includes(this.opposite)) entries.push(this.opposite);
    for (const entry of entries) this.paintNumber(drawing, active.side, entry, numbers[entry]!);
  }

  /** Draw a number on the outer side of a word, away from the lines. */
  private paintNumber(drawing: CanvasRenderingContext2D, side: Side, entry: number, number: number): void {
    const { isHorizontal, keys, queries } = this.layout!;
    const isKey = side === "query";
    const { left, top, width, height } = (isKey ? keys : queries)[entry]!;
    drawing.font = font(12);
    drawing.fillStyle = cssVariable("--ink");
    drawing.textBaseline = "middle";
    drawing.textAlign = isHorizontal ? "center" : isKey ? "left" : "right";
    const x = isHorizontal ? left + width / 2 : isKey ? left + width + 6 : left - 6;
    const y = isHorizontal ? (isKey ? top - 9 : top + height + 10) : top + height / 2 + 1;
    drawing.fillText(formatShort(number), x, y);
  }

  /** Draw the headings of the two sides. */
  private paintHeadings(drawing: CanvasRenderingContext2D): void {
    const { shown, layout: places } = this;
    if (!places || !shown) return;
    const { down: queries, across: keys } = titlesOf(shown);
    drawing.font = font(12);
    drawing.fillStyle = cssVariable("--pale");
    drawing.textBaseline = "middle";
    if (places.isHorizontal) {
      drawing.textAlign = "center";
      drawing.fillText(keys, places.width / 2, HEADING / 2);
      drawing.fillText(queries, places.width / 2, places.height - HEADING / 2);
      return;
    }
    // Each has half of the width, beside its column where that is inside the page.
    const [most, edge] = [places.width / 2 - 12, 4];
    const [queriesText, queriesWidth] = truncate(drawing, queries, most);
    const [keysText, keysWidth] = truncate(drawing, keys, most);
    const right = Math.max(...places.queries.map(({ left, width }) => left + width));
    drawing.textAlign = "right";
    drawing.fillText(queriesText, Math.max(right - 7, queriesWidth + edge), HEADING / 2);
    drawing.textAlign = "left";
    drawing.fillText(keysText, Math.min(places.keys[0]!.left + 7, places.width - keysWidth - edge), HEADING / 2);
  }

  private onHover(hovered: Entry | null, at: { x: number; y: number } | null): void {
    const { shown } = this;
    if (!shown) return;
    const pinned = this.pinned();
    const isOpposite = pinned !== null && hovered !== null && hovered.side !== pinned.side;
    this.hovered = isOpposite ? null : hovered;
    this.opposite = isOpposite ? hovered.entry : null;
    this.shadeWords();
    this.canvas.redraw();
    const pair = { query: null as number | null, key: null as number | null };
    for (const each of isOpposite ? [pinned, hovered] : [hovered]) if (each) pair[each.side] = each.entry;
    this.pane.tip(at, shown, pair.query, pair.key, hovered && !isOpposite ? this.largestWeights(hovered) : []);
  }

  /** Lines of the tooltip: the largest weights. */
  private largestWeights(active: Entry): string[] {
    const numbers = this.numbers(active);
    const name = active.side === "query" ? "keys" : "queries";
    const axis = this.shown!.sample.axes[this.shown!.read[name]]!;
    const rows = largestIndices(numbers, 3).map((i) => `${axisLabel(axis.labels[i] ?? "")}  ${formatShort(numbers[i]!)}`);
    return [active.side === "query" ? "largest weights (keys):" : "largest weights (queries):", ...(rows.length ? rows : ["none"])];
  }

  place(query: number | null, key: number | null): { x: number; y: number } | null {
    if (query !== null && key !== null) {
      if (!this.layout?.queries[query] || !this.layout.keys[key]) return null;
      const [from, to] = lineEnds(this.layout, query, key);
      return this.canvas.toClient((from!.x + to!.x) / 2, (from!.y + to!.y) / 2);
    }
    return centerOf(query !== null ? this.buttons.query[query] : key !== null ? this.buttons.key[key] : null);
  }

  handleKey(key: string): boolean {
    const { shown } = this;
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[key];
    if (!shown || !step || !this.layout) return false;
    const side: Side = shown.key !== null && shown.query === null ? "key" : "query";
    const count = this.buttons[side].length;
    const from = shown[side] ?? (step > 0 ? -1 : count);
    const entry = Math.min(count - 1, Math.max(0, from + step));
    this.canvas.scrollIntoView(this.layout[side === "query" ? "queries" : "keys"][entry]!);
    this.pane.choose({ query: null, key: null, [side]: entry });
    return true;
  }

  close(): void {
    this.pane.tip(null, this.shown!, null, null);
    this.canvas.close();
  }
}

function column(side: Side): HTMLElement {
  return make("div", { class: `link-words of-${side}`, role: "group" });
}

function other(side: Side): Side {
  return side === "query" ? "key" : "query";
}

/** Color of a line. The lightest blue is invisible as a line, so that scale starts darker, with more transparency. */
function lineColor(scale: Scale, share: number): string {
  return scale.css(scale.most * Math.sign(share) * ((isDark() ? 0.7 : 0.55) + 0.25 * Math.abs(share)));
}

/** Lines are thicker when presenting, where they are seen from afar. */
function thickness(): number {
  return isPresenting() ? 2 : 1;
}

function addCurve(path: DrawnPath, places: LinkLayout, query: number, key: number): void {
  const [from, to] = lineEnds(places, query, key);
  const [a, b] = [from!, to!];
  path.moveTo(a.x, a.y);
  if (places.isHorizontal) {
    const bend = (b.y - a.y) * 0.45;
    path.bezierCurveTo(a.x, a.y + bend, b.x, b.y - bend, b.x, b.y);
  } else {
    const bend = (b.x - a.x) * 0.45;
    path.bezierCurveTo(a.x + bend, a.y, b.x - bend, b.y, b.x, b.y);
  }
}
