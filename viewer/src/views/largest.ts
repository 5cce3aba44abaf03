/** Selection of the largest numbers. */

/** Indices of the `count` numbers of largest magnitude, largest first; zeros are left out. */
export function largestIndices(numbers: ArrayLike<number>, count: number): number[] {
  const indices: number[] = [];
  for (let i = 0; i < numbers.length; i++) {
    const size = Math.abs(numbers[i]!);
    if (!(size > 0)) continue;
    let position = indices.length;
    while (position > 0 && Math.abs(numbers[indices[position - 1]!]!) < size) position--;
    if (position >= count) continue;
    indices.splice(position, 0, i);
    if (indices.length > count) indices.pop();
  }
  return indices;
}

/** Largest magnitude; 0 for an empty array. */
export function maxMagnitude(numbers: ArrayLike<number>): number {
  let most = 0;
  for (let i = 0; i < numbers.length; i++) most = Math.max(most, Math.abs(numbers[i]!));
  return most;
}

/** Largest magnitude of the half of the numbers that have small ones; 0 if there is at most one number. */
export function lowerHalf(numbers: Float32Array): number {
  return numbers.map(Math.abs).sort()[(numbers.length >> 1) - 1] ?? 0;
}

/**
 * Return the smallest magnitude such that at most `count` numbers are as large or larger, and none of them is less than
 * `share` of the largest. Infinity if no number can be shown (all are zero, or too many are equally large).
 */
export function threshold(numbers: Float32Array, count: number, share: number): number {
  const sizes = numbers.map(Math.abs).sort();
  const most = sizes.at(-1) ?? 0;
  if (most === 0) return Infinity;
  const floor = most * share;
  const first = sizes.length - count;
  if (first <= 0 || sizes[first]! < floor) return floor;
  // Ties with the first number that is left out are left out as well, so that the result does not depend on the order.
  let index = first;
  while (index < sizes.length && sizes[index] === sizes[first - 1]) index++;
  return index < sizes.length ? Math.max(floor, sizes[index]!) : Infinity;
}
