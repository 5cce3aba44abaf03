/** What all drawings over a picture stand in: tools above, what is shown in words, the canvas, lists beside it. */

import { make } from "../dom.js";
import type { Picture } from "../page.js";
import type { Pane, Shown } from "../view.js";
import { focusOf } from "./focus.js";
import { Light } from "./light.js";
import { press } from "./lists.js";
import { inFrame, listen, middle, toggle } from "./parts.js";

/** What a drawing does in its frame. */
export interface Painter {
  /** Something else is shown than before: tools and lists have to be made anew. */
  build(light: Light): void;
  draw(light: Light): void;
  /** The pointer is on the canvas; null: it has left. */
  point(event: PointerEvent | null, light: Light): void;
  /** The entry that a click chooses; null if there is none. */
  picked(event: MouseEvent, light: Light): number | null;
}

export class Frame {
  readonly tools = make("div", { class: "tools" });
  readonly stage = make("div", { class: "stage" });
  readonly canvas = make("canvas", { role: "img" });
  readonly side = make("aside", { class: "side", "aria-label": "selection" });
  /** Below the lists: what changes with the place pointed at. */
  readonly below = make("div", { class: "below-lists" });
  light: Light | null = null;
  /** The place pointed at. */
  at: number | null = null;
  readonly redraw = inFrame(() => {
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
    host.append(make("div", { class: `pictured${timed}` }, this.tools, this.caption, this.stage, this.side));
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    this.canvas.addEventListener("click", (event) => this.pick(event));
    listen(this.side, { point: (entry, at) => this.pointEntry(entry, at), pick: (entry) => this.light?.pick(entry) });
  }

  async show(shown: Shown): Promise<void> {
    const focus = focusOf(shown.sample, shown.read, this.kind);
    if (!focus) return;
    const table = await this.pane.table(shown.read);
    const before = this.light;
    const light = new Light(this.pane, shown, table, focus, before);
    this.light = light;
    if (before?.shown.read !== shown.read || before.shown.sample !== shown.sample) {
      this.at = null;
      this.painter.build(light);
    }
    this.painter.draw(light);
  }

  /** A toggle between the weights of a query and the weights on a key. */
  turn(text: string, about: string): HTMLButtonElement {
    const button = toggle(text, about, (isOn) => {
      const light = this.light!;
      const { entry } = light;
      light.isTurned = isOn;
      light.pane.choose({ query: null, key: null, [light.side]: entry });
    });
    button.setAttribute("aria-pressed", String(this.light!.isTurned));
    return button;
  }

  /** Set the caption, and the description of the canvas for screen readers. */
  describe(caption: string, about: string, below: readonly HTMLElement[]): void {
    if (this.caption.textContent !== caption) this.caption.textContent = caption;
    this.canvas.setAttribute("aria-label", about);
    press(this.side, this.light!.entry);
    this.below.replaceChildren(...below);
  }

  /** The pointer's place on the canvas. */
  inside(event: MouseEvent): { x: number; y: number } {
    const { left, top } = this.canvas.getBoundingClientRect();
    return { x: event.clientX - left, y: event.clientY - top };
  }

  /** Client coordinates of a place on the canvas. */
  outside(x: number, y: number): { x: number; y: number } {
    const { left, top } = this.canvas.getBoundingClientRect();
    return { x: left + x, y: top + y };
  }

  /** Where the lists have an entry, in client coordinates. */
  listed(entry: number | null): { x: number; y: number } | null {
    return entry === null ? null : middle(this.side.querySelector(`[data-entry="${entry}"]`));
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

  private point(event: PointerEvent | null): void {
    if (!this.light) return;
    this.painter.point(event, this.light);
    this.redraw();
  }

  private pick(event: MouseEvent): void {
    const { light } = this;
    if (!light) return;
    const entry = this.painter.picked(event, light);
    light.pointed = null;
    // A click beside everything lets go of what was pinned.
    light.pick(entry ?? light.shown[light.side]);
  }

  private pointEntry(entry: number | null, at: { x: number; y: number } | null): void {
    const { light } = this;
    if (!light) return;
    light.pointed = entry;
    light.tip(at, light.side, entry);
    this.redraw();
  }
}
