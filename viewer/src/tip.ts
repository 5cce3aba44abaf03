/** Tooltip with the labels and the exact number at the pointer. */

import { make, pageZoom } from "./dom.js";
import { formatExact, headName, readable } from "./format.js";
import { siblings } from "./reads.js";
import type { Shown, Table } from "./view.js";

type Point = { x: number; y: number };

const GAP = 14;
const tip = make("div", { id: "tip", role: "tooltip", hidden: true });
let openedAt: Point | null = null;

export function addTip(): void {
  document.body.append(tip);
}

export function hideTip(): void {
  tip.hidden = true;
  openedAt = null;
}

/** Point of the open tooltip; null if none is open. */
export function openTip(): Point | null {
  return openedAt;
}

/** Show the tooltip beside a point (client coordinates); `loadedTable`: table of the shown read, null until it is
 *  loaded. */
export function showTip(
  at: Point,
  shown: Shown,
  loadedTable: Table | null,
  { query, key, more, picture }: { query: number | null; key: number | null; more: string[]; picture?: HTMLElement },
): void {
  const table = loadedTable?.isLoaded(shown.head) ? loadedTable : null;
  const number = table && query !== null && key !== null ? table.value(shown.head, query, key) : null;
  const text = table && number !== null ? formatExact(number, shown.head < 0 ? 9 : table.digits) : "";
  const data = { query: query ?? "", key: key ?? "", head: shown.head, number: text };
  for (const [name, value] of Object.entries(data)) tip.dataset[name] = String(value);
  const lines: (HTMLElement | null)[] = [query === null && key === null ? null : labelLine(shown, query, key)];
  if (query !== null && key !== null) lines.push(numberLine(shown, table, { query, key, text }));
  lines.push(...more.map((line) => make("div", { class: "more" }, line)));
  if (picture) lines.push(picture);
  tip.replaceChildren(...lines.filter((line) => line !== null));
  tip.hidden = false;
  openedAt = at;
  moveTo(at);
}

function labelLine({ sample, read }: Shown, query: number | null, key: number | null): HTMLElement {
  const parts = ([["query", read.queries, query], ["key", read.keys, key]] as const)
    .filter(([, , index]) => index !== null)
    .map(([role, name, index]) => {
      const axis = sample.axes[name]!;
      const label = make("b", {}, readable(axis.labels[index!] ?? "", 40));
      const position = make("span", { class: "pale" }, ` ${axis.kind} ${index! + 1}`);
      return make("span", { class: role }, label, position);
    });
  const line = parts.length === 2 ? [parts[0]!, " \u2192 ", parts[1]!] : parts;
  return make("div", {}, ...line);
}

function numberLine(
  shown: Shown,
  table: Table | null,
  { query, key, text }: { query: number; key: number; text: string },
): HTMLElement {
  const layer = siblings(shown.sample, shown.read).length > 1 ? `layer ${shown.read.layer}` : "";
  const name = [layer, headName(shown.read, shown.head)].filter(Boolean).join(", ");
  const of = make("span", { class: "pale" }, name ? ` ${name}` : "");
  if (text) return make("div", {}, make("b", { class: "number" }, text), of);
  if (!table) return make("div", { class: "pale" }, "\u2026");
  return make("div", { class: "pale" }, `Omitted from this page${boundText(shown, table, query, key)}`, of);
}

/** Text of the upper bound of an omitted weight. */
function boundText(shown: Shown, table: Table, query: number, key: number): string {
  const topK = table.topK(shown.head, query);
  if (!topK?.keys.length) return ".";
  if (shown.head < 0) {
    const partial = topK.numbers[topK.keys.indexOf(key)];
    return partial ? `; the heads that include it give ${formatExact(partial, 9)}.` : " in all heads.";
  }
  const least = topK.numbers.reduce((least, number) => Math.min(least, Math.abs(number)), Infinity);
  return `: at most ${formatExact(least, 9)}${topK.numbers.some((number) => number < 0) ? " in magnitude" : ""}.`;
}

function moveTo({ x, y }: Point): void {
  const { width, height } = tip.getBoundingClientRect();
  const left = x + GAP + width > window.innerWidth - 8 ? x - GAP - width : x + GAP;
  const top = y + GAP + height > window.innerHeight - 8 ? y - GAP - height : y + GAP;
  tip.style.left = `${Math.max(8, left) / pageZoom()}px`;
  tip.style.top = `${Math.max(8, top) / pageZoom()}px`;
}
