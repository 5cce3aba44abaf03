import assert from "node:assert/strict";
import { test } from "node:test";
import type { Page, Read, Sample } from "../src/page.js";
import { mostSimilar, groupsOf, siblings } from "../src/reads.js";
import { fromFragment, toFragment } from "../src/state.js";

function reading(name: string, change: Partial<Read> = {}): Read {
  return {
    name, kind: "cross", layer: 1, direction: "", measure: "weight", queries: "output", keys: "source",
    heads: ["1", "2", "3"], facts: {}, summaries: {}, walk: null, weights: { form: "whole", dtype: "float32", chunk: name }, ...change,
  };
}

function sampleOf(title: string, reads: Read[]): Sample {
  const axis = (length: number) => ({ kind: "token", labels: Array.from({ length }, String), picture: "", places: [] });
  return { title, marked: null, axes: { output: axis(5), source: axis(7) }, reads, pictures: {}, steps: [] };
}

const own = { kind: "encoder self", queries: "source", keys: "source" } as const;
const reads = [
  reading("own.1", own), reading("cross.2", { layer: 2 }), reading("cross.1"),
  reading("cross.1", { measure: "weight x gradient" }),
];
const page: Page = {
  format: "regard page", version: 4, note: "",
  captures: [
    { title: "a", model: "", samples: [sampleOf("empty", []), sampleOf("one", reads)] },
    { title: "b", model: "", samples: [sampleOf("other", [reading("own.1", own), reading("cross.1")])] },
  ],
};

test("an address restores the state", () => {
  const shown = fromFragment(page, "#capture=1&sample=0&read=own.1&head=2&view=links&query=6&scale=largest")!;
  assert.deepEqual(fromFragment(page, toFragment(page, shown)), shown);
  assert.deepEqual(fromFragment(page, toFragment(page, shown, "b."), "b."), shown);
  assert.equal(shown.shown.query, 6);
  assert.equal(shown.shown.scale, "largest");
});

test("an address distinguishes measures of reads with the same name", () => {
  const shown = fromFragment(page, "#sample=1&read=cross.1&measure=weight%20x%20gradient")!;
  assert.equal(shown.shown.read, reads[3]);
  assert.equal(fromFragment(page, toFragment(page, shown))!.shown.read, reads[3]);
});

test("invalid values of an address are ignored", () => {
  const { shown } = fromFragment(page, "#sample=9&read=gone&head=3&query=7&key=x&scale=big&%E0%A4%A")!;
  assert.equal(shown.sample.title, "one");
  assert.equal(shown.read, reads[1]);
  assert.deepEqual([shown.head, shown.query, shown.key, shown.scale], [-1, null, null, "one"]);
});

test("layers of a read are grouped in order", () => {
  const sample = page.captures[0]!.samples[1]!;
  assert.deepEqual(siblings(sample, reads[1]!).map((read) => read.layer), [1, 2]);
  assert.equal(groupsOf(sample, "weight").length, 2);
});

test("the other pane shows the same kind of read, or keeps its layer if there is none", () => {
  const [one, other] = [page.captures[0]!.samples[1]!, page.captures[1]!.samples[0]!];
  assert.equal(mostSimilar(other, reads[1]!)!.name, "cross.1");
  assert.equal(mostSimilar(other, reads[0]!)!.name, "own.1");
  assert.equal(mostSimilar(one, reading("cross.9", { layer: 9 }), reads[1]!)!.layer, 2);
});
