import assert from "node:assert/strict";
import { test } from "node:test";
import { darkest, luminance, scaleTo } from "../src/color.js";
import type { Shown, Table } from "../src/view.js";

const lightness = (bytes: number) => {
  const share = luminance(bytes);
  return share > 0.008856 ? 116 * Math.cbrt(share) - 16 : 903.3 * share;
};

for (const dark of [false, true]) {
  test(`lightness has equal steps, ${dark ? "dark" : "light"}`, () => {
    const scale = scaleTo(1, true, dark);
    for (const sign of [1, -1]) {
      const steps = Array.from({ length: 9 }, (_, step) => lightness(scale.bytes((sign * step) / 8)));
      const even = (steps[8]! - steps[0]!) / 8;
      steps.slice(1).forEach((step, index) => assert.ok(Math.abs(step - steps[index]! - even) < 1.2, `${steps}`));
      assert.ok(dark ? even > 9 : even < -9);
    }
  });

  test(`text on every cell has sufficient contrast, ${dark ? "dark" : "light"}`, () => {
    const scale = scaleTo(2, true, dark);
    for (let number = -2; number <= 2; number += 0.01) {
      const ink = scale.ink(number) === "#ffffff" ? 1 : 0;
      const cell = luminance(scale.bytes(number));
      const contrast = (Math.max(ink, cell) + 0.05) / (Math.min(ink, cell) + 0.05);
      assert.ok(contrast >= 4.5, `${number}: ${contrast}`);
    }
  });
}

test("zero has one color on both sides, and numbers beyond the scale the last color", () => {
  const scale = scaleTo(0.5, true, false);
  assert.equal(scale.css(0), "rgb(255, 255, 255)");
  assert.equal(scale.bytes(-1e-9), scale.bytes(1e-9));
  assert.equal(scale.bytes(3), scale.bytes(0.5));
  assert.notEqual(scale.bytes(-0.5), scale.bytes(0.5));
});

test("the bias does not set the scale of contributions, unless there is nothing else", () => {
  const shown = (measure: string) =>
    ({ head: 0, scale: "largest", read: { measure, keys: "k" }, sample: { axes: { k: { labels: ["a", "b", "(bias)"] } } } }) as unknown as Shown;
  const table = (items: number[]) =>
    ({ queries: 1, row: () => Float32Array.from([...items, 8]), maxMagnitude: () => 8 }) as unknown as Table;
  assert.equal(darkest(shown("contribution"), table([0.25, -0.5])), 0.5);
  assert.equal(darkest(shown("weight"), table([0.25, -0.5])), 8);
  assert.equal(darkest(shown("contribution"), table([0, 0])), 8);
});
