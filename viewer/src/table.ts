/** Weights of a read, loaded on access: all of them, or the largest of each query. */

import { DataError, load } from "./load.js";
import type { Read, Sample } from "./page.js";
import type { Table } from "./view.js";

type Load = (name: string) => Promise<ArrayBuffer>;
interface Blocks {
  rows: number;
  columns: number;
  numbers: Float32Array;
}

const tables = new WeakMap<Read, Promise<Table>>();

/** Return the cached table of a read; of a reduced one, only the overview is loaded. */
export function tableOf(sample: Sample, read: Read): Promise<Table> {
  let table = tables.get(read);
  if (!table) {
    table = loadTable(sample, read, load);
    tables.set(read, table);
  }
  return table;
}

/** Set the table of a read whose weights are computed in the page. */
export function setTable(read: Read, heads: number, queries: number, keys: number, numbers: Float32Array): void {
  tables.set(read, Promise.resolve(new CompleteTable(heads, queries, keys, numbers)));
}

/** Create the table of a read from the chunks that `load` returns. */
export async function loadTable(sample: Sample, read: Read, load: Load): Promise<Table> {
  const queries = sample.axes[read.queries]?.labels.length ?? 0;
  const keys = sample.axes[read.keys]?.labels.length ?? 0;
  const { weights } = read;
  const heads = read.heads.length;
  if (weights.form === "whole") {
    const isFloat32 = weights.dtype === "float32";
    const bytes = checkSize(await load(weights.chunk), weights.chunk, heads * queries * keys * (isFloat32 ? 4 : 2));
    const numbers = isFloat32 ? new Float32Array(bytes) : new Uint16Array(bytes);
    return new CompleteTable(heads, queries, keys, numbers);
  }
  if (weights.form !== "top") throw new DataError(`The read "${read.name}" has weights of an unknown form.`);
  const { rows, columns, chunk } = weights.overview;
  const halves = new Uint16Array(checkSize(await load(chunk), chunk, heads * rows * columns * 2));
  return new TopKTable({ queries, keys, count: weights.count, rows, columns, halves, chunks: weights.heads, load });
}

function checkSize(bytes: ArrayBuffer, chunk: string, expected: number): ArrayBuffer {
  if (bytes.byteLength === expected) return bytes;
  throw new DataError(`The page is damaged: its chunk "${chunk}" has ${bytes.byteLength} bytes instead of ${expected}.`);
}

let halfValues: Float32Array | null = null;

/** Convert float16 (as bits) to float32. */
export function halfToFloat(halves: Uint16Array): Float32Array {
  halfValues ??= Float32Array.from({ length: 65536 }, (_, bits) => decodeHalf(bits));
  const numbers = new Float32Array(halves.length);
  for (let index = 0; index < halves.length; index++) numbers[index] = halfValues[halves[index]!]!;
  return numbers;
}

function decodeHalf(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const power = (bits >> 10) & 31;
  const rest = bits & 1023;
  if (power === 31) return rest ? NaN : sign * Infinity;
  return sign * (power ? 2 ** (power - 15) * (1 + rest / 1024) : 2 ** -14 * (rest / 1024));
}

/** Borders of blocks: block b has the entries from border b to border b + 1. */
export function blockBorders(entries: number, blocks: number): Int32Array {
  return Int32Array.from({ length: blocks + 1 }, (_, block) => Math.floor((block * entries) / blocks));
}

/** Return the number of largest magnitude of each block of a matrix, at most `most` blocks per side. */
export function poolBlocks(
  row: (query: number) => Float32Array,
  { queries, keys }: { queries: number; keys: number },
  most: number,
): Blocks {
  const rows = Math.min(most, queries);
  const columns = Math.min(most, keys);
  const down = blockBorders(queries, rows);
  const across = blockBorders(keys, columns);
  const numbers = new Float32Array(rows * columns);
  for (let block = 0; block < rows; block++) {
    for (let query = down[block]!; query < down[block + 1]!; query++) {
      poolRow(row(query), across, numbers, block * columns);
    }
  }
  return { rows, columns, numbers };
}

function poolRow(numbers: Float32Array, across: Int32Array, into: Float32Array, from: number): void {
  for (let column = 0; column + 1 < across.length; column++) {
    let largest = into[from + column]!;
    for (let key = across[column]!; key < across[column + 1]!; key++) {
      const number = numbers[key]!;
      if (Math.abs(number) > Math.abs(largest)) largest = number;
    }
    into[from + column] = largest;
  }
}

function largestOf(numbers: Float32Array): number {
  let largest = 0;
  for (const number of numbers) if (Math.abs(number) > Math.abs(largest)) largest = number;
  return largest;
}

/** Table with all weights. */
class CompleteTable implements Table {
  readonly isComplete = true;
  readonly digits: number;
  private readonly matrices = new Map<number, Float32Array>();
  private readonly largest = new Map<number, number>();

  constructor(
    readonly heads: number,
    readonly queries: number,
    readonly keys: number,
    private readonly numbers: Float32Array | Uint16Array,
  ) {
    this.digits = numbers instanceof Float32Array ? 9 : 5;
  }

  async load(): Promise<void> {}

  isLoaded(): boolean {
    return true;
  }

  topK(): null {
    return null;
  }

  value(head: number, query: number, key: number): number | null {
    if (head >= 0) return this.matrix(head)[query * this.keys + key] ?? null;
    let sum = -0; // -0, as long as all of them are
    for (let each = 0; each < this.heads; each++) sum += this.matrix(each)[query * this.keys + key] ?? 0;
    return sum / this.heads;
  }

  row(head: number, query: number): Float32Array {
    return this.matrix(head).subarray(query * this.keys, (query + 1) * this.keys);
  }

  column(head: number, key: number): Float32Array {
    const matrix = this.matrix(head);
    return Float32Array.from({ length: this.queries }, (_, query) => matrix[query * this.keys + key]!);
  }

  overview(head: number, most: number): Blocks {
    return poolBlocks((query) => this.row(head, query), this, most);
  }

  maxMagnitude(head: number): number {
    let largest = this.largest.get(head);
    if (largest === undefined) {
      largest = largestOf(this.matrix(head));
      this.largest.set(head, largest);
    }
    return largest;
  }

  private matrix(head: number): Float32Array {
    let matrix = this.matrices.get(head);
    if (!matrix) {
      matrix = head < 0 ? this.meanMatrix() : this.headMatrix(head);
      this.matrices.set(head, matrix);
    }
    return matrix;
  }

  private headMatrix(head: number): Float32Array {
    const size = this.queries * this.keys;
    const part = this.numbers.subarray(head * size, (head + 1) * size);
    return part instanceof Float32Array ? part : halfToFloat(part);
  }

  private meanMatrix(): Float32Array {
    if (this.heads === 1) return this.matrix(0);
    const sum = new Float64Array(this.queries * this.keys);
    for (let head = 0; head < this.heads; head++) {
      const matrix = this.matrix(head);
      for (let index = 0; index < sum.length; index++) sum[index]! += matrix[index]!;
    }
    return Float32Array.from(sum, (number) => number / this.heads);
  }
}

interface TopKData {
  queries: number;
  keys: number;
  count: number;
  rows: number;
  columns: number;
  halves: Uint16Array;
  chunks: string[];
  load: Load;
}

interface HeadTopK {
  numbers: Float32Array;
  keys: Uint16Array | Uint32Array;
}

/** Table with the k largest weights of each query, and the largest weight of each block. */
class TopKTable implements Table {
  readonly isComplete = false;
  readonly digits = 9;
  readonly heads: number;
  readonly queries: number;
  readonly keys: number;
  private readonly loaded: (HeadTopK | undefined)[] = [];
  private readonly loading = new Map<number, Promise<void>>();
  private readonly overviews = new Map<number, Float32Array>();
  private readonly largest = new Map<number, number>();

  constructor(private readonly data: TopKData) {
    this.heads = data.chunks.length;
    this.queries = data.queries;
    this.keys = data.keys;
  }

  async load(head: number): Promise<void> {
    if (head < 0) {
      await Promise.all(this.data.chunks.map((_, each) => this.load(each)));
      return;
    }
    let promise = this.loading.get(head);
    if (!promise) {
      promise = this.unpack(head);
      this.loading.set(head, promise);
    }
    await promise;
  }

  isLoaded(head: number): boolean {
    const heads = head < 0 ? this.data.chunks.map((_, each) => each) : [head];
    return heads.every((each) => this.loaded[each] !== undefined);
  }

  value(head: number, query: number, key: number): number | null {
    if (head >= 0) return this.topKValue(head, query, key);
    let sum = 0;
    for (let each = 0; each < this.heads; each++) {
      const number = this.topKValue(each, query, key);
      if (number === null) return null;
      sum += number;
    }
    return sum / this.heads;
  }

  topK(head: number, query: number): { keys: Uint32Array; numbers: Float32Array } {
    if (head < 0) return this.topKOfMean(query);
    const { numbers, keys } = this.of(head);
    const from = query * this.data.count;
    let to = from;
    while (to < from + this.data.count && keys[to]! < this.keys) to++;
    return { keys: Uint32Array.from(keys.subarray(from, to)), numbers: numbers.subarray(from, to) };
  }

  row(head: number, query: number): Float32Array {
    const row = new Float32Array(this.keys);
    const { keys, numbers } = this.topK(head, query);
    for (let index = 0; index < keys.length; index++) row[keys[index]!] = numbers[index]!;
    return row;
  }

  column(head: number, key: number): Float32Array {
    return Float32Array.from({ length: this.queries }, (_, query) => {
      const { keys, numbers } = this.topK(head, query);
      return numbers[keys.indexOf(key)] ?? 0;
    });
  }

  overview(head: number, most: number): Blocks {
    const { rows, columns } = this.data;
    const numbers = this.headOverview(head);
    if (rows <= most && columns <= most) return { rows, columns, numbers };
    const row = (query: number) => numbers.subarray(query * columns, (query + 1) * columns);
    return poolBlocks(row, { queries: rows, keys: columns }, most);
  }

  maxMagnitude(head: number): number {
    let largest = this.largest.get(head);
    if (largest === undefined) {
      largest = this.headMaxMagnitude(head);
      this.largest.set(head, largest);
    }
    return largest;
  }

  private topKValue(head: number, query: number, key: number): number | null {
    const { keys, numbers } = this.of(head);
    const from = query * this.data.count;
    for (let index = from; index < from + this.data.count; index++) {
      if (keys[index] === key) return numbers[index]!;
      // The query has fewer than k nonzero weights: all others are zero.
      if (keys[index]! >= this.keys) return 0;
    }
    return this.data.count >= this.keys ? 0 : null;
  }

  private topKOfMean(query: number): { keys: Uint32Array; numbers: Float32Array } {
    const sums = new Map<number, number>();
    for (let head = 0; head < this.heads; head++) {
      const { keys, numbers } = this.topK(head, query);
      for (let index = 0; index < keys.length; index++) {
        sums.set(keys[index]!, (sums.get(keys[index]!) ?? 0) + numbers[index]!);
      }
    }
    const numbers = Float32Array.from(sums.values(), (sum) => sum / this.heads);
    return { keys: Uint32Array.from(sums.keys()), numbers };
  }

  /** Overview of a head; for the mean over heads an upper bound, the mean of the blocks of all heads. */
  private headOverview(head: number): Float32Array {
    let blocks = this.overviews.get(head);
    if (!blocks) {
      const size = this.data.rows * this.data.columns;
      blocks = head < 0 ? this.meanBlocks(size) : halfToFloat(this.data.halves.subarray(head * size, (head + 1) * size));
      this.overviews.set(head, blocks);
    }
    return blocks;
  }

  private meanBlocks(size: number): Float32Array {
    const sum = new Float64Array(size);
    for (let head = 0; head < this.heads; head++) {
      const blocks = this.headOverview(head);
      for (let index = 0; index < size; index++) sum[index]! += blocks[index]!;
    }
    return Float32Array.from(sum, (number) => number / this.heads);
  }

  private headMaxMagnitude(head: number): number {
    if (head < 0 || !this.loaded[head]) return largestOf(this.headOverview(head));
    const { numbers, keys } = this.of(head);
    let largest = 0;
    for (let index = 0; index < numbers.length; index += this.data.count) {
      if (keys[index]! < this.keys && Math.abs(numbers[index]!) > Math.abs(largest)) largest = numbers[index]!;
    }
    return largest;
  }

  private of(head: number): HeadTopK {
    const loaded = this.loaded[head];
    if (!loaded) throw new Error(`The numbers of head ${head} must be loaded before they are accessed.`);
    return loaded;
  }

  private async unpack(head: number): Promise<void> {
    const { queries, count, chunks, load } = this.data;
    const name = chunks[head]!;
    const width = this.keys >= 65_536 ? 4 : 2;
    const bytes = checkSize(await load(name), name, queries * count * (4 + width));
    const numbers = new Float32Array(bytes, 0, queries * count);
    const from = queries * count * 4;
    const keys = width === 4 ? new Uint32Array(bytes, from) : new Uint16Array(bytes, from);
    this.loaded[head] = { numbers, keys };
    this.largest.delete(head);
  }
}
