/** Layers of a live page in float32: rows of items, one after the other. */

import type { AddNorm, Attention, DistanceBias, Embedding, FeedForward, Linear, Norm, Positions, Rotary } from "./form.js";

type Items = Float32Array;

/** Return x W^T + b for `count` rows. */
export function apply({ weight, bias }: Linear, x: Items, count: number): Items {
  const { rows, columns, numbers, scales } = weight;
  const result = new Float32Array(count * rows);
  const wide = new Float32Array(columns);
  for (let row = 0; row < rows; row++) {
    wide.set(numbers.subarray(row * columns, (row + 1) * columns));
    const [scale, shift] = [scales[row]!, bias ? bias[row]! : 0];
    for (let item = 0; item < count; item++) {
      result[item * rows + row] = dot(wide, 0, x, item * columns, columns) * scale + shift;
    }
  }
  return result;
}

function dot(a: Float32Array, from: number, b: Float32Array, start: number, size: number): number {
  let [one, two, three, four] = [0, 0, 0, 0];
  let index = 0;
  for (; index + 3 < size; index += 4) {
    one += a[from + index]! * b[start + index]!;
    two += a[from + index + 1]! * b[start + index + 1]!;
    three += a[from + index + 2]! * b[start + index + 2]!;
    four += a[from + index + 3]! * b[start + index + 3]!;
  }
  for (; index < size; index++) one += a[from + index]! * b[start + index]!;
  return one + two + (three + four);
}

/** Return the embeddings of ids. */
export function embed({ weight, scale }: Embedding, ids: readonly number[]): Items {
  const { columns, numbers, scales } = weight;
  const items = new Float32Array(ids.length * columns);
  ids.forEach((id, item) => {
    for (let j = 0; j < columns; j++) items[item * columns + j] = Math.fround(numbers[id * columns + j]! * scales[id]!) * scale;
  });
  return items;
}

/** Add positional encodings to items, in place; `start` is the position of the first. */
export function addPositions(positions: Positions, items: Items, count: number, start: number): void {
  if (!positions) return;
  const width = items.length / count;
  for (let item = 0; item < count; item++) {
    const position = start + item;
    for (let j = 0; j < width; j++) {
      if ("weight" in positions) {
        const { numbers, scales } = positions.weight;
        items[item * width + j]! += numbers[position * width + j]! * scales[position]!;
      } else {
        const angle = position * Math.exp((j - (j % 2)) * (-Math.log(10000) / positions.dim));
        items[item * width + j]! += j % 2 ? Math.cos(angle) : Math.sin(angle);
      }
    }
  }
}

/** Return the normalized rows of x, each of `norm.size` numbers. */
export function normalize(norm: Norm | null, x: Items): Items {
  if (!norm) return x;
  const { size, scale, shift, eps, is_rms } = norm;
  const result = new Float32Array(x.length);
  for (let from = 0; from < x.length; from += size) {
    let [mean, square] = [0, 0];
    if (!is_rms) for (let j = 0; j < size; j++) mean += x[from + j]! / size;
    for (let j = 0; j < size; j++) square += (x[from + j]! - mean) ** 2 / size;
    const factor = 1 / Math.sqrt(square + eps);
    for (let j = 0; j < size; j++) {
      result[from + j] = (x[from + j]! - mean) * factor * (scale ? scale[j]! : 1) + (shift ? shift[j]! : 0);
    }
  }
  return result;
}

/** pre: x + f(norm(x)); post: norm(x + f(x)). */
export function addNorm({ order, norm }: AddNorm, x: Items, part: (x: Items) => Items): Items {
  const output = part(order === "pre" ? normalize(norm, x) : x);
  for (let index = 0; index < x.length; index++) output[index]! += x[index]!;
  return order === "pre" ? output : normalize(norm, output);
}

export function feedForward({ expand, contract, activation, gate }: FeedForward, x: Items, count: number): Items {
  const act = ACTIVATIONS[activation]!;
  const hidden = apply(expand, x, count);
  const gates = gate ? apply(gate, x, count) : null;
  for (let index = 0; index < hidden.length; index++) {
    hidden[index] = gates ? act(gates[index]!) * hidden[index]! : act(hidden[index]!);
  }
  return apply(contract, hidden, count);
}

const ACTIVATIONS: Record<string, (x: number) => number> = {
  relu: (x) => Math.max(0, x),
  gelu: (x) => (x / 2) * (1 + erf(x * Math.SQRT1_2)),
  "gelu-tanh": (x) => (x / 2) * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  silu: (x) => x / (1 + Math.exp(-x)),
};

/** Coefficients of the exponent of erfc, with a relative error below 1.2e-7 (Press et al. 1992, section 6.2). */
const ERFC = [-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277];

export function erf(x: number): number {
  const t = 1 / (1 + Math.abs(x) / 2);
  const exponent = ERFC.reduceRight((sum, coefficient) => sum * t + coefficient, 0);
  const rest = t * Math.exp(exponent - x * x);
  return x < 0 ? rest - 1 : 1 - rest;
}

/** Keys and values of an attention, which grow, and the weights of each query that has read them. */
export class Memory {
  keys = new Float32Array(0);
  values = new Float32Array(0);
  count = 0;
  /** Of each query, (heads, keys). */
  weights: Float32Array[] = [];

  constructor(private readonly attention: Attention) {}

  /** Project items, and add them. */
  extend(x: Items, count: number): void {
    const { key, value, key_norm, rotary, key_heads } = this.attention;
    const keys = normalize(key_norm, apply(key, x, count));
    rotate(rotary, keys, { count, heads: key_heads, start: this.count });
    this.keys = append(this.keys, this.count * key.weight.rows, keys);
    this.values = append(this.values, this.count * value.weight.rows, apply(value, x, count));
    this.count += count;
  }

  get heads(): number {
    return this.attention.num_heads;
  }

  /** Forget all but the first keys, values and queries. */
  cut(count: number): void {
    this.count = count;
    this.weights.length = count;
  }

  /** Return what `count` queries read. In order: each reads the keys up to its own, the last `window` ones; the last
   *  query is at the last key. Else: each reads the keys at most floor(window / 2) away. A masked weight is -0. */
  read(x: Items, count: number, { inOrder = false, window = null as number | null } = {}): Items {
    const { query, output, num_heads, key_heads, value, query_norm, rotary, read } = this.attention;
    const size = query.weight.rows / num_heads;
    const valueSize = value.weight.rows / key_heads;
    const start = inOrder ? this.count - count : 0;
    const queries = normalize(query_norm, apply(query, x, count));
    rotate(rotary, queries, { count, heads: num_heads, start });
    const found = new Float32Array(count * num_heads * valueSize);
    for (let item = 0; item < count; item++) {
      const end = inOrder ? start + item + 1 : this.count;
      const half = Math.floor((window ?? Infinity) / 2);
      const first = inOrder ? Math.max(0, end - (window ?? end)) : Math.max(0, item - half);
      const last = inOrder ? end : Math.min(end, item + half + 1);
      const weights = new Float32Array(num_heads * end).fill(-0);
      for (let head = 0; head < num_heads; head++) {
        const shared = Math.floor((head * key_heads) / num_heads);
        const row = weights.subarray(head * end + first, head * end + last);
        for (let j = 0; j < row.length; j++) {
          const from = ((first + j) * key_heads + shared) * size;
          const score = dot(queries, (item * num_heads + head) * size, this.keys, from, size) * read.score.scale;
          row[j] = score + biasAt(read.bias, head, first + j - (start + item));
        }
        softmax(row);
        const into = (item * num_heads + head) * valueSize;
        for (let j = 0; j < row.length; j++) {
          const from = ((first + j) * key_heads + shared) * valueSize;
          for (let k = 0; k < valueSize; k++) found[into + k]! += row[j]! * this.values[from + k]!;
        }
      }
      this.weights.push(weights);
    }
    return apply(output, found, count);
  }
}

function append(numbers: Float32Array<ArrayBuffer>, size: number, more: Float32Array): Float32Array<ArrayBuffer> {
  let result = numbers;
  if (numbers.length < size + more.length) {
    result = new Float32Array(2 * (size + more.length));
    result.set(numbers.subarray(0, size));
  }
  result.set(more, size);
  return result;
}

function biasAt(bias: DistanceBias | null, head: number, distance: number): number {
  if (!bias) return 0;
  const count = bias.values.length / bias.heads;
  return bias.values[(bias.heads === 1 ? 0 : head) * count + distance + (count - 1) / 2]!;
}

export function softmax(row: Float32Array): void {
  let [most, sum] = [-Infinity, 0];
  for (const score of row) most = Math.max(most, score);
  for (let j = 0; j < row.length; j++) sum += row[j] = Math.exp(row[j]! - most);
  for (let j = 0; j < row.length; j++) row[j]! /= sum;
}

/** Rotate the heads of `count` items, in place. */
function rotate(rotary: Rotary | null, x: Items, { count, heads, start }: { count: number; heads: number; start: number }): void {
  if (!rotary) return;
  const { rates, interleaved } = rotary;
  const size = x.length / (count * heads);
  for (let index = 0; index < count * heads; index++) {
    const position = start + Math.floor(index / heads);
    rates.forEach((rate, pair) => {
      const [cos, sin] = [Math.cos(position * rate), Math.sin(position * rate)];
      const one = index * size + (interleaved ? 2 * pair : pair);
      const two = one + (interleaved ? 1 : rates.length);
      const [a, b] = [x[one]!, x[two]!];
      x[one] = a * cos - b * sin;
      x[two] = b * cos + a * sin;
    });
  }
}
