/** Which reads belong together, and which of them to go to when something else is picked. */

import type { Read, Scene } from "./page.js";
import { groupName } from "./texts.js";

/** Reads that differ in the layer only. */
export interface Group {
  id: string;
  name: string;
  reads: Read[];
}

/** What reads of one group have in common, the measure included. */
export function groupId(read: Read): string {
  return [read.measure, read.kind, read.direction, read.queries, read.keys].join("|");
}

/** The reads of a measure, by what they do; each group in the order of its layers. */
export function groupsOf(scene: Scene, measure: Read["measure"]): Group[] {
  const groups = new Map<string, Group>();
  for (const read of scene.reads) {
    if (read.measure !== measure) continue;
    const id = groupId(read);
    const group = groups.get(id) ?? { id, name: groupName(scene, read), reads: [] };
    group.reads.push(read);
    groups.set(id, group);
  }
  const all = [...groups.values()];
  for (const group of all) group.reads.sort((one, other) => one.layer - other.layer);
  for (const group of all) {
    const alike = all.filter((other) => other.name === group.name);
    if (alike.length > 1) alike.forEach((each) => (each.name += ` (${each.reads[0]!.queries}, ${each.reads[0]!.keys})`));
  }
  return all;
}

/** The group that a read is of. */
export function siblings(scene: Scene, read: Read): Read[] {
  const id = groupId(read);
  return scene.reads.filter((each) => groupId(each) === id).sort((one, other) => one.layer - other.layer);
}

/** Measures that the scene has, in the order in which they are offered. */
export function measuresOf(scene: Scene): Read["measure"][] {
  const order: Read["measure"][] = ["weight", "weight x gradient", "rollout"];
  return order.filter((measure) => scene.reads.some((read) => read.measure === measure));
}

/** The read of a scene that is most like another: same kind, measure, direction and layer come first; `now` if they are
 *  as much alike. */
export function alike(scene: Scene, read: Read, now: Read | null = null): Read | null {
  let best: Read | null = null;
  let most = -1;
  for (const each of scene.reads) {
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

/** The read to begin with: weights before other measures, what reads the input before what reads itself. */
export function firstRead(scene: Scene): Read | null {
  const kinds = ["cross", "recurrent", "pooling", "chain", "encoder self", "self", "decoder self", "other"];
  const measure = measuresOf(scene)[0];
  const reads = scene.reads.filter((read) => read.measure === measure);
  const rank = (read: Read) => (kinds.indexOf(read.kind) + 9) % 9;
  reads.sort((one, other) => rank(one) - rank(other) || other.layer - one.layer);
  return reads[0] ?? null;
}

/** The head to begin with: the mean, unless most numbers were cut away, which leaves few that all heads kept. */
export function firstHead(read: Read): number {
  return read.heads.length === 1 || read.weights.form === "top" ? 0 : -1;
}
