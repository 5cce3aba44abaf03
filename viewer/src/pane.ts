/** A sample on the page: its pickers, the open view, and the footer. */

import { make } from "./dom.js";
import { footer, moveMark } from "./footer.js";
import { DataError } from "./load.js";
import type { Page, Read, Sample } from "./page.js";
import { pickers } from "./pickers.js";
import { hasMean, mostSimilar, siblings } from "./reads.js";
import { defaultScale, type State } from "./state.js";
import { tableOf } from "./table.js";
import { hideTip, openTip, showTip } from "./tip.js";
import { uniformWeight } from "./uniform.js";
import type { OpenView, Pane, Shown, Table, View } from "./view.js";
import { VIEWS } from "./views/index.js";
import { decoderRead, isOfSteps } from "./views/steps.js";
import { showError } from "./errors.js";

/** Callbacks of a pane. */
export interface Listener {
  /** The state has changed. `byHand`: by the user, not by synchronization with the other pane. */
  changed(pane: Panel, byHand: boolean): void;
}

/** Default views of chains and pictures, in order of preference; else the first view that fits. */
const PREFERRED: [fits: (state: Shown) => boolean, view: string][] = [
  [({ read }) => read.kind === "chain", "chain"],
  [({ sample, read }) => isOnPicture(sample, read, "image"), "image"],
  [({ sample, read }) => isOnPicture(sample, read, "plane"), "plane"],
  [({ sample, read }) => isOnPicture(sample, read, "sound"), "sound"],
];

function isOnPicture(sample: Shown["sample"], read: Read, kind: string): boolean {
  return [read.queries, read.keys].some((axis) => sample.pictures[sample.axes[axis]?.picture ?? ""]?.kind === kind);
}

export class Panel implements Pane {
  readonly root = make("section", { class: "pane" });
  /** Resolves when all changes are drawn. */
  settled: Promise<void> = Promise.resolve();
  private readonly errors = make("div");
  private readonly header = make("div", { class: "top" });
  private readonly host = make("div", { class: "host" });
  private readonly footer = make("div", { class: "below" });
  private readonly resizeObserver: ResizeObserver;
  private opened: { view: View; drawn: OpenView } | null = null;
  /** The view that is shown, or will be when its data is loaded. */
  private nextView: View | null = null;
  private readonly tables = new Map<Read, Table>();
  private state: State;
  /** True if the mean over heads was selected before a view of a single head was opened. */
  private isMeanNext = false;
  stepOfOther: number | null = null;
  /** Size of the host when it was last drawn. */
  private size = [0, 0];
  /** Last movement of the pointer over the host; null outside of it. */
  private pointer: PointerEvent | null = null;
  /** Last tooltip of this pane: its point, the state it was computed for, and whether it is that of the pointer. */
  private lastTip: { at: { x: number; y: number }; shown: Shown; isPointed: boolean } | null = null;

  constructor(
    readonly page: Page,
    state: State,
    private readonly listener: Listener,
  ) {
    this.state = state;
    this.root.append(this.header, this.errors, this.host, this.footer);
    this.host.addEventListener("pointermove", (event) => (this.pointer = event), { capture: true });
    this.host.addEventListener("pointerleave", () => (this.pointer = null));
    this.resizeObserver = new ResizeObserver(() => {
      const { clientWidth, clientHeight } = this.host;
      if (clientWidth !== this.size[0] || clientHeight !== this.size[1]) this.redraw();
    });
  }

  /** Start drawing; the pane must be in the document. */
  open(): void {
    this.resizeObserver.observe(this.host);
    this.setState(this.state, false);
  }

  close(): void {
    this.resizeObserver.disconnect();
    this.opened?.drawn.close();
    this.root.remove();
  }

  get shown(): Shown {
    return this.state.shown;
  }

  get view(): string {
    return this.nextView?.name ?? this.state.view;
  }

  get drawn(): OpenView | null {
    return this.opened?.drawn ?? null;
  }

  /** Views that support the shown read. */
  get views(): View[] {
    return VIEWS.filter((view) => view.fits(this.shown.sample, this.shown.read));
  }

  choose(change: Partial<Shown>, view = this.state.view): void {
    this.stepOfOther = null;
    if (change.head !== undefined) this.isMeanNext = false;
    this.setState({ shown: this.changed(change), view }, true);
  }

  /** Apply the state of the other pane, as far as this sample has the same read, head and query. Steps of the outputs
   *  correspond by number, other queries by label and number. */
  follow({ shown, view }: State): void {
    const similar = mostSimilar(this.shown.sample, shown.read, this.shown.read);
    const decoder = isOfSteps(shown.read) ? decoderRead(this.shown.sample, this.shown.read) : null;
    const read = similar?.kind === shown.read.kind ? similar : (decoder ?? this.shown.read);
    // A read with one head has no choice of a head that this one could follow.
    const hasHead = shown.read.heads.length > 1 && shown.head < read.heads.length;
    const head = hasHead ? shown.head : this.shown.head;
    const change = this.changed({ read, head, scale: shown.scale, part: shown.part });
    const labels = (of: Shown) => of.sample.axes[of.read.queries]!.labels;
    const isSameLabel = shown.query === null || labels(shown)[shown.query] === labels(change)[shown.query];
    const last = labels(change).length - 1;
    this.stepOfOther = null;
    this.isMeanNext = false;
    if (shown.query !== null && isOfSteps(shown.read) && isOfSteps(read)) {
      change.query = Math.min(shown.query, last);
      if (shown.query > last) this.stepOfOther = shown.query;
    } else if (isSameLabel) change.query = shown.query;
    this.setState({ shown: change, view }, false);
  }

  /** Show another sample; the selection stays as far as it has the same reads. */
  replace(sample: Sample): void {
    this.stepOfOther = null;
    this.tables.clear();
    this.setState({ shown: this.changed({ sample }), view: this.state.view }, false);
  }

  async table(read: Read): Promise<Table> {
    const table = await tableOf(this.shown.sample, read);
    await table.load(Math.min(this.shown.head, table.heads - 1));
    this.tables.set(read, table);
    return table;
  }

  tip(
    at: { x: number; y: number } | null,
    shown: Shown,
    query: number | null,
    key: number | null,
    more: string[] = [],
  ): void {
    const table = this.tables.get(shown.read) ?? null;
    if (!at) hideTip();
    else {
      const { clientX = NaN, clientY = NaN } = this.pointer ?? {};
      this.lastTip = { at, shown: this.shown, isPointed: Math.hypot(at.x - clientX, at.y - clientY) < 1 };
      showTip(at, shown, table, { query, key, more });
    }
    if (table?.isLoaded(this.shown.head) && shown.read === this.shown.read) {
      moveMark(this.footer.querySelector(".marked-scale"), uniformWeight(this.shown, table, (at && query) ?? this.shown.query));
    }
  }

  redraw(): void {
    if (this.opened) this.track(this.draw());
  }

  private changed(change: Partial<Shown>): Shown {
    const next = { ...this.shown, ...change };
    if (change.sample && !change.read) next.read = mostSimilar(next.sample, this.shown.read) ?? next.read;
    if (next.read !== this.shown.read) {
      const before = defaultScale(this.shown.sample, this.shown.read);
      if (before === this.shown.scale && !change.scale) next.scale = defaultScale(next.sample, next.read);
      if (next.read.queries !== this.shown.read.queries && change.query === undefined) next.query = null;
      if (next.read.keys !== this.shown.read.keys && change.key === undefined) next.key = null;
    }
    const { labels: queries } = next.sample.axes[next.read.queries]!;
    const { labels: keys } = next.sample.axes[next.read.keys]!;
    if (next.query !== null && next.query >= queries.length) next.query = null;
    if (next.key !== null && next.key >= keys.length) next.key = null;
    next.head = next.read.heads.length === 1 ? 0 : Math.min(next.head, next.read.heads.length - 1);
    if (!hasMean(next.read)) next.head = Math.max(0, next.head);
    return next;
  }

  private setState(state: State, byHand: boolean): void {
    this.state = state;
    const view = this.viewFor(state);
    this.fitHead(view);
    this.nextView = view;
    this.updateControls(view);
    this.track(this.draw(view));
    this.listener.changed(this, byHand);
  }

  /** Select the first head for a view that has no mean over heads, and the mean again for the next that has it. */
  private fitHead({ isOfHead = false }: View): void {
    if (isOfHead && this.shown.head < 0) {
      this.state = { ...this.state, shown: this.changed({ head: 0 }) };
      this.isMeanNext = true;
    } else if (!isOfHead && this.isMeanNext) {
      this.state = { ...this.state, shown: this.changed({ head: -1 }) };
      this.isMeanNext = false;
    }
  }

  private viewFor({ shown, view }: State): View {
    const views = this.views;
    const requested = views.find((each) => each.name === view);
    if (requested) return requested;
    const preferred = PREFERRED.filter(([fits]) => fits(shown)).map(([, name]) => name);
    const fallback = views.find((each) => preferred.includes(each.name)) ?? views[0];
    if (!fallback) throw new DataError(`No view supports the read "${shown.read.name}".`);
    return fallback;
  }

  private updateControls(view: View): void {
    const focused = document.activeElement?.getAttribute("data-control");
    const inside = this.root.contains(document.activeElement);
    this.header.replaceChildren(...pickers(this, view));
    if (inside && focused) this.header.querySelector<HTMLElement>(`[data-control="${focused}"]`)?.focus();
    this.host.dataset["view"] = view.name;
  }

  private track(drawing: Promise<void>): void {
    this.settled = Promise.all([this.settled, drawing]).then(() => undefined);
  }

  private updateFooter(table: Table, most?: number): void {
    const focused = this.footer.contains(document.activeElement);
    this.footer.replaceChildren(...footer(this, table, most));
    if (focused) this.footer.querySelector("select")?.focus();
  }

  private async draw(view = this.nextView): Promise<void> {
    const { shown } = this;
    try {
      const table = await this.table(shown.read);
      if (shown !== this.shown) return;
      this.errors.replaceChildren();
      // The footer comes first: it determines the height of the drawing.
      this.updateFooter(table);
      if (view && view !== this.opened?.view) this.change(view);
      this.size = [this.host.clientWidth, this.host.clientHeight];
      await this.opened?.drawn.show(shown);
      if (shown === this.shown) this.updateTip();
      const most = this.opened?.drawn.darkest?.() ?? null;
      if (most !== null && shown === this.shown) this.updateFooter(table, most);
    } catch (error) {
      if (shown !== this.shown) return;
      this.opened?.drawn.close();
      this.opened = null;
      this.errors.replaceChildren();
      showError(error, this.errors);
    }
  }

  /** Compute the open tooltip again for what is now under the pointer; close that of another cell of an earlier state. */
  private updateTip(): void {
    const { lastTip, pointer } = this;
    if (!lastTip || openTip() !== lastTip.at) return;
    if (!lastTip.isPointed && lastTip.shown === this.shown) return;
    hideTip();
    if (!pointer || !lastTip.isPointed) return;
    const { clientX, clientY, pointerType } = pointer;
    const below = document.elementFromPoint(clientX, clientY);
    if (below && this.host.contains(below)) {
      below.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY, pointerType, bubbles: true }));
    }
  }

  private change(view: View): void {
    this.opened?.drawn.close();
    hideTip();
    this.host.replaceChildren();
    this.host.scrollTo(0, 0);
    this.opened = { view, drawn: view.open(this.host, this) };
  }

  /** Go to the next or previous head, layer, query, sample or view. */
  step(what: "head" | "layer" | "query" | "sample" | "view", by: number): void {
    const { shown } = this;
    if (what === "view") {
      const views = this.views;
      const at = views.findIndex((view) => view.name === this.view);
      this.choose({}, views[(at + by + views.length) % views.length]!.name);
    } else if (what === "sample") {
      const samples = shown.capture.samples.filter(({ reads }) => reads.length);
      const sample = samples[(samples.indexOf(shown.sample) + by + samples.length) % samples.length]!;
      if (sample !== shown.sample) this.choose({ sample, query: null, key: null });
    } else if (what === "layer") {
      const reads = siblings(shown.sample, shown.read);
      this.choose({ read: reads[(reads.indexOf(shown.read) + by + reads.length) % reads.length]! });
    } else if (what === "head") {
      const heads = shown.read.heads.length;
      const first = hasMean(shown.read) && !this.nextView?.isOfHead ? -1 : 0;
      const count = heads - first;
      if (heads > 1) this.choose({ head: ((shown.head - first + by + count) % count) + first });
    } else if (this.drawn?.stepQuery) {
      this.drawn.stepQuery(by);
    } else {
      const { length } = shown.sample.axes[shown.read.queries]!.labels;
      const from = shown.query ?? (by > 0 ? -1 : length);
      this.choose({ query: Math.max(0, Math.min(length - 1, from + by)) });
    }
  }
}
