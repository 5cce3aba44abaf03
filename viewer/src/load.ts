/** Loading of data from the elements of the page, or of one that was fetched. */

import type { Page } from "./page.js";

/** Version of the page's format. */
const VERSION = 4;

/** An error in the data of the page. */
export class DataError extends Error {}

const chunks = new Map<string, Promise<ArrayBuffer>>();
let fetched: Document | null = null;

/** Return the data of this page, validated as far as needed to show it. */
export async function page(): Promise<Page> {
  const element = find("page");
  if (!element) throw new DataError("This page contains no data: it is the empty viewer.");
  return parsePage(element.textContent ?? "");
}

/** Return the data of a page that was fetched, and load chunks from it from now on. */
export function pageOf(other: Document): Promise<Page> {
  fetched = other;
  chunks.clear();
  return page();
}

/** Return the decompressed bytes of a chunk. */
export function load(name: string): Promise<ArrayBuffer> {
  let bytes = chunks.get(name);
  if (!bytes) {
    bytes = loadChunk(name);
    chunks.set(name, bytes);
  }
  return bytes;
}

/** Parse and validate the data of a page; throws DataError. */
export function parsePage(text: string): Page {
  let value: Partial<Page> | null;
  try {
    value = JSON.parse(text) as Partial<Page> | null;
  } catch (error) {
    throw new DataError(`The page's data is damaged: it is not valid JSON (${(error as Error).message}).`);
  }
  if (value?.format !== "regard page") {
    throw new DataError('The data of this page was not written by regard: its format must be "regard page".');
  }
  if (value.version !== VERSION) {
    throw new DataError(`The version of the data must be ${VERSION}, but is ${String(value.version)}.`);
  }
  if (!Array.isArray(value.captures) || value.captures.length === 0) {
    throw new DataError("The page contains no captures: nothing was recorded.");
  }
  for (const capture of value.captures) {
    const named = `The capture "${capture.title}"`;
    if (!Array.isArray(capture.samples) || capture.samples.length === 0) throw new DataError(`${named} has no samples.`);
  }
  if (!value.captures.some((capture) => capture.samples.some((sample) => sample.reads?.length > 0))) {
    throw new DataError("The page contains no reads: the recorded model has no attention.");
  }
  value.captures.forEach((capture) => capture.samples.forEach(checkSample));
  return value as Page;
}

function checkSample(sample: Page["captures"][number]["samples"][number]): void {
  for (const read of sample.reads) {
    for (const axis of [read.queries, read.keys]) {
      if (!sample.axes?.[axis]) {
        throw new DataError(`The read "${read.name}" of "${sample.title}" has an unknown axis "${axis}".`);
      }
    }
    if (!read.heads?.length) throw new DataError(`The read "${read.name}" of "${sample.title}" has no heads.`);
  }
}

function find(id: string): HTMLElement | null {
  return (fetched ?? document).getElementById(id);
}

async function loadChunk(name: string): Promise<ArrayBuffer> {
  const element = find(`chunk-${name}`);
  if (!element) throw new DataError(`The page is incomplete: its chunk "${name}" is missing.`);
  try {
    return await inflate(decodeBase64(element.textContent ?? ""));
  } catch {
    throw new DataError(`The page is damaged: its chunk "${name}" cannot be unpacked.`);
  }
}

/** Decode base64. */
export function decodeBase64(text: string): Uint8Array<ArrayBuffer> {
  const fast = Uint8Array as unknown as { fromBase64?: (text: string) => Uint8Array<ArrayBuffer> };
  if (fast.fromBase64) return fast.fromBase64(text);
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let index = 0; index < bytes.length; index++) bytes[index] = characters.charCodeAt(index);
  return bytes;
}

/** Decompress a zlib stream. */
export async function inflate(bytes: Uint8Array<ArrayBuffer>): Promise<ArrayBuffer> {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return await new Response(stream).arrayBuffer();
}
