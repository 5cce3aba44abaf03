import assert from "node:assert/strict";
import { test } from "node:test";
import { labelStep } from "../src/axes.js";
import { Viewport } from "../src/viewport.js";

test("a large matrix fits, and zooming keeps the point under the pointer", () => {
  const viewport = new Viewport(4096, 2048, { width: 1000, height: 500 });
  assert.ok(viewport.cell.x * 2048 <= 1000 && viewport.cell.y * 4096 <= 500);
  const at = { x: 333, y: 222 };
  const before = viewport.cellAt(at)!;
  viewport.zoomBy(20, at);
  const after = viewport.cellAt(at)!;
  assert.ok(Math.abs(after.query - before.query) <= 4 && Math.abs(after.key - before.key) <= 4);
});

test("panning stops at the borders of the matrix", () => {
  const viewport = new Viewport(300, 200, { width: 400, height: 300 });
  viewport.zoomBy(5, { x: 0, y: 0 });
  viewport.moveBy(-1e6, -1e6);
  assert.deepEqual(viewport.cellAt({ x: 399, y: 299 }), { query: 299, key: 199 });
  viewport.moveBy(1e6, 1e6);
  assert.deepEqual(viewport.cellAt({ x: 0, y: 0 }), { query: 0, key: 0 });
});

test("a pinned cell outside of the area is scrolled into it", () => {
  const viewport = new Viewport(300, 200, { width: 400, height: 300 });
  viewport.zoomBy(8, { x: 0, y: 0 });
  viewport.reveal(250, null);
  const { rows, columns } = viewport.visible();
  assert.ok(rows[0] < 250 && rows[1] > 250 && columns[0] === 0);
});

test("labels are skipped in round steps", () => {
  assert.deepEqual([16, 8, 4, 2, 0.2].map((cell) => labelStep(cell, 15)), [1, 2, 5, 10, 100]);
});
