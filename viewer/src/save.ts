/** Saving of a view as a picture: its canvases are drawn again as SVG, with the texts and boxes of its elements. */

import { truncate } from "./axes.js";
import { cssVariable, font, make, setSubstitute, toElement, zoomOf } from "./dom.js";
import { headName, readableTitle } from "./format.js";
import { hatch } from "./hatch.js";
import type { Panel } from "./pane.js";
import { hasMean } from "./reads.js";
import { escapeXml, SvgContext } from "./svg.js";
import { groupName, MEASURES } from "./texts.js";
import { decoderRead } from "./views/steps.js";

const MARGIN = 16;
/** Between the title, the view and its color scale. */
const GAP = 12;
/** Pixels of a PNG per CSS pixel, and the largest number of pixels per side. */
const SCALE = 3;
const MOST_PIXELS = 8000;

/** Show a dialog with the formats; `panes` are saved side by side. */
export function askToSave(panes: readonly Panel[]): void {
  if (document.querySelector("dialog[open]")) return;
  const save = (format: "svg" | "png") => () => {
    dialog.close();
    void savePicture(panes, format);
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

async function savePicture(panes: readonly Panel[], format: "svg" | "png"): Promise<void> {
  const svg = await toSvg(panes);
  const { shown, view } = panes[0]!;
  const name = `${shown.sample.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) || "attention"}-${view}`;
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

/** Return the picture of the panes, side by side. */
export async function toSvg(panes: readonly Panel[]): Promise<Svg> {
  const groups: string[] = [];
  let left = MARGIN;
  let height = 0;
  for (const pane of panes) {
    const drawn = await drawPane(pane);
    groups.push(`<g transform="translate(${left} ${MARGIN})">${drawn.text}</g>`);
    left += drawn.width + 2 * MARGIN;
    height = Math.max(height, drawn.height + 2 * MARGIN);
  }
  const width = left - MARGIN;
  const parts = [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">`,
    `<title>${escapeXml(panes.map(({ shown }) => shown.sample.title).join("; "))}</title>`,
    `<rect width="100%" height="100%" fill="${cssVariable("--ground")}"/>`,
    ...groups,
    "</svg>",
  ];
  return { text: parts.join("\n"), width, height };
}

/** Draw a pane: its title and caption, its view and its color scale, one below the other. */
async function drawPane(pane: Panel): Promise<Svg> {
  const host = pane.root.querySelector<HTMLElement>(".host")!;
  const drawings = new Map<HTMLCanvasElement, SvgContext>();
  setSubstitute((canvas) => {
    const drawing = new SvgContext();
    drawings.set(canvas, drawing);
    return drawing as unknown as CanvasRenderingContext2D;
  });
  host.classList.add("saving");
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
  host.classList.remove("saving");
  await pane.drawn?.show(pane.shown);
  const title = new SvgContext();
  title.fillStyle = cssVariable("--ink");
  title.font = font(15, 600);
  title.fillText(readableTitle(pane.shown.sample.title, 120), 0, 0);
  title.fillStyle = cssVariable("--pale");
  title.font = font(13);
  title.fillText(captionOf(pane), 0, 20);
  let [top, width] = [0, 0];
  const groups = [title, drawing, below].flatMap(({ elements }) => {
    const bounds = boundsOf(elements);
    if (!bounds.height) return [];
    const group = `<g transform="translate(${-bounds.x} ${top - bounds.y})">${elements.join("")}</g>`;
    top += bounds.height + GAP;
    width = Math.max(width, bounds.width);
    return [group];
  });
  return { text: groups.join("\n"), width: Math.ceil(width), height: Math.ceil(top - GAP) };
}

/** Return what a figure shows: the run if there are several, the kind of attention, the layer and the head. */
function captionOf({ page, shown, view }: Panel): string {
  const { capture, sample } = shown;
  const read = (view === "steps" && decoderRead(sample, shown.read)) || shown.read;
  const head = Math.min(shown.head, read.heads.length - 1);
  const isOfAll = view === "heads" || view === "summary";
  const parts = [
    page.captures.length > 1 ? capture.title : "",
    groupName(sample, read),
    read.measure === "weight" ? "" : MEASURES[read.measure].name,
    isOfAll || !hasMean(read) ? "" : `layer ${read.layer}`,
    isOfAll ? "" : headName(read, head),
  ];
  return parts.filter(Boolean).join(" \u00b7 ");
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

/** Paint an element and what it contains: canvases, backgrounds, borders, outlines and texts, in coordinates of `root`. */
function paint(
  drawing: SvgContext,
  element: HTMLElement,
  root: HTMLElement,
  drawings: Map<HTMLCanvasElement, SvgContext>,
): void {
  const style = getComputedStyle(element);
  if (element.hidden || style.display === "none" || style.visibility === "hidden") return;
  const box = boxOf(element, root);
  const zoom = zoomOf(element) / zoomOf(root);
  const opacity = drawing.globalAlpha;
  drawing.globalAlpha = opacity * Number(style.opacity);
  if (element !== root) paintBox(drawing, box, style, zoom);
  if (element instanceof HTMLCanvasElement) {
    const found = drawings.get(element);
    if (found) {
      const transform = `translate(${box.x} ${box.y})${zoom === 1 ? "" : ` scale(${zoom})`}`;
      drawing.elements.push(`<g transform="${transform}">${found.elements.join("")}</g>`);
    }
    else if (element.width && element.height) drawing.drawImage(element, box.x, box.y, box.width, box.height);
  }
  for (const child of element.childNodes) {
    if (child instanceof HTMLElement) paint(drawing, child, root, drawings);
    else if (child instanceof Text) paintText(drawing, child, root, element, zoom);
  }
  drawing.globalAlpha = opacity;
}

/** Paint the background of an element, its borders, and an outline that is a shadow without blur. */
function paintBox(drawing: SvgContext, { x, y, width, height }: Box, style: CSSStyleDeclaration, zoom: number): void {
  if (isVisible(style.backgroundColor)) {
    drawing.fillStyle = style.backgroundColor;
    drawing.fillRect(x, y, width, height);
  }
  const gradient = /^linear-gradient\(90deg, (.*)\)$/.exec(style.backgroundImage)?.[1];
  if (gradient) drawing.fillGradient(gradient.split(/, (?![^(]*\))/), x, y, width, height);
  if (style.backgroundImage.startsWith("repeating-linear-gradient")) hatch(drawing, { x, y, width, height });
  const [, shadow, spread] = /^(rgb.*?\)) 0px 0px 0px ([\d.]+)px$/.exec(style.boxShadow) ?? [];
  const out = zoom * Number(spread);
  if (shadow) strokeBox(drawing, shadow, out, { x: x - out, y: y - out, width: width + 2 * out, height: height + 2 * out });
  const sides = ["Top", "Right", "Bottom", "Left"] as const;
  const border = sides.map((side) => {
    const [size, color] = [zoom * Number.parseFloat(style[`border${side}Width`]), style[`border${side}Color`]];
    return { size: isVisible(color) ? size : 0, color, isDashed: style[`border${side}Style`] === "dashed" };
  });
  const [top, right, bottom, left] = border as [Edge, Edge, Edge, Edge];
  if (border.every(({ size }) => size)) {
    strokeBox(drawing, top.color, top.size, { x, y, width, height });
    return;
  }
  paintEdge(drawing, top, { x, y, width, height: top.size });
  paintEdge(drawing, right, { x: x + width - right.size, y, width: right.size, height });
  paintEdge(drawing, bottom, { x, y: y + height - bottom.size, width, height: bottom.size });
  paintEdge(drawing, left, { x, y, width: left.size, height });
}

interface Edge {
  size: number;
  color: string;
  isDashed: boolean;
}

function isVisible(color: string): boolean {
  return !/^(transparent|rgba\(.*, 0\))$/.test(color);
}

/** Stroke a line of this width inside a box. */
function strokeBox(drawing: SvgContext, color: string, size: number, { x, y, width, height }: Box): void {
  drawing.strokeStyle = color;
  drawing.lineWidth = size;
  drawing.strokeRect(x + size / 2, y + size / 2, width - size, height - size);
}

function paintEdge(drawing: SvgContext, { size, color, isDashed }: Edge, { x, y, width, height }: Box): void {
  drawing.fillStyle = color;
  // Dashes of an edge are as long as the gaps between them.
  const [step, length] = isDashed ? [4 * size, 2 * size] : [width, width];
  if (size) for (let at = 0; at < width; at += step) drawing.fillRect(x + at, y, Math.min(length, width - at), height);
}

/** Paint a text word by word, so that lines break as on the page; a text that is cut off there, with an ellipsis. */
function paintText(drawing: SvgContext, text: Text, root: HTMLElement, element: HTMLElement, zoom: number): void {
  const style = getComputedStyle(element);
  const size = zoom * Number.parseFloat(style.fontSize);
  drawing.font = `${style.fontWeight} ${size}px ${style.fontFamily}`;
  drawing.fillStyle = style.color;
  const range = document.createRange();
  const isCut = style.textOverflow === "ellipsis" && element.scrollWidth > element.clientWidth;
  const room = zoom * (element.clientWidth - Number.parseFloat(style.paddingLeft) - Number.parseFloat(style.paddingRight));
  for (const match of text.data.matchAll(isCut ? /\S.*/gs : /\S+/g)) {
    range.setStart(text, match.index);
    range.setEnd(text, match.index + match[0].length);
    const rect = range.getClientRects()[0];
    if (!rect?.width) continue;
    const { x, y } = toElement(root, { clientX: rect.left, clientY: rect.top + rect.height / 2 });
    drawing.fillText(isCut ? truncate(drawing, match[0], room)[0] : match[0], x + root.scrollLeft, y + root.scrollTop + 0.35 * size);
  }
}

interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

function boxOf(element: HTMLElement, root: HTMLElement): Box {
  const { left, top, width, height } = element.getBoundingClientRect();
  const { x, y } = toElement(root, { clientX: left, clientY: top });
  const zoom = zoomOf(root);
  return { x: x + root.scrollLeft, y: y + root.scrollTop, width: width / zoom, height: height / zoom };
}
