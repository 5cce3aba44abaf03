/** Heat over an image: what is read there by a word, a box, a class token, or another place of the image. */

import { context, make } from "../dom.js";
import { plural, readable, short } from "../format.js";
import type { Box, Picture } from "../page.js";
import type { Drawn, Pane, Shown, View } from "../view.js";
import { boxAt, focusOf, gridOf, withoutPlace } from "./focus.js";
import { Light, named, range, type Side } from "./light.js";
import { chips, heatLegend, press, strongest } from "./lists.js";
import { inFrame, listen, roomOf, rove, slider, toggle } from "./parts.js";
import { colourOf, drawBoxes, drawHeat, drawPicture, fitted, outline, picture, within, type Area } from "./picture.js";

type Image = Extract<Picture, { kind: "image" }>;

export const image: View = {
  name: "image",
  about: "Heat over the image: the stronger the colour, the more was read of that place",
  fits: (scene, read) => focusOf(scene, read, "image") !== null,
  open: (host, pane) => new ImageView(host, pane),
};

class ImageView implements Drawn {
  private readonly tools = make("div", { class: "tools" });
  private readonly stage = make("div", { class: "stage" });
  private readonly canvas = make("canvas", { role: "img" });
  private readonly told = make("p", { class: "told", "aria-live": "polite" });
  private readonly side = make("aside", { class: "side" });
  private readonly read = make("div", { class: "read-at" });
  private light: Light | null = null;
  private image: HTMLImageElement | null = null;
  private area: Area = { left: 0, top: 0, width: 0, height: 0 };
  private strength = 0.85;
  private isSmooth = false;
  /** The place pointed at. */
  private at: number | null = null;
  private readonly redraw = inFrame(() => this.draw());

  constructor(
    private readonly host: HTMLElement,
    private readonly pane: Pane,
  ) {
    this.stage.append(this.canvas);
    host.append(make("div", { class: "pictured" }, this.tools, this.told, this.stage, this.side));
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    this.canvas.addEventListener("click", (event) => this.pick(event));
    listen(this.side, { point: (entry, at) => this.pointEntry(entry, at), pick: (entry) => this.light?.pick(entry) });
  }

  async show(shown: Shown): Promise<void> {
    const focus = focusOf(shown.scene, shown.read, "image");
    if (!focus) return;
    const table = await this.pane.table(shown.read);
    this.image = await picture(focus.picture.url);
    const before = this.light;
    this.light = new Light(this.pane, shown, table, focus, before);
    if (before?.shown.read !== shown.read || before.shown.scene !== shown.scene) this.build();
    this.draw();
  }

  private get picture(): Image {
    return this.light!.focus.picture as Image;
  }

  /** The side whose entries are places of the image, or may be. */
  private get placed(): Side {
    return this.light!.focus.heat === "keys" ? "key" : "query";
  }

  /** Boxes were found by entries of this side, so that they can be chosen. */
  private get boxes(): Box[] {
    return this.light!.isFound ? this.picture.boxes : [];
  }

  private build(): void {
    const light = this.light!;
    this.at = null;
    this.tools.replaceChildren(...this.controls(light));
    const places = light.axis(this.placed).places;
    this.side.replaceChildren(...this.lists(light));
    for (const group of this.side.querySelectorAll<HTMLElement>(".chips, .found")) rove(group);
    this.side.append(this.read);
    this.canvas.dataset["places"] = String(places.length);
  }

  private controls(light: Light): HTMLElement[] {
    const found: HTMLElement[] = [];
    if (light.focus.isOwn) {
      const turn = toggle("who reads it", "Show who reads the place you point at, not what it reads", (isOn) => {
        const [from, entry] = [light.side, this.light!.entry];
        this.light!.isTurned = isOn;
        this.light!.pane.choose({ query: null, key: null, [from === "query" ? "key" : "query"]: entry });
      });
      turn.setAttribute("aria-pressed", String(light.isTurned));
      found.push(turn);
    }
    found.push(slider("overlay", this.strength, (value) => {
      this.strength = value;
      this.redraw();
    }));
    if (gridOf(light.axis(light.heatSide).places)) {
      const smooth = toggle("smooth", "Blur from patch to patch; the numbers stay those of whole patches", (isOn) => {
        this.isSmooth = isOn;
        this.redraw();
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
    const list = entries.length ? chips(axis, entries, `${axis.what}: choose one`) : null;
    if (!boxes.length) return list && entries.length > 1 - Number(light.focus.isOwn) ? [heading(plural(axis.what)), list] : [];
    const colour = colourOf(boxes);
    const order = [...boxes].sort((one, other) => other.score - one.score);
    const found = make("div", { class: "found", role: "group", "aria-label": "what was found" });
    for (const { label, score, query } of order) {
      const mark = make("span", { class: "mark" });
      mark.style.backgroundColor = colour(label);
      const attributes = { type: "button", class: "chip wide", "data-entry": query, "aria-pressed": "false" };
      const told = make("span", { class: "bar-number" }, score.toFixed(2));
      found.append(make("button", attributes, mark, make("span", {}, readable(label, 24, " ")), told));
    }
    const rest = list && make("details", {}, make("summary", {}, `all ${axis.labels.length} queries`), list);
    return [heading("found"), found, ...(rest ? [rest] : [])];
  }

  private draw(): void {
    const { light } = this;
    if (!light) return;
    const { width, height } = roomOf(this.stage, this.picture.height / this.picture.width);
    const drawing = context(this.canvas, width, height);
    this.area = fitted(this.picture, { left: 2, top: 2, width: width - 4, height: height - 4 });
    const numbers = light.numbers();
    const most = light.most(numbers);
    drawPicture(drawing, this.image, this.area, Math.min(1, this.strength * 1.2));
    const { places } = light.axis(light.heatSide);
    drawHeat(drawing, places, this.area, { numbers, most, strength: this.strength, isSmooth: this.isSmooth });
    const isFound = this.boxes.length > 0;
    drawBoxes(drawing, this.picture.boxes, this.area, isFound ? light.entry : null);
    this.drawOutlines(drawing, light);
    this.tell(light, most);
  }

  private drawOutlines(drawing: CanvasRenderingContext2D, light: Light): void {
    const chosen = light.focus.isOwn && light.entry !== null ? light.axis(light.side).places[light.entry] : null;
    if (chosen) outline(drawing, within(this.area, chosen));
    const side = light.focus.isOwn ? light.heatSide : this.placed;
    const pointed = this.at === null ? null : light.axis(side).places[this.at];
    if (pointed && pointed !== chosen) outline(drawing, within(this.area, pointed));
  }

  /** Write beside the image what is drawn. */
  private tell(light: Light, most: number): void {
    const told = light.told();
    if (this.told.textContent !== told) this.told.textContent = told;
    this.canvas.setAttribute("aria-label", `${this.picture.kind}, heat over it: ${told}; strongest ${short(most)}`);
    this.tools.querySelector(".legend-place")?.replaceChildren(heatLegend(...range(light, most)));
    press(this.side, light.entry);
    this.tellPlace(light, most);
  }

  /** Who reads the place pointed at, or which places are read most: as bars. */
  private tellPlace(light: Light, most: number): void {
    const parts: HTMLElement[] = [];
    const { at } = this;
    if (!light.focus.isOwn && at !== null && light.axis(light.side).labels.length > 1) {
      const about = `${named(light.axis(this.placed), at)} ${light.side === "query" ? "is read by" : "reads"}`;
      parts.push(heading(about), strongest(light.axis(light.side), light.of(this.placed, at), { count: 6, about }));
    }
    const nowhere = withoutPlace(light.axis(light.heatSide));
    if (nowhere.length) {
      const axis = light.axis(light.heatSide);
      const numbers = light.numbers();
      const rows = Float32Array.from(nowhere, (entry) => numbers[entry]!);
      const labels = nowhere.map((entry) => axis.labels[entry]!);
      parts.push(heading("beside the image"));
      parts.push(strongest({ ...axis, labels }, rows, { count: 4, about: "what lies nowhere on the image", most }));
    }
    this.read.replaceChildren(...parts);
  }

  private placeAt(event: MouseEvent): number | null {
    const { left, top } = this.canvas.getBoundingClientRect();
    const x = (event.clientX - left - this.area.left) / this.area.width;
    const y = (event.clientY - top - this.area.top) / this.area.height;
    const side = this.light!.focus.isOwn ? this.light!.side : this.placed;
    const found = boxAt(this.light!.axis(side).places, x, y);
    return found < 0 ? null : found;
  }

  private boxUnder(event: MouseEvent): Box | null {
    const { left, top } = this.canvas.getBoundingClientRect();
    const x = (event.clientX - left - this.area.left) / this.area.width;
    const y = (event.clientY - top - this.area.top) / this.area.height;
    const found = boxAt(this.boxes.map(({ place }) => place), x, y);
    return this.boxes[found] ?? null;
  }

  private point(event: PointerEvent | null): void {
    const { light } = this;
    if (!light) return;
    this.at = event && this.placeAt(event);
    const where = event && this.at !== null ? { x: event.clientX, y: event.clientY } : null;
    if (light.focus.isOwn && !light.isPinned) {
      light.pointed = this.at;
      light.tip(where, light.side, this.at);
    } else {
      const box = event && !light.isPinned ? this.boxUnder(event) : null;
      if (this.boxes.length) light.pointed = box ? box.query : null;
      light.tip(where, light.heatSide, this.at);
    }
    this.redraw();
  }

  private pick(event: MouseEvent): void {
    const { light } = this;
    if (!light) return;
    const entry = light.focus.isOwn ? this.placeAt(event) : (this.boxUnder(event)?.query ?? null);
    light.pointed = null;
    light.pick(entry ?? light.shown[light.side]);
  }

  private pointEntry(entry: number | null, at: { x: number; y: number } | null): void {
    const { light } = this;
    if (!light) return;
    light.pointed = entry;
    light.tip(at, light.side, entry);
    this.redraw();
  }

  place(query: number | null, key: number | null): { x: number; y: number } | null {
    const { light } = this;
    if (!light) return null;
    const entry = this.placed === "key" ? (key ?? (light.focus.isOwn ? query : null)) : (query ?? (light.focus.isOwn ? key : null));
    const place = entry === null ? null : light.axis(this.placed).places[entry];
    if (place) {
      const { left, top, width, height } = within(this.area, place);
      const box = this.canvas.getBoundingClientRect();
      return { x: box.left + left + width / 2, y: box.top + top + height / 2 };
    }
    const other = this.placed === "key" ? query : key;
    const button = this.side.querySelector(`[data-entry="${other ?? entry}"]`);
    if (!button) return null;
    const box = button.getBoundingClientRect();
    return { x: box.left + box.width / 2, y: box.top + box.height / 2 };
  }

  press(key: string): boolean {
    const { light } = this;
    if (!light) return false;
    const axis = light.axis(light.side);
    const grid = gridOf(axis.places);
    const steps: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: grid?.columns ?? 1, ArrowUp: -(grid?.columns ?? 1) };
    const step = steps[key];
    if (!step) return false;
    const from = light.shown[light.side];
    const entry = from === null ? 0 : Math.min(axis.labels.length - 1, Math.max(0, from + step));
    light.pointed = null;
    light.pane.choose({ query: null, key: null, [light.side]: entry });
    return true;
  }

  close(): void {
    this.light?.tip(null, "query", null);
    this.host.replaceChildren();
  }
}

function heading(text: string): HTMLElement {
  return make("h3", {}, text);
}
