/** Color scales of numbers, in equal steps of lightness, and a color-blind-safe palette of categories. */

import type { Read } from "./page.js";
import type { Shown, Table } from "./view.js";

/** White to dark blue: CIELAB lightness 100, 89.5, ... 16 (regard/look/figures/alignment.py). */
const LIGHT = "#ffffff #cfe3fd #9ec7fc #6aaafb #468de4 #2971c6 #0c56a5 #073e7a #032751";
/** Dark background to light blue: lightness 8.5, 18.9, ... 92, OKLCH hue 255. */
const DARK = "#15191d #1c2f47 #214675 #295fa0 #3779c8 #5895e1 #7eb1f3 #a8ceff #daeafe";
/** Negative numbers: white or the dark background to orange, in equal steps; OKLCH hue 60. */
const LIGHT_BELOW = "#ffffff #fcdbc1 #f1b88a #e39652 #c57a35 #a56019 #814a11 #5e340a #3e2104";
const DARK_BELOW = "#15191d #3c2a1c #5e3e23 #825329 #a76a33 #c6844a #dfa16e #f4c198 #ffe3ce";
/** Palette of Okabe and Ito. */
const CATEGORIES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#000000"];
const STEPS = 512;

/** Return true in the dark theme. */
export function isDark(): boolean {
  return document.documentElement.dataset["theme"] === "dark";
}

/** Color of the nth category; black is lightened in the dark theme. */
export function category(index: number): string {
  const color = CATEGORIES[index % CATEGORIES.length]!;
  return isDark() && color === "#000000" ? "#e8edf2" : color;
}

/** Return true if the numbers of a read may be negative. */
export function isSigned(read: Read): boolean {
  return read.measure !== "weight" && read.measure !== "rollout";
}

/** Number with the darkest color. */
export function darkest(shown: Shown, table: Table): number {
  if (shown.scale === "one") return 1;
  const bias = shown.read.measure === "contribution" ? shown.sample.axes[shown.read.keys]!.labels.indexOf(BIAS) : -1;
  const most = Math.abs(bias < 0 ? table.maxMagnitude(shown.head) : mostBefore(bias, shown.head, table));
  return most || Math.abs(table.maxMagnitude(shown.head)) || 1;
}

/** Label of the key after the items that has the bias (regard/look/measures.py): a bias may be much larger than the
 *  contributions of items, which then would have no color. */
const BIAS = "(bias)";

/** Largest magnitude of the keys before one. */
function mostBefore(end: number, head: number, table: Table): number {
  let most = 0;
  for (let query = 0; query < table.queries; query++) {
    const row = table.row(head, query);
    for (let key = 0; key < end; key++) most = Math.max(most, Math.abs(row[key]!));
  }
  return most;
}

/** Color scale from 0 (or -`most` if signed) to `most`. */
export interface Scale {
  readonly most: number;
  readonly signed: boolean;
  /** CSS color, such as "rgb(1, 2, 3)". */
  css(number: number): string;
  /** Pixel of ImageData as a 32-bit integer (little-endian: alpha, blue, green, red). */
  bytes(number: number): number;
  /** Text color with sufficient contrast. */
  ink(number: number): string;
}

export function scaleTo(most: number, signed: boolean, dark = isDark()): Scale {
  const up = ramp(dark ? DARK : LIGHT);
  const down = signed ? ramp(dark ? DARK_BELOW : LIGHT_BELOW) : up;
  const bytes = (number: number) => {
    const share = Math.min(1, Math.abs(number) / most) || 0;
    return (number < 0 ? down : up)[Math.round(share * (STEPS - 1))]!;
  };
  return {
    most,
    signed,
    bytes,
    css: (number) => css(bytes(number)),
    ink: (number) => (luminance(bytes(number)) > 0.179 ? "#000000" : "#ffffff"),
  };
}

/** Color scale of the shown head. */
export function scaleOf(shown: Shown, table: Table): Scale {
  return scaleTo(darkest(shown, table), isSigned(shown.read));
}

/** Color of omitted weights. */
export function omittedColor(dark = isDark()): number {
  return packed(dark ? [44, 44, 47] : [238, 237, 233]);
}

/** CSS color of a pixel. */
export function css(bytes: number): string {
  return `rgb(${bytes & 255}, ${(bytes >> 8) & 255}, ${(bytes >> 16) & 255})`;
}

/** Relative luminance (WCAG 2); at 0.18 black and white text have the same contrast. */
export function luminance(bytes: number): number {
  const linear = (byte: number) => {
    const share = byte / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * linear(bytes & 255) + 0.7152 * linear((bytes >> 8) & 255) + 0.0722 * linear((bytes >> 16) & 255);
}

function packed([red, green, blue]: [number, number, number]): number {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

const ramps = new Map<string, Uint32Array>();

function ramp(colors: string): Uint32Array {
  let bytes = ramps.get(colors);
  if (!bytes) {
    const stops = colors.split(" ").map((color) => {
      const number = Number.parseInt(color.slice(1), 16);
      return [number >> 16, (number >> 8) & 255, number & 255] as const;
    });
    bytes = Uint32Array.from({ length: STEPS }, (_, step) => {
      const position = (step / (STEPS - 1)) * (stops.length - 1);
      const below = Math.min(stops.length - 2, Math.floor(position));
      const [from, to] = [stops[below]!, stops[below + 1]!];
      const mixed = ([0, 1, 2] as const).map((part) => Math.round(from[part] + (to[part] - from[part]) * (position - below)));
      return packed(mixed as [number, number, number]);
    });
    ramps.set(colors, bytes);
  }
  return bytes;
}
