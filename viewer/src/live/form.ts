/** The model of a live page, written by regard/exchange/page.py: a form (regard/layers/forms.py) whose tensors are stored
 *  in two chunks, and the tokenizers and limits of its texts. */

/** Rows of int8 numbers, each with its scale. */
export interface Matrix {
  rows: number; columns: number;
  numbers: Int8Array; scales: Float32Array;
}

/** x W^T + b. */
export interface Linear { weight: Matrix; bias: Float32Array | null }
export interface Norm { size: number; scale: Float32Array | null; shift: Float32Array | null; eps: number; is_rms: boolean }
export interface Embedding { weight: Matrix; scale: number }
export interface FeedForward { expand: Linear; contract: Linear; activation: string; gate: Linear | null }
/** Bias of each distance of a key from its query, from the least: (heads or 1, distances). */
export interface DistanceBias { heads: number; values: Float32Array }
/** rates: angles per position of the pairs of a head. */
export interface Rotary { rates: number[]; interleaved: boolean }
export interface Attention {
  query: Linear; key: Linear; value: Linear; output: Linear;
  num_heads: number; key_heads: number;
  read: { score: { scale: number }; bias: DistanceBias | null };
  rotary: Rotary | null;
  query_norm: Norm | null; key_norm: Norm | null;
}
export interface AddNorm { order: "pre" | "post"; norm: Norm }
export interface Block {
  attention: Attention; add_attention: AddNorm;
  cross: Attention | null; add_cross: AddNorm | null;
  feedforward: FeedForward; add_feedforward: AddNorm;
  window: number | null;
}
/** Learned, or sinusoidal. */
export type Positions = { weight: Matrix } | { dim: number } | null;
export interface Form {
  source: Embedding | null;
  core: {
    encoder_positions: Positions; encoder_embedding_norm: Norm | null; encoder: Block[]; encoder_norm: Norm | null;
    decoder_positions: Positions; decoder_embedding_norm: Norm | null; decoder: Block[]; decoder_norm: Norm | null;
  };
  writer: { inputs: Embedding; output: Embedding; bias: Float32Array | null };
}

/** File of a tokenizer (regard/data/tokenizer.py). */
export interface TokenizerFile {
  config: { kind: "char" | "word" | "bpe"; normalize: "none" | "nfc" | "nfkc"; lowercase: boolean };
  pieces: string[];
  merges: [string, string][];
  keeps_space: boolean;
}

/** Text to text: greedy search. */
export interface Translation {
  kind: "text";
  /** null: that of the target. */
  source: TokenizerFile | null;
  target: TokenizerFile;
  before: number[]; after: number[];
  start: number; eos: number; banned: number[];
  /** Largest number of tokens of an input. */
  limit: number;
  max_ratio: number; max_extra: number; max_length: number;
}

/** A language model: continues a text. */
export interface Language {
  kind: "language";
  target: TokenizerFile;
  before: number[]; banned: number[]; eos: number | null;
  context: number; temperature: number;
}

export interface LiveModel {
  format: "regard live page"; version: number;
  title: string; model: string; example: string;
  text: Translation | Language;
  form: Form;
}

/** Replace the offsets in a form by the numbers of the chunks. */
export function withNumbers(part: unknown, int8: Int8Array, float32: Float32Array): unknown {
  if (Array.isArray(part)) return part.map((each) => withNumbers(each, int8, float32));
  if (typeof part !== "object" || part === null) return part;
  const fields = part as Record<string, number>;
  if ("int8" in fields) {
    const { int8: from, scales: first, rows, columns } = fields as { int8: number; scales: number; rows: number; columns: number };
    return { rows, columns, numbers: int8.subarray(from, from + rows * columns), scales: float32.subarray(first, first + rows) };
  }
  if ("float32" in fields) return float32.subarray(fields["float32"]!, fields["float32"]! + fields["size"]!);
  return Object.fromEntries(Object.entries(fields).map(([name, each]) => [name, withNumbers(each, int8, float32)]));
}
