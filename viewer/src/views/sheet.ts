/** A canvas as large as what is seen, over content that may be larger and is scrolled. */

import { context, make } from "../dom.js";
import { inFrame } from "./parts.js";

export interface Seen {
  left: number;
  top: number;
  width: number;
  height: number;
}

/** The most pixels that are drawn for paper. */
const PAPER_PIXELS = 3e7;

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
    window.addEventListener("beforeprint", this.print);
    window.addEventListener("afterprint", this.print);
  }

  close(): void {
    window.removeEventListener("beforeprint", this.print);
    window.removeEventListener("afterprint", this.print);
    this.scroller.remove();
  }

  size(width: number, height: number): void {
    this.content.style.width = `${Math.ceil(width)}px`;
    this.content.style.height = `${Math.ceil(height)}px`;
  }

  draw(): void {
    const { left, top, width, height } = this.isOnPaper ? this.all : this.seen;
    if (!width || !height) return;
    const drawing = context(this.canvas, width, height);
    drawing.translate(-left, -top);
    this.paint(drawing, { left, top, width, height });
  }

  private isOnPaper = false;

  private get seen(): Seen {
    const { scrollLeft: left, scrollTop: top, clientWidth: width, clientHeight: height } = this.scroller;
    return { left, top, width, height };
  }

  private get all(): Seen {
    return { left: 0, top: 0, width: this.content.offsetWidth, height: this.content.offsetHeight };
  }

  /** On paper all of the content is drawn, not only what is seen; the browser makes it as small as it must be. */
  private readonly print = (event: Event): void => {
    const { width, height } = this.all;
    this.isOnPaper = event.type === "beforeprint" && width * height <= PAPER_PIXELS;
    this.draw();
  };

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
  reveal({ left, top, width, height }: Seen): void {
    const { scrollLeft, scrollTop, clientWidth, clientHeight } = this.scroller;
    const into = (at: number, size: number, from: number, room: number) => {
      // What stands around it comes into sight as well.
      const margin = Math.max(8, Math.min(120, (room - size) / 3));
      if (at - margin < from) return at - margin;
      return at + size + margin > from + room ? at + size + margin - room : from;
    };
    this.scroller.scrollTo(into(left, width, scrollLeft, clientWidth), into(top, height, scrollTop, clientHeight));
  }
}
