/** Layouts and selections of the views. */

import assert from "node:assert/strict";
import { test } from "node:test";

import type { Axis, Read, Sample, Step } from "../src/page.js";
import { columnAt, layOutColumns } from "../src/views/columns.js";
import { boxAt, pictureAxes, gridOf, spanAt } from "../src/views/picture-axes.js";
import { assignLanes } from "../src/views/lanes.js";
import { largestIndices, lowerHalf, threshold } from "../src/views/largest.js";
import { overlayColor } from "../src/views/selection.js";
import { project } from "../src/views/projection.js";
import { layOutLinks } from "../src/views/link-layout.js";
import { overlap, placeLabels, ticks } from "../src/views/label-placement.js";
import { candidates, decoderRead } from "../src/views/steps.js";

test("the largest numbers by magnitude come first, without zeros", () => {
  assert.deepEqual(largestIndices([0.2, -0.7, 0, 0.5, 0.1], 3), [1, 3, 0]);
  assert.deepEqual(largestIndices([0, 0], 3), []);
  assert.deepEqual(largestIndices([0.5, 0.5, 0.5], 2), [0, 1]);
});

test("half of the places are clear, also where all numbers are alike", () => {
  const numbers = Float32Array.of(0.5, 0.52, -0.54, 0.56);
  const least = lowerHalf(numbers);
  assert.equal(least, numbers[1]);
  const colors = [...numbers].map((number) => overlayColor(number, { least, most: numbers[3]!, opacity: 0.8, isSigned: true }));
  assert.deepEqual(colors.map((color) => color.split(", ")[3]), ["0.0000)", "0.0000)", "0.4000)", "0.8000)"]);
  assert.ok(colors[2]!.startsWith("rgba(213, 94, 0"));
  assert.equal(overlayColor(0.5, { least: 0.5, most: 0.5, opacity: 0.8, isSigned: true }), "rgba(12, 86, 165, 0.0000)");
  assert.equal(lowerHalf(Float32Array.of(0.5)), 0);
});

test("at most the requested count of numbers, and no small ones, pass a threshold", () => {
  const passing = (some: number[], count: number, share: number) => {
    const numbers = Float32Array.from(some);
    const least = threshold(numbers, count, share);
    return numbers.filter((number) => Math.abs(number) >= least).length;
  };
  assert.equal(passing([0.5, -0.4, 0.3, 0.2, 0.1], 3, 0), 3);
  assert.equal(passing([0.5, 0.4, 0.3, 0.01], 9, 0.1), 3);
  assert.equal(passing([0, 0, 0], 9, 0.1), 0);
  // Ties either all pass or none.
  assert.equal(passing([0.5, 0.2, 0.2, 0.2], 2, 0), 1);
  assert.equal(passing([0.2, 0.2, 0.2], 2, 0), 0);
});

test("words are in two rows if both fit, else in two columns within the width", () => {
  const wide = layOutLinks([40, 60, 30], [50, 70], { width: 900, height: 600 });
  assert.ok(wide.isHorizontal);
  const narrow = layOutLinks([40, 60, 30], Array(40).fill(90), { width: 400, height: 600 });
  assert.ok(!narrow.isHorizontal);
  for (const all of [wide, narrow]) {
    for (const side of [all.queries, all.keys]) {
      side.forEach((spot, i) => {
        assert.ok(spot.left >= 0 && spot.left + spot.width <= all.width);
        assert.ok(spot.top >= 0 && spot.top + spot.height <= all.height);
        const next = side[i + 1];
        if (next) assert.equal(overlap(spot, next), 0);
      });
    }
  }
  assert.equal(layOutLinks([40], [40], { width: 900, height: 600 }).queries[0]!.left, 430);
});

test("very long words are truncated, so that there is a gap for lines", () => {
  const { queries, keys } = layOutLinks([2000, 30], [2000], { width: 420, height: 600 });
  const gap = keys[0]!.left - (queries[0]!.left + queries[0]!.width);
  assert.ok(gap >= 90, `${gap}`);
});

test("columns of a chain are found by position", () => {
  const columns = layOutColumns([1, 3, 0, 2], 1000);
  columns.lefts.forEach((left, i) => {
    assert.equal(columnAt(columns, left + 1), i);
    assert.equal(columnAt(columns, left + columns.widths[i]! - 1), i);
  });
  assert.equal(columnAt(columns, -20), -1);
  assert.equal(columnAt(columns, columns.width + 20), -1);
});

test("the font of a chain shrinks to fit, down to a minimum", () => {
  assert.equal(layOutColumns([1, 1], 1000).font, 17);
  assert.equal(layOutColumns(Array(300).fill(4), 1000).font, 11);
  const middle = layOutColumns(Array(16).fill(3), 1000);
  assert.ok(middle.font > 11 && middle.font < 17 && middle.width <= 1000);
});

test("lines that fill a height fill the width, too", () => {
  const columns = layOutColumns(Array(17).fill(0.6), 1000, 420);
  assert.ok(17 * columns.line <= 420);
  assert.ok(columns.width <= 1000 && columns.width > 800, `${columns.width}`);
  const few = layOutColumns([2, 3], 1000, 420);
  assert.ok(few.font > 30 && few.width <= 1000);
  const long = layOutColumns(Array(12).fill(6), 1000, 420);
  assert.ok(12 * long.line > 380 && 12 * long.line <= 420, `${long.line}`);
  // Lines that are too many scroll, and are as large as the width allows.
  const many = layOutColumns(Array(40).fill(0.6), 1000, 420);
  assert.ok(many.width > 900 && many.width <= 1000 && 40 * many.line > 420);
  assert.equal(layOutColumns(Array(300).fill(1), 1000, 420).font, 11);
});

const patches = (columns: number, rows: number) =>
  Array.from({ length: columns * rows }, (_, i) => [
    (i % columns) / columns, Math.floor(i / columns) / rows, 1 / columns, 1 / rows,
  ]);

test("patches that tile a rectangle are a grid", () => {
  const grid = gridOf([null, ...patches(5, 3)])!;
  assert.deepEqual([grid.columns, grid.rows], [5, 3]);
  assert.equal(grid.cells[0], null);
  assert.deepEqual(grid.cells[8], [2, 1]);
  assert.equal(gridOf(patches(5, 3).slice(1)), null);
  assert.equal(gridOf([[0, 0, 0.5, 1], [0.25, 0, 0.5, 1]]), null);
  assert.equal(gridOf([null]), null);
});

test("the smallest box and the shortest span at a point are found", () => {
  assert.equal(boxAt([null, [0, 0, 1, 1], [0.2, 0.2, 0.5, 0.5]], 0.3, 0.3), 2);
  assert.equal(boxAt([null, [0, 0, 1, 1], [0.2, 0.2, 0.5, 0.5]], 0.9, 0.9), 1);
  assert.equal(boxAt([[0, 0, 0.5, 0.5]], 0.9, 0.9), -1);
  assert.equal(spanAt([[0, 9], [2, 3], null], 2.5), 1);
  assert.equal(spanAt([[0, 2]], 2), -1);
});

const axis = (picture: string, places: Axis["places"] = []): Axis => ({ kind: "x", labels: places.map(String), picture, places });
const image = { kind: "image" as const, url: "", width: 1, height: 1, boxes: [] };
const readOf = (queries: string, keys: string, kind: Read["kind"] = "cross") => ({ queries, keys, kind }) as Read;

test("weights are drawn over keys with places, else over queries with places", () => {
  const axes = { words: axis(""), codes: axis("drawn", [[0, 0, 1, 1]]), photo: axis("photo", [null, [0, 0, 1, 1]]) };
  const sample = { axes, pictures: { drawn: image, photo: image } } as unknown as Sample;
  const axesOf = (queries: string, keys: string) => {
    const focus = pictureAxes(sample, readOf(queries, keys), "image");
    return focus && [focus.heatAxis, focus.isSameAxis];
  };
  assert.deepEqual(axesOf("words", "photo"), ["keys", false]);
  assert.deepEqual(axesOf("codes", "words"), ["queries", false]);
  assert.deepEqual(axesOf("photo", "photo"), ["keys", true]);
  assert.deepEqual(axesOf("codes", "photo"), ["keys", false]);
  assert.equal(axesOf("words", "words"), null);
  assert.equal(pictureAxes(sample, readOf("words", "photo"), "sound"), null);
});

test("spans and their labels do not overlap", () => {
  const spans = [
    { left: 0, width: 100, name: 60 },
    { left: 50, width: 10, name: 60 },
    { left: 110, width: 5, name: 40 },
    { left: 280, width: 15, name: 60 },
  ];
  const assigned = assignLanes(spans, 300);
  assert.deepEqual(assigned.map(({ lane }) => lane), [0, 1, 0, 0]);
  assert.deepEqual(assigned.map(({ isNameInside }) => isNameInside), [true, false, false, false]);
  assert.equal(assigned[1]!.nameLeft, 60);
  assert.equal(assigned[3]!.nameLeft, 220);
});

test("labels of nearby points do not overlap", () => {
  const names = [0, 1, 2, 3, 4].map((i) => ({ x: 100 + 6 * i, y: 100 + 4 * i, width: 50, height: 16 }));
  const rectangles = placeLabels(names, { left: 0, top: 0, width: 300, height: 300 });
  rectangles.forEach((rectangle, i) => rectangles.slice(i + 1).forEach((other) => assert.equal(overlap(rectangle, other), 0)));
});

test("labels stay within bounds", () => {
  const [place] = placeLabels([{ x: 295, y: 4, width: 50, height: 16 }], { left: 0, top: 0, width: 300, height: 300 });
  assert.ok(place!.left >= 0 && place!.left + place!.width <= 300 && place!.top >= 0);
});

test("ticks are round numbers within the range", () => {
  assert.deepEqual(ticks(0, 10, 5), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(ticks(-0.3, 0.35, 4), [-0.2, 0, 0.2]);
  assert.deepEqual(ticks(1, 1, 3), []);
});

test("a plane has equal scale in both directions, upwards", () => {
  const { toCanvas, area } = project([[0, 0], [10, 3]], { width: 500, height: 400 });
  const [origin, right, up] = [toCanvas([0, 0]), toCanvas([1, 0]), toCanvas([0, 1])];
  assert.ok(Math.abs(right.x - origin.x - (origin.y - up.y)) < 1e-9);
  for (const { x, y } of [origin, toCanvas([10, 3])]) {
    assert.ok(x >= area.left && x <= area.left + area.width && y >= area.top && y <= area.top + area.height);
  }
  const alone = project([[4, 4]], { width: 500, height: 400 });
  assert.ok(Number.isFinite(alone.toCanvas([4, 4]).x));
});

test("the output token is among the candidates once", () => {
  const step: Step = { token: "b", probability: 0.2, alternatives: [{ token: "a", probability: 0.7 }, { token: "b", probability: 0.2 }], beams: [] };
  assert.deepEqual(candidates(step).map(({ token, isOutput }) => [token, isOutput]), [["a", false], ["b", true]]);
  const other = candidates({ ...step, token: "c", probability: 0.01 });
  assert.deepEqual(other.at(-1), { token: "c", probability: 0.01, isOutput: true });
});

test("steps show the shown read, else the last cross-attention", () => {
  const reads = [readOf("output", "decoder input", "decoder self"), readOf("output", "source"), readOf("source", "source", "encoder self")];
  const sample = { reads } as Sample;
  assert.equal(decoderRead(sample, reads[0]!), reads[0]);
  assert.equal(decoderRead(sample, reads[2]!), reads[1]);
  assert.equal(decoderRead({ reads: [reads[2]] } as Sample, reads[2]!), null);
});
