/** What the page says in sentences: kinds of reads, summaries, the help. */

import { plural } from "./format.js";
import type { Read, Scene } from "./page.js";

/** What a read does, in words: the name of its group in the pickers. */
export function groupName(scene: Scene, read: Read): string {
  const query = scene.axes[read.queries]?.what ?? "item";
  const keys = plural(scene.axes[read.keys]?.what ?? "item");
  const names: Record<Read["kind"], string> = {
    "encoder self": `Encoder: each ${query} reads all ${keys}`,
    "decoder self": `Decoder: each ${query} reads those before it`,
    cross: `Cross: each ${query} reads the input's ${keys}`,
    recurrent: `Recurrent: each ${query} reads the input's ${keys}`,
    chain: `Chain: each ${query} reads earlier ones`,
    pooling: `Pooling: one summary reads all ${keys}`,
    self: `Self: each ${query} reads all ${keys}`,
    other: `Each ${query} reads ${keys}`,
  };
  const name = names[read.kind] ?? `Each ${query} reads ${keys}`;
  return read.direction ? `${name}, ${read.direction}` : name;
}

/** What the numbers of a read are, in a sentence. */
export const MEASURES: Record<Read["measure"], { name: string; about: string }> = {
  weight: {
    name: "weight",
    about: "How much each query read of each key; as a rule a query's weights sum to 1 over the keys that it may read.",
  },
  "weight x gradient": {
    name: "weight \u00d7 gradient",
    about:
      "dy/da \u00b7 a: how the answer's log-probability y would change, to first order, with the weight a; negative " +
      "where reading more would make the answer less likely.",
  },
  rollout: {
    name: "rollout",
    about:
      "Attention followed back through the layers: the product over layers of (A + I)/2, A the mean over heads " +
      "(Abnar & Zuidema 2020).",
  },
};

/** What no number here tells. */
export const WARNING =
  "Weights say what was read, not why the answer was given: other weights may give the same answer, and how much a " +
  "weight counts depends on the value read and on all that follows (Jain & Wallace 2019; Wiegreffe & Pinter 2019).";

export interface Explained {
  name: string;
  formula: string;
  means: string;
  not: string;
  source: string;
}

/** By the name under which a read holds it. */
export const SUMMARIES: Record<string, Explained> = {
  entropy: {
    name: "entropy",
    formula: "H = mean over queries i of \u2212 sum over keys j of a_ij ln a_ij, in nats",
    means: "0: each query reads one key. ln n: it reads n keys evenly.",
    not: "Whether what it reads matters: an even spread may be all that is needed, and one key may be a place to rest.",
    source: "Shannon 1948",
  },
  distance: {
    name: "mean distance",
    formula: "D = mean over queries i of sum over keys j of a_ij |i \u2212 j|, in entries",
    means: "How far from its own place a query reads; only where queries and keys are the same sequence.",
    not: "The direction, nor whether it reads one far place or many around: 5 before and 5 after is as far as all at 5.",
    source: "Vig & Belinkov 2019",
  },
};

/** Measures that have to be explained beside the summaries. */
export const EXPLAINED: Record<string, Explained> = {
  rollout: {
    name: "attention rollout",
    formula: "R = product over layers l of (mean over heads of A_l + I) / 2",
    means: "How much of each input entry reaches each place, if every layer adds what it read to what it had, half and half.",
    not: "What values and feed-forward layers do: it follows weights alone, and takes all heads to count the same.",
    source: "Abnar & Zuidema 2020",
  },
  "weight x gradient": {
    name: "weight \u00d7 gradient",
    formula: "g_ij = (dy / da_ij) a_ij, y the log-probability of the answer",
    means: "By how much the answer's log-probability would fall, to first order, if this one weight were taken away.",
    not: "Large changes, and weights that act together: a gradient holds near the weights that were, not far from them.",
    source: "Chefer et al. 2021",
  },
};
/** How a summary is explained, also under other names for it. */
export function explained(name: string): Explained | null {
  const plain = name.toLowerCase();
  if (plain.includes("entropy")) return SUMMARIES["entropy"] ?? null;
  if (plain.includes("distance")) return SUMMARIES["distance"] ?? null;
  return EXPLAINED[name] ?? null;
}

/** Keys and what they do, as the help lists them. */
export const KEYS: [keys: string[], does: string][] = [
  [["[", "]"], "head before, next"],
  [["{", "}", "or , ."], "layer before, next"],
  [["v"], "next view"],
  [["\u2190 \u2191 \u2192 \u2193"], "move over the drawing"],
  [["+", "-"], "closer, farther"],
  [["0"], "all of it"],
  [["n", "p"], "pin the next query, the one before: steps through what was said"],
  [["Esc"], "let go of what is pinned; close this help"],
  [["c"], "compare two side by side"],
  [["t"], "light or dark"],
  [["?"], "this help"],
];
