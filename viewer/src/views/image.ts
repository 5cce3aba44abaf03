/** Heat over an image: what is read there by a word, a box, a class token, or another place of the image. */

import { prepareCanvas, make } from "../dom.js";
import { plural, readable, formatShort } from "../format.js";
import type { Box, Picture } from "../page.js";
import type { OpenView, Pane, Shown, View } from "../view.js";
import { boxAt, pictureAxes, gridOf, entriesWithoutPlace } from "./focus.js";
import { PictureFrame, type Painter } from "./frame.js";
import { entryLabel, colorRange, type Selection } from "./light.js";
import { chips, heatLegend, largestBars } from "./lists.js";
import { availableSize, addRovingFocus, slider, toggle } from "./parts.js";
import { labelColors, drawBoxes, drawHeat, drawPicture, fitInto, outline, loadImage, toArea, type Area } from "./picture.js";

type Image = Extract<Picture, { kind: "image" }>;

export const image: View = {
  name: "image",
  about: "Attention over the image; stronger colors are larger weights.",
  hasScale: true,
  fits: (sample, read) => pictureAxes(sample, read, "image") !== null,
  open: (host, pane) => new ImageView(host, pane),
};

class ImageView implements OpenView, Painter {
  private readonly frame: PictureFrame;
  private image: HTMLImageElement | null = null;
  private area: Area = { left: 0, top: 0, width: 0, height: 0 };
  private opacity = 0.85;
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
    return this.frame.light!.axes.picture as Image;
  }

  /** Boxes were found by entries of this side, so that they can be chosen. */
  private get boxes(): Box[] {
    return this.frame.light!.hasDetections ? this.picture.boxes : [];
  }

  build(light: Selection): void {
    const { tools, sidebar, details } = this.frame;
    tools.replaceChildren(...this.controls(light));
    sidebar.replaceChildren(...this.lists(light), details);
    for (const group of sidebar.querySelectorAll<HTMLElement>(".chips, .found")) addRovingFocus(group);
  }

  private controls(light: Selection): HTMLElement[] {
    const controls: HTMLElement[] = [];
    if (light.axes.isSameAxis) {
      controls.push(this.frame.byKeyToggle("by key", "Show the weights of all queries on the selected key, instead of the weights of a query"));
    }
    controls.push(slider("overlay", this.opacity, (value) => {
      this.opacity = value;
      this.frame.redraw();
    }));
    if (gridOf(light.axis(light.heatSide).places)) {
      const smooth = toggle("smooth", "Interpolate between patches", (isOn) => {
        this.isSmooth = isOn;
        this.frame.redraw();
      });
      smooth.setAttribute("aria-pressed", String(this.isSmooth));
      controls.push(smooth);
    }
    controls.push(make("span", { class: "legend-place" }));
    return controls;
  }

  /** Boxes, and entries that lie nowhere on the image. */
  private lists(light: Selection): HTMLElement[] {
    const axis = light.axis(light.side);
    const entries = light.axes.isSameAxis ? entriesWithoutPlace(axis) : axis.labels.map((_, i) => i);
    const { boxes } = this;
    // Where there is one thing to choose from it is chosen already; beside places it is one more.
    const entryList = entries.length > (light.axes.isSameAxis ? 0 : 1) ? chips(axis, entries, `select a ${axis.kind}`) : null;
    if (!boxes.length) return entryList ? [heading(plural(axis.kind)), entryList] : [];
    const color = labelColors(boxes);
    const order = [...boxes].sort((one, other) => other.score - one.score);
    const detections = make("div", { class: "found", role: "group", "aria-label": "detections" });
    for (const { label, score, query } of order) {
      const mark = make("span", { class: "mark" });
      mark.style.backgroundColor = color(label);
      const attributes = { type: "button", class: "chip wide", "data-entry": query, "aria-pressed": "false" };
      const scoreElement = make("span", { class: "bar-number" }, score.toFixed(2));
      detections.append(make("button", attributes, mark, make("span", {}, readable(label, 24, " ")), scoreElement));
    }
    const rest = entryList && make("details", {}, make("summary", {}, `all ${axis.labels.length} queries`), entryList);
    return [heading("found"), detections, ...(rest ? [rest] : [])];
  }

  draw(light: Selection): void {
    const { width, height } = availableSize(this.frame.stage, this.picture.height / this.picture.width);
    const drawing = prepareCanvas(this.frame.canvas, width, height);
    this.area = fitInto(this.picture, { left: 2, top: 2, width: width - 4, height: height - 4 });
    const numbers = light.numbers();
    const most = light.colorMax(numbers);
    const { opacity, isSmooth } = this;
    drawPicture(drawing, this.image, this.area, light.entry === null ? opacity / 2 : Math.min(1, opacity * 1.2));
    drawHeat(drawing, light.axis(light.heatSide).places, this.area, { numbers, most, opacity, isSmooth });
    drawBoxes(drawing, this.picture.boxes, this.area, light.hasDetections ? light.entry : null);
    this.drawOutlines(drawing, light);
    this.frame.tools.querySelector(".legend-place")?.replaceChildren(heatLegend(...colorRange(light, most)));
    const caption = light.caption();
    this.frame.describe(caption, `image with ${caption}; largest weight ${formatShort(most)}`, this.placeDetails(light, most));
  }

  private drawOutlines(drawing: CanvasRenderingContext2D, light: Selection): void {
    const { hoveredPlace } = this.frame;
    const selected = light.axes.isSameAxis && light.entry !== null ? light.axis(light.side).places[light.entry] : null;
    if (selected) outline(drawing, toArea(this.area, selected));
    const pointed = hoveredPlace === null ? null : light.axis(light.hoverSide).places[hoveredPlace];
    if (pointed && hoveredPlace !== light.entry) outline(drawing, toArea(this.area, pointed));
  }

  /** Bars of the weights of the place under the pointer, and of the entries without a place. */
  private placeDetails(light: Selection, most: number): HTMLElement[] {
    const parts: HTMLElement[] = [];
    const { hoveredPlace } = this.frame;
    if (!light.axes.isSameAxis && hoveredPlace !== null && light.axis(light.side).labels.length > 1) {
      const about = `${light.side === "query" ? "weights on key" : "weights of query"} ${entryLabel(light.axis(light.pictureSide), hoveredPlace)}`;
      const numbers = light.numbersOf(light.pictureSide, hoveredPlace);
      parts.push(heading(about), largestBars(light.axis(light.side), numbers, { count: 6, about }));
    }
    const nowhere = entriesWithoutPlace(light.axis(light.heatSide));
    if (nowhere.length) {
      const axis = light.axis(light.heatSide);
      const numbers = light.numbers();
      const rows = Float32Array.from(nowhere, (entry) => numbers[entry]!);
      const labels = nowhere.map((entry) => axis.labels[entry]!);
      parts.push(heading("not on the image"));
      parts.push(largestBars({ ...axis, labels }, rows, { count: 4, about: "entries without a place on the image", most }));
    }
    return parts;
  }

  /** The pointer's place as shares of the image's sides. */
  private toFractions(event: MouseEvent): [number, number] {
    const { x, y } = this.frame.toCanvas(event);
    return [(x - this.area.left) / this.area.width, (y - this.area.top) / this.area.height];
  }

  private placeAt(event: MouseEvent, light: Selection): number | null {
    const index = boxAt(light.axis(light.hoverSide).places, ...this.toFractions(event));
    return index < 0 ? null : index;
  }

  private boxAtPointer(event: MouseEvent): Box | null {
    const index = boxAt(this.boxes.map(({ place }) => place), ...this.toFractions(event));
    return this.boxes[index] ?? null;
  }

  hover(event: PointerEvent | null, light: Selection): void {
    const at = event && this.placeAt(event, light);
    this.frame.hoveredPlace = at;
    const point = event && at !== null ? { x: event.clientX, y: event.clientY } : null;
    if (light.axes.isSameAxis && !light.isPinned) {
      light.hovered = at;
      light.tip(point, light.side, at);
      return;
    }
    const box = event && !light.isPinned ? this.boxAtPointer(event) : null;
    light.hovered = box ? box.query : null;
    light.tip(point, light.heatSide, at);
  }

  entryAt(event: MouseEvent, light: Selection): number | null {
    return light.axes.isSameAxis ? this.placeAt(event, light) : (this.boxAtPointer(event)?.query ?? null);
  }

  place(query: number | null, key: number | null): { x: number; y: number } | null {
    const { light } = this.frame;
    if (!light) return null;
    const [first, second] = light.pictureSide === "key" ? [key, query] : [query, key];
    const entry = first ?? (light.axes.isSameAxis ? second : null);
    const place = entry === null ? null : light.axis(light.pictureSide).places[entry];
    if (!place) return this.frame.listPosition(second ?? entry);
    const { left, top, width, height } = toArea(this.area, place);
    return this.frame.toClient(left + width / 2, top + height / 2);
  }

  handleKey(key: string): boolean {
    const { light } = this.frame;
    return this.frame.press(key, light ? gridOf(light.axis(light.side).places)?.columns : 1);
  }

  close(): void {
    this.frame.close();
  }
}

function heading(text: string): HTMLElement {
  return make("h3", {}, text);
}
