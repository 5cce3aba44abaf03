/** Lists of entries beside a picture: chips, and bars with numbers. */

import { make } from "../dom.js";
import { axisLabel, formatAligned, formatShort } from "../format.js";
import type { Axis } from "../page.js";
import { largestIndices, maxMagnitude } from "./largest.js";
import { entryLabel } from "./selection.js";

/** Largest number of chips in a list. */
const MOST_CHIPS = 600;

/** Create the button of an entry. */
export function chip(axis: Axis, entry: number): HTMLButtonElement {
  const label = axis.labels[entry] ?? "";
  const attributes = { type: "button", class: "chip", "data-entry": entry, "aria-pressed": "false", title: label };
  return make("button", attributes, axisLabel(label));
}

/** Heading of predictions that are no detections. */
export function belowThreshold(count: number): string {
  return `${count} below the threshold`;
}

export function chips(axis: Axis, entries: readonly number[], about: string): HTMLElement {
  const group = make("div", { class: "chips", role: "group", "aria-label": about });
  group.append(...entries.slice(0, MOST_CHIPS).map((entry) => chip(axis, entry)));
  const left = entries.length - MOST_CHIPS;
  if (left > 0) group.append(make("span", { class: "more" }, `and ${left} more`));
  return group;
}

/** Mark the button of the selected entry as pressed. */
export function markPressed(group: HTMLElement, entry: number | null): void {
  for (const button of group.querySelectorAll<HTMLElement>("[data-entry]"))
    button.setAttribute("aria-pressed", String(Number(button.dataset["entry"]) === entry));
}

export interface Bar {
  label: string;
  number: number;
  /** Fraction of the longest bar, within [0, 1]. */
  length: number;
  isMarked?: boolean;
  text?: string;
}

/** Create a list of labels, bars and numbers. */
export function bars(rows: readonly Bar[], about: string): HTMLElement {
  const list = make("ol", { class: "bars", "aria-label": about });
  for (const { label, number, length, isMarked, text } of rows) {
    const fill = make("span", { class: number < 0 ? "bar-fill is-below" : "bar-fill" });
    fill.style.width = `${Math.max(0, Math.min(1, length)) * 100}%`;
    list.append(
      make("li", { class: isMarked ? "is-marked" : "", title: label },
        make("span", { class: "bar-label" }, isMarked ? `\u2713\u00a0${label}` : label),
        make("span", { class: "bar-track" }, fill),
        make("span", { class: "bar-number" }, text ?? formatAligned(number))),
    );
  }
  return list;
}

/** Create bars of the entries with the largest numbers. */
export function largestBars(
  axis: Axis,
  numbers: Float32Array,
  { count, about, most = maxMagnitude(numbers) || 1 }: { count: number; about: string; most?: number },
): HTMLElement {
  const rows = largestIndices(numbers, count).map((entry) => ({
    label: entryLabel(axis, entry),
    number: numbers[entry]!,
    length: Math.abs(numbers[entry]!) / most,
  }));
  if (rows.length) return bars(rows, about);
  return make("p", { class: "note" }, "nothing");
}

/** Create the legend of colors over a picture, between the ends `from` and `to`, with a mark at the uniform weight.
 *  least: magnitude up to which places are clear; most: that of the darkest color. */
export function heatLegend(
  [from, to]: [string, string],
  { least, most, uniform }: { least: number; most: number; uniform: number },
): HTMLElement {
  const isSigned = from !== "0";
  const scale = make("span", { class: isSigned ? "heat-scale is-signed" : "heat-scale" });
  const legend = make("span", { class: "heat-legend", "aria-label": `colors from ${from} to ${to}` }, from, scale, to);
  if (uniform <= most) {
    const mark = make("i", { class: "uniform-mark" });
    mark.style.left = `${(uniform / most) * 100}%`;
    scale.append(mark);
    legend.append(make("span", { class: "pale" }, `uniform ${formatShort(uniform)}`));
    legend.title = "The mark is the uniform weight: 1 / number of keys";
  }
  if (isSigned) legend.append(make("span", { class: "pale" }, `clear: within \u00b1${formatShort(least)}, half of the places`));
  return legend;
}
