/** A canvas as large as what is seen, over content that may be larger and is scrolled. */

import { prepareCanvas, make } from "../dom.js";
import { oncePerFrame } from "./parts.js";

export interface Rect {
  left: number;
  top: number;
  width: number;
  height: number;
}

/** The most pixels that are drawn for paper. */
const PAPER_PIXELS = 3e7;

export class ScrollCanvas {
  readonly scroller = make("div", { class: "sheet" });
  /** Elements in it stand above the canvas, at places of the content. */
  readonly content = make("div", { class: "sheet-content" });
  readonly canvas = make("canvas", { role: "img", class: "sheet-canvas" });
  /** Draw again, soon. */
  readonly redraw = oncePerFrame(() => this.draw());

  /** paint: draws in coordinates of the content; only what is `seen` is shown. */
  constructor(host: HTMLElement, readonly paint: (drawing: CanvasRenderingContext2D, area: Rect) => void) {
    this.content.append(this.canvas);
    this.scroller.append(this.content);
    host.append(this.scroller);
    this.scroller.addEventListener("scroll", this.redraw, { passive: true });
    window.addEventListener("beforeprint", this.onPrint);
    window.addEventListener("afterprint", this.onPrint);
  }

  close(): void {
    window.removeEventListener("beforeprint", this.onPrint);
    window.removeEventListener("afterprint", this.onPrint);
    this.scroller.remove();
  }

  setSize(width: number, height: number): void {
    this.content.style.width = `${Math.ceil(width)}px`;
    this.content.style.height = `${Math.ceil(height)}px`;
  }

  draw(): void {
    const { left, top, width, height } = this.isPrinting ? this.fullArea : this.visibleArea;
    if (!width || !height) return;
    const drawing = prepareCanvas(this.canvas, width, height);
    drawing.translate(-left, -top);
    this.paint(drawing, { left, top, width, height });
  }

  private isPrinting = false;

  private get visibleArea(): Rect {
    const { scrollLeft: left, scrollTop: top, clientWidth: width, clientHeight: height } = this.scroller;
    return { left, top, width, height };
  }

  private get fullArea(): Rect {
    return { left: 0, top: 0, width: this.content.offsetWidth, height: this.content.offsetHeight };
  }

  /** On paper all of the content is drawn, not only what is seen; the browser makes it as small as it must be. */
  private readonly onPrint = (event: Event): void => {
    const { width, height } = this.fullArea;
    this.isPrinting = event.type === "beforeprint" && width * height <= PAPER_PIXELS;
    this.draw();
  };

  /** A place of the content that the pointer is at. */
  toContent(event: { clientX: number; clientY: number }): { x: number; y: number } {
    const { left, top } = this.content.getBoundingClientRect();
    return { x: event.clientX - left, y: event.clientY - top };
  }

  /** Client coordinates of a place of the content. */
  toClient(x: number, y: number): { x: number; y: number } {
    const { left, top } = this.content.getBoundingClientRect();
    return { x: left + x, y: top + y };
  }

  /** Scroll as little as needed to bring a rectangle into sight. */
  scrollIntoView({ left, top, width, height }: Rect): void {
    const { scrollLeft, scrollTop, clientWidth, clientHeight } = this.scroller;
    const scrollTarget = (at: number, size: number, from: number, room: number) => {
      // What stands around it comes into sight as well.
      const margin = Math.max(8, Math.min(120, (room - size) / 3));
      if (at - margin < from) return at - margin;
      return at + size + margin > from + room ? at + size + margin - room : from;
    };
    this.scroller.scrollTo(scrollTarget(left, width, scrollLeft, clientWidth), scrollTarget(top, height, scrollTop, clientHeight));
  }
}
