/** Summaries of the weights of each head: one number per head, layers as rows, heads as columns, with explanations. */

import { scaleTo } from "../color.js";
import { make } from "../dom.js";
import { formatExact, headName } from "../format.js";
import { addGridNavigation } from "../grid.js";
import type { Read } from "../page.js";
import { siblings } from "../reads.js";
import { EXPLAINED, explained, WARNING, type Explanation } from "../texts.js";
import type { OpenView, Pane, Shown, View } from "../view.js";

export const summary: View = {
  name: "summary",
  about: "Summary of each head: entropy of its weights, and mean attention distance.",
  fits: (sample, read) => namesOf(siblings(sample, read)).length > 0 || read.measure in EXPLAINED,
  open: (host, pane) => new Summary(host, pane),
};

/** Largest number of heads in a half-width table. */
const MAX_NARROW_HEADS = 9;

/** Names of the summaries of any of the reads. */
function namesOf(reads: Read[]): string[] {
  return [...new Set(reads.flatMap((read) => Object.keys(read.summaries)))];
}

class Summary implements OpenView {
  private readonly box = make("div", { class: "summaries" });
  private drawn = "";

  constructor(
    host: HTMLElement,
    private readonly pane: Pane,
  ) {
    host.append(this.box);
  }

  show(shown: Shown): void {
    const reads = siblings(shown.sample, shown.read);
    const theme = document.documentElement.dataset["theme"];
    const now = [theme, ...reads.map((read) => `${read.name} ${read.measure}`), shown.sample.title].join("|");
    if (now !== this.drawn) this.fill(reads, shown);
    this.drawn = now;
    for (const cell of this.box.querySelectorAll<HTMLElement>("button[data-row]")) {
      const isShown = reads[Number(cell.dataset["row"])] === shown.read && Number(cell.dataset["column"]) === shown.head;
      cell.setAttribute("aria-current", String(isShown));
    }
  }

  place(): null {
    return null;
  }

  close(): void {
    this.box.remove();
  }

  private fill(reads: Read[], shown: Shown): void {
    const isBroad = reads.some((read) => read.heads.length > MAX_NARROW_HEADS);
    const parts = namesOf(reads).map((name) => {
      const text = explained(name);
      return make("section", { class: isBroad ? "broad" : "" }, make("h2", {}, name), this.table(reads, name), ...(text ? [explanation(text)] : []));
    });
    const measure = EXPLAINED[shown.read.measure];
    if (measure) parts.unshift(make("section", {}, make("h2", {}, measure.name), explanation(measure)));
    this.box.replaceChildren(...parts, make("p", { class: "warning" }, WARNING));
  }

  private table(reads: Read[], name: string): HTMLElement {
    const numbers = reads.map((read) => read.summaries[name] ?? []);
    const most = Math.max(0, ...numbers.flat().map((number) => Math.abs(number ?? 0))) || 1;
    const scale = scaleTo(most, numbers.flat().some((number) => (number ?? 0) < 0));
    const columns = Math.max(...reads.map((read) => read.heads.length));
    const widest = reads.find((read) => read.heads.length === columns)!;
    const heads = widest.heads.map((head, index) => make("th", { scope: "col" }, head || String(index + 1)));
    const first = make("th", { class: "corner" }, columns > 1 ? "layer \\ head" : "layer");
    const rows = reads.map((read, row) => {
      const cells = read.heads.map((_, head) => {
        const number = numbers[row]![head];
        if (number === null || number === undefined) return make("td", { class: "none" }, "\u2013");
        const words = `layer ${read.layer} ${headName(read, head)}: ${name} ${formatExact(number, 9)}`;
        const cell = make("button", { type: "button", "data-row": row, "data-column": head, title: words }, rounded(number));
        cell.style.background = scale.css(number);
        cell.style.color = scale.ink(number);
        return make("td", {}, cell);
      });
      return make("tr", {}, make("th", { scope: "row" }, String(read.layer)), ...cells);
    });
    const heading = make("thead", {}, make("tr", {}, first, ...(columns > 1 ? heads : [make("th", {})])));
    const table = make("table", { class: "number" }, heading, make("tbody", {}, ...rows));
    addGridNavigation(table, (row, head) => this.pane.choose({ read: reads[row]!, head }, "alignment"));
    return make("div", { class: "wide" }, table);
  }
}

function rounded(number: number): string {
  return Math.abs(number) >= 100 ? number.toFixed(0) : Math.abs(number) >= 10 ? number.toFixed(1) : number.toFixed(2);
}

function explanation(text: Explanation): HTMLElement {
  const item = (name: string, words: string) => [make("dt", {}, name), make("dd", {}, words)];
  return make(
    "dl",
    {},
    ...item("Formula", text.formula),
    ...item("Means", text.means),
    ...item("Limitations", text.not),
    ...item("Source", text.source),
  );
}
