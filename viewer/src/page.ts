/**
 * The data of a page, written by regard/look/page/page.py: JSON, and binary chunks that are loaded by `load`.
 *
 * A page has captures; a capture has samples (one for each input and output); a sample has axes
 * (labels of queries and keys), reads (attention weights between two axes, head by head), pictures that places of an
 * axis lie on, and, for token sequences, the steps of the search.
 */

export interface Page {
  format: "regard page";
  version: 4;
  captures: Capture[];
  /** A note on how the weights were reduced to keep the page small; empty if all are exact. */
  note: string;
}

export interface Capture {
  /** Such as the run's folder. */
  title: string;
  /** A description of the model. */
  model: string;
  samples: Sample[];
}

/** One input and one output. */
export interface Sample {
  title: string;
  /** Text with labels, which is the heading in place of the title; null if there is none. */
  marked: MarkedText | null;
  /** By name; reads and steps refer to them. */
  axes: Record<string, Axis>;
  reads: Read[];
  /** By name; axes refer to them. */
  pictures: Record<string, Picture>;
  /** One for each output token; empty if the output is not a token sequence. Step t is query t of reads whose query
   *  axis is "output". */
  steps: Step[];
}

/** Text whose parts may have labels, such as named entities. */
export interface MarkedText {
  /** In order; the label of a part without one is "". */
  parts: [text: string, label: string][];
  /** All labels of the model, which determine the colors. */
  labels: string[];
}

export interface Axis {
  /** Kind of an entry, in the singular: "token", "patch", "frame", "track", "box", "event", "word", "item". */
  kind: string;
  /** One per entry, unescaped: the page makes spaces and control characters visible. */
  labels: string[];
  /** Name of the picture that places lie on; "" if none. */
  picture: string;
  /** Place of each entry on its picture, null for one without a place (a class token); empty if `picture` is "".
   *  On an image: [left, top, width, height] as fractions of its sides. On a sound: [start, stop] in seconds.
   *  On a plane: [index of the track]. */
  places: (number[] | null)[];
}

export type Kind =
  | "encoder self" | "decoder self" | "cross" | "recurrent" | "chain" | "pooling" | "self" | "other";

export interface Read {
  /** Such as core.decoder.0.cross.read */
  name: string;
  kind: Kind;
  /** From 1. */
  layer: number;
  /** Of a chain: "forward" or "backward"; else "". */
  direction: string;
  /** Quantity of the numbers. Weights are within [0, 1]; the others, but for rollout, may be negative.
   *  Contribution: queries are the parts of the model, keys the items and the bias, heads the scores.
   *  State: queries are the numbers of keys, keys those of values. */
  measure: "weight" | "implied weight" | "state" | "weight x gradient" | "rollout" | "contribution";
  /** Names of axes. */
  queries: string;
  keys: string;
  /** One per head; a read without heads has one, "". */
  heads: string[];
  /** Kernel, mask and bias of the read, as shown on the page. */
  facts: Record<string, string>;
  /** Numbers per head, by name: mean entropy in nats, mean distance in entries; null if undefined. */
  summaries: Record<string, (number | null)[]>;
  weights: Weights;
  /** Vectors from the items to the output, for the view "walk"; null if they were not recorded or are left out. */
  walk: Walk | null;
}

/** Vectors of a read (regard.look.vectors), by name: items, source, queries, keys, values, scores, outputs, result. */
export interface Walk {
  /** Shape of each tensor; those of heads have three axes. The chunk has their float32 numbers, one tensor after the
   *  other. NaN: unknown; -Infinity: masked. */
  tensors: Record<string, number[]>;
  chunk: string;
  /** Weights (out, in) and biases of query, key, value and output, stored alike; null: none, or left out. */
  projections: { tensors: Record<string, number[]>; chunk: string } | null;
  /** Names of the read's projections, also of those that are left out: "query", "query bias" ... */
  projected: string[];
  /** Formulas of the scores and of the weights, such as "Q K^T / sqrt(8)" and "softmax(S)". */
  score: string;
  weight: string;
  /** scale: factor of the inner product, null for other scores; cap: soft cap; beta: of the softmax, null for other
   *  choices; mapped: what maps queries and keys behind their projections, "" if nothing does. */
  formula: {
    score: string;
    scale: number | null;
    cap: number | null;
    choice: string;
    beta: number | null;
    mapped: string;
  };
}

/** Storage of the weights (heads, queries, keys). The weight of a masked pair is -0. */
export type Weights =
  | {
      /** All weights: float32 or float16, little-endian, row by row. */
      form: "whole";
      dtype: "float32" | "float16";
      chunk: string;
    }
  | {
      /** The `count` weights of largest magnitude of each query, exactly, and the largest of each block. */
      form: "top";
      count: number;
      /** float16 (heads, rows, columns): the weight of largest magnitude of each block, signed. Block (r, c) has the
       *  queries from floor(r * Q / rows) and the keys from floor(c * K / columns) up to those of the next. */
      overview: { rows: number; columns: number; chunk: string };
      /** One chunk per head: float32 weights (queries, count) in descending order of magnitude, then their keys (queries,
       *  count) as uint16, or uint32 if there are 65,536 keys or more. 0xFFFF or 0xFFFFFFFF: no weight. */
      heads: string[];
    };

export type Picture =
  | { kind: "image"; url: string; width: number; height: number; labels: string[]; boxes: Box[] }
  /** labels: all labels of the model, also of a sound. hertz: highest frequency of the bands, evenly spaced on the mel scale; 0: unknown. */
  | { kind: "sound"; url: string; seconds: number; hertz: number; labels: string[]; events: SoundEvent[] }
  | { kind: "plane"; unit: string; tracks: Track[] };

export interface Box {
  label: string;
  score: number;
  /** Left, top, width, height as fractions of the image's sides. */
  place: [number, number, number, number];
  /** Index of its query on the axis "queries". */
  query: number;
}

export interface SoundEvent {
  label: string;
  score: number;
  /** Seconds. */
  onset: number;
  duration: number;
  query: number;
}

export interface Track {
  label: string;
  /** Observed positions. */
  history: [number, number][];
  /** Predicted positions. */
  future: [number, number][];
}

export interface Step {
  /** The output token, and its probability given those before it. */
  token: string;
  probability: number;
  /** The most probable tokens at this step, in descending order; the output token may not be among them. */
  alternatives: { token: string; probability: number }[];
  /** Hypotheses after this step, best first; empty in greedy search. Score: log-probability so far. */
  beams: { text: string; score: number; /** True if this output continues it. */ is_prefix: boolean }[];
}
