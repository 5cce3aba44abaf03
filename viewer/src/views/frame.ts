/** Common layout of views of a picture: toolbar, caption, canvas, and lists in a sidebar. */

import { make, toClient, toElement } from "../dom.js";
import type { Picture } from "../page.js";
import type { Pane, Shown } from "../view.js";
import { pictureAxes } from "./picture-axes.js";
import { Selection } from "./selection.js";
import { markPressed } from "./lists.js";
import { oncePerFrame, addEntryHandlers, centerOf, toggle } from "./controls.js";

/** Callbacks of a view of a picture. */
export interface Painter {
  /** Create the tools and lists of another read. */
  build(selection: Selection): void;
  draw(selection: Selection): void;
  /** The pointer has moved over the canvas; null: it has left. */
  hover(event: PointerEvent | null, selection: Selection): void;
  /** Entry at a click; null if there is none. */
  entryAt(event: MouseEvent, selection: Selection): number | null;
}

export class PictureFrame {
  readonly tools = make("div", { class: "tools" });
  readonly stage = make("div", { class: "stage" });
  readonly canvas = make("canvas", { role: "img" });
  readonly sidebar = make("aside", { class: "side", "aria-label": "selection" });
  /** Below the lists: weights of the place under the pointer. */
  readonly details = make("div", { class: "below-lists" });
  selection: Selection | null = null;
  /** Entry of the place under the pointer. */
  hoveredPlace: number | null = null;
  readonly redraw = oncePerFrame(() => {
    if (this.selection) this.painter.draw(this.selection);
  });
  private readonly caption = make("p", { class: "caption", "aria-live": "polite" });

  constructor(
    readonly host: HTMLElement,
    private readonly pane: Pane,
    private readonly kind: Picture["kind"],
    private readonly painter: Painter,
  ) {
    this.stage.append(this.canvas);
    const timedClass = kind === "sound" ? " timed" : "";
    host.append(make("div", { class: `pictured${timedClass}` }, this.tools, this.caption, this.stage, this.sidebar));
    this.canvas.addEventListener("pointermove", (event) => this.onHover(event));
    this.canvas.addEventListener("pointerleave", () => this.onHover(null));
    this.canvas.addEventListener("click", (event) => this.onClick(event));
    addEntryHandlers(this.sidebar, {
      hover: (entry, at) => this.onListHover(entry, at),
      select: (entry) => this.selection?.pick(entry),
    });
  }

  async show(shown: Shown): Promise<void> {
    const axes = pictureAxes(shown.sample, shown.read, this.kind);
    if (!axes) return;
    const table = await this.pane.table(shown.read);
    const before = this.selection;
    const selection = new Selection(this.pane, shown, table, axes, before);
    this.selection = selection;
    if (before?.shown.read !== shown.read || before.shown.sample !== shown.sample) {
      this.hoveredPlace = null;
      this.painter.build(selection);
    }
    this.painter.draw(selection);
  }

  /** Create a toggle between the weights of a query and the weights on a key. */
  byKeyToggle(text: string, about: string): HTMLButtonElement {
    const button = toggle(text, about, (isOn) => {
      const selection = this.selection!;
      const { entry } = selection;
      selection.isByKey = isOn;
      selection.pane.choose({ query: null, key: null, [selection.side]: entry });
    });
    button.setAttribute("aria-pressed", String(this.selection!.isByKey));
    return button;
  }

  /** Set the caption, and the description of the canvas for screen readers. */
  describe(caption: string, about: string, below: readonly HTMLElement[]): void {
    if (this.caption.textContent !== caption) this.caption.textContent = caption;
    this.canvas.setAttribute("aria-label", about);
    markPressed(this.sidebar, this.selection!.entry);
    this.details.replaceChildren(...below);
  }

  /** Convert to coordinates of the canvas. */
  toCanvas(event: MouseEvent): { x: number; y: number } {
    return toElement(this.canvas, event);
  }

  /** Convert to client coordinates. */
  toClient(x: number, y: number): { x: number; y: number } {
    return toClient(this.canvas, x, y);
  }

  /** Position of an entry in the lists, in client coordinates. */
  listPosition(entry: number | null): { x: number; y: number } | null {
    return entry === null ? null : centerOf(this.sidebar.querySelector(`[data-entry="${entry}"]`));
  }

  /** Move the selection with arrow keys; up and down by `columns` entries. */
  press(key: string, columns = 1): boolean {
    const steps: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    const step = steps[key];
    if (!this.selection || !step) return false;
    this.selection.step(step);
    return true;
  }

  close(): void {
    this.selection?.tip(null, "query", null);
    this.host.replaceChildren();
  }

  private onHover(event: PointerEvent | null): void {
    if (!this.selection) return;
    this.painter.hover(event, this.selection);
    this.redraw();
  }

  private onClick(event: MouseEvent): void {
    const { selection } = this;
    if (!selection) return;
    const entry = this.painter.entryAt(event, selection);
    selection.hovered = null;
    // A click outside of all entries unpins.
    selection.pick(entry ?? selection.shown[selection.side]);
  }

  private onListHover(entry: number | null, at: { x: number; y: number } | null): void {
    const { selection } = this;
    if (!selection) return;
    selection.hovered = entry;
    selection.tip(at, selection.side, entry);
    this.redraw();
  }
}
