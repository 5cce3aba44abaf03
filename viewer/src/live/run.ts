/** Runs of the model of a live page on a text, step by step, and samples of their attention. */

import type { Axis, Kind, Read, Sample, Step } from "../page.js";
import { setTable } from "../table.js";
import { Decoder } from "./decoder.js";
import type { Form, Language, LiveModel, Translation } from "./form.js";
import { type Memory, softmax } from "./layers.js";
import { type Part, strip, Tokenizer } from "./tokenizer.js";

const ALTERNATIVES = 8;
/** Ids of a language model that are read at once. */
const BLOCK = 16;

/** Choice of the next token of a language model: one of the `topK` most likely ones; 1: greedy. */
export interface Choice {
  topK: number;
  length: number;
  seed: number;
}

/** Text that the model cannot read. */
export class TextError extends Error {}

/** A text and its output so far, with the attention. */
export class Run {
  /** Output so far; of a language model, the continuation. */
  output = "";
  /** True if it ended at a limit. */
  isCut = false;
  /** Of each id that the decoder has read: the logits of the next one. */
  logits: Float32Array[] = [];
  decoder: Decoder;
  /** Labels of the source. */
  protected source: string[] = [];
  /** Ids that the decoder reads, the last one chosen included. */
  protected inputs: Part[] = [];
  /** Ids that are not among the alternatives of a step. */
  protected hidden: number[] = [];

  constructor(form: Form, protected readonly text: string, protected readonly target: Tokenizer) {
    this.decoder = new Decoder(form);
  }

  /** Ids that follow each one that the decoder has read. */
  get tokens(): number[] {
    return idsOf(this.inputs.slice(1, this.logits.length + 1));
  }

  /** Return what is shown of the run; null before the first token. */
  sample(): Sample | null {
    const count = this.tokens.length;
    if (!count) return null;
    const axis = (labels: string[]): Axis => ({ kind: "token", labels, picture: "", places: [] });
    const labels = this.inputs.slice(0, count + 1).map((part) => this.target.label(part));
    const sample: Sample = {
      title: `${strip(this.text)} -> ${this.output}`,
      marked: null,
      axes: { output: axis(labels.slice(1)), "decoder input": axis(labels.slice(0, -1)), ...(this.source.length && { source: axis(this.source) }) },
      reads: [],
      pictures: {},
      steps: this.inputs.slice(1, count + 1).map((part, index) => this.step(part, this.logits[index]!)),
    };
    const add = (kind: Kind, memories: Memory[], name: string, queries: string, keys: string) =>
      memories.forEach((memory, layer) => sample.reads.push(makeRead(sample, memory, { kind, layer: layer + 1, name: name.replace("*", `${layer}`), queries, keys })));
    add("encoder self", this.decoder.encoder, "core.encoder.*.attention.read", "source", "source");
    add("decoder self", this.decoder.self, "core.decoder.*.attention.read", "output", "decoder input");
    add("cross", this.decoder.cross, "core.decoder.*.cross.read", "output", "source");
    return sample;
  }

  private step(part: Part, logits: Float32Array): Step {
    const probabilities = logits.slice();
    softmax(probabilities);
    const candidate = (each: Part) => ({ token: this.target.label(each), probability: probabilities[each.id]! });
    const best = largest(probabilities, ALTERNATIVES, this.hidden);
    return { ...candidate(part), alternatives: best.map((id) => candidate({ id, text: "" })), beams: [] };
  }
}

/** Greedy search for an output. */
export class TranslationRun extends Run {
  private readonly ids: number[] = [];

  constructor(form: Form, text: string, private readonly rules: Translation, source: Tokenizer, target: Tokenizer) {
    super(form, text, target);
    const { before, after, banned, limit, start } = rules;
    const parts = source.parts(strip(text));
    if (parts.length > limit) throw new TextError(`The text has ${parts.length} tokens; the limit is ${limit}.`);
    const all = parts.length ? [...partsOf(before), ...parts, ...partsOf(after)] : [];
    this.ids = idsOf(all);
    this.source = all.map((part) => source.label(part));
    this.inputs = partsOf([start]);
    this.hidden = banned;
  }

  /** Run the search; yields after each layer of the encoder and each token. */
  *run(): Generator<void> {
    const { eos, banned, max_ratio, max_extra, max_length, start } = this.rules;
    if (!this.ids.length) return;
    yield* this.decoder.encode(this.ids);
    const most = Math.max(1, Math.min(max_length, Math.trunc(max_ratio * this.ids.length) + max_extra));
    for (let last = start; this.logits.length < most; ) {
      this.logits.push(...this.decoder.read([last]));
      last = largest(this.logits.at(-1)!, 1, banned)[0]!;
      this.inputs.push({ id: last, text: "" });
      this.output = this.target.decode(this.tokens);
      if (last === eos) return;
      yield;
    }
    this.isCut = true;
  }
}

/** Continuation of a text. */
export class LanguageRun extends Run {
  /** before: last run, whose keys and values are used again as far as the texts are equal. */
  constructor(form: Form, text: string, private readonly rules: Language, target: Tokenizer, before: Run | null) {
    super(form, text, target);
    const parts = target.parts(rules.target.keeps_space ? text : text.replaceAll("\n", " <eos> "));
    this.inputs = parts.length ? [...partsOf(rules.before), ...parts] : [];
    const { length } = this.inputs;
    if (length > rules.context) throw new TextError(`The text has ${length} tokens; the context of the model is ${rules.context}.`);
    if (!before) return;
    let same = 0;
    while (same < length && before.decoder.ids[same] === this.inputs[same]!.id) same++;
    this.decoder = before.decoder;
    this.decoder.cut(same);
    this.logits = before.logits.slice(0, same);
  }

  /** Read the text and continue it, up to the context; yields after some tokens of the text, and each new one. */
  *run({ topK, length, seed }: Choice): Generator<void> {
    const random = randomNumbers(seed);
    const prompt = idsOf(this.inputs);
    const most = prompt.length && Math.min(length, this.rules.context - prompt.length + 1);
    const ids = [...prompt];
    while (ids.length < prompt.length + most) {
      while (this.decoder.ids.length < ids.length) {
        const from = this.decoder.ids.length;
        this.logits.push(...this.decoder.read(ids.slice(from, from + BLOCK)));
        yield;
      }
      ids.push(this.choose(this.logits.at(-1)!, topK, random()));
      this.inputs.push({ id: ids.at(-1)!, text: "" });
      this.output = this.target.decode(ids).slice(this.target.decode(prompt).length);
      if (ids.at(-1) === this.rules.eos) return;
    }
    this.isCut = most > 0 && most < length;
  }

  private choose(logits: Float32Array, topK: number, number: number): number {
    const best = largest(logits, topK, this.rules.banned);
    const shares = Float32Array.from(best, (id) => logits[id]! / this.rules.temperature);
    softmax(shares);
    let rest = number;
    return best.find((_, index) => (rest -= shares[index]!) < 0) ?? best[0]!;
  }
}

const partsOf = (ids: readonly number[]): Part[] => ids.map((id) => ({ id, text: "" }));
const idsOf = (parts: readonly Part[]): number[] => parts.map(({ id }) => id);

/** Return the function that starts a run of a model on a text. */
export function makeRuns({ form, text: rules }: LiveModel): (text: string, choice: Choice, before: Run | null) => { run: Run; steps: Generator<void> } {
  const target = new Tokenizer(rules.target);
  if (rules.kind === "language") {
    return (text, choice, before) => {
      const run = new LanguageRun(form, text, rules, target, before);
      return { run, steps: run.run(choice) };
    };
  }
  const source = rules.source ? new Tokenizer(rules.source) : target;
  return (text) => {
    const run = new TranslationRun(form, text, rules, source, target);
    return { run, steps: run.run() };
  };
}

/** Return the ids of the largest numbers, in descending order; of equal ones the lower id is first. */
export function largest(numbers: Float32Array, count: number, without: readonly number[]): number[] {
  const best: number[] = [];
  for (let id = 0; id < numbers.length; id++) {
    if (best.length === count && numbers[id]! <= numbers[best[count - 1]!]!) continue;
    if (without.includes(id)) continue;
    let at = best.length;
    while (at > 0 && numbers[best[at - 1]!]! < numbers[id]!) at--;
    best.splice(at, 0, id);
    best.length = Math.min(best.length, count);
  }
  return best;
}

function makeRead(sample: Sample, memory: Memory, role: Pick<Read, "kind" | "layer" | "name" | "queries" | "keys">): Read {
  const queries = sample.axes[role.queries]!.labels.length;
  const keys = sample.axes[role.keys]!.labels.length;
  const heads = memory.heads;
  const numbers = new Float32Array(heads * queries * keys).fill(-0);
  const entropy = new Array<number>(heads).fill(0);
  const distance = new Array<number>(heads).fill(0);
  for (let query = 0; query < queries; query++) {
    const weights = memory.weights[query]!;
    const size = weights.length / heads;
    weights.forEach((weight, index) => {
      const [head, key] = [Math.floor(index / size), index % size];
      numbers[(head * queries + query) * keys + key] = weight;
      if (weight > 0) entropy[head]! -= (weight * Math.log(weight)) / queries;
      distance[head]! += (weight * Math.abs(query - key)) / queries;
    });
  }
  const summaries: Read["summaries"] = role.kind === "cross" ? { entropy } : { entropy, distance };
  const names = Array.from({ length: heads }, (_, head) => `head ${head + 1}`);
  const read: Read = {
    ...role, direction: "", measure: "weight", heads: names, facts: {}, summaries, walk: null,
    weights: { form: "whole", dtype: "float32", chunk: "" },
  };
  setTable(read, heads, queries, keys, numbers);
  return read;
}

/** Numbers within [0, 1) that follow from a seed (mulberry32). */
function randomNumbers(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
