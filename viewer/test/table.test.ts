import assert from "node:assert/strict";
import { test } from "node:test";
import type { Read, Sample, Weights } from "../src/page.js";
import { loadTable, poolBlocks, halfToFloat } from "../src/table.js";

const QUERIES = 3;
const KEYS = 5;
const numbers = Float32Array.from({ length: 2 * QUERIES * KEYS }, (_, index) => ((index * 7) % 30) / 32 - 0.3);

function sample(): Sample {
  const axis = (length: number) => ({ kind: "token", labels: Array.from({ length }, String), picture: "", places: [] });
  return { title: "", marked: null, axes: { q: axis(QUERIES), k: axis(KEYS) }, reads: [], pictures: {}, steps: [] };
}

function read(weights: Weights): Read {
  return {
    name: "read", kind: "cross", layer: 1, direction: "", measure: "weight", queries: "q", keys: "k",
    heads: ["1", "2"], facts: {}, summaries: {}, walk: null, weights,
  };
}

const whole = (bytes: ArrayBuffer) =>
  loadTable(sample(), read({ form: "whole", dtype: "float32", chunk: "all" }), async () => bytes);

/** Reduced table with two weights per query and head, and only one of the first query. */
async function reducedTable() {
  const chunks = new Map<string, ArrayBuffer>([["over", new Uint16Array(2 * 2 * 2).fill(0x3800).buffer]]);
  for (const head of [0, 1]) {
    const kept = new DataView(new ArrayBuffer(QUERIES * 2 * 6));
    for (let query = 0; query < QUERIES; query++) {
      for (const rank of [0, 1]) {
        const isNone = query === 0 && rank === 1;
        kept.setFloat32((query * 2 + rank) * 4, isNone ? 0 : (head + 1) / (rank + 2), true);
        kept.setUint16(QUERIES * 8 + (query * 2 + rank) * 2, isNone ? 0xffff : (query + rank * 2) % KEYS, true);
      }
    }
    chunks.set(`head${head}`, kept.buffer);
  }
  const weights: Weights = {
    form: "top", count: 2, overview: { rows: 2, columns: 2, chunk: "over" }, heads: ["head0", "head1"],
  };
  const table = await loadTable(sample(), read(weights), async (name) => chunks.get(name)!);
  await table.load(-1);
  return table;
}

test("rows, columns and means of a complete table agree", async () => {
  const table = await whole(numbers.buffer);
  assert.equal(table.value(1, 2, 4), numbers[QUERIES * KEYS + 14]);
  assert.deepEqual([...table.row(1, 2)], [...numbers.slice(25, 30)]);
  assert.deepEqual([...table.column(0, 3)], [3, 8, 13].map((index) => numbers[index]));
  const mean = (numbers[7]! + numbers[22]!) / 2;
  assert.equal(table.value(-1, 1, 2), mean);
  assert.equal(table.row(-1, 1)[2], Math.fround(mean));
});

test("a short chunk is named", async () => {
  await assert.rejects(whole(numbers.buffer.slice(0, 100)), /chunk "all" has 100 bytes instead of 120/);
});

test("blocks have the signed number of largest magnitude, within the documented borders", () => {
  const rows = [[0.1, -0.9, 0.2, 0.3, 0], [0, 0, 0, 0, -0.4], [0.5, 0, 0, 0, 0.6]].map((row) => Float32Array.from(row));
  const { numbers } = poolBlocks((query) => rows[query]!, { queries: 3, keys: 5 }, 2);
  assert.deepEqual([...numbers].map((number) => Number(number.toFixed(3))), [-0.9, 0.3, 0.5, 0.6]);
});

test("omitted weights of a reduced table are null", async () => {
  const table = await reducedTable();
  assert.equal(table.value(0, 1, 1), 0.5);
  assert.equal(table.value(0, 1, 3), Math.fround(1 / 3));
  assert.equal(table.value(0, 1, 0), null);
  assert.deepEqual([...table.row(1, 1)], [0, 1, 0, Math.fround(2 / 3), 0]);
  assert.deepEqual([...table.column(0, 3)], [0, Math.fround(1 / 3), 0]);
});

test("a query with fewer than k weights has zeros elsewhere", async () => {
  const table = await reducedTable();
  assert.equal(table.value(0, 0, 4), 0);
  assert.deepEqual([...table.topK(0, 0)!.keys], [0]);
});

test("the mean of a reduced table is known if no head omits the weight", async () => {
  const table = await reducedTable();
  assert.equal(table.value(-1, 1, 1), 0.75);
  assert.equal(table.value(-1, 1, 4), null);
});

test("float16 is converted exactly", () => {
  const halves = Uint16Array.from([0x0000, 0x3c00, 0xb800, 0x0001, 0x7bff, 0x3555]);
  assert.deepEqual([...halfToFloat(halves)], [0, 1, -0.5, 2 ** -24, 65504, 0.333251953125]);
});
