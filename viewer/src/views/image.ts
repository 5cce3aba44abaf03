/** Heat over an image: what is read there by a word, a box, a class token, or another place of the image. */

import { context, make } from "../dom.js";
import { plural, readable, short } from "../format.js";
import type { Box, Picture } from "../page.js";
import type { Drawn, Pane, Shown, View } from "../view.js";
import { boxAt, focusOf, gridOf, withoutPlace } from "./focus.js";
import { Frame, type Painter } from "./frame.js";
import { named, range, type Light } from "./light.js";
import { chips, heatLegend, strongest } from "./lists.js";
import { roomOf, rove, slider, toggle } from "./parts.js";
import { colorOf, drawBoxes, drawHeat, drawPicture, fitted, outline, picture, within, type Area } from "./picture.js";

type Image = Extract<Picture, { kind: "image" }>;

export const image: View = {
  name: "image",
  about: "Attention over the image; stronger colors are larger weights.",
  hasScale: true,
  fits: (sample, read) => focusOf(sample, read, "image") !== null,
  open: (host, pane) => new ImageView(host, pane),
};

class ImageView implements Drawn, Painter {
  private readonly frame: Frame;
  private image: HTMLImageElement | null = null;
  private area: Area = { left: 0, top: 0, width: 0, height: 0 };
  private strength = 0.85;
  private isSmooth = false;

  constructor(host: HTMLElement, pane: Pane) {
    this.frame = new Frame(host, pane, "image", this);
  }

  async show(shown: Shown): Promise<void> {
    const focus = focusOf(shown.sample, shown.read, "image");
    if (focus) this.image = await picture(focus.picture.url);
    await this.frame.show(shown);
  }

  private get picture(): Image {
    return this.frame.light!.focus.picture as Image;
  }

  /** Boxes were found by entries of this side, so that they can be chosen. */
  private get boxes(): Box[] {
    return this.frame.light!.isFound ? this.picture.boxes : [];
  }

  build(light: Light): void {
    const { tools, side, below } = this.frame;
    tools.replaceChildren(...this.controls(light));
    side.replaceChildren(...this.lists(light), below);
    for (const group of side.querySelectorAll<HTMLElement>(".chips, .found")) rove(group);
  }

  private controls(light: Light): HTMLElement[] {
    const found: HTMLElement[] = [];
    if (light.focus.isOwn) {
      found.push(this.frame.turn("by key", "Show the weights of all queries on the selected key, instead of the weights of a query"));
    }
    found.push(slider("overlay", this.strength, (value) => {
      this.strength = value;
      this.frame.redraw();
    }));
    if (gridOf(light.axis(light.heatSide).places)) {
      const smooth = toggle("smooth", "Interpolate between patches", (isOn) => {
        this.isSmooth = isOn;
        this.frame.redraw();
      });
      smooth.setAttribute("aria-pressed", String(this.isSmooth));
      found.push(smooth);
    }
    found.push(make("span", { class: "legend-place" }));
    return found;
  }

  /** Boxes, and entries that lie nowhere on the image. */
  private lists(light: Light): HTMLElement[] {
    const axis = light.axis(light.side);
    const entries = light.focus.isOwn ? withoutPlace(axis) : axis.labels.map((_, i) => i);
    const { boxes } = this;
    // Where there is one thing to choose from it is chosen already; beside places it is one more.
    const list = entries.length > (light.focus.isOwn ? 0 : 1) ? chips(axis, entries, `select a ${axis.what}`) : null;
    if (!boxes.length) return list ? [heading(plural(axis.what)), list] : [];
    const color = colorOf(boxes);
    const order = [...boxes].sort((one, other) => other.score - one.score);
    const found = make("div", { class: "found", role: "group", "aria-label": "detections" });
    for (const { label, score, query } of order) {
      const mark = make("span", { class: "mark" });
      mark.style.backgroundColor = color(label);
      const attributes = { type: "button", class: "chip wide", "data-entry": query, "aria-pressed": "false" };
      const told = make("span", { class: "bar-number" }, score.toFixed(2));
      found.append(make("button", attributes, mark, make("span", {}, readable(label, 24, " ")), told));
    }
    const rest = list && make("details", {}, make("summary", {}, `all ${axis.labels.length} queries`), list);
    return [heading("found"), found, ...(rest ? [rest] : [])];
  }

  draw(light: Light): void {
    const { width, height } = roomOf(this.frame.stage, this.picture.height / this.picture.width);
    const drawing = context(this.frame.canvas, width, height);
    this.area = fitted(this.picture, { left: 2, top: 2, width: width - 4, height: height - 4 });
    const numbers = light.numbers();
    const most = light.most(numbers);
    const { strength, isSmooth } = this;
    drawPicture(drawing, this.image, this.area, light.entry === null ? strength / 2 : Math.min(1, strength * 1.2));
    drawHeat(drawing, light.axis(light.heatSide).places, this.area, { numbers, most, strength, isSmooth });
    drawBoxes(drawing, this.picture.boxes, this.area, light.isFound ? light.entry : null);
    this.drawOutlines(drawing, light);
    this.frame.tools.querySelector(".legend-place")?.replaceChildren(heatLegend(...range(light, most)));
    const caption = light.caption();
    this.frame.describe(caption, `image with ${caption}; largest weight ${short(most)}`, this.below(light, most));
  }

  private drawOutlines(drawing: CanvasRenderingContext2D, light: Light): void {
    const { at } = this.frame;
    const chosen = light.focus.isOwn && light.entry !== null ? light.axis(light.side).places[light.entry] : null;
    if (chosen) outline(drawing, within(this.area, chosen));
    const pointed = at === null ? null : light.axis(light.pointedSide).places[at];
    if (pointed && at !== light.entry) outline(drawing, within(this.area, pointed));
  }

  /** Bars of the weights of the place under the pointer, and of the entries without a place. */
  private below(light: Light, most: number): HTMLElement[] {
    const parts: HTMLElement[] = [];
    const { at } = this.frame;
    if (!light.focus.isOwn && at !== null && light.axis(light.side).labels.length > 1) {
      const about = `${light.side === "query" ? "weights on key" : "weights of query"} ${named(light.axis(light.placed), at)}`;
      const numbers = light.of(light.placed, at);
      parts.push(heading(about), strongest(light.axis(light.side), numbers, { count: 6, about }));
    }
    const nowhere = withoutPlace(light.axis(light.heatSide));
    if (nowhere.length) {
      const axis = light.axis(light.heatSide);
      const numbers = light.numbers();
      const rows = Float32Array.from(nowhere, (entry) => numbers[entry]!);
      const labels = nowhere.map((entry) => axis.labels[entry]!);
      parts.push(heading("not on the image"));
      parts.push(strongest({ ...axis, labels }, rows, { count: 4, about: "entries without a place on the image", most }));
    }
    return parts;
  }

  /** The pointer's place as shares of the image's sides. */
  private share(event: MouseEvent): [number, number] {
    const { x, y } = this.frame.inside(event);
    return [(x - this.area.left) / this.area.width, (y - this.area.top) / this.area.height];
  }

  private placeAt(event: MouseEvent, light: Light): number | null {
    const found = boxAt(light.axis(light.pointedSide).places, ...this.share(event));
    return found < 0 ? null : found;
  }

  private boxUnder(event: MouseEvent): Box | null {
    const found = boxAt(this.boxes.map(({ place }) => place), ...this.share(event));
    return this.boxes[found] ?? null;
  }

  point(event: PointerEvent | null, light: Light): void {
    const at = event && this.placeAt(event, light);
    this.frame.at = at;
    const where = event && at !== null ? { x: event.clientX, y: event.clientY } : null;
    if (light.focus.isOwn && !light.isPinned) {
      light.pointed = at;
      light.tip(where, light.side, at);
      return;
    }
    const box = event && !light.isPinned ? this.boxUnder(event) : null;
    light.pointed = box ? box.query : null;
    light.tip(where, light.heatSide, at);
  }

  picked(event: MouseEvent, light: Light): number | null {
    return light.focus.isOwn ? this.placeAt(event, light) : (this.boxUnder(event)?.query ?? null);
  }

  place(query: number | null, key: number | null): { x: number; y: number } | null {
    const { light } = this.frame;
    if (!light) return null;
    const [first, second] = light.placed === "key" ? [key, query] : [query, key];
    const entry = first ?? (light.focus.isOwn ? second : null);
    const place = entry === null ? null : light.axis(light.placed).places[entry];
    if (!place) return this.frame.listed(second ?? entry);
    const { left, top, width, height } = within(this.area, place);
    return this.frame.outside(left + width / 2, top + height / 2);
  }

  press(key: string): boolean {
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
