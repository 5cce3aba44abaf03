/** The decoding steps of an output: candidates, beams, and the attention at each step. */

import { isSigned, scaleOf } from "../color.js";
import { cssVariable, isSaving, make, prepareCanvas, zoomOf } from "../dom.js";
import { formatExact, headName, plural, readable, formatShort } from "../format.js";
import type { Read, Sample, Step } from "../page.js";
import { isPresenting } from "../present.js";
import type { OpenView, Pane, Shown, Table, View } from "../view.js";
import { largestIndices, maxMagnitude } from "./largest.js";
import { bars, markPressed } from "./lists.js";
import { addEntryHandlers, centerOf, scrollIntoBox, addRovingFocus } from "./controls.js";
import { drawHeat, drawPicture, fitInto, loadImage, type Area } from "./picture.js";

const STEP_MS = 900;
/** Largest zoom when presenting. */
const MOST_ZOOM = 2.2;
/** Largest number of source words that are shown. */
const MOST_WORDS = 2000;

export const steps: View = {
  name: "steps",
  about: "The output step by step: candidates for each token, and the attention at this step.",
  fits: (sample) => sample.steps.length > 0,
  open: (host, pane) => new Steps(host, pane),
};

/** Return true if the queries of a read are the decoding steps: those of a chain read the token before. */
export function isOfSteps(read: Read): boolean {
  return read.queries === "output" || (read.queries === "decoder input" && read.kind === "chain");
}

/** Return the read of the decoding steps: the shown one, or the last cross-attention. */
export function decoderRead(sample: Sample, shown: Read): Read | null {
  if (isOfSteps(shown)) return shown;
  const reads = sample.reads.filter(isOfSteps);
  const cross = reads.filter((read) => read.kind === "cross" || read.kind === "recurrent");
  return cross.at(-1) ?? reads[0] ?? null;
}

export interface Candidate {
  token: string;
  probability: number;
  isOutput: boolean;
}

/** Return the alternatives, with the output token added if it is not among them. */
export function candidates({ token, probability, alternatives }: Step): Candidate[] {
  const rows = alternatives.map((each) => ({ ...each, isOutput: false }));
  const alike = rows.filter((row) => row.token === token);
  const output = alike.find((row) => row.probability === probability) ?? alike[0];
  if (output) output.isOutput = true;
  else rows.push({ token, probability, isOutput: true });
  return rows;
}

class Steps implements OpenView {
  private readonly count = make("span", { class: "count", "aria-live": "polite" });
  private readonly previousButton = make("button", { type: "button", click: () => this.stepQuery(-1) }, "\u2190 previous");
  private readonly playButton = make("button", { type: "button", click: () => this.togglePlay() }, "play");
  private readonly nextButton = make("button", { type: "button", click: () => this.stepQuery(1) }, "next \u2192");
  private readonly output = make("div", { class: "answer", role: "group", "aria-label": "output tokens" });
  private readonly prediction = make("section", {});
  private readonly beams = make("section", { class: "steps-beams" });
  private readonly heading = make("h3", {});
  private readonly words = make("div", { class: "words", role: "group" });
  private readonly canvas = make("canvas", { role: "img" });
  private readonly source = make("section", { class: "steps-source" }, this.heading, this.words, this.canvas);
  private readonly root = make("div", { class: "steps" });
  private shown: Shown | null = null;
  private read: Read | null = null;
  private table: Table | null = null;
  private step = 0;
  private timer = 0;

  constructor(
    private readonly host: HTMLElement,
    private readonly pane: Pane,
  ) {
    const tools = make("div", { class: "tools" }, this.previousButton, this.playButton, this.nextButton, this.count, doubtLegend());
    const body = make("div", { class: "steps-body" }, this.prediction, this.beams, this.source);
    this.root.append(tools, this.output, body);
    host.append(this.root);
    addEntryHandlers(this.output, { hover: (step, at) => this.hoverStep(step, at), select: (step) => this.goTo(step) });
    addEntryHandlers(this.words, { hover: (key, at) => this.hoverWord(key, at), select: () => {} });
  }

  async show(shown: Shown): Promise<void> {
    const { sample } = shown;
    const isNewSample = this.shown?.sample !== sample;
    const read = decoderRead(sample, shown.read);
    if (read) {
      this.table = await this.pane.table(read);
      await this.table.load(headOf(shown, read));
    } else this.table = null;
    const isNewRead = isNewSample || this.read !== read;
    this.shown = shown;
    this.read = read;
    if (isNewSample) this.step = 0;
    if (isOfSteps(shown.read) && shown.query !== null) this.step = shown.query;
    this.step = Math.min(sample.steps.length - 1, Math.max(0, this.step));
    if (isNewSample) this.fillOutput(sample.steps);
    if (isNewRead) this.fillWords();
    this.markStep();
    this.fit(sample.steps);
    this.fillPrediction(sample.steps[this.step]!);
    await this.drawSource();
  }

  /** When presenting, enlarge all as long as each step fits the window. */
  private fit(all: Step[]): void {
    const { root, host } = this;
    root.style.zoom = "";
    if (!isPresenting() || isSaving()) return;
    const lines = ({ alternatives, beams }: Step) => alternatives.length + beams.length;
    this.fillPrediction(all.reduce((most, step) => (lines(step) > lines(most) ? step : most)));
    // A picture takes the room that is left.
    this.canvas.style.height = "0";
    for (let zoom = MOST_ZOOM; zoom > 1; zoom -= 0.1) {
      root.style.zoom = zoom.toFixed(1);
      if (root.offsetHeight * zoom <= host.clientHeight && root.scrollWidth <= root.clientWidth) return;
    }
    root.style.zoom = "";
  }

  private fillOutput(all: Step[]): void {
    const buttons = all.map(({ token, probability }, i) => {
      const button = make("button", { type: "button", class: "output-token", "data-entry": i }, readable(token));
      // Less probable tokens are highlighted.
      button.style.setProperty("--doubt", `${Math.round((1 - Math.min(1, probability)) * 100)}%`);
      return button;
    });
    this.output.replaceChildren(...buttons);
  }

  /** Mark the current step, and the steps after it. */
  private markStep(): void {
    const { steps: all } = this.shown!.sample;
    markPressed(this.output, this.step);
    const isInside = this.output.contains(document.activeElement);
    [...this.output.children].forEach((token, i) => {
      const button = token as HTMLElement;
      button.classList.toggle("is-future", i > this.step);
      // The current step is the tab stop of the group.
      button.tabIndex = i === this.step ? 0 : -1;
      if (i !== this.step) return;
      scrollIntoBox(this.output, button);
      if (isInside) button.focus({ preventScroll: true });
    });
    const { stepOfOther } = this.pane;
    const other = stepOfOther === null ? "" : `, the last (step ${stepOfOther + 1} on the other side)`;
    this.count.textContent = `step ${this.step + 1} of ${all.length}${other}`;
    this.previousButton.disabled = this.step === 0;
    this.nextButton.disabled = this.step === all.length - 1;
  }

  private fillPrediction(step: Step): void {
    const rows = candidates(step).map(({ token, probability, isOutput }) => ({
      label: readable(token),
      number: probability,
      length: probability,
      isMarked: isOutput,
      text: formatShort(probability),
    }));
    // A language model reads a given text; its own choice is the first candidate.
    const name = this.shown!.sample.axes["source"] ? "prediction: " : "next token of the text: ";
    const title = make("h3", {}, name, make("b", { class: "token" }, readable(step.token)));
    this.prediction.replaceChildren(title, bars(rows, "probabilities of the candidates"));
    this.beams.replaceChildren(...(step.beams.length ? [make("h3", {}, "beam after this step"), beams(step)] : []));
  }

  private get picture() {
    const axis = this.read && this.shown?.sample.axes[this.read.keys];
    const picture = axis ? this.shown!.sample.pictures[axis.picture] : undefined;
    return picture && picture.kind !== "plane" ? picture : null;
  }

  private fillWords(): void {
    this.source.hidden = this.read === null;
    if (!this.read) return;
    const axis = this.shown!.sample.axes[this.read.keys]!;
    const isPictured = this.picture !== null;
    this.words.hidden = isPictured;
    this.canvas.hidden = !isPictured;
    const entries = isPictured ? [] : axis.labels.slice(0, MOST_WORDS);
    this.words.replaceChildren(
      ...entries.map((label, i) =>
        make("button", { type: "button", class: "read-word", "data-entry": i }, readable(label)),
      ),
    );
    this.words.setAttribute("aria-label", `keys (${plural(axis.kind)})`);
    if (entries.length) addRovingFocus(this.words);
  }

  private async drawSource(): Promise<void> {
    const { read, table, shown } = this;
    if (!read || !table || !shown) return;
    const head = headOf(shown, read);
    const name = [`${read.kind}, layer ${read.layer}`, headName(read, head)].filter(Boolean).join(", ");
    this.heading.replaceChildren("attention at this step: ", make("span", { class: "pale" }, name));
    if (this.step >= table.queries) return;
    const row = table.row(head, this.step);
    if (this.picture) {
      await this.drawPicture(row);
      return;
    }
    const scale = scaleOf({ ...shown, read, head }, table);
    this.words.querySelectorAll<HTMLElement>("[data-entry]").forEach((word, i) => {
      const number = row[i]!;
      word.style.backgroundColor = number ? scale.css(number) : "";
      word.style.color = number ? scale.ink(number) : "";
    });
    scrollIntoBox(this.words, this.words.children[largestIndices(row, 1)[0] ?? -1]);
  }

  /** Draw the weights over the image, or over the times of a sound. */
  private async drawPicture(row: Float32Array): Promise<void> {
    const picture = this.picture!;
    const image = await loadImage(picture.url);
    const isImage = picture.kind === "image";
    const width = this.source.clientWidth;
    const shape = isImage ? picture : { width, height: 150 };
    const height = isImage ? Math.min(this.roomBelow(), (width * shape.height) / shape.width) : 150;
    const drawing = prepareCanvas(this.canvas, width, height);
    const area: Area = fitInto(shape, { left: 0, top: 0, width, height: height });
    const signed = isSigned(this.read!);
    drawPicture(drawing, image, area, 1, signed);
    const { places } = this.shown!.sample.axes[this.read!.keys]!;
    const boxes = isImage ? places : places.map((place) => place && spanToBox(place, picture.seconds));
    drawHeat(drawing, boxes, area, { numbers: row, least: 0, most: maxMagnitude(row) || 1, opacity: 0.85, isSmooth: false, isSigned: signed });
    drawing.strokeStyle = cssVariable("--line");
    drawing.strokeRect(area.left + 0.5, area.top + 0.5, area.width - 1, area.height - 1);
    const description = `attention at step ${this.step + 1}; largest weight ${formatShort(maxMagnitude(row))}`;
    this.canvas.setAttribute("aria-label", `${picture.kind}, ${description}`);
  }

  /** Largest height of a picture: when presenting, what is left of the window. */
  private roomBelow(): number {
    if (!isPresenting() || isSaving()) return 460;
    const { bottom } = this.host.getBoundingClientRect();
    return Math.max(200, (bottom - this.canvas.getBoundingClientRect().top) / zoomOf(this.canvas) - 4);
  }

  private goTo(step: number): void {
    const { shown, read } = this;
    const last = (shown?.sample.steps.length ?? 1) - 1;
    const next = Math.min(last, Math.max(0, step));
    if (!shown) return;
    this.step = next;
    // If another read is shown, switch to the read that this view draws.
    if (read) this.pane.choose(shown.read === read ? { query: next, key: null } : { read, query: next, key: null });
    else void this.show(shown);
  }

  stepQuery(by: number): void {
    this.goTo(this.step + by);
  }

  private togglePlay(): void {
    if (this.timer) {
      this.stop();
      return;
    }
    const last = this.shown!.sample.steps.length - 1;
    if (this.step === last) this.goTo(0);
    this.playButton.textContent = "pause";
    this.timer = window.setInterval(() => {
      if (this.step >= last) this.stop();
      else this.stepQuery(1);
    }, STEP_MS);
  }

  private stop(): void {
    window.clearInterval(this.timer);
    this.timer = 0;
    this.playButton.textContent = "play";
  }

  private hoverStep(step: number | null, at: { x: number; y: number } | null): void {
    const hoveredStep = step === null ? undefined : this.shown?.sample.steps[step];
    if (!hoveredStep || !this.shown) {
      if (this.shown) this.pane.tip(null, this.shown, null, null);
      return;
    }
    const query = isOfSteps(this.shown.read) ? step : null;
    this.pane.tip(at, this.shown, query, null, [`probability ${formatExact(hoveredStep.probability, 9)}`]);
  }

  private hoverWord(key: number | null, at: { x: number; y: number } | null): void {
    const { shown, read } = this;
    if (!shown || !read) return;
    const stepShown = { ...shown, read, head: headOf(shown, read) };
    this.pane.tip(key === null ? null : at, stepShown, this.step, key);
  }

  place(query: number | null, key: number | null): { x: number; y: number } | null {
    if (query !== null && key !== null && query !== this.step) return null;
    return key !== null
      ? centerOf(this.words.querySelector(`[data-entry="${key}"]`))
      : centerOf(this.output.querySelector(`[data-entry="${query}"]`));
  }

  /** Arrow keys go from step to step; when presenting, all of them and the keys of a presenter. */
  handleKey(key: string): boolean {
    const by = { ArrowRight: 1, ArrowDown: 1, PageDown: 1, ArrowLeft: -1, ArrowUp: -1, PageUp: -1 }[key];
    if (by && (isPresenting() || key === "ArrowLeft" || key === "ArrowRight")) this.stepQuery(by);
    else if (key === "Home") this.goTo(0);
    else if (key === "End") this.goTo(Infinity);
    else if (key === " ") this.togglePlay();
    else return false;
    return true;
  }

  close(): void {
    this.stop();
    if (this.shown) this.pane.tip(null, this.shown, null, null);
    this.host.replaceChildren();
  }
}

/** Legend of the colors behind output tokens. */
function doubtLegend(): HTMLElement {
  return make("span", { class: "doubt-legend" }, "probability of the token: 1", make("i"), "0");
}

function headOf(shown: Shown, read: Read): number {
  return read.heads.length === 1 ? 0 : Math.min(shown.head, read.heads.length - 1);
}

/** Convert a span of a sound to a box over the full height of its spectrogram. */
function spanToBox(place: readonly number[], seconds: number): number[] {
  const [start = 0, stop = 0] = place;
  return [start / seconds, 0, (stop - start) / seconds, 1];
}

/** Truncate a long text at its start: hypotheses differ at the end. */
function lastCharacters(text: string): string {
  const characters = [...text];
  return characters.length > 120 ? `\u2026${characters.slice(-119).join("")}` : text;
}

/** Create the list of hypotheses, best first; the prefix of the output is marked. */
function beams(step: Step): HTMLElement {
  const list = make("ol", { class: "beams" });
  for (const { text, score, is_prefix: isPrefix } of step.beams) {
    const mark = make("span", { class: "beam-mark", title: isPrefix ? "continued by the output" : "" }, isPrefix ? "\u2713" : "");
    if (isPrefix) mark.setAttribute("aria-label", "continued by the output");
    const scoreElement = make("span", { class: "bar-number", title: formatExact(score, 9) }, formatShort(score));
    const words = make("span", { class: "beam-text", title: text }, readable(lastCharacters(text), Infinity, " "));
    list.append(make("li", { class: isPrefix ? "is-marked" : "" }, mark, words, scoreElement));
  }
  return list;
}
