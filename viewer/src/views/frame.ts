/** What all drawings over a picture stand in: tools above, what is shown in words, the canvas, lists beside it. */

import { make } from "../dom.js";
import type { Picture } from "../page.js";
import type { Pane, Shown } from "../view.js";
import { pictureAxes } from "./focus.js";
import { Selection } from "./light.js";
import { markPressed } from "./lists.js";
import { oncePerFrame, addEntryHandlers, centerOf, toggle } from "./parts.js";

/** What a drawing does in its frame. */
export interface Painter {
  /** Something else is shown than before: tools and lists have to be made anew. */
  build(light: Selection): void;
  draw(light: Selection): void;
  /** The pointer is on the canvas; null: it has left. */
  hover(event: PointerEvent | null, light: Selection): void;
  /** The entry that a click chooses; null if there is none. */
  entryAt(event: MouseEvent, light: Selection): number | null;
}

export class PictureFrame {
  readonly tools = make("div", { class: "tools" });
  readonly stage = make("div", { class: "stage" });
  readonly canvas = make("canvas", { role: "img" });
  readonly sidebar = make("aside", { class: "side", "aria-label": "selection" });
  /** Below the lists: what changes with the place pointed at. */
  readonly details = make("div", { class: "below-lists" });
  light: Selection | null = null;
  /** The place pointed at. */
  hoveredPlace: number | null = null;
  readonly redraw = oncePerFrame(() => {
    if (this.light) this.painter.draw(this.light);
  });
  private readonly caption = make("p", { class: "caption", "aria-live": "polite" });

  constructor(
    readonly host: HTMLElement,
    private readonly pane: Pane,
    private readonly kind: Picture["kind"],
    private readonly painter: Painter,
  ) {
    this.stage.append(this.canvas);
    const timed = kind === "sound" ? " timed" : "";
    host.append(make("div", { class: `pictured${timed}` }, this.tools, this.caption, this.stage, this.sidebar));
    this.canvas.addEventListener("pointermove", (event) => this.onHover(event));
    this.canvas.addEventListener("pointerleave", () => this.onHover(null));
    this.canvas.addEventListener("click", (event) => this.onClick(event));
    addEntryHandlers(this.sidebar, { hover: (entry, at) => this.onListHover(entry, at), select: (entry) => this.light?.pick(entry) });
  }

  async show(shown: Shown): Promise<void> {
    const focus = pictureAxes(shown.sample, shown.read, this.kind);
    if (!focus) return;
    const table = await this.pane.table(shown.read);
    const before = this.light;
    const light = new Selection(this.pane, shown, table, focus, before);
    this.light = light;
    if (before?.shown.read !== shown.read || before.shown.sample !== shown.sample) {
      this.hoveredPlace = null;
      this.painter.build(light);
    }
    this.painter.draw(light);
  }

  /** A toggle between the weights of a query and the weights on a key. */
  byKeyToggle(text: string, about: string): HTMLButtonElement {
    const button = toggle(text, about, (isOn) => {
      const light = this.light!;
      const { entry } = light;
      light.isByKey = isOn;
      light.pane.choose({ query: null, key: null, [light.side]: entry });
    });
    button.setAttribute("aria-pressed", String(this.light!.isByKey));
    return button;
  }

  /** Set the caption, and the description of the canvas for screen readers. */
  describe(caption: string, about: string, below: readonly HTMLElement[]): void {
    if (this.caption.textContent !== caption) this.caption.textContent = caption;
    this.canvas.setAttribute("aria-label", about);
    markPressed(this.sidebar, this.light!.entry);
    this.details.replaceChildren(...below);
  }

  /** The pointer's place on the canvas. */
  toCanvas(event: MouseEvent): { x: number; y: number } {
    const { left, top } = this.canvas.getBoundingClientRect();
    return { x: event.clientX - left, y: event.clientY - top };
  }

  /** Client coordinates of a place on the canvas. */
  toClient(x: number, y: number): { x: number; y: number } {
    const { left, top } = this.canvas.getBoundingClientRect();
    return { x: left + x, y: top + y };
  }

  /** Where the lists have an entry, in client coordinates. */
  listPosition(entry: number | null): { x: number; y: number } | null {
    return entry === null ? null : centerOf(this.sidebar.querySelector(`[data-entry="${entry}"]`));
  }

  /** Arrows go to the entry before or after, or a row up or down where entries stand in rows. */
  press(key: string, columns = 1): boolean {
    const steps: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    const step = steps[key];
    if (!this.light || !step) return false;
    this.light.step(step);
    return true;
  }

  close(): void {
    this.light?.tip(null, "query", null);
    this.host.replaceChildren();
  }

  private onHover(event: PointerEvent | null): void {
    if (!this.light) return;
    this.painter.hover(event, this.light);
    this.redraw();
  }

  private onClick(event: MouseEvent): void {
    const { light } = this;
    if (!light) return;
    const entry = this.painter.entryAt(event, light);
    light.hovered = null;
    // A click beside everything lets go of what was pinned.
    light.pick(entry ?? light.shown[light.side]);
  }

  private onListHover(entry: number | null, at: { x: number; y: number } | null): void {
    const { light } = this;
    if (!light) return;
    light.hovered = entry;
    light.tip(at, light.side, entry);
    this.redraw();
  }
}
