/** Answers as `regard predict --json` has them, readable: texts, tables of what was found, numbers. */

import { make } from "../dom.js";
import { formatShort } from "../format.js";

const MOST_CHARACTERS = 120;

type Entry = Record<string, unknown>;

/** Return the elements of an answer. */
export function answerElements(answer: Entry): Node[] {
  const { input: _, outputs, text, label, ...rest } = answer;
  const elements: Node[] = [];
  const [first, second] = isTable(outputs) ? outputs : [];
  if (second) elements.push(table(outputs as Entry[]));
  else if (first) elements.push(make("p", { class: "served-text" }, String(first["text"])));
  for (const one of [text, label]) if (one !== undefined) elements.push(make("p", { class: "served-text" }, String(one)));
  for (const [name, value] of Object.entries(rest)) elements.push(...named(name, value));
  return elements;
}

function named(name: string, value: unknown): Node[] {
  if (name === "images" && isTable(value)) return value.map((image) => picture(image["pixels"] as number[][][]));
  const title = make("h2", {}, name);
  if (isTable(value)) return [title, value.length ? table(value) : make("p", { class: "pale" }, "none")];
  if (isEntry(value)) return [title, table(Object.entries(value).map(([key, each]) => ({ "": key, [name]: each })))];
  return [make("p", {}, make("span", { class: "pale" }, `${name}: `), plain(value))];
}

function table(rows: Entry[]): HTMLElement {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const head = make("tr", {}, ...names.map((name) => make("th", {}, name)));
  const lines = rows.map((row) => make("tr", {}, ...names.map((name) => make("td", {}, plain(row[name] ?? "")))));
  return make("div", { class: "served-table" }, make("table", {}, head, ...lines));
}

/** Draw pixels (channels, rows, columns), from 0 to 255. */
function picture(pixels: number[][][]): HTMLElement {
  const [height, width] = [pixels[0]!.length, pixels[0]![0]!.length];
  const canvas = make("canvas", { width, height, class: "served-image" });
  const image = new ImageData(width, height);
  for (let index = 0; index < width * height; index++) {
    const [row, column] = [Math.floor(index / width), index % width];
    for (let channel = 0; channel < 3; channel++) image.data[4 * index + channel] = pixels[channel % pixels.length]![row]![column]!;
    image.data[4 * index + 3] = 255;
  }
  canvas.getContext("2d")!.putImageData(image, 0, 0);
  return canvas;
}

function plain(value: unknown): string {
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : formatShort(value);
  const rounded = (_: string, each: unknown) => (typeof each === "number" ? Number(each.toPrecision(4)) : each);
  const text = typeof value === "string" ? value : JSON.stringify(value, rounded);
  return text.length > MOST_CHARACTERS ? `${text.slice(0, MOST_CHARACTERS)} ...` : text;
}

function isEntry(value: unknown): value is Entry {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isTable(value: unknown): value is Entry[] {
  return Array.isArray(value) && value.every(isEntry);
}
