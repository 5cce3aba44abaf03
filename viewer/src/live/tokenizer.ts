/** Tokenizers as in regard/data/tokenizer.py: characters, words, or BPE. */

import type { TokenizerFile } from "./form.js";

const SPECIALS = ["<pad>", "<unk>", "<s>", "</s>"];
const UNK = 1;
/** White space of Unicode; \s has another character more and one less. */
const SPACE = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const SPACES = new RegExp(`[${SPACE}]+`, "gu");
/** White space of Python. */
const PYTHON = `${SPACE}\\x1c-\\x1f`;
const WORD_ENDS = new RegExp(`(?<=[^${PYTHON}]) (?=[^${PYTHON}])|([${PYTHON}])`, "u");
const ENDS = new RegExp(`^[${PYTHON}]+|[${PYTHON}]+$`, "gu");
const IS_SPACE = new RegExp(`^[${PYTHON}]+$`, "u");
const RUN = "{1,64}";
const CHUNK = new RegExp(
  ` ?&(?:[a-z]+|#[0-9]+);| ?[\\p{L}\\p{M}]${RUN}| ?\\p{N}| ?[^\\p{L}\\p{M}\\p{N}${SPACE}]${RUN}` +
    `|[${SPACE}]${RUN}(?![^${SPACE}])|[${SPACE}]`,
  "gu",
);

/** Return a text without white space around it. */
export const strip = (text: string): string => text.replace(ENDS, "");

/** Token and its part of the normalized text; "" if it is not of a text. */
export interface Part {
  id: number;
  text: string;
}

export class Tokenizer {
  private readonly pieces: string[];
  private readonly ids: Map<string, number>;
  private readonly ranks: Map<string, number>;
  private readonly chunks = new Map<string, Part[]>();

  constructor(private readonly file: TokenizerFile) {
    this.pieces = [...SPECIALS, ...file.pieces];
    // Names of special tokens are no pieces: the text "</s>" does not become one.
    this.ids = new Map(file.pieces.map((piece, index) => [piece, index + SPECIALS.length]));
    this.ranks = new Map(file.merges.map(([left, right], rank) => [`${left}\0${right}`, rank]));
  }

  /** Return the tokens of a text. */
  parts(text: string): Part[] {
    const { kind } = this.file.config;
    const normal = this.normalize(text);
    if (kind === "bpe") return [...normal.matchAll(CHUNK)].flatMap(([chunk]) => this.merge(chunk));
    let chunks = [...normal];
    if (kind === "word") chunks = (this.file.keeps_space ? normal.split(WORD_ENDS) : normal.split(" ")).filter((chunk) => chunk);
    return chunks.map((chunk) => ({ id: this.ids.get(chunk) ?? UNK, text: chunk }));
  }

  /** Return the text of ids, without special tokens. */
  decode(ids: readonly number[]): string {
    const { config, keeps_space } = this.file;
    const shown = ids.filter((id) => id === UNK || id >= SPECIALS.length).map((id) => this.pieces[id]!);
    if (config.kind === "word") {
      const isSpace = (part: string | undefined) => part === undefined || (keeps_space && IS_SPACE.test(part));
      return shown.map((part, index) => (isSpace(part) || isSpace(shown[index - 1]) ? part : ` ${part}`)).join("");
    }
    const text = shown.join("");
    return config.kind === "bpe" && !keeps_space ? text.replace(/^ /, "") : text;
  }

  /** Return the label of a token in pictures. */
  label({ id, text }: Part): string {
    return id === UNK && text ? `<unk:${text}>` : id < SPECIALS.length ? SPECIALS[id]! : this.pieces[id]!.replaceAll(" ", "\u2581");
  }

  private normalize(text: string): string {
    const { config, keeps_space } = this.file;
    let normal = config.normalize === "none" ? text : text.normalize(config.normalize.toUpperCase());
    // Character by character: a sigma at the end of a word is like any other.
    if (config.lowercase) normal = [...normal].map((character) => character.toLowerCase()).join("");
    if (config.kind !== "char" && !keeps_space) {
      normal = normal.replace(SPACES, " ").replace(/^ | $/g, "");
      if (config.kind === "bpe" && normal) normal = ` ${normal}`;
    }
    return normal;
  }

  /** Merge the characters of a chunk: the pair that was learned first, until there is none. */
  private merge(chunk: string): Part[] {
    const known = this.chunks.get(chunk);
    if (known) return known;
    const parts = [...chunk].map((text) => ({ id: this.ids.get(text) ?? UNK, text }));
    for (;;) {
      let [best, at] = [Infinity, -1];
      for (let index = 0; index + 1 < parts.length; index++) {
        const [left, right] = [parts[index]!, parts[index + 1]!];
        const rank = this.ranks.get(`${left.text}\0${right.text}`) ?? Infinity;
        if (rank < best) [best, at] = [rank, index];
      }
      if (at < 0) break;
      const text = parts[at]!.text + parts[at + 1]!.text;
      parts.splice(at, 2, { id: this.ids.get(text)!, text });
    }
    this.chunks.set(chunk, parts);
    return parts;
  }
}
