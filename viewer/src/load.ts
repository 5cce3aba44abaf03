/** The one place where data comes from: the page's own elements. A service would answer here instead. */

import type { Page } from "./page.js";

/** What is wrong with the data, in words for people. */
export class DataError extends Error {}

const brought = new Map<string, Promise<ArrayBuffer>>();

/** The page's description, checked as far as needed to show it. */
export async function page(): Promise<Page> {
  const element = document.getElementById("page");
  if (!element) throw new DataError("This page holds no data: it is the empty viewer, as it was built.");
  return checked(element.textContent ?? "");
}

/** The bytes of a chunk, unpacked. */
export function load(name: string): Promise<ArrayBuffer> {
  let bytes = brought.get(name);
  if (!bytes) {
    bytes = unpacked(name);
    brought.set(name, bytes);
  }
  return bytes;
}

/** The description that a text holds, or a DataError that says what is wrong with it. */
export function checked(text: string): Page {
  let value: Partial<Page> | null;
  try {
    value = JSON.parse(text) as Partial<Page> | null;
  } catch (error) {
    throw new DataError(`The page's data is damaged: it is no JSON (${(error as Error).message}).`);
  }
  if (value?.format !== "regard page") {
    throw new DataError('The data in this page is not what regard writes: its format is not "regard page".');
  }
  if (value.version !== 1) {
    throw new DataError(`This viewer reads version 1 of the data, but the page holds version ${String(value.version)}.`);
  }
  if (!Array.isArray(value.captures) || value.captures.length === 0) {
    throw new DataError("The page holds no captures: nothing was recorded.");
  }
  for (const capture of value.captures) {
    const named = `The capture "${capture.title}"`;
    if (!Array.isArray(capture.scenes) || capture.scenes.length === 0) throw new DataError(`${named} has no scenes.`);
  }
  if (!value.captures.some((capture) => capture.scenes.some((scene) => scene.reads?.length > 0))) {
    throw new DataError("The page holds no reads: the model that was recorded did not attend to anything.");
  }
  value.captures.forEach((capture) => capture.scenes.forEach(checkScene));
  return value as Page;
}

function checkScene(scene: Page["captures"][number]["scenes"][number]): void {
  for (const read of scene.reads) {
    for (const axis of [read.queries, read.keys]) {
      if (!scene.axes?.[axis]) {
        throw new DataError(`The read "${read.name}" of "${scene.title}" names an axis that is not there: "${axis}".`);
      }
    }
    if (!read.heads?.length) throw new DataError(`The read "${read.name}" of "${scene.title}" has no heads.`);
  }
}

async function unpacked(name: string): Promise<ArrayBuffer> {
  const element = document.getElementById(`chunk-${name}`);
  if (!element) throw new DataError(`The page is not complete: its chunk "${name}" is missing.`);
  try {
    return await inflated(decoded(element.textContent ?? ""));
  } catch {
    throw new DataError(`The page is damaged: its chunk "${name}" cannot be unpacked.`);
  }
}

/** The bytes of a text in base64. */
export function decoded(text: string): Uint8Array<ArrayBuffer> {
  const fast = Uint8Array as unknown as { fromBase64?: (text: string) => Uint8Array<ArrayBuffer> };
  if (fast.fromBase64) return fast.fromBase64(text);
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let index = 0; index < bytes.length; index++) bytes[index] = characters.charCodeAt(index);
  return bytes;
}

/** The bytes of a zlib stream. */
export async function inflated(bytes: Uint8Array<ArrayBuffer>): Promise<ArrayBuffer> {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return await new Response(stream).arrayBuffer();
}
