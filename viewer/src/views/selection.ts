/** Selected entry of a view of a picture, and the weights between it and each place. */

import { isDark, isSigned } from "../color.js";
import { counted, headName, readable, formatShort } from "../format.js";
import type { Axis, Box, SoundEvent } from "../page.js";
import { uniformWeight } from "../uniform.js";
import type { Pane, Shown, Table } from "../view.js";
import { detectionsOf, entriesWithoutPlace, type PictureAxes } from "./picture-axes.js";
import { lowerHalf, maxMagnitude } from "./largest.js";

export type Side = "query" | "key";

export class Selection {
  /** True if the selected place is a key instead of a query; only if both sides are on the picture. */
  isByKey = false;
  /** Entry under the pointer; takes precedence over the pinned entry. */
  hovered: number | null = null;
  private means = new Map<string, Float32Array>();
  private bestKey: number | undefined;

  constructor(
    readonly pane: Pane,
    readonly shown: Shown,
    readonly table: Table,
    readonly axes: PictureAxes,
    before: Selection | null,
  ) {
    if (before?.shown.read === shown.read) this.isByKey = before.isByKey;
  }

  /** Side of the selected entry; the weights are drawn over the other side. */
  get side(): Side {
    if (this.axes.isSameAxis) return this.isByKey ? "key" : "query";
    return this.axes.heatAxis === "keys" ? "query" : "key";
  }

  get heatSide(): Side {
    return this.side === "query" ? "key" : "query";
  }

  axis(side: Side): Axis {
    const { sample, read } = this.shown;
    return sample.axes[side === "query" ? read.queries : read.keys]!;
  }

  /** Selected entry: under the pointer, pinned, or the initial one; null: the mean over all entries. */
  get entry(): number | null {
    const entry = this.hovered ?? this.shown[this.side] ?? this.initial;
    return entry !== null && entry < this.axis(this.side).labels.length ? entry : null;
  }

  /** Entry that is shown before one is chosen: all parts of contributions, or the detection with the largest score. */
  private get initial(): number | null {
    if (this.shown.read.measure === "contribution" && this.side === "query") return 0;
    const best = this.hasDetections ? this.detections[0]?.query : undefined;
    return best ?? onlyEntry(this.axis(this.side), this.axes.isSameAxis) ?? this.mostVariableKey();
  }

  /** Detections of the picture, the largest score first. */
  get detections(): (Box | SoundEvent)[] {
    return [...detectionsOf(this.axes.picture)].sort((one, other) => other.score - one.score);
  }

  /** True if the entries of the selected side made the detections of the picture. */
  get hasDetections(): boolean {
    const { sample, read } = this.shown;
    const name = this.side === "query" ? read.queries : read.keys;
    return name === "queries" || (!sample.axes["queries"] && !this.axes.isSameAxis);
  }

  /** Entries of the selected side that made detections, the largest score first, and the others, whose scores are below
   *  the threshold; null if the entries are not predictions with scores. */
  get byThreshold(): { detected: number[]; below: number[] } | null {
    const axis = this.axis(this.side);
    const name = this.side === "query" ? this.shown.read.queries : this.shown.read.keys;
    if (name !== "queries" || this.axes.isSameAxis || !axis.places.length) return null;
    const { detections } = this;
    // A detector may find nothing; entries of another kind have no threshold.
    if (!detections.length && !["box", "event"].includes(axis.kind)) return null;
    const detected = detections.map(({ query }) => query);
    return { detected, below: axis.labels.map((_, entry) => entry).filter((entry) => !detected.includes(entry)) };
  }

  /** Side on the picture; keys if both are. */
  get pictureSide(): Side {
    return this.axes.heatAxis === "keys" ? "key" : "query";
  }

  /** Side of the places under the pointer. */
  get hoverSide(): Side {
    return this.axes.isSameAxis ? this.side : this.pictureSide;
  }

  get isPinned(): boolean {
    return this.shown[this.side] !== null;
  }

  /** Weights between the selected entry and each place; without a selected entry, the mean over all entries. */
  numbers(): Float32Array {
    const { entry } = this;
    return entry === null ? this.mean() : this.numbersOf(this.side, entry);
  }

  /** Weights of an entry: a row for a query, a column for a key. */
  numbersOf(side: Side, entry: number): Float32Array {
    return side === "query" ? this.table.row(this.shown.head, entry) : this.table.column(this.shown.head, entry);
  }

  /** Number with the full color: the largest of those with a place on the picture. */
  colorMax(all: Float32Array): number {
    const { places } = this.axis(this.heatSide);
    const numbers = places.length ? all.filter((_, entry) => places[entry]) : all;
    return this.shown.scale === "one" && this.shown.read.measure === "weight" ? 1 : maxMagnitude(numbers) || 1;
  }

  /** Magnitude up to which a place is clear: of weights 0, of signed numbers that of half of the places, so that the
   *  picture is in sight where all numbers are alike. */
  clearUpTo(all: Float32Array): number {
    if (!isSigned(this.shown.read)) return 0;
    const { places } = this.axis(this.heatSide);
    return lowerHalf(all.filter((_, entry) => places[entry]));
  }

  /** Weight of each key if the selected query attended to all keys alike; NaN if there is none. */
  get uniform(): number {
    return uniformWeight(this.shown, this.table, this.side === "query" ? this.entry : null) ?? NaN;
  }

  /** Pin an entry; unpin it if it is pinned. */
  pick(entry: number | null): void {
    const isAgain = entry === this.shown[this.side];
    this.pane.choose({ query: null, key: null, [this.side]: isAgain ? null : entry });
  }

  /** Pin the entry that is by a number of entries behind the shown one, of detections in the order of their list. */
  step(by: number): void {
    const { detected, below } = this.byThreshold ?? { detected: [], below: this.axis(this.side).labels.map((_, i) => i) };
    const order = [...detected, ...below];
    const from = this.shown[this.side] ?? this.initial;
    const at = from === null ? 0 : Math.min(order.length - 1, Math.max(0, order.indexOf(from) + by));
    this.hovered = null;
    this.pane.choose({ query: null, key: null, [this.side]: order[at]! });
  }

  /** Caption of the picture. */
  caption(): string {
    const { entry } = this;
    const axis = this.axis(this.side);
    const head = headName(this.shown.read, this.shown.head);
    const isQuery = this.side === "query";
    const all = counted(axis.labels.length, axis.kind);
    const mean = isQuery ? `weights of queries, mean over ${all}` : `weights on keys, mean over ${all}`;
    const name = entry === null ? "" : this.entryName(entry);
    const isContribution = this.shown.read.measure === "contribution";
    const single = isContribution ? `contributions: ${name}` : isQuery ? `weights of query ${name}` : `weights on key ${name}`;
    return [entry === null ? mean : single, head].filter(Boolean).join(" \u00b7 ");
  }

  /** Label of an entry, with that of its detection. */
  private entryName(entry: number): string {
    const detection = this.hasDetections ? detectionsOf(this.axes.picture).find(({ query }) => query === entry) : undefined;
    const name = entryLabel(this.axis(this.side), entry);
    return detection && !name.includes(detection.label) ? `${name} (${readable(detection.label, 24, " ")})` : name;
  }

  /** Show the tooltip of a place and the selected entry, or of an entry alone. */
  tip(at: { x: number; y: number } | null, side: Side, entry: number | null, more: string[] = []): void {
    const selected = this.entry;
    const pair = { query: null as number | null, key: null as number | null, [side]: entry };
    if (entry !== null && side === this.heatSide && selected !== null) pair[this.side] = selected;
    this.pane.tip(at, this.shown, pair.query, pair.key, more);
  }

  /** Key whose weights vary most over queries. (The mean over keys says nothing: weights of a query sum to 1.) */
  private mostVariableKey(): number | null {
    if (this.side === "query" || this.axes.isSameAxis || this.shown.read.measure !== "weight") return null;
    if (this.bestKey === undefined) {
      const variances = this.axis("key").labels.map((_, key) => variance(this.numbersOf("key", key)));
      this.bestKey = variances.indexOf(Math.max(...variances));
    }
    return this.bestKey;
  }

  private mean(): Float32Array {
    const key = `${this.side}`;
    let mean = this.means.get(key);
    if (!mean) {
      const count = this.axis(this.side).labels.length;
      mean = new Float32Array(this.axis(this.heatSide).labels.length);
      for (let i = 0; i < count; i++) this.numbersOf(this.side, i).forEach((number, j) => (mean![j]! += number / count));
      this.means.set(key, mean);
    }
    return mean;
  }
}

function variance(numbers: Float32Array): number {
  let [sum, squares] = [0, 0];
  for (const number of numbers) {
    sum += number;
    squares += number * number;
  }
  return squares / numbers.length - (sum / numbers.length) ** 2;
}

/** The only entry, or the only one without a place (a class token). */
function onlyEntry(axis: Axis, isSameAxis: boolean): number | null {
  if (axis.labels.length === 1) return 0;
  const unplaced = isSameAxis ? entriesWithoutPlace(axis) : [];
  return unplaced.length === 1 ? unplaced[0]! : null;
}

/** Label of an entry, with its kind or number if the label alone is not clear. */
export function entryLabel(axis: Axis, entry: number): string {
  const label = axis.labels[entry] ?? "";
  if (label === "") return `${axis.kind} ${entry + 1}`;
  // "patch 5, 4" instead of "5, 4".
  const text = readable(label, 24, " ");
  if (axis.kind === "token" || axis.kind === "word") return `\u201c${text}\u201d`;
  return /\p{L}/u.test(label) ? text : `${axis.kind} ${text}`;
}

/** Colors over pictures: of weights magenta, which few pictures have; of signed numbers blue and orange, as in the
 *  other views. The legend has the same (views.css). */
const [WEIGHT, POSITIVE, NEGATIVE] = ["230, 0, 126", "12, 86, 165", "213, 94, 0"];

/** Color of a number over a picture. */
export function overlayColor(number: number, { least, most, opacity, isSigned }: Strength): string {
  const share = most > least ? Math.max(0, Math.min(1, (Math.abs(number) - least) / (most - least))) : 0;
  const color = !isSigned ? WEIGHT : number < 0 ? NEGATIVE : POSITIVE;
  return `rgba(${color}, ${(share * opacity).toFixed(4)})`;
}

export interface Strength {
  /** Magnitude up to which a place is clear. */
  least: number;
  /** Number with the full color, and its opacity. */
  most: number;
  opacity: number;
  /** True if the numbers may be negative. */
  isSigned: boolean;
}

/** Color of lines and areas of weights. */
export function lineColor(isNegative = false): string {
  if (isNegative) return isDark() ? "#f0a050" : "#c25e00";
  return isDark() ? "#6db0ff" : "#1663c4";
}

/** Ends of the color scale as texts, such as "0" and "0.084". */
export function colorRange(light: Selection, most: number): [string, string] {
  return [isSigned(light.shown.read) ? formatShort(-most) : "0", formatShort(most)];
}
