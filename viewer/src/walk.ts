/** Numbers of the view "walk": the vectors of a read, and what they are called. */

import { DataError, load } from "./load.js";
import type { Read, Sample, Walk } from "./page.js";
import type { Table } from "./view.js";

/** Matrix of numbers; NaN: unknown, -Infinity: masked. */
export interface Matrix {
  readonly rows: number;
  readonly columns: number;
  at(row: number, column: number): number;
}

interface Projection {
  /** (out, in) */
  weight: Matrix;
  bias: Float32Array | null;
}

/** Vectors of one head. */
export interface WalkNumbers {
  head: number;
  /** Labels of the rows of both sides. In self-attention the rows of X have one label each, that of the keys: a decoder
   *  names its queries by the output tokens. */
  queries: string[];
  keys: string[];
  /** X', the items of the queries, and X, those of the memory; null if they are unknown. */
  X: Matrix | null;
  source: Matrix | null;
  /** True if X' is X. */
  isSelf: boolean;
  Q: Matrix;
  K: Matrix;
  V: Matrix;
  S: Matrix;
  A: Matrix;
  Z: Matrix;
  output: Matrix | null;
  projections: Partial<Record<"Q" | "K" | "V", Projection>> | null;
  formula: Walk["formula"];
  mapped: string;
  hasBias: boolean;
  titles: Record<"Q" | "K" | "V" | "out", string>;
  scoreName: string;
  weightName: string;
}

type Load = (name: string) => Promise<ArrayBuffer>;
interface Stored {
  shape: number[];
  numbers: Float32Array;
}

/** Load the vectors of a head. */
export async function loadWalk(
  sample: Sample,
  read: Read,
  table: Table,
  head: number,
  loadChunk: Load = load,
): Promise<WalkNumbers> {
  const walk = read.walk!;
  const stored = unpack(walk.tensors, await loadChunk(walk.chunk), walk.chunk);
  const weights = walk.projections
    ? unpack(walk.projections.tensors, await loadChunk(walk.projections.chunk), walk.projections.chunk)
    : {};
  const heads = stored["queries"]!.shape[0]!;
  const shared = Math.floor((head * stored["keys"]!.shape[0]!) / heads);
  const part = (name: string, at: number): Matrix => matrixOf(stored[name]!, at);
  const whole = (name: string): Matrix | null => (stored[name] ? matrixOf(stored[name], null) : null);
  const [X, source] = [whole("items"), whole("source")];
  const projection = (name: string, count: number, at: number): Projection | undefined => {
    const weight = weights[name];
    if (!weight) return undefined;
    const [rows, columns] = [weight.shape[0]! / count, weight.shape[1]!];
    const size = rows * columns;
    const bias = weights[`${name} bias`]?.numbers.subarray(at * rows, (at + 1) * rows) ?? null;
    const numbers = weight.numbers.subarray(at * size, (at + 1) * size);
    return { weight: { rows, columns, at: (row, column) => numbers[row * columns + column]! }, bias };
  };
  const count = stored["keys"]!.shape[0]!;
  const projections = {
    Q: projection("query", heads, head),
    K: projection("key", count, shared),
    V: projection("value", count, shared),
  };
  const known = Object.fromEntries(Object.entries(projections).filter(([, found]) => found));
  const isSelf = X !== null && source !== null && isEqual(stored["items"]!.numbers, stored["source"]!.numbers);
  const mapped = walk.formula.mapped;
  const title = (letter: "Q" | "K" | "V", name: string) => {
    if (!walk.projected.includes(name)) return letter;
    const items = letter === "Q" && !isSelf ? "X'" : "X";
    const bias = walk.projected.includes(`${name} bias`) ? " + b" : "";
    return `${letter} = ${items} W_${letter}${bias}${mapped && letter !== "V" ? `, then ${mapped}` : ""}`;
  };
  const bias = walk.projected.includes("output bias") ? " + b" : "";
  const [queries, keys] = [sample.axes[read.queries]!.labels, sample.axes[read.keys]!.labels];
  return {
    head,
    queries: isSelf && queries.length === keys.length ? keys : queries,
    keys,
    X,
    source,
    isSelf,
    Q: part("queries", head),
    K: part("keys", shared),
    V: part("values", shared),
    S: part("scores", head),
    A: { rows: table.queries, columns: table.keys, at: (query, key) => table.value(head, query, key) ?? NaN },
    Z: part("outputs", head),
    output: whole("result"),
    projections: Object.keys(known).length ? known : null,
    formula: walk.formula,
    mapped,
    hasBias: "bias" in read.facts,
    titles: {
      Q: title("Q", "query"),
      K: title("K", "key"),
      V: title("V", "value"),
      out: walk.projected.includes("output") ? `[Z_1, ..., Z_${heads}] W_O${bias}` : `[Z_1, ..., Z_${heads}]`,
    },
    scoreName: walk.score,
    weightName: walk.weight,
  };
}

/** Return the cells of a matrix, at most `most` per side: of each block the finite number of largest magnitude. */
export function reduceCells(matrix: Matrix, most: number): Matrix & { most: number } {
  const [rows, columns] = [Math.min(most, matrix.rows), Math.min(most, matrix.columns)];
  const cells = new Float32Array(rows * columns).fill(NaN);
  let largest = 0;
  for (let i = 0; i < matrix.rows; i++) {
    const row = Math.floor((i * rows) / matrix.rows) * columns;
    for (let j = 0; j < matrix.columns; j++) {
      const number = matrix.at(i, j);
      const at = row + Math.floor((j * columns) / matrix.columns);
      if (Number.isFinite(number) && !(Math.abs(cells[at]!) >= Math.abs(number))) cells[at] = number;
      else if (number === -Infinity && Number.isNaN(cells[at]!)) cells[at] = number;
      if (Number.isFinite(number)) largest = Math.max(largest, Math.abs(number));
    }
  }
  return { rows, columns, most: largest, at: (row, column) => cells[row * columns + column]! };
}

/** Split the float32 numbers of a chunk into tensors. */
function unpack(shapes: Record<string, number[]>, bytes: ArrayBuffer, chunk: string): Record<string, Stored> {
  const sizes = Object.entries(shapes).map(([name, shape]) => [name, shape, shape.reduce((a, b) => a * b, 1)] as const);
  const expected = 4 * sizes.reduce((sum, [, , size]) => sum + size, 0);
  if (bytes.byteLength !== expected) {
    throw new DataError(`The page is damaged: its chunk "${chunk}" has ${bytes.byteLength} bytes instead of ${expected}.`);
  }
  const found: Record<string, Stored> = {};
  let from = 0;
  for (const [name, shape, size] of sizes) {
    found[name] = { shape, numbers: new Float32Array(bytes, 4 * from, size) };
    from += size;
  }
  return found;
}

/** Return a matrix (rows, columns), or that of one head of (head, rows, columns). */
function matrixOf({ shape, numbers }: Stored, head: number | null): Matrix {
  const [rows, columns] = [shape[shape.length - 2]!, shape[shape.length - 1]!];
  const from = (head ?? 0) * rows * columns;
  return { rows, columns, at: (row, column) => numbers[from + row * columns + column]! };
}

function isEqual(one: Float32Array, other: Float32Array): boolean {
  return one.length === other.length && one.every((number, index) => Object.is(number, other[index]!));
}
