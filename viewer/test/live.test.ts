import assert from "node:assert/strict";
import { test } from "node:test";
import { Decoder } from "../src/live/decoder.js";
import { type Form, withNumbers } from "../src/live/form.js";
import { erf } from "../src/live/layers.js";
import { decodeBase64 } from "../src/load.js";
import saved from "./live.json";

const largestError = (rows: ArrayLike<number>[], expected: number[][]): number =>
  Math.max(...expected.flatMap((row, item) => row.map((number, id) => Math.abs(number - rows[item]![id]!))));

for (const [name, { form, int8, float32, source, target, logits }] of Object.entries(saved)) {
  const model = withNumbers(form, new Int8Array(decodeBase64(int8).buffer), new Float32Array(decodeBase64(float32).buffer)) as Form;
  const start = (): Decoder => {
    const decoder = new Decoder(model);
    if (source.length) for (const _ of decoder.encode(source));
    return decoder;
  };

  test(`the logits of the model "${name}" are those of torch, at once and one by one`, () => {
    assert.ok(largestError(start().read(target), logits) < 1e-5);
    const decoder = start();
    assert.ok(largestError(target.flatMap((id) => decoder.read([id])), logits) < 1e-5);
  });

  test(`the model "${name}" goes on after a part of what it has read`, () => {
    const decoder = start();
    decoder.read([...target.slice(0, 2), 9, 9, 9]);
    decoder.cut(2);
    assert.ok(largestError(decoder.read(target.slice(2)), logits.slice(2)) < 1e-5);
    const whole = start();
    whole.read(target);
    assert.deepEqual(decoder.self.map(({ weights }) => weights), whole.self.map(({ weights }) => weights));
  });
}

test("erf", () => {
  for (const [x, y] of [[0, 0], [0.5, 0.5204998778], [-1, -0.8427007929], [3, 0.9999779095]]) assert.ok(Math.abs(erf(x!) - y!) < 1.2e-7);
});
