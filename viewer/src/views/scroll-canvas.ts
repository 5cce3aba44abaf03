/** Canvas of the size of the viewport, over scrolled content that may be larger. */

import { isSaving, prepareCanvas, make, toClient, toElement } from "../dom.js";
import { oncePerFrame } from "./controls.js";

export interface Rect {
  left: number;
  top: number;
  width: number;
  height: number;
}

/** Largest number of pixels for printing. */
const PAPER_PIXELS = 3e7;

export class ScrollCanvas {
  readonly scroller = make("div", { class: "sheet" });
  /** Container of elements above the canvas, in coordinates of the content. */
  readonly content = make("div", { class: "sheet-content" });
  readonly canvas = make("canvas", { role: "img", class: "sheet-canvas" });
  /** Draw in the next animation frame. */
  readonly redraw = oncePerFrame(() => this.draw());

  /** paint: draws in coordinates of the content; only `area` is visible. */
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

  /** Draw what is visible; for printing and saving, all of the content. */
  draw(): void {
    const { left, top, width, height } = this.isPrinting || isSaving() ? this.fullArea : this.visibleArea;
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

  /** For printing, all of the content is drawn; the browser scales it to the paper. */
  private readonly onPrint = (event: Event): void => {
    const { width, height } = this.fullArea;
    this.isPrinting = event.type === "beforeprint" && width * height <= PAPER_PIXELS;
    this.draw();
  };

  /** Convert to coordinates of the content. */
  toContent(event: { clientX: number; clientY: number }): { x: number; y: number } {
    return toElement(this.content, event);
  }

  /** Convert to client coordinates. */
  toClient(x: number, y: number): { x: number; y: number } {
    return toClient(this.content, x, y);
  }

  /** Scroll until a rectangle is visible. */
  scrollIntoView({ left, top, width, height }: Rect): void {
    const { scrollLeft, scrollTop, clientWidth, clientHeight } = this.scroller;
    const scrollTarget = (at: number, size: number, from: number, room: number) => {
      // With a margin around the rectangle.
      const margin = Math.max(8, Math.min(120, (room - size) / 3));
      if (at - margin < from) return at - margin;
      return at + size + margin > from + room ? at + size + margin - room : from;
    };
    this.scroller.scrollTo(scrollTarget(left, width, scrollLeft, clientWidth), scrollTarget(top, height, scrollTop, clientHeight));
  }
}
