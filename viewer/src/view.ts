/** Interfaces of views: a view draws one read of one sample, and shows tooltips. */

import type { Capture, Page, Read, Sample } from "./page.js";

/** Weights of a read. Head -1 is the mean over heads. */
export interface Table {
  readonly heads: number;
  readonly queries: number;
  readonly keys: number;
  /** True if all weights are on the page. */
  readonly isComplete: boolean;
  /** Significant digits of a number: 9 for float32, 5 for float16. */
  readonly digits: number;
  /** Load the weights of a head (-1: all heads). `Pane.table` has loaded the shown head; for heads that are not loaded,
   *  only `overview` is available. */
  load(head: number): Promise<void>;
  /** Return true if a head is loaded. */
  isLoaded(head: number): boolean;
  /** Largest weights of a query, in no order; null if the table is complete. For the mean over heads: the sum of the
   *  largest weights of each head, divided by the number of heads. */
  topK(head: number, query: number): { keys: Uint32Array; numbers: Float32Array } | null;
  /** One weight, exactly; null if it is omitted. The mean over heads is null if one of them is omitted. */
  value(head: number, query: number, key: number): number | null;
  /** Weights of a query on all keys; 0 for omitted weights. */
  row(head: number, query: number): Float32Array;
  /** Weights of all queries on a key; 0 for omitted weights. */
  column(head: number, key: number): Float32Array;
  /** Weight of largest magnitude of each block, row by row; at most `most` blocks per side. */
  overview(head: number, most: number): { rows: number; columns: number; numbers: Float32Array };
  /** Largest magnitude, with its sign. */
  maxMagnitude(head: number): number;
}

/** Selection of a pane, which is immutable; views change it with `Pane.choose`. */
export interface Shown {
  capture: Capture;
  sample: Sample;
  read: Read;
  /** -1: mean over heads. */
  head: number;
  /** Pinned query and key; null: none. */
  query: number | null;
  key: number | null;
  /** Number with the darkest color: 1, or the largest number shown. */
  scale: "one" | "largest";
  /** Matrix that the view walk shows when presenting, such as "Q"; "": its first. */
  part: string;
}

/** Panes of a page that is replaced while it is shown. */
export interface Panes {
  /** Show the first capture of another page; resolves when it is drawn. */
  replace(page: Page): Promise<void>;
}

export interface Pane {
  readonly page: Page;
  /** Step of the other pane if it is linked and this output has fewer: then this pane stays at its last; else null. */
  readonly stepOfOther: number | null;
  /** Change the selection; then `show` of the open view is called, or another view is opened. */
  choose(change: Partial<Shown>, view?: string): void;
  table(read: Read): Promise<Table>;
  /** Show the tooltip at a point (client coordinates); null hides it. `more`: additional lines. */
  tip(at: { x: number; y: number } | null, shown: Shown, query: number | null, key: number | null, more?: string[]): void;
}

export interface View {
  /** Name on the tab and in the address (#view=links). */
  readonly name: string;
  /** Description on the page, one sentence. */
  readonly about: string;
  /** True if the view shows its own color scale; else the page shows it in the footer. */
  readonly hasScale?: boolean;
  /** True if the view shows a single head, never the mean over heads. */
  readonly isOfHead?: boolean;
  fits(sample: Sample, read: Read): boolean;
  /** Open the view in an empty element that has a size; `show` is called next, and after each change or resize. */
  open(host: HTMLElement, pane: Pane): OpenView;
}

export interface OpenView {
  show(shown: Shown): Promise<void> | void;
  /** Number with the darkest color after `show`, if it is not that of the shown head. */
  darkest?(): number | null;
  /** Position of a pair, a query or a key in client coordinates; null if it is not drawn. */
  place(query: number | null, key: number | null): { x: number; y: number } | null;
  /** Go to the next or previous query; a view without it pins one. */
  stepQuery?(by: number): void;
  /** Handle a key that is no shortcut of the page; return true if it was used. */
  handleKey?(key: string): boolean;
  close(): void;
}
