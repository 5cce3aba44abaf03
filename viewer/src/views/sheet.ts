/** A canvas as large as what is seen, over content that may be larger and is scrolled. */

import { context, make } from "../dom.js";
import { inFrame } from "./parts.js";

export interface Seen {
  left: number;
  top: number;
  width: number;
  height: number;
}

export class Sheet {
  readonly scroller = make("div", { class: "sheet" });
  /** Elements in it stand above the canvas, at places of the content. */
  readonly content = make("div", { class: "sheet-content" });
  readonly canvas = make("canvas", { role: "img", class: "sheet-canvas" });
  /** Draw again, soon. */
  readonly redraw = inFrame(() => this.draw());

  /** paint: draws in coordinates of the content; only what is `seen` is shown. */
  constructor(host: HTMLElement, readonly paint: (drawing: CanvasRenderingContext2D, seen: Seen) => void) {
    this.content.append(this.canvas);
    this.scroller.append(this.content);
    host.append(this.scroller);
    this.scroller.addEventListener("scroll", this.redraw, { passive: true });
  }

  size(width: number, height: number): void {
    this.content.style.width = `${Math.ceil(width)}px`;
    this.content.style.height = `${Math.ceil(height)}px`;
  }

  draw(): void {
    const { scrollLeft: left, scrollTop: top, clientWidth: width, clientHeight: height } = this.scroller;
    if (!width || !height) return;
    const drawing = context(this.canvas, width, height);
    drawing.translate(-left, -top);
    this.paint(drawing, { left, top, width, height });
  }

  /** A place of the content that the pointer is at. */
  inside(event: { clientX: number; clientY: number }): { x: number; y: number } {
    const { left, top } = this.content.getBoundingClientRect();
    return { x: event.clientX - left, y: event.clientY - top };
  }

  /** Client coordinates of a place of the content. */
  outside(x: number, y: number): { x: number; y: number } {
    const { left, top } = this.content.getBoundingClientRect();
    return { x: left + x, y: top + y };
  }

  /** Scroll as little as needed to bring a rectangle into sight. */
  reveal({ left, top, width, height }: Seen, margin = 24): void {
    const { scrollLeft, scrollTop, clientWidth, clientHeight } = this.scroller;
    const into = (at: number, size: number, from: number, room: number) =>
      at - margin < from ? at - margin : at + size + margin > from + room ? at + size + margin - room : from;
    this.scroller.scrollTo(into(left, width, scrollLeft, clientWidth), into(top, height, scrollTop, clientHeight));
  }
}
