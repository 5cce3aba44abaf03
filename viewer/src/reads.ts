/** Groups of reads, and the choice of a read when the selection changes. */

import type { Read, Sample } from "./page.js";
import { groupName } from "./texts.js";

/** Reads that differ only in the layer. */
export interface Group {
  id: string;
  name: string;
  reads: Read[];
}

/** The identifier of the group of a read. */
export function groupId(read: Read): string {
  return [read.measure, read.kind, read.direction, read.queries, read.keys].join("|");
}

/** The groups of the reads of a measure, each in the order of its layers. */
export function groupsOf(sample: Sample, measure: Read["measure"]): Group[] {
  const groups = new Map<string, Group>();
  for (const read of sample.reads) {
    if (read.measure !== measure) continue;
    const id = groupId(read);
    const group = groups.get(id) ?? { id, name: groupName(sample, read), reads: [] };
    group.reads.push(read);
    groups.set(id, group);
  }
  const all = [...groups.values()];
  for (const group of all) group.reads.sort((one, other) => one.layer - other.layer);
  for (const group of all) {
    const alike = all.filter((other) => other.name === group.name);
    if (alike.length < 2) continue;
    for (const each of alike) each.name += ` (${each.reads[0]!.queries}, ${each.reads[0]!.keys})`;
  }
  return all;
}

/** The reads of the same group, in the order of their layers. */
export function siblings(sample: Sample, read: Read): Read[] {
  const id = groupId(read);
  return sample.reads.filter((each) => groupId(each) === id).sort((one, other) => one.layer - other.layer);
}

/** The measures of a sample, in the order of the picker. */
export function measuresOf(sample: Sample): Read["measure"][] {
  const order: Read["measure"][] = [
    "contribution", "weight", "implied weight", "state", "weight x gradient", "rollout",
  ];
  return order.filter((measure) => sample.reads.some((read) => read.measure === measure));
}

/** Return the read of a sample that is most similar to another one, by kind, measure, direction and layer. Between equal
 *  ones, that of the layer of `now`. */
export function mostSimilar(sample: Sample, read: Read, now: Read | null = null): Read | null {
  let best: Read | null = null;
  let most = -1;
  for (const each of sample.reads) {
    const points =
      32 * Number(each.kind === read.kind) +
      16 * Number(each.measure === read.measure) +
      8 * Number(each.direction === read.direction) +
      4 * Number(each.layer === read.layer) +
      2 * Number(each.queries === read.queries && each.keys === read.keys) +
      Number(each.name === read.name) +
      0.5 * Number(each.layer === now?.layer);
    if (points > most) [best, most] = [each, points];
  }
  return best;
}

/** The initial read: contributions, then weights, before other measures; cross-attention before self-attention. Of
 *  outputs token by token, weights: their alignment shows more than one number for each part of the decoder. */
export function firstRead(sample: Sample): Read | null {
  const kinds = ["cross", "recurrent", "pooling", "chain", "encoder self", "self", "decoder self", "other"];
  const isDecoded = sample.reads.some((read) => read.measure === "contribution" && read.queries === "parts of the decoder");
  const measure = measuresOf(sample).find((each) => !isDecoded || each !== "contribution");
  const reads = sample.reads.filter((read) => read.measure === measure);
  const rank = (read: Read) => (kinds.indexOf(read.kind) + 9) % 9;
  reads.sort((one, other) => rank(one) - rank(other) || other.layer - one.layer);
  return reads[0] ?? null;
}

/** The initial head: the mean, unless most weights are omitted, which leaves few that all heads include. */
export function firstHead(read: Read): number {
  return read.heads.length === 1 || read.weights.form === "top" || !hasMean(read) ? 0 : -1;
}

/** Return true if the mean over the heads of a read is a quantity: heads of contributions are different scores, and
 *  those of a state have numbers of their own. */
export function hasMean(read: Read): boolean {
  return read.measure !== "contribution" && read.measure !== "state";
}
