/** The footer of a view: color scale, facts of the read, and notes on omitted weights. */

import { css, darkest, isSigned, scaleTo, omittedColor } from "./color.js";
import { prepareCanvas, make } from "./dom.js";
import { EMPTY, headName, formatShort } from "./format.js";
import type { Panel } from "./pane.js";
import { scalePicker } from "./pickers.js";
import { MEASURES, ONE_PART } from "./texts.js";
import { hasMasked, uniformWeight } from "./uniform.js";
import type { Shown, Table } from "./view.js";

const WIDTH = 180;
const HEIGHT = 10;
const MOST_FACT = 48;

/** Display of omitted weights in each view. */
const OMITTED: Record<string, string> = {
  alignment: "Zoomed out, each block has the color of its largest weight; zoomed in, omitted weights are gray: they are not zero.",
  heads: "Each block has the color of its largest weight.",
  summary: "Summaries were computed from all weights.",
  others: "Omitted weights are not drawn: they are not zero.",
};

const MEAN = "A mean over heads counts omitted weights as zero; for a block it is the mean of the heads' largest weights.";

/** Return the elements below a view; `most`: number with the darkest color. */
export function footer(pane: Panel, table: Table, most = darkest(pane.shown, table)): HTMLElement[] {
  const { page, shown, view } = pane;
  const { read } = shown;
  const parts: HTMLElement[] = [];
  if (view === "summary") parts.push(factsLine(shown));
  else {
    const hasScale = pane.views.find(({ name }) => name === view)?.hasScale;
    const colors = hasScale ? null : legend(shown, table, { view, most });
    // The colors of the walk are those of each matrix.
    const legends = make("div", { class: "legends" }, colors, view === "walk" ? null : scalePicker(pane));
    parts.push(make("div", { class: "line" }, legends, factsLine(shown)));
  }
  parts.push(make("p", { class: "pale" }, MEASURES[read.measure].about));
  const hasContributions = shown.sample.reads.some((each) => each.measure === "contribution");
  if (hasContributions && read.measure !== "contribution") parts.push(make("p", { class: "pale" }, ONE_PART));
  if (!table.isComplete) {
    const mean = shown.head < 0 && view === "alignment" ? MEAN : "";
    const words = [page.note, OMITTED[view] ?? OMITTED["others"]!, mean].filter((words) => words);
    parts.push(make("p", { class: "cut" }, words.join(" ")));
  } else if (page.note) {
    parts.push(make("p", { class: "pale" }, `${page.note} This map is complete.`));
  }
  return parts;
}

function legend(shown: Shown, table: Table, { view, most }: { view: string; most: number }): HTMLElement {
  const { read } = shown;
  const signed = isSigned(read);
  const scale = scaleTo(most, signed);
  const canvas = make("canvas", { role: "img", "aria-label": `Colors from ${signed ? -most : 0} to ${most}` });
  const drawing = prepareCanvas(canvas, WIDTH, HEIGHT);
  for (let x = 0; x < WIDTH; x++) {
    const share = x / (WIDTH - 1);
    drawing.fillStyle = scale.css((signed ? share * 2 - 1 : share) * most);
    drawing.fillRect(x, 0, 1.5, HEIGHT);
  }
  const isSaturated = Math.abs(table.maxMagnitude(shown.head)) > most && view !== "heads";
  const from = make("span", { class: "number" }, signed ? `${isSaturated ? "\u2264 " : ""}${formatShort(-most)}` : "0");
  const to = make("span", { class: "number" }, `${isSaturated ? "\u2265 " : ""}${formatShort(most)}`);
  const parts: HTMLElement[] = [from, canvas, to];
  if (isSaturated) parts.push(make("span", { class: "pale" }, "larger numbers have the last color"));
  if (!table.isComplete && view === "alignment") {
    const swatch = make("i", { class: "swatch" });
    swatch.style.background = css(omittedColor());
    parts.push(make("span", { class: "omitted" }, swatch, "omitted"));
  }
  if (view === "alignment") {
    const least = `${signed ? "magnitude" : MEASURES[read.measure].name} below ${formatShort(EMPTY * most)}`;
    parts.push(make("span", { class: "omitted" }, make("i", { class: "swatch" }), `empty cell: ${least}`));
  }
  if (read.measure === "weight") {
    parts.splice(1, 1, markedScale(canvas, most, uniformWeight(shown, table, shown.query)));
    if (view === "alignment" && hasMasked(table, shown.head)) {
      parts.push(make("span", { class: "omitted" }, make("i", { class: "swatch hatched" }), "masked: exactly 0"));
    }
  }
  const { name } = MEASURES[read.measure];
  const head = view === "heads" ? "" : headName(read, shown.head);
  return make("div", { class: "legend" }, make("span", {}, head ? `${name}, ${head}` : name), ...parts);
}

/** Color scale to `most` with a mark at the uniform weight. */
function markedScale(canvas: HTMLElement, most: number, uniform: number | null): HTMLElement {
  const about = "Weight of each key if a query attended to all unmasked keys alike: 1 / number of these keys";
  const mark = make("i", { class: "uniform-mark" });
  const text = make("span", { class: "uniform-text number" });
  const scale = make("span", { class: "marked-scale", title: about, "data-most": most }, canvas, mark, text);
  moveMark(scale, uniform);
  return scale;
}

/** Move the mark of the color scale in an element to the uniform weight; null: none. */
export function moveMark(scale: HTMLElement | null, uniform: number | null): void {
  const [mark, text] = [scale?.querySelector<HTMLElement>(".uniform-mark"), scale?.querySelector<HTMLElement>(".uniform-text")];
  if (!scale || !mark || !text) return;
  const most = Number(scale.dataset["most"]);
  mark.hidden = text.hidden = uniform === null || uniform > most;
  mark.style.left = `${((uniform ?? 0) / most) * WIDTH}px`;
  text.textContent = `uniform ${formatShort(uniform ?? 0)}`;
}

function factsLine({ read }: Shown): HTMLElement {
  const facts = Object.entries(read.facts);
  const all = facts.map(([name, value]) => `${name} ${value}`);
  // The repr of a mask may contain the length of every row of the batch; the sum of contributions is a result.
  const isCut = (name: string, fact: string) => name !== "sum" && fact.length > MOST_FACT;
  const shown = all.map((fact, i) => (isCut(facts[i]![0], fact) ? `${fact.slice(0, MOST_FACT - 1)}\u2026` : fact));
  return make("p", { class: "facts", title: all.join("\n") }, [read.name, ...shown].join(" \u00b7 "));
}
