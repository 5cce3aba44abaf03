/** The interface of views: a view draws one read of one sample, and reports what the pointer is on. */

import type { Capture, Page, Read, Sample } from "./page.js";

/** The weights of a read, brought and unpacked. Head -1 is the mean over heads. */
export interface Table {
  readonly heads: number;
  readonly queries: number;
  readonly keys: number;
  /** Whether every number is here. */
  readonly isComplete: boolean;
  /** Significant digits that one number has: 9 of a float32, 5 of a float16. */
  readonly digits: number;
  /** Unpack what one head needs (-1: all heads). `Pane.table` did so for the head that is shown; before, only `overview`
   *  answers about a head. */
  load(head: number): Promise<void>;
  /** Whether that is done. */
  isLoaded(head: number): boolean;
  /** What was kept of a query's numbers, in no order, where others were cut away; null where every number is here.
   *  Of the mean over heads: each head's numbers kept, summed and divided by the heads. */
  topK(head: number, query: number): { keys: Uint32Array; numbers: Float32Array } | null;
  /** One number as it was computed; null where it was cut away. The mean over heads is null where one of them is. */
  value(head: number, query: number, key: number): number | null;
  /** A query's numbers over all keys; those cut away are 0. */
  row(head: number, query: number): Float32Array;
  /** A key's numbers over all queries. */
  column(head: number, key: number): Float32Array;
  /** The numbers of largest magnitude of blocks, at most `most` a side: row by row. */
  overview(head: number, most: number): { rows: number; columns: number; numbers: Float32Array };
  /** The number of largest magnitude. */
  maxMagnitude(head: number): number;
}

/** What is shown. The page owns it; views ask for changes through `Pane.choose`. */
export interface Shown {
  capture: Capture;
  sample: Sample;
  read: Read;
  /** -1: mean over heads. */
  head: number;
  /** What is pinned by a click or by stepping; null: nothing. */
  query: number | null;
  key: number | null;
  /** The number that gets the darkest color: 1, or the largest shown. */
  scale: "one" | "largest";
}

export interface Pane {
  readonly page: Page;
  /** Change what is shown; the page then calls `show` of the open view, or opens the view of that name. */
  choose(change: Partial<Shown>, view?: string): void;
  table(read: Read): Promise<Table>;
  /** Show labels and the exact number at the pointer (client coordinates); null hides it. `more` adds lines. */
  tip(at: { x: number; y: number } | null, shown: Shown, query: number | null, key: number | null, more?: string[]): void;
}

export interface View {
  /** Such as "links"; the page's tests and the address (#view=links) use it. */
  readonly name: string;
  /** One sentence for people: what is drawn. */
  readonly about: string;
  /** Whether it shows the scale of its colors itself; else the page does, below it. */
  readonly hasScale?: boolean;
  fits(sample: Sample, read: Read): boolean;
  /** Draw into an empty element, which has a size; `show` is called at once, and after every change or resize. */
  open(host: HTMLElement, pane: Pane): OpenView;
}

export interface OpenView {
  show(shown: Shown): Promise<void> | void;
  /** The number that got the darkest color, if that is not the one of the head shown; asked after `show`. */
  darkest?(): number | null;
  /** Where the pair, or the query alone, or the key alone, is drawn: client coordinates; null if it is not. */
  place(query: number | null, key: number | null): { x: number; y: number } | null;
  /** Keys that the page does not use itself; true if it was used. */
  handleKey?(key: string): boolean;
  close(): void;
}
