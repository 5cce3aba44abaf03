/** The state of the page in the fragment of its address: #sample=0&read=NAME&head=2&view=links&query=3 */

import type { Capture, Page, Read, Sample } from "./page.js";
import { firstHead, firstRead, hasMean } from "./reads.js";
import type { Shown } from "./view.js";

/** State of a pane: selection and view. */
export interface State {
  shown: Shown;
  view: string;
}

/** Return the part of the fragment for one pane; names of the second pane begin with "b.". */
export function toFragment(page: Page, { shown, view }: State, prefix = ""): string {
  const fields: [string, string | number | null][] = [
    ["capture", page.captures.indexOf(shown.capture) || null],
    ["sample", shown.capture.samples.indexOf(shown.sample)],
    ["read", shown.read.name],
    ["measure", shown.read.measure === "weight" ? null : shown.read.measure],
    ["head", shown.head],
    ["view", view],
    ["scale", shown.scale === defaultScale(shown.sample, shown.read) ? null : shown.scale],
    ["query", shown.query],
    ["key", shown.key],
    ["part", shown.part || null],
  ];
  return fields
    .filter(([, value]) => value !== null)
    .map(([name, value]) => `${prefix}${name}=${encodeURIComponent(String(value))}`)
    .join("&");
}

/** Parse a fragment; invalid values are ignored. Null if no sample of the page has reads. */
export function fromFragment(page: Page, fragment: string, prefix = ""): State | null {
  const fields = new Map(
    fragment
      .replace(/^#/, "")
      .split("&")
      .map((field) => field.split("=", 2) as [string, string?])
      .map(([name, value]) => [name, decodeComponent(value ?? "")] as const),
  );
  const field = (name: string) => fields.get(prefix + name);
  const location = sampleAt(page, field("capture"), field("sample"));
  if (!location) return null;
  const { capture, sample } = location;
  const named = sample.reads.filter((each) => each.name === field("read"));
  const measure = field("measure") ?? "weight";
  const selected = named.find((each) => each.measure === measure) ?? named[0] ?? firstRead(sample);
  if (!selected) return null;
  const shown: Shown = {
    capture,
    sample,
    read: selected,
    head: parseIndex(field("head"), hasMean(selected) ? -1 : 0, selected.heads.length) ?? firstHead(selected),
    query: parseIndex(field("query"), 0, sample.axes[selected.queries]!.labels.length),
    key: parseIndex(field("key"), 0, sample.axes[selected.keys]!.labels.length),
    scale: parseScale(field("scale")) ?? defaultScale(sample, selected),
    part: field("part") ?? "",
  };
  if (selected.heads.length === 1) shown.head = 0;
  return { shown, view: field("view") ?? "" };
}

/** Default color scale: 0 to 1 only for complete weights outside pictures. Other measures have no natural maximum, and
 *  the weights of the many patches of a picture are small. */
export function defaultScale(sample: Sample, read: Read): Shown["scale"] {
  const isOnPicture = [read.queries, read.keys].some((axis) => sample.pictures[sample.axes[axis]?.picture ?? ""]);
  return read.measure === "weight" && read.weights.form === "whole" && !isOnPicture ? "one" : "largest";
}

function decodeComponent(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

function parseScale(text: string | undefined): Shown["scale"] | null {
  return text === "one" || text === "largest" ? text : null;
}

function parseIndex(text: string | undefined, from: number, to: number): number | null {
  const number = Number(text);
  return text && Number.isInteger(number) && number >= from && number < to ? number : null;
}

function sampleAt(page: Page, capture?: string, sample?: string): { capture: Capture; sample: Sample } | null {
  const inCapture = page.captures[parseIndex(capture, 0, page.captures.length) ?? 0]!;
  const inSample = inCapture.samples[parseIndex(sample, 0, inCapture.samples.length) ?? 0]!;
  if (inSample.reads.length) return { capture: inCapture, sample: inSample };
  for (const each of page.captures) {
    const withReads = each.samples.find((one) => one.reads.length);
    if (withReads) return { capture: each, sample: withReads };
  }
  return null;
}
