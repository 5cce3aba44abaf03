/** A drawing context that writes SVG: the part of CanvasRenderingContext2D that the views use. */

import { make } from "./dom.js";

/** Largest number of pixels of a canvas that is written as rectangles, which stay sharp at every size. */
const MOST_CELLS = 40_000;

/** Escape a text for XML. */
export function escapeXml(text: string): string {
  const names: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
  // Control characters are not allowed in XML.
  return text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "").replace(/[&<>"]/g, (each) => names[each]!);
}

type Matrix = [number, number, number, number, number, number];

interface State {
  matrix: Matrix;
  fillStyle: string;
  strokeStyle: string;
  lineWidth: number;
  lineCap: string;
  lineJoin: string;
  lineDash: number[];
  globalAlpha: number;
  font: string;
  textAlign: string;
  textBaseline: string;
  imageSmoothingEnabled: boolean;
  filter: string;
  clip: string;
}

const START: State = {
  matrix: [1, 0, 0, 1, 0, 0],
  fillStyle: "#000000",
  strokeStyle: "#000000",
  lineWidth: 1,
  lineCap: "butt",
  lineJoin: "miter",
  lineDash: [],
  globalAlpha: 1,
  font: "10px sans-serif",
  textAlign: "start",
  textBaseline: "alphabetic",
  imageSmoothingEnabled: true,
  filter: "none",
  clip: "",
};

/** Vertical distance of the baseline from the anchor of a text, as a fraction of the font size. */
const BASELINES: Record<string, number> = { middle: 0.35, top: 0.8, hanging: 0.8, bottom: -0.2, alphabetic: 0 };
const ANCHORS: Record<string, string> = { center: "middle", right: "end", end: "end" };

let clips = 0;

/** Path whose curves can be written as SVG, too. */
export class DrawnPath extends Path2D {
  data = "";

  override moveTo(x: number, y: number): void {
    super.moveTo(x, y);
    this.data += `M${round(x)} ${round(y)}`;
  }

  override bezierCurveTo(ax: number, ay: number, bx: number, by: number, x: number, y: number): void {
    super.bezierCurveTo(ax, ay, bx, by, x, y);
    this.data += `C${[ax, ay, bx, by, x, y].map(round).join(" ")}`;
  }
}

export class SvgContext {
  /** Elements in the order of drawing. */
  readonly elements: string[] = [];
  private state: State = { ...START };
  private readonly stack: State[] = [];
  private path: string[] = [];
  private readonly ruler = document.createElement("canvas").getContext("2d")!;

  set fillStyle(value: string) { this.state.fillStyle = value; }
  get fillStyle(): string { return this.state.fillStyle; }
  set strokeStyle(value: string) { this.state.strokeStyle = value; }
  get strokeStyle(): string { return this.state.strokeStyle; }
  set lineWidth(value: number) { this.state.lineWidth = value; }
  get lineWidth(): number { return this.state.lineWidth; }
  set lineCap(value: string) { this.state.lineCap = value; }
  set lineJoin(value: string) { this.state.lineJoin = value; }
  set globalAlpha(value: number) { this.state.globalAlpha = value; }
  get globalAlpha(): number { return this.state.globalAlpha; }
  set font(value: string) { this.state.font = value; }
  get font(): string { return this.state.font; }
  set textAlign(value: string) { this.state.textAlign = value; }
  set textBaseline(value: string) { this.state.textBaseline = value; }
  set imageSmoothingEnabled(value: boolean) { this.state.imageSmoothingEnabled = value; }
  set imageSmoothingQuality(_: string) {}
  set filter(value: string) { this.state.filter = value; }

  save(): void {
    this.stack.push({ ...this.state });
  }

  restore(): void {
    this.state = this.stack.pop() ?? this.state;
  }

  translate(x: number, y: number): void {
    const [a, b, c, d, e, f] = this.state.matrix;
    this.state.matrix = [a, b, c, d, a * x + c * y + e, b * x + d * y + f];
  }

  rotate(angle: number): void {
    const [a, b, c, d, e, f] = this.state.matrix;
    const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
    this.state.matrix = [a * cos + c * sin, b * cos + d * sin, c * cos - a * sin, d * cos - b * sin, e, f];
  }

  setLineDash(dash: number[]): void {
    this.state.lineDash = dash;
  }

  measureText(text: string): TextMetrics {
    this.ruler.font = this.state.font;
    return this.ruler.measureText(text);
  }

  beginPath(): void {
    this.path = [];
  }

  moveTo(x: number, y: number): void {
    this.path.push(`M${round(x)} ${round(y)}`);
  }

  lineTo(x: number, y: number): void {
    this.path.push(`${this.path.length ? "L" : "M"}${round(x)} ${round(y)}`);
  }

  closePath(): void {
    this.path.push("Z");
  }

  quadraticCurveTo(cx: number, cy: number, x: number, y: number): void {
    this.path.push(`Q${round(cx)} ${round(cy)} ${round(x)} ${round(y)}`);
  }

  bezierCurveTo(ax: number, ay: number, bx: number, by: number, x: number, y: number): void {
    this.path.push(`C${[ax, ay, bx, by, x, y].map(round).join(" ")}`);
  }

  rect(x: number, y: number, width: number, height: number): void {
    this.path.push(`M${round(x)} ${round(y)}h${round(width)}v${round(height)}h${round(-width)}Z`);
  }

  /** Full circles and arcs of less than a turn. */
  arc(x: number, y: number, radius: number, from: number, to: number): void {
    const point = (angle: number) => `${round(x + radius * Math.cos(angle))} ${round(y + radius * Math.sin(angle))}`;
    const middle = (from + to) / 2;
    const step = `A${round(radius)} ${round(radius)} 0 0 1`;
    this.path.push(`${this.path.length ? "L" : "M"}${point(from)}${step} ${point(middle)}${step} ${point(to)}`);
  }

  fill(): void {
    this.add("path", `d="${this.path.join("")}" fill="${this.state.fillStyle}"`);
  }

  stroke(path?: DrawnPath): void {
    this.add("path", `d="${path ? path.data : this.path.join("")}" ${this.strokeAttributes}`);
  }

  clip(): void {
    const id = `clip-${clips++}`;
    const outer = this.state.clip ? ` clip-path="url(#${this.state.clip})"` : "";
    const path = `<path d="${this.path.join("")}" transform="matrix(${this.state.matrix.map(round).join(" ")})"/>`;
    this.elements.push(`<clipPath id="${id}"${outer}>${path}</clipPath>`);
    this.state.clip = id;
  }

  fillRect(x: number, y: number, width: number, height: number): void {
    this.add("rect", `${box(x, y, width, height)} fill="${this.state.fillStyle}"`);
  }

  strokeRect(x: number, y: number, width: number, height: number): void {
    this.add("rect", `${box(x, y, width, height)} ${this.strokeAttributes}`);
  }

  clearRect(): void {}

  setTransform(): void {}

  fillText(text: string, x: number, y: number, most?: number): void {
    const { font, fillStyle, textAlign, textBaseline } = this.state;
    const [, weight = "400", size = "10", family = "sans-serif"] = /^(\d+)? *([\d.]+)px (.*)$/.exec(font) ?? [];
    const down = y + Number(size) * (BASELINES[textBaseline] ?? 0);
    const attributes = [
      `x="${round(x)}" y="${round(down)}" fill="${fillStyle}" font-size="${size}" font-weight="${weight}"`,
      `font-family="${escapeXml(family)}" xml:space="preserve"`,
      ANCHORS[textAlign] ? `text-anchor="${ANCHORS[textAlign]}"` : "",
      most !== undefined && this.measureText(text).width > most ? `textLength="${round(most)}"` : "",
    ];
    this.add("text", attributes.filter(Boolean).join(" "), escapeXml(text));
  }

  /** Fill a rectangle with colors at equal distances from left to right. */
  fillGradient(colors: string[], x: number, y: number, width: number, height: number): void {
    const id = `gradient-${clips++}`;
    const stops = colors.map((color, i) => `<stop offset="${round(i / (colors.length - 1))}" style="stop-color: ${color}"/>`);
    this.elements.push(`<linearGradient id="${id}">${stops.join("")}</linearGradient>`);
    this.add("rect", `${box(x, y, width, height)} fill="url(#${id})"`);
  }

  drawImage(image: CanvasImageSource, x: number, y: number, width?: number, height?: number): void {
    const [ownWidth, ownHeight] =
      image instanceof HTMLImageElement ? [image.naturalWidth, image.naturalHeight] : [(image as HTMLCanvasElement).width, (image as HTMLCanvasElement).height];
    const [wide, high] = [width ?? ownWidth, height ?? ownHeight];
    const isSharp = !this.state.imageSmoothingEnabled;
    if (image instanceof HTMLCanvasElement && isSharp && ownWidth * ownHeight <= MOST_CELLS) {
      this.drawCells(image, [x, y, wide, high]);
      return;
    }
    const url = image instanceof HTMLImageElement ? image.src : (image as HTMLCanvasElement).toDataURL();
    const rendering = isSharp ? ' image-rendering="pixelated"' : "";
    const filter = this.state.filter === "none" ? "" : ` style="filter: ${escapeXml(this.state.filter)}"`;
    this.add("image", `${box(x, y, wide, high)} href="${url}" preserveAspectRatio="none"${rendering}${filter}`);
  }

  /** Draw the pixels of a canvas as rectangles; runs of equal pixels are one. */
  private drawCells(canvas: HTMLCanvasElement, [x, y, width, height]: [number, number, number, number]): void {
    // A copy is read: a canvas that is read more than once should not be on the graphics processor.
    const copy = make("canvas", { width: canvas.width, height: canvas.height });
    const reading = copy.getContext("2d", { willReadFrequently: true })!;
    reading.drawImage(canvas, 0, 0);
    const { data } = reading.getImageData(0, 0, canvas.width, canvas.height);
    const pixels = new Uint32Array(data.buffer);
    const [wide, high] = [width / canvas.width, height / canvas.height];
    for (let row = 0; row < canvas.height; row++) {
      for (let column = 0; column < canvas.width; ) {
        const pixel = pixels[row * canvas.width + column]!;
        let end = column + 1;
        while (end < canvas.width && pixels[row * canvas.width + end] === pixel) end++;
        const alpha = pixel >>> 24;
        if (alpha) {
          const color = `rgb(${pixel & 255} ${(pixel >> 8) & 255} ${(pixel >> 16) & 255})`;
          const opacity = alpha < 255 ? ` fill-opacity="${round(alpha / 255)}"` : "";
          this.add("rect", `${box(x + column * wide, y + row * high, (end - column) * wide, high)} fill="${color}"${opacity}`);
        }
        column = end;
      }
    }
  }

  private get strokeAttributes(): string {
    const { strokeStyle, lineWidth, lineCap, lineJoin, lineDash } = this.state;
    const dash = lineDash.length ? ` stroke-dasharray="${lineDash.join(" ")}"` : "";
    const shape = `stroke-linecap="${lineCap}" stroke-linejoin="${lineJoin}"`;
    return `fill="none" stroke="${strokeStyle}" stroke-width="${round(lineWidth)}" ${shape}${dash}`;
  }

  private add(tag: string, attributes: string, content = ""): void {
    const { matrix, globalAlpha, clip } = this.state;
    const isMoved = matrix.some((part, i) => part !== START.matrix[i]);
    const parts = [
      attributes,
      isMoved ? `transform="matrix(${matrix.map(round).join(" ")})"` : "",
      globalAlpha < 1 ? `opacity="${round(globalAlpha)}"` : "",
    ];
    const element = `<${tag} ${parts.filter(Boolean).join(" ")}>${content}</${tag}>`;
    // A clip path is in the coordinates of the drawing, not of the element.
    this.elements.push(clip ? `<g clip-path="url(#${clip})">${element}</g>` : element);
  }
}

function box(x: number, y: number, width: number, height: number): string {
  const [left, top] = [Math.min(x, x + width), Math.min(y, y + height)];
  return `x="${round(left)}" y="${round(top)}" width="${round(Math.abs(width))}" height="${round(Math.abs(height))}"`;
}

function round(number: number): number {
  return Math.round(number * 1000) / 1000;
}
