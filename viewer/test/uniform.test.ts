/** The uniform weight, of all keys or of the unmasked keys of a query. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { hasMasked, uniformWeight } from "../src/uniform.js";
import type { Shown, Table } from "../src/view.js";

const tableOf = (rows: number[][], isComplete = true) =>
  ({
    isComplete, queries: rows.length, keys: rows[0]!.length,
    row: (_: number, query: number) => Float32Array.from(rows[query]!),
    value: (_: number, query: number, key: number) => rows[query]![key]!,
  }) as unknown as Table;
const shown = (measure = "weight", facts = {}) => ({ head: -1, read: { measure, facts } }) as unknown as Shown;
const causal = [[1, -0, -0], [0, 1, -0], [0.2, 0.3, 0.5]];

test("without masked cells it is 1 / number of keys", () => {
  assert.equal(uniformWeight(shown(), tableOf([[0, 1], [0.5, 0.5]]), null), 0.5);
  assert.equal(uniformWeight(shown("contribution"), tableOf([[0, 1]]), 0), null);
});

test("with masked cells it is that of a query, and unknown without one", () => {
  const table = tableOf(causal);
  assert.ok(hasMasked(table, -1));
  assert.equal(uniformWeight(shown(), table, null), null);
  assert.deepEqual([0, 1, 2].map((query) => uniformWeight(shown(), table, query)), [1, 1 / 2, 1 / 3]);
});

test("with a mask whose cells are not on the page it is unknown", () => {
  assert.equal(uniformWeight(shown("weight", { mask: "causal" }), tableOf(causal, false), 1), null);
  assert.equal(uniformWeight(shown(), tableOf(causal, false), 1), 1 / 3);
});
