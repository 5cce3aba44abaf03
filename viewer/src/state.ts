/** The state of the page in the fragment of its address: #scene=0&read=NAME&head=2&view=links&query=3 */

import type { Capture, Page, Read, Sample } from "./page.js";
import { firstHead, firstRead } from "./reads.js";
import type { Shown } from "./view.js";

/** What a pane shows, and in which view. */
export interface State {
  shown: Shown;
  view: string;
}

/** The fragment's part of one pane; the second pane's names begin with "b.". */
export function written(page: Page, { shown, view }: State, prefix = ""): string {
  const fields: [string, string | number | null][] = [
    ["capture", page.captures.indexOf(shown.capture) || null],
    ["scene", shown.capture.scenes.indexOf(shown.sample)],
    ["read", shown.read.name],
    ["measure", shown.read.measure === "weight" ? null : shown.read.measure],
    ["head", shown.head],
    ["view", view],
    ["scale", shown.scale === defaultScale(shown.sample, shown.read) ? null : shown.scale],
    ["query", shown.query],
    ["key", shown.key],
  ];
  return fields
    .filter(([, value]) => value !== null)
    .map(([name, value]) => `${prefix}${name}=${encodeURIComponent(String(value))}`)
    .join("&");
}

/** The state of a fragment; unknown values are ignored. Null if no sample of the page has reads. */
export function read(page: Page, fragment: string, prefix = ""): State | null {
  const fields = new Map(
    fragment
      .replace(/^#/, "")
      .split("&")
      .map((field) => field.split("=", 2) as [string, string?])
      .map(([name, value]) => [name, plain(value ?? "")] as const),
  );
  const field = (name: string) => fields.get(prefix + name);
  const place = placed(page, field("capture"), field("scene"));
  if (!place) return null;
  const { capture, sample } = place;
  const named = sample.reads.filter((each) => each.name === field("read"));
  const measure = field("measure") ?? "weight";
  const chosen = named.find((each) => each.measure === measure) ?? named[0] ?? firstRead(sample);
  if (!chosen) return null;
  const shown: Shown = {
    capture,
    sample,
    read: chosen,
    head: whole(field("head"), -1, chosen.heads.length) ?? firstHead(chosen),
    query: whole(field("query"), 0, sample.axes[chosen.queries]!.labels.length),
    key: whole(field("key"), 0, sample.axes[chosen.keys]!.labels.length),
    scale: scaleNamed(field("scale")) ?? defaultScale(sample, chosen),
  };
  if (chosen.heads.length === 1) shown.head = 0;
  return { shown, view: field("view") ?? "" };
}

/** Numbers that are no weights have no natural largest value, and over the many places of a picture all are small. */
export function defaultScale(sample: Sample, read: Read): Shown["scale"] {
  const isPlaced = [read.queries, read.keys].some((axis) => sample.pictures[sample.axes[axis]?.on ?? ""]);
  return read.measure === "weight" && read.weights.form === "whole" && !isPlaced ? "one" : "largest";
}

function plain(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

function scaleNamed(text: string | undefined): Shown["scale"] | null {
  return text === "one" || text === "largest" ? text : null;
}

function whole(text: string | undefined, from: number, to: number): number | null {
  const number = Number(text);
  return text && Number.isInteger(number) && number >= from && number < to ? number : null;
}

function placed(page: Page, capture?: string, sample?: string): { capture: Capture; sample: Sample } | null {
  const asked = page.captures[whole(capture, 0, page.captures.length) ?? 0]!;
  const there = asked.scenes[whole(sample, 0, asked.scenes.length) ?? 0]!;
  if (there.reads.length) return { capture: asked, sample: there };
  for (const each of page.captures) {
    const found = each.scenes.find((one) => one.reads.length);
    if (found) return { capture: each, sample: found };
  }
  return null;
}
