/** Numbers of the view "walk": heads that share keys, projections, reduced matrices. */

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Read, Sample } from "../src/page.js";
import { loadTable } from "../src/table.js";
import { loadWalk, reduceCells } from "../src/walk.js";

const shapes = {
  items: [2, 3], source: [4, 3], queries: [2, 2, 2], keys: [1, 4, 2], values: [1, 4, 5], scores: [2, 2, 4],
  outputs: [2, 2, 5], result: [2, 3],
};
const weights = { query: [4, 3], "query bias": [4], value: [5, 3] };
const read: Read = {
  name: "read", kind: "cross", layer: 1, direction: "", measure: "weight", queries: "q", keys: "k", heads: ["1", "2"],
  facts: {}, summaries: {}, weights: { form: "whole", dtype: "float32", chunk: "a" },
  walk: {
    tensors: shapes, chunk: "w", projections: { tensors: weights, chunk: "p" }, projected: ["query", "query bias", "value"],
    score: "Q K^T", weight: "softmax(S)",
    formula: { score: "Dot()", scale: 1, cap: null, choice: "Soft()", beta: 1, mapped: "" },
  },
};
const axis = (labels: string[]) => ({ kind: "token", labels, picture: "", places: [] });
const sample = { title: "", marked: null, axes: { q: axis(["a", "b"]), k: axis(["c", "d", "e", "f"]) }, reads: [read], pictures: {}, steps: [] } as Sample;
const count = (shape: Record<string, number[]>) => Object.values(shape).reduce((sum, each) => sum + each.reduce((a, b) => a * b, 1), 0);
const numbered = (size: number, from: number) => Float32Array.from({ length: size }, (_, index) => from + index).buffer;
const load = async (name: string) => ({ a: numbered(16, 0), w: numbered(count(shapes), 0), p: numbered(count(weights), 1000) })[name]!;

test("a head has its own queries, and the keys that it shares", async () => {
  const walk = await loadWalk(sample, read, await loadTable(sample, read, load), 1, load);
  assert.equal(walk.X!.at(1, 2), 5);
  assert.equal(walk.source!.at(0, 0), 6);
  assert.equal(walk.Q.at(0, 1), 18 + 4 + 1); // the second head
  assert.equal(walk.K.at(3, 1), 18 + 8 + 7); // the only head of keys
  assert.equal(walk.S.at(1, 3), 18 + 8 + 8 + 20 + 8 + 7);
  assert.equal(walk.A.at(1, 3), 15);
  assert.deepEqual([walk.Q.rows, walk.Q.columns, walk.V.rows, walk.V.columns], [2, 2, 4, 5]);
  assert.equal(walk.projections!.Q!.weight.at(1, 2), 1000 + 6 + 5);
  assert.deepEqual([...walk.projections!.Q!.bias!], [1000 + 12 + 2, 1000 + 12 + 3]);
  assert.equal(walk.projections!.K, undefined);
  assert.deepEqual([walk.titles.Q, walk.titles.K, walk.titles.V], ["Q = X' W_Q + b", "K", "V = X W_V"]);
});

test("in self-attention the rows of both sides have the labels of the keys", async () => {
  const numbers = new Float32Array(4 * 3 + 4 * 3 + 16 + 8 + 20 + 16 + 20).fill(1);
  const self = { items: [4, 3], source: [4, 3], queries: [1, 4, 4], keys: [1, 4, 2], values: [1, 4, 5], scores: [1, 4, 4], outputs: [1, 4, 5] };
  const own = { ...read, heads: ["1"], walk: { ...read.walk!, tensors: self, projections: null } } as Read;
  const axes = { q: axis(["b", "c", "d", "e"]), k: axis(["a", "b", "c", "d"]) };
  const loadSame = async (name: string) => (name === "a" ? numbered(16, 0) : numbers.buffer);
  const table = await loadTable({ ...sample, axes } as Sample, own, loadSame);
  const walk = await loadWalk({ ...sample, axes } as Sample, own, table, 0, loadSame);
  assert.ok(walk.isSelf);
  assert.deepEqual(walk.queries, ["a", "b", "c", "d"]);
});

test("a chunk of another size is refused", async () => {
  const table = await loadTable(sample, read, load);
  await assert.rejects(loadWalk(sample, read, table, 0, async () => new ArrayBuffer(8)), /has 8 bytes instead of/);
});

test("a reduced cell has the finite number of largest magnitude", () => {
  const numbers = [[1, -3, 2], [0, 2, -Infinity], [-Infinity, -Infinity, NaN]];
  const cells = reduceCells({ rows: 3, columns: 3, at: (i, j) => numbers[i]![j]! }, 2);
  assert.deepEqual([cells.rows, cells.columns, cells.most], [2, 2, 3]);
  assert.deepEqual([cells.at(0, 0), cells.at(0, 1), cells.at(1, 0)], [-3, 2, -Infinity]);
  assert.ok(Number.isNaN(cells.at(1, 1)));
});
