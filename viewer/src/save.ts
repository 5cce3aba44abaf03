/** Saving of a view as a picture: its canvases are drawn again as SVG, with the texts and boxes of its elements. */

import { cssVariable, font, make, pageZoom, setSubstitute, toElement } from "./dom.js";
import { readable } from "./format.js";
import { hatch } from "./hatch.js";
import type { Panel } from "./pane.js";
import { escapeXml, SvgContext } from "./svg.js";

const MARGIN = 16;
const TITLE = 30;
/** Pixels of a PNG per CSS pixel, and the largest number of pixels per side. */
const SCALE = 3;
const MOST_PIXELS = 8000;

/** Show a dialog with the formats. */
export function askToSave(pane: Panel): void {
  if (document.querySelector("dialog[open]")) return;
  const save = (format: "svg" | "png") => () => {
    dialog.close();
    void savePicture(pane, format);
  };
  const dialog = make(
    "dialog",
    { "aria-label": "Save", close: () => dialog.remove() },
    make("h2", {}, "Save this view"),
    make("p", {}, "SVG stays sharp at every size; PNG is for slides and documents that take no SVG."),
    make("div", { class: "tools" },
      make("button", { type: "button", click: save("svg") }, "SVG"),
      make("button", { type: "button", click: save("png") }, "PNG"),
      make("button", { type: "button", click: () => dialog.close() }, "Cancel")),
  );
  document.body.append(dialog);
  dialog.showModal();
}

async function savePicture(pane: Panel, format: "svg" | "png"): Promise<void> {
  const svg = await toSvg(pane);
  const name = `${pane.shown.sample.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) || "attention"}-${pane.view}`;
  const blob = new Blob([svg.text], { type: "image/svg+xml" });
  download(format === "svg" ? blob : await toPng(svg), `${name}.${format}`);
}

function download(blob: Blob, name: string): void {
  const url = URL.createObjectURL(blob);
  make("a", { href: url, download: name }).click();
  window.setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

interface Svg {
  text: string;
  width: number;
  height: number;
}

/** Return the picture of a pane: its title, its view and its color scale. */
export async function toSvg(pane: Panel): Promise<Svg> {
  const host = pane.root.querySelector<HTMLElement>(".host")!;
  const drawings = new Map<HTMLCanvasElement, SvgContext>();
  setSubstitute((canvas) => {
    const drawing = new SvgContext();
    drawings.set(canvas, drawing);
    return drawing as unknown as CanvasRenderingContext2D;
  });
  try {
    await pane.drawn?.show(pane.shown);
    // Some views draw in the next animation frame.
    await nextFrame();
    await nextFrame();
  } finally {
    setSubstitute(null);
  }
  const drawing = new SvgContext();
  paint(drawing, host, host, drawings);
  const legend = pane.root.querySelector<HTMLElement>(".below .legend");
  const below = new SvgContext();
  if (legend) paint(below, legend, legend, new Map());
  await pane.drawn?.show(pane.shown);
  const view = boundsOf(drawing.elements);
  const scale = boundsOf(below.elements);
  const title = new SvgContext();
  title.fillStyle = cssVariable("--ink");
  title.font = font(15, 600);
  title.fillText(readable(pane.shown.sample.title, 120, " "), 0, 15);
  const head = boundsOf(title.elements);
  const width = Math.ceil(Math.max(view.width, scale.width, head.width) + 2 * MARGIN);
  const height = Math.ceil(TITLE + view.height + (scale.height ? scale.height + 12 : 0) + 2 * MARGIN);
  const place = (elements: string[], { x, y }: DOMRect, top: number) =>
    `<g transform="translate(${MARGIN - x} ${top - y})">${elements.join("")}</g>`;
  const parts = [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">`,
    `<title>${escapeXml(pane.shown.sample.title)}</title>`,
    `<rect width="100%" height="100%" fill="${cssVariable("--ground")}"/>`,
    place(title.elements, head, MARGIN),
    place(drawing.elements, view, MARGIN + TITLE),
    place(below.elements, scale, MARGIN + TITLE + view.height + 12),
    "</svg>",
  ];
  return { text: parts.join("\n"), width, height };
}

async function toPng({ text, width, height }: Svg): Promise<Blob> {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const scale = Math.min(SCALE, MOST_PIXELS / width, MOST_PIXELS / height);
  const canvas = make("canvas", { width: Math.round(width * scale), height: Math.round(height * scale) });
  canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
  return await new Promise((done, fail) => canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("The picture is too large for PNG."))), "image/png"));
}

function nextFrame(): Promise<void> {
  return new Promise((done) => requestAnimationFrame(() => done()));
}

/** Bounds of SVG elements, without those of their clip paths' outside. */
function boundsOf(elements: string[]): DOMRect {
  if (!elements.length) return new DOMRect();
  const holder = make("div");
  holder.style.cssText = "position: absolute; visibility: hidden; left: 0; top: 0";
  holder.innerHTML = `<svg xmlns="http://www.w3.org/2000/svg"><g>${elements.join("")}</g></svg>`;
  document.body.append(holder);
  const box = holder.querySelector("g")!.getBBox();
  holder.remove();
  return box;
}

/** Paint an element and what it contains: canvases, backgrounds, borders and texts, in coordinates of `root`. */
function paint(
  drawing: SvgContext,
  element: HTMLElement,
  root: HTMLElement,
  drawings: Map<HTMLCanvasElement, SvgContext>,
): void {
  const style = getComputedStyle(element);
  if (element.hidden || style.display === "none" || style.visibility === "hidden" || element.tagName === "SELECT") return;
  const box = boxOf(element, root);
  if (element instanceof HTMLCanvasElement) {
    const found = drawings.get(element);
    if (found) drawing.elements.push(`<g transform="translate(${box.x} ${box.y})">${found.elements.join("")}</g>`);
    else if (element.width && element.height) drawing.drawImage(element, box.x, box.y, box.width, box.height);
    return;
  }
  if (element !== root) {
    if (!/^(transparent|rgba\(.*, 0\))$/.test(style.backgroundColor)) {
      drawing.fillStyle = style.backgroundColor;
      drawing.fillRect(box.x, box.y, box.width, box.height);
    }
    const gradient = /^linear-gradient\(90deg, (.*)\)$/.exec(style.backgroundImage)?.[1];
    if (gradient) drawing.fillGradient(gradient.split(/, (?![^(]*\))/), box.x, box.y, box.width, box.height);
    if (style.backgroundImage.startsWith("repeating-linear-gradient")) hatch(drawing, box);
    if (!box.width && Number.parseFloat(style.borderLeftWidth)) {
      drawing.fillStyle = style.borderLeftColor;
      drawing.fillRect(box.x, box.y, Number.parseFloat(style.borderLeftWidth), box.height);
      return;
    }
    const border = Number.parseFloat(style.borderTopWidth);
    if (border && !/^(transparent|rgba\(.*, 0\))$/.test(style.borderTopColor)) {
      drawing.strokeStyle = style.borderTopColor;
      drawing.lineWidth = border;
      drawing.strokeRect(box.x, box.y, box.width, box.height);
    }
  }
  for (const child of element.childNodes) {
    if (child instanceof HTMLElement) paint(drawing, child, root, drawings);
    else if (child instanceof Text) paintText(drawing, child, root, style);
  }
}

/** Paint a text word by word, so that lines break as on the page. */
function paintText(drawing: SvgContext, text: Text, root: HTMLElement, style: CSSStyleDeclaration): void {
  const size = Number.parseFloat(style.fontSize);
  drawing.font = `${style.fontWeight} ${size}px ${style.fontFamily}`;
  drawing.fillStyle = style.color;
  const range = document.createRange();
  for (const match of text.data.matchAll(/\S+/g)) {
    range.setStart(text, match.index);
    range.setEnd(text, match.index + match[0].length);
    const rect = range.getClientRects()[0];
    if (!rect?.width) continue;
    const { x, y } = toElement(root, { clientX: rect.left, clientY: rect.top + rect.height / 2 });
    const words = style.textTransform === "capitalize" ? match[0].replace(/^./, (first) => first.toUpperCase()) : match[0];
    drawing.fillText(words, x + root.scrollLeft, y + root.scrollTop + 0.35 * size);
  }
}

function boxOf(element: HTMLElement, root: HTMLElement): { x: number; y: number; width: number; height: number } {
  const { left, top, width, height } = element.getBoundingClientRect();
  const { x, y } = toElement(root, { clientX: left, clientY: top });
  return { x: x + root.scrollLeft, y: y + root.scrollTop, width: width / pageZoom(), height: height / pageZoom() };
}
