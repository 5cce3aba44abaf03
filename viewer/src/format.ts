/** Formatting of numbers and labels. */

const SHOWN: Record<string, string> = { "\n": "\u21b5", "\t": "\u21e5", "\r": "\u240d" };
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cn}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/u;
const RIGHT_TO_LEFT = /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;
const ARROW = " -> ";
const ELLIPSIS = "\u2026";

/** Return a token with all characters visible: spaces as open boxes, a lone accent on a dotted circle; truncated. Same
 *  as `readable` in regard/look/figures/labels.py. */
export function readable(token: string, most = 24, spaces = "\u2423"): string {
  if (token === "") return "\u2205";
  let characters = [...token];
  if (characters.length > most) characters = [...characters.slice(0, most - 1), ELLIPSIS];
  const joins = characters.length > 1;
  const shown = characters.map((character) => visible(character, spaces, joins)).join("");
  return /^\p{M}/u.test(shown) ? `\u25cc${shown}` : shown;
}

/** Return a title, "source -> output", as `readable` does. Its sides are isolated (Unicode, UAX 9) if it has text that is
 *  written from right to left, so that they are ordered apart. Same as `isolate_sides` in regard/look/figures/labels.py. */
export function readableTitle(title: string, most: number): string {
  const text = readable(title, most, " ");
  return text.includes(ARROW) && RIGHT_TO_LEFT.test(text) ? text.split(ARROW).map((side) => `\u2068${side}\u2069`).join(ARROW) : text;
}

function visible(character: string, spaces: string, joins: boolean): string {
  const known = SHOWN[character];
  if (known) return known;
  if (joins && (character === "\u200c" || character === "\u200d")) return character;
  if (INVISIBLE.test(character)) {
    return `<${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}>`;
  }
  return /\s/u.test(character) ? spaces : character;
}

/** Return the label of an axis entry; only leading and trailing spaces are marked. */
export function axisLabel(label: string): string {
  return readable(label, 24, label.trim() === label ? " " : "\u2423");
}

/** Format a number exactly, with the significant digits of its dtype: 9 for float32, 5 for float16. */
export function formatExact(number: number, digits: number): string {
  return String(Number(number.toPrecision(digits)));
}

/** Format a number briefly, for tables and legends. A probability below 1 is not 1. */
export function formatShort(number: number): string {
  const size = Math.abs(number);
  if (size === 0) return "0";
  if (number >= 0.9995 && number < 1) return ">.999";
  if (size < 0.0001 || size >= 100_000) return Number(number.toPrecision(3)).toExponential();
  return String(Number(number.toPrecision(size < 1000 ? 3 : 4)));
}

/** Format a number of a column as `formatShort`, but with all three digits: 0.290 below 0.297. */
export function formatAligned(number: number): string {
  const size = Math.abs(number);
  return size >= 0.0001 && size < 0.9995 ? number.toPrecision(3) : formatShort(number);
}

/** Format a score within [0, 1] with two decimals; one that is neither 0 nor 1 is not rounded to them. */
export function formatScore(score: number): string {
  if (score > 0 && score < 0.005) return "<.01";
  return score >= 0.995 && score < 1 ? ">.99" : score.toFixed(2);
}

/** Part of the number with the darkest color below which a cell is empty. */
export const EMPTY = 0.0005;

/** Format the number of a cell with a fixed width: three decimals, or two digits and a power of ten if even the largest
 *  number shown, `most`, is small. A number that is neither 0 nor 1 is not rounded to them. */
export function formatCell(number: number, most = 1): string {
  if (most < 0.01) return number === 0 ? "0" : number.toExponential(1);
  const size = Math.abs(number);
  if (size !== 0 && size < 0.001) return number > 0 ? "<.001" : ">-.001";
  if (size >= 0.9995 && size < 1) return number > 0 ? ">.999" : "<-.999";
  return number.toFixed(3);
}

/** Return the plural: "tokens", "boxes", "entries". */
export function plural(kind: string): string {
  if (/(s|x|z|ch|sh)$/.test(kind)) return `${kind}es`;
  return /[^aeiou]y$/.test(kind) ? `${kind.slice(0, -1)}ies` : `${kind}s`;
}

/** Return "1 token", "3 tokens". */
export function counted(number: number, kind: string): string {
  return `${number.toLocaleString("en")} ${number === 1 ? kind : plural(kind)}`;
}

/** Name of a head: "head 3", "mean over 8 heads"; "" for a read without heads. Of contributions: "score of positive". */
export function headName({ heads, measure }: { heads: string[]; measure: string }, head: number): string {
  if (measure === "contribution") return `score of ${heads[head] ?? ""}`;
  if (heads.length === 1 && !heads[0]) return "";
  if (head < 0 && heads.length > 1) return `mean over ${heads.length} heads`;
  const name = heads[Math.max(0, head)] ?? "";
  return /^\d*$/.test(name) ? `head ${name || head + 1}` : name;
}
