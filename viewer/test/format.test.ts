import assert from "node:assert/strict";
import { test } from "node:test";
import { counted, formatCell, formatExact, formatScore, formatAligned, formatShort, headName, readable, readableTitle, axisLabel } from "../src/format.js";

test("invisible characters are shown in labels", () => {
  const labels: [string, string][] = [
    ["", "\u2205"], [" a b", "\u2423a\u2423b"], ["\n", "\u21b5"], ["\t", "\u21e5"], ["\u200b", "<200B>"],
    ["\u0301", "\u25cc\u0301"], ["\u200d", "<200D>"], ["\u0915\u200d", "\u0915\u200d"], ["\ud800", "<D800>"],
  ];
  for (const [label, shown] of labels) assert.equal(readable(label), shown);
});

test("long labels are truncated between code points", () => {
  assert.equal(readable("\u{1f600}".repeat(5), 4), `${"\u{1f600}".repeat(3)}\u2026`);
  assert.equal(readable("\u{1f600}".repeat(4), 4), "\u{1f600}".repeat(4));
});

test("a formatted float32 is restored exactly", () => {
  for (const number of [0.1, 1 / 3, 1e-20, 0.0262733959, 1, 0, -7.25e-3]) {
    const single = Math.fround(number);
    assert.equal(Math.fround(Number(formatExact(single, 9))), single);
  }
  assert.equal(formatExact(0.5, 9), "0.5");
});

test("the numbers of cells have one width, and a small one is not zero", () => {
  assert.deepEqual([0.5, 0.0314, -0.25, 0].map((number) => formatCell(number)), ["0.500", "0.031", "-0.250", "0.000"]);
  assert.deepEqual([0.000525, 0.00099, -0.0004].map((number) => formatCell(number)), ["<.001", "<.001", ">-.001"]);
  assert.equal(formatCell(0.011, 0.029), "0.011");
  assert.deepEqual([4.79e-6, -1.45e-7, 0].map((number) => formatCell(number, 5e-5)), ["4.8e-6", "-1.4e-7", "0"]);
});

test("a number that is not 1 is not written as 1", () => {
  const near = Math.fround(0.99999);
  assert.deepEqual([near, 0.9995, 0.9994, 1].map((number) => formatCell(number)), [">.999", ">.999", "0.999", "1.000"]);
  assert.equal(formatCell(-near), "<-.999");
  assert.deepEqual([near, 0.9994, 1, 1.0002].map(formatShort), [">.999", "0.999", "1", "1"]);
  assert.deepEqual([0.297, 0.29, near, 12, 0.00002].map(formatAligned), ["0.297", "0.290", ">.999", "12", "2e-5"]);
  assert.deepEqual([near, 0.994, 1, 0.004, 0].map(formatScore), [">.99", "0.99", "1.00", "<.01", "0.00"]);
});

test("the mean over heads is named", () => {
  assert.equal(headName({ heads: ["1", "2"], measure: "weight" }, -1), "mean over 2 heads");
  assert.equal(headName({ heads: ["1", "2"], measure: "weight" }, 1), "head 2");
  assert.equal(headName({ heads: [""], measure: "weight" }, 0), "");
  assert.equal(headName({ heads: ["head 1"], measure: "weight" }, 0), "head 1");
  assert.equal(headName({ heads: ["7", "9"], measure: "contribution" }, 1), "score of 9");
});

test("counts use the plural", () => {
  assert.equal(counted(1, "box"), "1 box");
  assert.equal(counted(4096, "box"), "4,096 boxes");
});

test("sides of a title that is written from right to left are ordered apart", () => {
  assert.equal(readableTitle("3 mei -> 2019-05-03", 40), "3 mei -> 2019-05-03");
  assert.equal(readableTitle("\u0663 \u0645\u0627\u0631\u0633 -> 2019-03-03", 40), "\u2068\u0663 \u0645\u0627\u0631\u0633\u2069 -> \u20682019-03-03\u2069");
  assert.equal(readableTitle("\u05d0 -> \u2068", 40), "\u2068\u05d0\u2069 -> \u2068<2068>\u2069");
});

test("only leading and trailing spaces of labels are marked", () => {
  assert.equal(axisLabel("2 (B-DAY)"), "2 (B-DAY)");
  assert.equal(axisLabel(" "), "\u2423");
  assert.equal(axisLabel("of "), "of\u2423");
});
