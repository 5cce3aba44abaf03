/** Queries and keys as words, connected by lines whose strength is the weight. */

import { isDark, scaleOf, type Scale } from "../color.js";
import { font, make, styled } from "../dom.js";
import { headName, plural, short, worded } from "../format.js";
import type { Drawn, Pane, Shown, Table, View } from "../view.js";
import { largest, threshold } from "./largest.js";
import { listen, middle, rove } from "./parts.js";
import { Sheet } from "./sheet.js";
import { ends, HEADING, spots, type Spots } from "./spots.js";

const MOST = 400;
/** Faint lines that are drawn while nothing is pointed at, and the share of the largest that they must have. */
const [FAINT_LINES, FAINT_SHARE] = [1500, 0.06];
const NUMBERS = 5;

type Side = "query" | "key";
interface Lit {
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

class Links implements Drawn {
  private readonly sheet: Sheet;
  private readonly sides: Record<Side, HTMLElement> = { query: column("query"), key: column("key") };
  private buttons: Record<Side, HTMLElement[]> = { query: [], key: [] };
  private spots: Spots | null = null;
  private shown: Shown | null = null;
  private table: Table | null = null;
  private scale: Scale | null = null;
  private pointed: Lit | null = null;
  /** The entry pointed at that stands opposite of what is pinned: the two together have a number. */
  private opposite: number | null = null;
  private drawnFor = "";
  /** What the faint lines were made for. */
  private weighed = "";
  private faint: { path: Path2D; share: number }[] = [];

  constructor(
    private readonly host: HTMLElement,
    private readonly pane: Pane,
  ) {
    this.sheet = new Sheet(host, (drawing) => this.paint(drawing));
    this.sheet.scroller.classList.add("links");
    this.sheet.content.append(this.sides.query, this.sides.key);
    for (const side of ["query", "key"] as const) this.watch(side);
  }

  private watch(side: Side): void {
    listen(this.sides[side], {
      point: (entry, at) => this.point(entry === null ? null : { side, entry }, at),
      pick: (entry) => {
        const isPinned = this.shown?.[side] === entry && this.shown?.[other(side)] === null;
        this.pane.choose({ query: null, key: null, [side]: isPinned ? null : entry });
      },
    });
  }

  async show(shown: Shown): Promise<void> {
    const table = await this.pane.table(shown.read);
    const isOther = this.shown?.read !== shown.read || this.shown.sample !== shown.sample;
    this.shown = shown;
    this.table = table;
    this.scale = scaleOf(shown, table);
    if (isOther) {
      this.pointed = null;
      this.write(shown);
    }
    this.lay(shown);
    this.weigh(shown, table);
    this.light();
    this.sheet.draw();
    const pinned = this.lit();
    if (pinned && isOther) this.sheet.reveal(this.spots![pinned.side === "query" ? "queries" : "keys"][pinned.entry]!);
  }

  /** The words, as buttons. */
  private write({ sample, read }: Shown): void {
    for (const side of ["query", "key"] as const) {
      const axis = sample.axes[side === "query" ? read.queries : read.keys]!;
      this.buttons[side] = axis.labels.map((label, i) =>
        make("button", { type: "button", class: "link-word", "data-entry": i, title: label }, worded(label)),
      );
      const name = side === "query" ? `queries (${axis.what})` : `keys (${axis.what})`;
      this.sides[side].setAttribute("aria-label", name);
      this.sides[side].replaceChildren(...this.buttons[side]);
      rove(this.sides[side]);
    }
    this.drawnFor = this.weighed = "";
  }

  private lay(shown: Shown): void {
    const { clientWidth: width, clientHeight: height } = this.host;
    const key = `${width} ${height}`;
    if (this.drawnFor === key) return;
    this.drawnFor = key;
    const style = getComputedStyle(this.buttons.query[0] ?? this.host);
    const measure = document.createElement("canvas").getContext("2d")!;
    measure.font = `600 ${style.fontSize} ${style.fontFamily}`;
    const widths = (side: Side) =>
      this.buttons[side].map((button) => Math.ceil(measure.measureText(button.textContent ?? "").width) + 18);
    // The scroll bar takes its room only where there is one.
    this.spots = spots(widths("query"), widths("key"), { width: width - 16, height });
    this.sheet.size(this.spots.width, this.spots.height);
    this.sheet.scroller.dataset["across"] = String(this.spots.isAcross);
    for (const side of ["query", "key"] as const) {
      const places = this.spots[side === "query" ? "queries" : "keys"];
      this.buttons[side].forEach((button, i) => {
        const { left, top, width: wide, height: high } = places[i]!;
        Object.assign(button.style, { left: `${left}px`, top: `${top}px`, width: `${wide}px`, height: `${high}px` });
      });
    }
    this.sheet.canvas.setAttribute(
      "aria-label",
      `Lines from ${this.buttons.query.length} queries to ${this.buttons.key.length} keys, ` +
        `${headName(shown.read.heads, shown.head)}; hover over a word to see its weights`,
    );
  }

  /** The faint lines, put together by strength: some thousand lines are drawn as a few paths. */
  private weigh(shown: Shown, table: Table): void {
    const weighed = `${shown.head} ${this.scale!.most} ${this.drawnFor}`;
    if (weighed === this.weighed) return;
    this.weighed = weighed;
    const rows = Array.from({ length: table.queries }, (_, query) => table.row(shown.head, query));
    const all = new Float32Array(table.queries * table.keys);
    rows.forEach((row, query) => all.set(row, query * table.keys));
    const least = threshold(all, FAINT_LINES, FAINT_SHARE);
    const { most } = this.scale!;
    const paths = new Map<number, Path2D>();
    rows.forEach((row, query) => {
      row.forEach((number, key) => {
        if (!(Math.abs(number) >= least)) return;
        const step = Math.sign(number) * Math.max(1, Math.round(Math.min(1, Math.abs(number) / most) * 8));
        if (!paths.has(step)) paths.set(step, new Path2D());
        trace(paths.get(step)!, this.spots!, query, key);
      });
    });
    this.faint = [...paths].map(([step, path]) => ({ path, share: step / 8 }));
  }

  private lit(): Lit | null {
    return this.pointed ?? this.pinned();
  }

  private pinned(): Lit | null {
    if (this.shown?.query != null && this.shown.query < this.buttons.query.length)
      return { side: "query", entry: this.shown.query };
    if (this.shown?.key != null && this.shown.key < this.buttons.key.length)
      return { side: "key", entry: this.shown.key };
    return null;
  }

  private numbers({ side, entry }: Lit): Float32Array {
    const { shown, table } = this;
    return side === "query" ? table!.row(shown!.head, entry) : table!.column(shown!.head, entry);
  }

  /** Shade the words of the other side by their weights for the selected one. */
  private light(): void {
    const { shown, scale } = this;
    if (!shown || !scale) return;
    const lit = this.lit();
    const numbers = lit && this.numbers(lit);
    for (const side of ["query", "key"] as const)
      this.buttons[side].forEach((button, i) => {
        const isChosen = lit?.side === side && lit.entry === i;
        const number = lit && lit.side !== side ? numbers![i]! : 0;
        button.style.backgroundColor = number ? scale.css(number) : "";
        button.style.color = number ? scale.ink(number) : "";
        button.classList.toggle("is-lit", isChosen);
        button.setAttribute("aria-pressed", String(shown[side] === i && isChosen));
      });
  }

  private paint(drawing: CanvasRenderingContext2D): void {
    const { shown, scale, spots: places } = this;
    if (!shown || !scale || !places) return;
    drawing.lineCap = "round";
    const lit = this.lit();
    if (lit) this.paintLit(drawing, lit, scale);
    else this.paintFaint(drawing, scale);
    drawing.globalAlpha = 1;
    this.paintNames(drawing);
  }

  private paintFaint(drawing: CanvasRenderingContext2D, scale: Scale): void {
    for (const { path, share } of this.faint) {
      drawing.globalAlpha = 0.05 + 0.55 * Math.abs(share) ** 0.7;
      drawing.strokeStyle = lineColor(scale, share);
      drawing.lineWidth = 0.75 + 2 * Math.abs(share);
      drawing.stroke(path);
    }
  }

  private paintLit(drawing: CanvasRenderingContext2D, lit: Lit, scale: Scale): void {
    const numbers = this.numbers(lit);
    numbers.forEach((number, i) => {
      const share = Math.max(-1, Math.min(1, number / scale.most));
      if (Math.abs(share) < 0.004) return;
      const path = new Path2D();
      trace(path, this.spots!, lit.side === "query" ? lit.entry : i, lit.side === "query" ? i : lit.entry);
      drawing.globalAlpha = 0.25 + 0.7 * Math.sqrt(Math.abs(share));
      drawing.strokeStyle = lineColor(scale, share);
      drawing.lineWidth = 0.75 + 6.5 * Math.abs(share);
      drawing.stroke(path);
    });
    drawing.globalAlpha = 1;
    const entries = largest(numbers, NUMBERS);
    if (this.opposite !== null && !entries.includes(this.opposite)) entries.push(this.opposite);
    for (const entry of entries) this.paintNumber(drawing, lit.side, entry, numbers[entry]!);
  }

  /** The number at the far side of a word, where no line passes. */
  private paintNumber(drawing: CanvasRenderingContext2D, lit: Side, entry: number, number: number): void {
    const { isAcross, keys, queries } = this.spots!;
    const isKey = lit === "query";
    const { left, top, width, height } = (isKey ? keys : queries)[entry]!;
    drawing.font = font(12);
    drawing.fillStyle = styled("--ink");
    drawing.textBaseline = "middle";
    drawing.textAlign = isAcross ? "center" : isKey ? "left" : "right";
    const x = isAcross ? left + width / 2 : isKey ? left + width + 6 : left - 6;
    const y = isAcross ? (isKey ? top - 9 : top + height + 10) : top + height / 2 + 1;
    drawing.fillText(short(number), x, y);
  }

  /** The headings of the two sides. */
  private paintNames(drawing: CanvasRenderingContext2D): void {
    const { shown, spots: places } = this;
    if (!places || !shown) return;
    const { sample, read } = shown;
    const keys = heading("keys", read.keys, sample.axes[read.keys]!.what);
    const queries = heading("queries", read.queries, sample.axes[read.queries]!.what);
    drawing.font = font(12);
    drawing.fillStyle = styled("--pale");
    drawing.textBaseline = "middle";
    if (places.isAcross) {
      drawing.textAlign = "center";
      drawing.fillText(keys, places.width / 2, HEADING / 2);
      drawing.fillText(queries, places.width / 2, places.height - HEADING / 2);
      return;
    }
    const right = Math.max(...places.queries.map(({ left, width }) => left + width));
    drawing.textAlign = "right";
    drawing.fillText(queries, right - 7, HEADING / 2);
    drawing.textAlign = "left";
    drawing.fillText(keys, places.keys[0]!.left + 7, HEADING / 2);
  }

  private point(lit: Lit | null, at: { x: number; y: number } | null): void {
    const { shown } = this;
    if (!shown) return;
    const pinned = this.pinned();
    const isOpposite = pinned !== null && lit !== null && lit.side !== pinned.side;
    this.pointed = isOpposite ? null : lit;
    this.opposite = isOpposite ? lit.entry : null;
    this.light();
    this.sheet.redraw();
    const pair = { query: null as number | null, key: null as number | null };
    for (const each of isOpposite ? [pinned, lit] : [lit]) if (each) pair[each.side] = each.entry;
    this.pane.tip(at, shown, pair.query, pair.key, lit && !isOpposite ? this.largestWeights(lit) : []);
  }

  /** The largest numbers, in words, for the tip. */
  private largestWeights(lit: Lit): string[] {
    const numbers = this.numbers(lit);
    const name = lit.side === "query" ? "keys" : "queries";
    const axis = this.shown!.sample.axes[this.shown!.read[name]]!;
    const rows = largest(numbers, 3).map((i) => `${worded(axis.labels[i] ?? "")}  ${short(numbers[i]!)}`);
    return [lit.side === "query" ? "largest weights (keys):" : "largest weights (queries):", ...(rows.length ? rows : ["none"])];
  }

  place(query: number | null, key: number | null): { x: number; y: number } | null {
    if (query !== null && key !== null) {
      if (!this.spots?.queries[query] || !this.spots.keys[key]) return null;
      const [from, to] = ends(this.spots, query, key);
      return this.sheet.outside((from!.x + to!.x) / 2, (from!.y + to!.y) / 2);
    }
    return middle(query !== null ? this.buttons.query[query] : key !== null ? this.buttons.key[key] : null);
  }

  press(key: string): boolean {
    const { shown } = this;
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[key];
    if (!shown || !step || !this.spots) return false;
    const side: Side = shown.key !== null && shown.query === null ? "key" : "query";
    const count = this.buttons[side].length;
    const from = shown[side] ?? (step > 0 ? -1 : count);
    const entry = Math.min(count - 1, Math.max(0, from + step));
    this.sheet.reveal(this.spots[side === "query" ? "queries" : "keys"][entry]!);
    this.pane.choose({ query: null, key: null, [side]: entry });
    return true;
  }

  close(): void {
    this.pane.tip(null, this.shown!, null, null);
    this.sheet.close();
  }
}

/** The heading of a side, such as "queries (target tokens)". */
function heading(role: "queries" | "keys", axis: string, what: string): string {
  const origin = { said: "target ", fed: "target ", source: "source " }[axis] ?? "";
  return `${role} (${origin}${plural(what)})`;
}

function column(side: Side): HTMLElement {
  return make("div", { class: `link-words of-${side}`, role: "group" });
}

function other(side: Side): Side {
  return side === "query" ? "key" : "query";
}

/** Lines of small weights in the lightest blue could not be seen: they start darker and are let through instead. */
function lineColor(scale: Scale, share: number): string {
  return scale.css(scale.most * Math.sign(share) * ((isDark() ? 0.7 : 0.55) + 0.25 * Math.abs(share)));
}

function trace(path: Path2D, places: Spots, query: number, key: number): void {
  const [from, to] = ends(places, query, key);
  const [a, b] = [from!, to!];
  path.moveTo(a.x, a.y);
  if (places.isAcross) {
    const bend = (b.y - a.y) * 0.45;
    path.bezierCurveTo(a.x, a.y + bend, b.x, b.y - bend, b.x, b.y);
  } else {
    const bend = (b.x - a.x) * 0.45;
    path.bezierCurveTo(a.x + bend, a.y, b.x - bend, b.y, b.x, b.y);
  }
}
