/** The header of a view: title of the sample, pickers, and the tabs of the views. */

import { category, isSigned } from "./color.js";
import { make } from "./dom.js";
import { readable, readableTitle } from "./format.js";
import type { MarkedText } from "./page.js";
import type { Panel } from "./pane.js";
import { groupId, groupsOf, hasMean, measuresOf, siblings } from "./reads.js";
import { MEASURES } from "./texts.js";
import type { View } from "./view.js";

/** Number of characters from which a title is set in a smaller font. */
const LONG_TITLE = 160;
const LONGEST_TITLE = 20_000;

interface Option {
  value: string;
  name: string;
  group?: string;
}

/** Return the elements above a view. */
export function pickers(pane: Panel, view: View): HTMLElement[] {
  const { sample, capture } = pane.shown;
  const text = readableTitle(sample.title, LONGEST_TITLE);
  const plain = make("h1", { class: text.length > LONG_TITLE ? "long" : "", title: text }, text);
  const title = sample.marked ? markedHeading(sample.marked) : plain;
  const model = make("p", { class: "model" }, capture.title);
  if (capture.model) model.append(make("span", { class: "pale" }, ` ${capture.model}`));
  const choices = [samplePicker(pane), measurePicker(pane), groupPicker(pane), layerPicker(pane), headPicker(pane, view)];
  const shown = choices.filter((choice) => choice !== null);
  return [
    make("header", {}, title, model),
    make("div", { class: "pickers" }, ...shown),
    tabs(pane, view),
  ];
}

/** Heading with a text whose labeled parts have the colors of their labels. */
function markedHeading({ parts, labels }: MarkedText): HTMLElement {
  const children = parts.map(([text, label]) => {
    const shown = readable(text, LONGEST_TITLE, " ");
    if (!label) return shown;
    const mark = make("mark", {}, shown, make("small", {}, label));
    mark.style.setProperty("--label", category(labels.indexOf(label)));
    return mark;
  });
  return make("h1", { class: "marked", dir: "auto" }, ...children);
}

function picker(
  name: string,
  options: Option[],
  selected: string,
  choose: (value: string) => void,
): HTMLElement {
  const select = make("select", { "data-control": name.toLowerCase() });
  const groups = new Map<string, HTMLElement>();
  for (const { value, name, group } of options) {
    let parent: HTMLElement = select;
    if (group) {
      parent = groups.get(group) ?? make("optgroup", { label: group });
      if (!groups.has(group)) select.append(parent);
      groups.set(group, parent);
    }
    parent.append(make("option", { value, selected: value === selected }, name));
  }
  select.value = selected;
  select.addEventListener("change", () => {
    // After a choice by pointer, letters are shortcuts of the page again.
    if (!select.matches(":focus-visible")) select.blur();
    choose(select.value);
  });
  return make("label", { class: `picker ${name.toLowerCase()}` }, make("span", {}, name), select);
}

function samplePicker(pane: Panel): HTMLElement | null {
  const { captures } = pane.page;
  const all = captures.flatMap((capture) => capture.samples.map((sample) => ({ capture, sample })));
  const full = all.filter(({ sample }) => sample.reads.length);
  if (full.length < 2) return null;
  const options = full.map(({ capture, sample }, index) => ({
    value: String(index),
    name: readableTitle(sample.title, 70),
    ...(captures.length > 1 ? { group: capture.title } : {}),
  }));
  const selected = full.findIndex(({ sample }) => sample === pane.shown.sample);
  return picker("Sample", options, String(selected), (value) => pane.choose({ ...full[Number(value)]!, query: null, key: null }));
}

function measurePicker(pane: Panel): HTMLElement | null {
  const { sample, read } = pane.shown;
  const measures = measuresOf(sample);
  if (measures.length < 2) return null;
  const options = measures.map((value) => ({ value, name: MEASURES[value].name }));
  return picker("Measure", options, read.measure, (value) => {
    const target = { ...read, measure: value as typeof read.measure };
    const reads = sample.reads.filter((each) => each.measure === value);
    const same = reads.filter((each) => groupId(each) === groupId(target));
    pane.choose({ read: same.find((each) => each.layer === read.layer) ?? same[0] ?? reads[0]! });
  });
}

function groupPicker(pane: Panel): HTMLElement {
  const { sample, read } = pane.shown;
  const groups = groupsOf(sample, read.measure);
  const options = groups.map(({ id, name }) => ({ value: id, name }));
  return picker("Attention", options, groupId(read), (value) => {
    const reads = groups.find(({ id }) => id === value)!.reads;
    pane.choose({ read: reads.find((each) => each.layer === read.layer) ?? reads[reads.length - 1]! });
  });
}

function layerPicker(pane: Panel): HTMLElement | null {
  const { sample, read } = pane.shown;
  const reads = siblings(sample, read);
  if (reads.length < 2) return null;
  const distinct = new Set(reads.map((each) => each.layer)).size === reads.length;
  const options = reads.map((each, index) => ({
    value: String(index),
    name: distinct ? String(each.layer) : `${each.layer} (${each.name})`,
  }));
  return picker("Layer", options, String(reads.indexOf(read)), (value) => pane.choose({ read: reads[Number(value)]! }));
}

function headPicker(pane: Panel, view: View): HTMLElement | null {
  const { heads } = pane.shown.read;
  if (heads.length < 2) return null;
  const options = [
    ...(hasMean(pane.shown.read) && !view.isOfHead ? [{ value: "-1", name: `mean over ${heads.length}` }] : []),
    ...heads.map((name, index) => ({ value: String(index), name: name || String(index + 1) })),
  ];
  return picker(pane.shown.read.measure === "contribution" ? "Score" : "Head", options, String(pane.shown.head), (value) => pane.choose({ head: Number(value) }));
}

/** Picker of the number with the darkest color. */
export function scalePicker(pane: Panel): HTMLElement {
  const { scale, read } = pane.shown;
  const options: Option[] = [
    { value: "one", name: isSigned(read) ? "-1 to 1" : "0 to 1" },
    { value: "largest", name: "scaled to the largest" },
  ];
  return picker("Colors", options, scale, (value) => pane.choose({ scale: value as typeof scale }));
}

function tabs(pane: Panel, open: View): HTMLElement {
  const buttons = pane.views.map((view) =>
    make(
      "button",
      {
        type: "button",
        role: "tab",
        title: view.about,
        "data-control": `view-${view.name}`,
        "aria-selected": String(view === open),
        click: () => pane.choose({}, view.name),
      },
      view.name,
    ),
  );
  const list = make("div", { role: "tablist", "aria-label": "Views", class: "tablist" }, ...buttons);
  return make("div", { class: "tabs" }, list, make("p", { class: "about" }, open.about));
}
