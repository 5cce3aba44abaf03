import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateSync } from "node:zlib";
import { parsePage, decodeBase64, inflate, load, page } from "../src/load.js";

const axes = { tokens: { kind: "token", labels: ["a"], picture: "", places: [] } };
const read = { name: "core.read", queries: "tokens", keys: "tokens", heads: [""] };
const capture = { title: "run", model: "", samples: [{ title: "one", axes, reads: [read], pictures: {}, steps: [] }] };
const good = { format: "regard page", version: 4, captures: [capture], note: "" };

const changed = (change: object) => () => parsePage(JSON.stringify({ ...good, ...change }));
const withReads = (reads: object[]) => changed({ captures: [{ ...capture, samples: [{ ...capture.samples[0], reads }] }] });

test("a valid page is accepted", () => {
  assert.equal(parsePage(JSON.stringify(good)).captures.length, 1);
});

test("errors in the data are reported", () => {
  assert.throws(() => parsePage("{"), /not valid JSON/);
  assert.throws(() => parsePage("null"), /format must be "regard page"/);
  assert.throws(changed({ format: "other" }), /format must be "regard page"/);
  assert.throws(changed({ version: 1 }), /version of the data must be 4, but is 1/);
  assert.throws(changed({ captures: [] }), /no captures/);
  assert.throws(changed({ captures: [{ ...capture, samples: [] }] }), /"run" has no samples/);
  assert.throws(withReads([]), /no reads/);
  assert.throws(withReads([{ ...read, keys: "gone" }]), /"core.read" of "one" has an unknown axis "gone"/);
  assert.throws(withReads([{ ...read, heads: [] }]), /no heads/);
});

test("base64 and zlib are decoded", async () => {
  const bytes = Uint8Array.from({ length: 1000 }, (_, index) => index % 251);
  const packed = deflateSync(bytes).toString("base64");
  assert.deepEqual(new Uint8Array(await inflate(decodeBase64(packed))), bytes);
});

test("missing, damaged and truncated chunks are named", async () => {
  const packed = deflateSync(Buffer.alloc(5000, "regard")).toString("base64");
  const texts: Record<string, string> = { "chunk-odd": "AAAA", "chunk-short": packed.slice(0, 24) };
  const find = (id: string) => (id in texts ? { textContent: texts[id] } : null);
  Object.assign(globalThis, { document: { getElementById: find } });
  await assert.rejects(load("gone"), /chunk "gone" is missing/);
  await assert.rejects(load("odd"), /chunk "odd" cannot be unpacked/);
  await assert.rejects(load("short"), /chunk "short" cannot be unpacked/);
  await assert.rejects(page(), /contains no data/);
});
