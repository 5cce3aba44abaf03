/** Texts of the page: kinds of reads, summaries, help. */

import { plural } from "./format.js";
import type { Read, Sample } from "./page.js";

/** Name of the group of a read in the pickers. */
export function groupName(sample: Sample, read: Read): string {
  if (read.measure === "contribution") return "All parts of the model";
  if (read.measure === "state") return "Memory that is written";
  const query = sample.axes[read.queries]?.kind ?? "item";
  const keys = plural(sample.axes[read.keys]?.kind ?? "item");
  const queries = read.queries === "output" ? `output ${plural(query)}` : plural(query);
  const names: Record<Read["kind"], string> = {
    "encoder self": `Encoder self-attention (${keys})`,
    "decoder self": `Decoder self-attention (${queries})`,
    cross: `Cross-attention (${queries} to source ${keys})`,
    recurrent: `Decoder attention (${queries} to source ${keys})`,
    chain: `Recurrent self-attention (${queries} to earlier ${keys})`,
    pooling: `Attention pooling (${keys})`,
    self: `Self-attention (${keys})`,
    other: `Attention (${queries} to ${keys})`,
  };
  const name = names[read.kind] ?? names.other;
  return read.direction ? `${name}, ${read.direction}` : name;
}

/** Measures of a read, with a description. */
export const MEASURES: Record<Read["measure"], { name: string; about: string }> = {
  weight: {
    name: "weight",
    about:
      "Attention weight of each query on each key; usually the weights of a query sum to 1 over its unmasked keys. The " +
      "output also depends on the values and on the other parts of the model.",
  },
  "weight x gradient": {
    name: "weight \u00d7 gradient",
    about:
      "a \u00b7 dy/da: the first-order effect of the weight a on the log-probability y of the prediction; negative where a " +
      "larger weight would make the prediction less likely.",
  },
  contribution: {
    name: "contribution",
    about:
      "What each part of the model adds to the score, at the statistics of this input's normalization: " +
      "the first row, all parts, sums to the score; positive numbers are for the answer, negative ones against it. " +
      "An item of an encoder is its state there, which has read the other items.",
  },
  "implied weight": {
    name: "implied weight",
    about:
      "Weight of the value of each key in what the query reads from a memory that is written: no softmax, so weights may be " +
      "negative and do not sum to 1. Decays and corrections of the memory since the key was written are included.",
  },
  state: {
    name: "state",
    about:
      "The matrix S of a memory that is written, after the last item: a query q reads its rows, weighted by the numbers of q.",
  },
  rollout: {
    name: "rollout",
    about:
      "Attention rollout through the layers: the product over layers of (A + I)/2, where A is the mean over heads " +
      "(Abnar & Zuidema 2020).",
  },
};

/** Note below the weights of a sample with contributions. */
export const ONE_PART =
  "These weights are one part of the model: the measure contribution shows what all parts add to the score.";

/** Limits of attention weights as explanations. */
export const WARNING =
  "Attention weights do not explain a prediction: other weights may give the same prediction, and the effect of a " +
  "weight depends on the value vector and on all later layers (Jain & Wallace 2019; Wiegreffe & Pinter 2019).";

export interface Explanation {
  name: string;
  formula: string;
  means: string;
  not: string;
  source: string;
}

/** By the name of the summary in a read. */
export const SUMMARIES: Record<string, Explanation> = {
  entropy: {
    name: "entropy",
    formula: "H = mean over queries i of \u2212 sum over keys j of a_ij ln a_ij, in nats",
    means: "0: each query attends to a single key. ln n: it attends to n keys uniformly.",
    not: "Whether the attention matters: uniform attention may be sufficient, and a single key may be an attention sink.",
    source: "Shannon 1948",
  },
  distance: {
    name: "mean distance",
    formula: "D = mean over queries i of sum over keys j of a_ij |i \u2212 j|, in entries",
    means: "Mean distance between a query and the keys it attends to; only if queries and keys are the same sequence.",
    not: "The direction, or whether it is one distant key or many near ones: half at -5 and half at +5 is the same as all at +5.",
    source: "Vig & Belinkov 2019",
  },
};

/** Measures that are explained next to the summaries. */
export const EXPLAINED: Record<string, Explanation> = {
  rollout: {
    name: "attention rollout",
    formula: "R = product over layers l of (mean over heads of A_l + I) / 2",
    means: "How much of each input reaches each position, if every layer is half attention and half residual connection.",
    not: "The effect of values and feed-forward layers: rollout uses only the weights, with equal importance of all heads.",
    source: "Abnar & Zuidema 2020",
  },
  contribution: {
    name: "contribution",
    formula: "score = sum over parts p and items i of c_pi + bias, exactly; of a decoder: logit of a token = sum over p of c_p",
    means: "How much of the score comes through this part: from the state of the model at this item, or for this token.",
    not: "Where the state of an item comes from: an encoder that mixes items has read the others, a part those before it.",
    source: "Elhage et al. 2021",
  },
  "weight x gradient": {
    name: "weight \u00d7 gradient",
    formula: "g_ij = (dy / da_ij) a_ij, y the log-probability of the prediction",
    means: "The decrease of the log-probability of the prediction, to first order, if this weight were set to zero.",
    not: "Large changes and interactions between weights: a gradient is valid only near the actual weights.",
    source: "Chefer et al. 2021",
  },
};
/** Return the explanation of a summary or measure. */
export function explained(name: string): Explanation | null {
  const plain = name.toLowerCase();
  if (plain.includes("entropy")) return SUMMARIES["entropy"] ?? null;
  if (plain.includes("distance")) return SUMMARIES["distance"] ?? null;
  return EXPLAINED[name] ?? null;
}

/** Keyboard shortcuts, as listed in the help. */
export const KEYS: [keys: string[], does: string][] = [
  [["[", "]"], "previous, next head"],
  [["{", "}", "or , ."], "previous, next layer"],
  [["v"], "next view"],
  [["\u2190 \u2191 \u2192 \u2193"], "pan, or select cells"],
  [["+", "-"], "zoom in, out"],
  [["0"], "reset zoom"],
  [["n", "p"], "pin the next, previous query: step through the output"],
  [["Esc"], "unpin; stop presenting; close this help"],
  [["<", ">"], "previous, next sample"],
  [["c"], "compare two samples side by side"],
  [["f"], "present: fill the screen, with large type"],
  [["s"], "save the view as SVG or PNG"],
  [["t"], "light or dark theme"],
  [["?"], "this help"],
];
