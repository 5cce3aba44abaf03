/** Attention over an image: weights on its patches, of a token, a box, a class token or another patch. */

import { isSigned } from "../color.js";
import { font, make, prepareCanvas } from "../dom.js";
import { plural, readable, formatScore, formatShort } from "../format.js";
import type { Box, Picture } from "../page.js";
import type { OpenView, Pane, Shown, View } from "../view.js";
import { boxAt, pictureAxes, gridOf, entriesWithoutPlace } from "./picture-axes.js";
import { PictureFrame, type Painter } from "./frame.js";
import { entryLabel, colorRange, type Selection } from "./selection.js";
import { belowThreshold, chips, heatLegend, largestBars } from "./lists.js";
import { availableSize, addRovingFocus, slider, toggle } from "./controls.js";
import { labelColor, drawBoxes, drawHeat, drawPicture, fitInto, outline, loadImage, toArea, type Area } from "./picture.js";

/** Width from which the plain picture is shown beside the weights. */
const LEAST_FOR_TWO = 420;
/** Side of a place from which its signed number is written on it. */
const NUMBERED_PX = 64;

type Image = Extract<Picture, { kind: "image" }>;

export const image: View = {
  name: "image",
  about: "Weights or contributions over the image; stronger colors are larger numbers.",
  hasScale: true,
  fits: (sample, read) => pictureAxes(sample, read, "image") !== null,
  open: (host, pane) => new ImageView(host, pane),
};

class ImageView implements OpenView, Painter {
  private readonly frame: PictureFrame;
  private image: HTMLImageElement | null = null;
  private area: Area = { left: 0, top: 0, width: 0, height: 0 };
  private opacity = 0.75;
  private isPlainShown = true;
  private isSmooth = false;

  constructor(host: HTMLElement, pane: Pane) {
    this.frame = new PictureFrame(host, pane, "image", this);
  }

  async show(shown: Shown): Promise<void> {
    const focus = pictureAxes(shown.sample, shown.read, "image");
    if (focus) this.image = await loadImage(focus.picture.url);
    await this.frame.show(shown);
  }

  private get picture(): Image {
    return this.frame.selection!.axes.picture as Image;
  }

  /** Detected boxes that can be selected: those of the entries of this side. */
  private get boxes(): Box[] {
    return this.frame.selection!.hasDetections ? this.picture.boxes : [];
  }

  build(selection: Selection): void {
    const { tools, sidebar, details } = this.frame;
    tools.replaceChildren(...this.controls(selection));
    sidebar.replaceChildren(...this.lists(selection), details);
    for (const group of sidebar.querySelectorAll<HTMLElement>(".chips, .found")) addRovingFocus(group);
  }

  private controls(selection: Selection): HTMLElement[] {
    const controls: HTMLElement[] = [];
    if (selection.axes.isSameAxis) {
      const about = "Show the weights of all queries on the selected key, instead of the weights of a query";
      controls.push(this.frame.byKeyToggle("by key", about));
    }
    controls.push(slider("overlay", this.opacity, (value) => {
      this.opacity = value;
      this.frame.redraw();
    }));
    if (gridOf(selection.axis(selection.heatSide).places)) {
      const smooth = toggle("smooth", "Interpolate between patches", (isOn) => {
        this.isSmooth = isOn;
        this.frame.redraw();
      });
      smooth.setAttribute("aria-pressed", String(this.isSmooth));
      controls.push(smooth);
    }
    const plain = toggle("plain picture", "Show the picture itself beside the weights", (isOn) => {
      this.isPlainShown = isOn;
      this.frame.redraw();
    });
    plain.setAttribute("aria-pressed", String(this.isPlainShown));
    controls.push(plain, make("span", { class: "legend-place" }));
    return controls;
  }

  /** Lists of detected boxes, and of entries without a place on the image. */
  private lists(selection: Selection): HTMLElement[] {
    const axis = selection.axis(selection.side);
    const entries = selection.axes.isSameAxis ? entriesWithoutPlace(axis) : axis.labels.map((_, i) => i);
    const { boxes } = this;
    const below = selection.byThreshold?.below;
    const listed = below ?? entries;
    // A single entry is selected by default; beside places, it is an additional choice.
    const isChoice = entries.length > (selection.axes.isSameAxis ? 0 : 1) && listed.length > 0;
    const entryList = isChoice ? chips(axis, listed, `select a ${axis.kind}`) : null;
    if (!boxes.length) return entryList ? [heading(below ? belowThreshold(listed.length) : plural(axis.kind)), entryList] : [];
    const detections = make("div", { class: "found", role: "group", "aria-label": "detections" });
    for (const { label, score, query } of selection.detections as Box[]) {
      const mark = make("span", { class: "mark" });
      mark.style.backgroundColor = labelColor(selection.pane.page, label);
      const attributes = { type: "button", class: "chip wide", "data-entry": query, "aria-pressed": "false" };
      const scoreElement = make("span", { class: "bar-number" }, formatScore(score));
      detections.append(make("button", attributes, mark, make("span", {}, readable(label, 24, " ")), scoreElement));
    }
    const rest = entryList && make("details", {}, make("summary", {}, below ? belowThreshold(below.length) : `all ${axis.labels.length} queries`), entryList);
    return [heading("detected"), detections, ...(rest ? [rest] : [])];
  }

  draw(selection: Selection): void {
    const numbers = selection.numbers();
    const [least, most] = [selection.clearUpTo(numbers), selection.colorMax(numbers)];
    // The caption and the legend come first: they determine the height of the drawing.
    this.frame.tools.querySelector(".legend-place")?.replaceChildren(heatLegend(colorRange(selection, most), { least, most, uniform: selection.uniform }));
    const caption = selection.caption();
    this.frame.describe(caption, `image with ${caption}; largest weight ${formatShort(most)}`, this.placeDetails(selection, most));
    const { width, height } = availableSize(this.frame.stage, this.picture.height / this.picture.width);
    const drawing = prepareCanvas(this.frame.canvas, width, height);
    const room = { left: 2, top: 2, width: width - 4, height: height - 4 };
    this.area = fitInto(this.picture, room);
    if (this.isPlainShown && this.image && width >= LEAST_FOR_TWO) {
      // Side by side, or one above the other: whichever makes the pictures larger.
      const halves = { beside: { ...room, width: room.width / 2 - 6 }, above: { ...room, height: room.height / 2 - 6 } };
      const [beside, above] = [fitInto(this.picture, halves.beside), fitInto(this.picture, halves.above)];
      const isBeside = beside.width >= above.width;
      const plain = isBeside ? beside : above;
      drawPicture(drawing, this.image, plain, 0);
      this.area = isBeside
        ? { ...plain, left: plain.left + halves.beside.width + 12 }
        : { ...plain, top: plain.top + halves.above.height + 12 };
    }
    const { opacity, isSmooth } = this;
    this.frame.tools.style.setProperty("--strength", `${100 * opacity}%`);
    const signed = isSigned(selection.shown.read);
    const gray = signed ? 1 : selection.entry === null ? opacity / 2 : Math.min(1, opacity * 1.2);
    drawPicture(drawing, this.image, this.area, gray, signed);
    drawHeat(drawing, selection.axis(selection.heatSide).places, this.area, { numbers, least, most, opacity, isSmooth, isSigned: signed });
    if (signed) this.drawNumbers(drawing, selection, numbers);
    const color = (label: string) => labelColor(selection.pane.page, label);
    drawBoxes(drawing, this.picture.boxes, this.area, { selected: selection.hasDetections ? selection.entry : null, color });
    this.drawOutlines(drawing, selection);
  }

  /** Write the numbers of places that have room: equal signs have colors that are hard to compare. */
  private drawNumbers(drawing: CanvasRenderingContext2D, selection: Selection, numbers: Float32Array): void {
    drawing.font = font(13, 600);
    drawing.textAlign = "center";
    drawing.textBaseline = "middle";
    selection.axis(selection.heatSide).places.forEach((place, entry) => {
      const cell = place && toArea(this.area, place);
      if (!cell || cell.width < NUMBERED_PX || cell.height < NUMBERED_PX) return;
      const [x, y] = [cell.left + cell.width / 2, cell.top + cell.height / 2];
      drawing.fillStyle = "rgba(255, 255, 255, 0.85)";
      const text = formatShort(numbers[entry]!);
      const width = drawing.measureText(text).width + 12;
      drawing.fillRect(x - width / 2, y - 11, width, 22);
      drawing.fillStyle = "#14181d";
      drawing.fillText(text, x, y);
    });
  }

  private drawOutlines(drawing: CanvasRenderingContext2D, selection: Selection): void {
    const { hoveredPlace } = this.frame;
    const { entry } = selection;
    const selected = selection.axes.isSameAxis && entry !== null ? selection.axis(selection.side).places[entry] : null;
    if (selected) outline(drawing, toArea(this.area, selected));
    const pointed = hoveredPlace === null ? null : selection.axis(selection.hoverSide).places[hoveredPlace];
    if (pointed && hoveredPlace !== entry) outline(drawing, toArea(this.area, pointed));
  }

  /** Bars of the weights of the place under the pointer, and of the entries without a place. */
  private placeDetails(selection: Selection, most: number): HTMLElement[] {
    const parts: HTMLElement[] = [];
    const { hoveredPlace } = this.frame;
    if (!selection.axes.isSameAxis && hoveredPlace !== null && selection.axis(selection.side).labels.length > 1) {
      const name = entryLabel(selection.axis(selection.pictureSide), hoveredPlace);
      const about = `${selection.side === "query" ? "weights on key" : "weights of query"} ${name}`;
      const numbers = selection.numbersOf(selection.pictureSide, hoveredPlace);
      parts.push(heading(about), largestBars(selection.axis(selection.side), numbers, { count: 6, about }));
    }
    const nowhere = entriesWithoutPlace(selection.axis(selection.heatSide));
    if (nowhere.length) {
      const axis = selection.axis(selection.heatSide);
      const numbers = selection.numbers();
      const rows = Float32Array.from(nowhere, (entry) => numbers[entry]!);
      const labels = nowhere.map((entry) => axis.labels[entry]!);
      parts.push(heading("not on the image"));
      parts.push(largestBars({ ...axis, labels }, rows, { count: 4, about: "entries without a place on the image", most }));
    }
    return parts;
  }

  /** Position of the pointer as fractions of the image's sides. */
  private toFractions(event: MouseEvent): [number, number] {
    const { x, y } = this.frame.toCanvas(event);
    return [(x - this.area.left) / this.area.width, (y - this.area.top) / this.area.height];
  }

  private placeAt(event: MouseEvent, selection: Selection): number | null {
    const index = boxAt(selection.axis(selection.hoverSide).places, ...this.toFractions(event));
    return index < 0 ? null : index;
  }

  private boxAtPointer(event: MouseEvent): Box | null {
    const index = boxAt(this.boxes.map(({ place }) => place), ...this.toFractions(event));
    return this.boxes[index] ?? null;
  }

  hover(event: PointerEvent | null, selection: Selection): void {
    const at = event && this.placeAt(event, selection);
    this.frame.hoveredPlace = at;
    const point = event && at !== null ? { x: event.clientX, y: event.clientY } : null;
    if (selection.axes.isSameAxis && !selection.isPinned) {
      selection.hovered = at;
      selection.tip(point, selection.side, at);
      return;
    }
    const box = event && !selection.isPinned ? this.boxAtPointer(event) : null;
    selection.hovered = box ? box.query : null;
    selection.tip(point, selection.heatSide, at);
  }

  entryAt(event: MouseEvent, selection: Selection): number | null {
    return selection.axes.isSameAxis ? this.placeAt(event, selection) : (this.boxAtPointer(event)?.query ?? null);
  }

  place(query: number | null, key: number | null): { x: number; y: number } | null {
    const { selection } = this.frame;
    if (!selection) return null;
    const [first, second] = selection.pictureSide === "key" ? [key, query] : [query, key];
    const entry = first ?? (selection.axes.isSameAxis ? second : null);
    const place = entry === null ? null : selection.axis(selection.pictureSide).places[entry];
    if (!place) return this.frame.listPosition(second ?? entry);
    const { left, top, width, height } = toArea(this.area, place);
    return this.frame.toClient(left + width / 2, top + height / 2);
  }

  handleKey(key: string): boolean {
    const { selection } = this.frame;
    return this.frame.press(key, selection ? gridOf(selection.axis(selection.side).places)?.columns : 1);
  }

  close(): void {
    this.frame.close();
  }
}

function heading(text: string): HTMLElement {
  return make("h3", {}, text);
}
