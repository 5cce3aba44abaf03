/** A page with a model: its output and attention follow the text that is typed. */

import { make } from "../dom.js";
import { counted } from "../format.js";
import { DataError, load } from "../load.js";
import type { Page, Sample } from "../page.js";
import type { Panes } from "../view.js";
import { type Form, type LiveModel, withNumbers } from "./form.js";
import { type Choice, makeRuns, type Run, TextError } from "./run.js";

const VERSION = 1;
/** Milliseconds of computing after which the page reacts to input, and after which it is drawn again. */
const SLICE = 12;
const REDRAW = 60;

/** Add the text and its output to the page; `open` shows the first sample. Returns an interface for tests. */
export async function startLive(root: HTMLElement, open: (page: Page) => Panes): Promise<object> {
  const model = JSON.parse(document.getElementById("model")!.textContent ?? "") as LiveModel;
  if (model.version !== VERSION) throw new DataError(`The version of the model must be ${VERSION}, but is ${model.version}.`);
  const [int8, float32] = [await load("int8"), await load("float32")];
  model.form = withNumbers(model.form, new Int8Array(int8), new Float32Array(float32)) as Form;
  const live = new Live(model, root, open);
  await live.update(performance.now());
  return live;
}

class Live {
  private readonly start: ReturnType<typeof makeRuns>;
  private readonly text = make("textarea", { rows: "2", spellcheck: "false", autocapitalize: "off", "aria-label": "Text" });
  private readonly output = make("output", { class: "live-output", "aria-live": "polite" });
  private readonly status = make("p", { class: "live-status pale" });
  private readonly topK = number("Choose among the most likely tokens; 1: the most likely one", 1, 1000);
  private readonly length = number("Number of tokens of the continuation", 20, 1000);
  private seed = 1;
  private turn = 0;
  private before: Run | null = null;
  private panes: Panes | null = null;

  constructor(
    private readonly model: LiveModel,
    private readonly root: HTMLElement,
    private readonly open: (page: Page) => Panes,
  ) {
    this.start = makeRuns(model);
    this.text.value = model.example;
    const update = (event: Event) => void this.update(event.timeStamp);
    const again = (event: Event) => (this.seed++, update(event));
    const tools = make("div", { class: "tools" },
      make("label", { class: "slider" }, "top-k", this.topK),
      make("label", { class: "slider" }, "length", this.length),
      make("button", { type: "button", click: again, title: "Draw other tokens" }, "Again"));
    tools.hidden = model.text.kind !== "language";
    const label = model.text.kind === "language" ? "Text to continue" : "Text";
    this.text.placeholder = `${label}: type here`;
    for (const input of [this.text, this.topK, this.length]) input.addEventListener("input", update);
    root.classList.add("is-live");
    root.prepend(make("form", { class: "live", submit: (event: Event) => event.preventDefault() }, this.text, this.output, tools, this.status));
  }

  /** Run the model on the text, and show its output and attention as they are computed. `begin`: time of the input. */
  async update(begin: number): Promise<void> {
    const turn = ++this.turn;
    let [shown, isFirst] = [performance.now(), true];
    let run: Run | null = null;
    const show = async () => {
      this.output.textContent = run!.output;
      const sample = run!.sample();
      if (sample) await this.show(sample);
      if (isFirst && turn === this.turn) performance.measure("first row", { start: begin });
      [shown, isFirst] = [performance.now(), false];
    };
    try {
      const started = this.start(this.text.value, this.choice, this.before);
      this.before = run = started.run;
      for (let slice = performance.now(); !started.steps.next().done; ) {
        if (performance.now() - slice < SLICE) continue;
        if (run.tokens.length && performance.now() - shown > REDRAW) await show();
        await new Promise((done) => setTimeout(done));
        if (turn !== this.turn) return;
        slice = performance.now();
      }
      const computed = performance.now() - begin;
      await show();
      if (turn !== this.turn) return;
      this.status.textContent = this.describe(run, computed);
    } catch (error) {
      if (!(error instanceof TextError)) throw error;
      this.before = null;
      this.output.textContent = "";
      this.status.textContent = error.message;
    }
    // What is shown is not that of an empty text, nor of one that is too long.
    this.root.classList.toggle("is-stale", !run?.tokens.length);
  }

  /** Interface for tests: what the model computes for a text. */
  run(text: string, choice = this.choice): object {
    const { run, steps } = this.start(text, choice, null);
    while (!steps.next().done);
    return { tokens: run.tokens, output: run.output, logits: run.logits.map((row) => [...row]), sample: run.sample() };
  }

  private get choice(): Choice {
    const value = (input: HTMLInputElement) => Math.max(1, Math.trunc(input.valueAsNumber) || 1);
    return { topK: value(this.topK), length: value(this.length), seed: this.seed };
  }

  private async show(sample: Sample): Promise<void> {
    const { title, model } = this.model;
    const page: Page = { format: "regard page", version: 4, captures: [{ title, model, samples: [sample] }], note: "" };
    this.panes ??= this.open(page);
    await this.panes.replace(page);
  }

  private describe(run: Run, milliseconds: number): string {
    if (!run.tokens.length) return "";
    const parts = [counted(run.tokens.length, "token"), `${milliseconds.toFixed(0)} ms`];
    if (run.isCut) parts.push("stopped at the limit of the model");
    return parts.join(", ");
  }
}

function number(title: string, value: number, max: number): HTMLInputElement {
  return make("input", { type: "number", min: "1", max: `${max}`, value: `${value}`, title });
}
