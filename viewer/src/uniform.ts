/** The uniform weight: that of each key if a query attended to all keys alike. */

import type { Shown, Table } from "./view.js";

const masked = new WeakMap<Table, Map<number, boolean>>();

/** Return true if a cell is masked, which has the weight -0. */
export function hasMasked(table: Table, head: number): boolean {
  if (!table.isComplete) return false;
  const found = masked.get(table) ?? new Map<number, boolean>();
  masked.set(table, found);
  if (!found.has(head)) found.set(head, hasMaskedRow(table, head));
  return found.get(head)!;
}

function hasMaskedRow(table: Table, head: number): boolean {
  for (let query = 0; query < table.queries; query++) if (countUnmasked(table, head, query) < table.keys) return true;
  return false;
}

function countUnmasked(table: Table, head: number, query: number): number {
  // What all heads mask is masked in the first.
  const row = table.row(Math.max(0, head), query);
  let count = 0;
  for (let key = 0; key < row.length; key++) {
    if (!Object.is(row[key], -0) || !Object.is(table.value(head, query, key), -0)) count++;
  }
  return count;
}

/** Return 1 / number of keys, or with masked cells 1 / number of unmasked keys of a query. Null without a query, if the
 *  masked cells are unknown, and for other measures. */
export function uniformWeight({ read, head }: Shown, table: Table, query: number | null): number | null {
  if (read.measure !== "weight" || table.keys < 2) return null;
  if (!table.isComplete) return "mask" in read.facts ? null : 1 / table.keys;
  if (!hasMasked(table, head)) return 1 / table.keys;
  const count = query === null ? 0 : countUnmasked(table, head, query);
  return count ? 1 / count : null;
}
