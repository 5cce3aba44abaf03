/** Who attends to whom, among those who move over a plane: ways seen and ways ahead, and lines between people. */

import { category } from "../colour.js";
import { context, font, make, styled } from "../dom.js";
import { plural, readable, short } from "../format.js";
import type { Picture, Track } from "../page.js";
import type { Drawn, Pane, Shown, View } from "../view.js";
import { focusOf } from "./focus.js";
import { largest } from "./largest.js";
import { flow, Light } from "./light.js";
import { chips, press, strongest } from "./lists.js";
import { inFrame, listen, roomOf, rove, toggle } from "./parts.js";
import { plan, type Plan, type Point } from "./plan.js";
import { overlap, spread, ticks, type Rectangle } from "./spread.js";

type Plane = Extract<Picture, { kind: "plane" }>;

/** Lines that are drawn while nobody is chosen, for each person. */
const FAINT_LINES = 3;
const NUMBERS = 8;
const NEAR = 18;

export const plane: View = {
  name: "plane",
  about: "Who attends to whom: lines from one person to the others, the wider the more was read",
  fits: (scene, read) => focusOf(scene, read, "plane") !== null,
  open: (host, pane) => new PlaneView(host, pane),
};

class PlaneView implements Drawn {
  private readonly tools = make("div", { class: "tools" });
  private readonly stage = make("div", { class: "stage" });
  private readonly canvas = make("canvas", { role: "img" });
  private readonly told = make("p", { class: "told", "aria-live": "polite" });
  private readonly side = make("aside", { class: "side" });
  private readonly read = make("div", { class: "read-at" });
  private light: Light | null = null;
  private plan: Plan = plan([], { width: 1, height: 1 });
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
    const focus = focusOf(shown.scene, shown.read, "plane");
    if (!focus) return;
    const table = await this.pane.table(shown.read);
    const before = this.light;
    this.light = new Light(this.pane, shown, table, focus, before);
    if (before?.shown.read !== shown.read || before.shown.scene !== shown.scene) this.build(this.light);
    this.draw();
  }

  private get tracks(): Track[] {
    return (this.light!.focus.picture as Plane).tracks;
  }

  private build(light: Light): void {
    this.at = null;
    this.tools.replaceChildren();
    if (light.focus.isOwn) {
      const turn = toggle("who reads them", "Show who reads the person you point at, not whom they read", (isOn) => {
        const [from, entry] = [light.side, this.light!.entry];
        this.light!.isTurned = isOn;
        this.light!.pane.choose({ query: null, key: null, [from === "query" ? "key" : "query"]: entry });
      });
      turn.setAttribute("aria-pressed", String(light.isTurned));
      this.tools.append(turn);
    }
    this.tools.append(make("span", { class: "key-line" }, "seen"), make("span", { class: "key-line is-ahead" }, "ahead"));
    const axis = light.axis(light.side);
    const group = chips(axis, axis.labels.map((_, i) => i), `${axis.what}: choose one`);
    rove(group);
    this.side.replaceChildren(make("h3", {}, plural(axis.what)), group, this.read);
  }

  /** Where the person of an entry stands now: at the end of what was seen. */
  private spot(side: "query" | "key", entry: number): Point | null {
    const place = this.light!.axis(side).places[entry];
    const track = place && this.tracks[place[0]!];
    const point = track && (track.seen.at(-1) ?? track.ahead[0]);
    return point ? this.plan.spot(point) : null;
  }

  private draw(): void {
    const { light } = this;
    if (!light) return;
    const { width, height } = roomOf(this.stage, 1);
    const drawing = context(this.canvas, width, height);
    const points = this.tracks.flatMap(({ seen, ahead }) => [...seen, ...ahead]);
    this.plan = plan(points, { width, height });
    this.drawAxes(drawing);
    const chosen = light.entry;
    const numbers = light.numbers();
    const most = chosen === null ? this.mostOfAll(light) : light.most(numbers);
    if (chosen === null) this.drawAll(drawing, light, most);
    else this.drawLines(drawing, light, chosen, numbers, most);
    this.tracks.forEach((track, i) => this.drawTrack(drawing, track, this.isChosen(i)));
    this.drawNames(drawing, light, chosen, numbers);
    this.tell(light, numbers);
  }

  private isChosen(track: number): boolean {
    const { entry, side } = this.light!;
    return entry !== null && this.light!.axis(side).places[entry]?.[0] === track;
  }

  private mostOfAll(light: Light): number {
    return light.shown.scale === "one" && light.shown.read.measure === "weight"
      ? 1
      : Math.abs(light.table.most(light.shown.head)) || 1;
  }

  private drawAxes(drawing: CanvasRenderingContext2D): void {
    const { area, from, to } = this.plan;
    drawing.font = font(12);
    drawing.strokeStyle = styled("--line");
    drawing.fillStyle = styled("--pale");
    drawing.lineWidth = 1;
    const { unit } = this.light!.focus.picture as Plane;
    const count = area.width / 70;
    drawing.textAlign = "center";
    drawing.textBaseline = "top";
    for (const x of ticks(from[0], to[0], count)) {
      const at = Math.round(this.plan.spot([x, 0]).x) + 0.5;
      this.rule(drawing, at, area.top, at, area.top + area.height);
      drawing.fillText(String(x), at, area.top + area.height + 6);
    }
    drawing.textAlign = "right";
    drawing.textBaseline = "middle";
    for (const y of ticks(from[1], to[1], (count * area.height) / area.width)) {
      const at = Math.round(this.plan.spot([0, y]).y) + 0.5;
      this.rule(drawing, area.left, at, area.left + area.width, at);
      drawing.fillText(String(y), area.left - 6, at);
    }
    drawing.textAlign = "right";
    drawing.textBaseline = "bottom";
    drawing.fillText(unit, area.left + area.width, area.top + area.height + 34);
  }

  private rule(drawing: CanvasRenderingContext2D, x0: number, y0: number, x1: number, y1: number): void {
    drawing.beginPath();
    drawing.moveTo(x0, y0);
    drawing.lineTo(x1, y1);
    drawing.stroke();
  }

  private drawTrack(drawing: CanvasRenderingContext2D, { seen, ahead }: Track, isChosen: boolean): void {
    drawing.strokeStyle = drawing.fillStyle = isChosen ? category(1) : styled("--ink");
    drawing.lineWidth = isChosen ? 2.5 : 1.75;
    drawing.lineJoin = "round";
    this.way(drawing, seen);
    drawing.setLineDash([5, 4]);
    const now = seen.at(-1);
    this.way(drawing, now ? [now, ...ahead] : ahead);
    drawing.setLineDash([]);
    const at = now ?? ahead[0];
    if (!at) return;
    const { x, y } = this.plan.spot(at);
    drawing.beginPath();
    drawing.arc(x, y, isChosen ? 6 : 4.5, 0, 7);
    drawing.fill();
    drawing.lineWidth = 1.5;
    drawing.strokeStyle = styled("--ground");
    drawing.stroke();
  }

  private way(drawing: CanvasRenderingContext2D, points: readonly [number, number][]): void {
    drawing.beginPath();
    for (const point of points) {
      const { x, y } = this.plan.spot(point);
      drawing.lineTo(x, y);
    }
    drawing.stroke();
  }

  /** Of each person the strongest few lines, faint; bent, so that there and back can be told apart. */
  private drawAll(drawing: CanvasRenderingContext2D, light: Light, most: number): void {
    const count = light.axis(light.side).labels.length;
    for (let entry = 0; entry < count; entry++) {
      const numbers = light.of(light.side, entry);
      for (const other of largest(numbers, FAINT_LINES)) {
        const [from, to] = [this.spot(light.side, entry), this.spot(light.heatSide, other)];
        if (!from || !to || (from.x === to.x && from.y === to.y)) continue;
        const share = Math.min(1, Math.abs(numbers[other]!) / most);
        const [tail, head] = light.side === "query" ? [from, to] : [to, from];
        drawing.globalAlpha = 0.12 + 0.5 * share;
        arrow(drawing, tail, head, { width: 0.75 + 3 * share, colour: flow(numbers[other]! < 0), bend: 0.12 });
      }
    }
    drawing.globalAlpha = 1;
  }

  private drawLines(drawing: CanvasRenderingContext2D, light: Light, chosen: number, numbers: Float32Array, most: number): void {
    const from = this.spot(light.side, chosen);
    if (!from) return;
    for (const other of largest(numbers, numbers.length).reverse()) {
      const to = this.spot(light.heatSide, other);
      if (!to) continue;
      const share = Math.min(1, Math.abs(numbers[other]!) / most);
      drawing.globalAlpha = 0.25 + 0.6 * share;
      const style = { width: 1 + 11 * share, colour: flow(numbers[other]! < 0), bend: 0 };
      if (Math.hypot(to.x - from.x, to.y - from.y) < 1) ring(drawing, from, style);
      else if (light.side === "query") arrow(drawing, from, to, style);
      else arrow(drawing, to, from, style);
    }
    drawing.globalAlpha = 1;
  }

  /** Names, with the number below of those that are read. */
  private drawNames(drawing: CanvasRenderingContext2D, light: Light, chosen: number | null, numbers: Float32Array): void {
    drawing.font = font(12, 600);
    const told = new Set(chosen === null ? [] : largest(numbers, NUMBERS));
    const axis = light.axis(light.heatSide);
    const lines = this.tracks.map((track, i) => {
      const entry = axis.places.findIndex((place) => place?.[0] === i);
      const number = told.has(entry) ? `  ${short(numbers[entry]!)}` : "";
      return { name: readable(track.label, 16, " "), number, at: track.seen.at(-1) ?? track.ahead[0], isChosen: this.isChosen(i) };
    });
    const there = lines.filter(({ at }) => at !== undefined);
    // Whoever has a number comes first: its name gets the best place.
    there.sort((one, other) => Number(!!other.number) - Number(!!one.number));
    const names = there.map(({ name, number, at }) => {
      const { x, y } = this.plan.spot(at!);
      return { x, y, width: drawing.measureText(name + number).width + 8, height: 17 };
    });
    const { area } = this.plan;
    const boxes = spread(names, { left: area.left - 20, top: area.top - 8, width: area.width + 28, height: area.height + 12 }, 9);
    const drawn: Rectangle[] = [];
    there.forEach((line, i) => {
      const box = boxes[i]!;
      // In a crowd some names are left out; they are told on pointing.
      const isCovered = drawn.some((other) => overlap(box, other) > 0.1 * box.width * box.height);
      if (isCovered && !line.number && !line.isChosen) return;
      drawn.push(box);
      this.drawName(drawing, line, box);
    });
  }

  private drawName(drawing: CanvasRenderingContext2D, line: { name: string; number: string; isChosen: boolean }, box: Rectangle): void {
    drawing.globalAlpha = 0.82;
    drawing.fillStyle = styled("--ground");
    drawing.fillRect(box.left, box.top, box.width, box.height);
    drawing.globalAlpha = 1;
    drawing.textAlign = "left";
    drawing.textBaseline = "middle";
    const y = box.top + box.height / 2 + 0.5;
    drawing.fillStyle = line.isChosen ? category(1) : styled("--ink");
    drawing.fillText(line.name, box.left + 4, y);
    if (!line.number) return;
    drawing.fillStyle = flow();
    drawing.fillText(line.number, box.left + 4 + drawing.measureText(line.name).width, y);
  }

  private tell(light: Light, numbers: Float32Array): void {
    const told = light.entry === null ? `all ${this.tracks.length}, each with those it reads most; point at one` : light.told();
    if (this.told.textContent !== told) this.told.textContent = told;
    this.canvas.setAttribute("aria-label", `${this.tracks.length} ways over a plane; ${told}`);
    press(this.side, light.entry);
    if (light.entry === null) this.read.replaceChildren();
    else {
      const about = light.side === "query" ? "reads" : "is read by";
      this.read.replaceChildren(make("h3", {}, about), strongest(light.axis(light.heatSide), numbers, { count: NUMBERS, about }));
    }
  }

  private personAt(event: MouseEvent, side: "query" | "key"): number | null {
    const { left, top } = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    let found: number | null = null;
    let least = NEAR;
    this.light!.axis(side).places.forEach((_, entry) => {
      const spot = this.spot(side, entry);
      const far = spot ? Math.hypot(spot.x - x, spot.y - y) : Infinity;
      if (far < least) [found, least] = [entry, far];
    });
    return found;
  }

  private point(event: PointerEvent | null): void {
    const { light } = this;
    if (!light) return;
    const isFree = light.focus.isOwn && !light.isPinned;
    const side = isFree ? light.side : light.heatSide;
    this.at = event && this.personAt(event, side);
    light.pointed = isFree ? this.at : null;
    light.tip(event && this.at !== null ? { x: event.clientX, y: event.clientY } : null, side, this.at);
    this.redraw();
  }

  private pick(event: MouseEvent): void {
    const { light } = this;
    if (!light) return;
    const entry = light.focus.isOwn ? this.personAt(event, light.side) : null;
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
    if (!this.light) return null;
    const spot = key !== null ? this.spot("key", key) : query !== null ? this.spot("query", query) : null;
    if (!spot) return null;
    const { left, top } = this.canvas.getBoundingClientRect();
    return { x: left + spot.x, y: top + spot.y };
  }

  press(key: string): boolean {
    const { light } = this;
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[key];
    if (!light || !step) return false;
    const last = light.axis(light.side).labels.length - 1;
    const from = light.shown[light.side];
    const entry = from === null ? 0 : Math.min(last, Math.max(0, from + step));
    light.pointed = null;
    light.pane.choose({ query: null, key: null, [light.side]: entry });
    return true;
  }

  close(): void {
    this.light?.tip(null, "query", null);
    this.host.replaceChildren();
  }
}

interface Stroke {
  width: number;
  colour: string;
  /** How far the line bows to its left, as a share of its length. */
  bend: number;
}

/** A line that leaves room around both points, with a head at its end. */
function arrow(drawing: CanvasRenderingContext2D, from: Point, to: Point, { width, colour, bend }: Stroke): void {
  const [wide, high] = [to.x - from.x, to.y - from.y];
  const long = Math.hypot(wide, high);
  const size = 5 + width * 1.1;
  if (long < 18 + size) return;
  const [across, down] = [wide / long, high / long];
  const bow = { x: (from.x + to.x) / 2 + high * bend, y: (from.y + to.y) / 2 - wide * bend };
  const aim = Math.atan2(to.y - bow.y, to.x - bow.x);
  const tip = { x: to.x - Math.cos(aim) * 8, y: to.y - Math.sin(aim) * 8 };
  const neck = { x: tip.x - Math.cos(aim) * size, y: tip.y - Math.sin(aim) * size };
  drawing.strokeStyle = drawing.fillStyle = colour;
  drawing.lineWidth = width;
  drawing.lineCap = "butt";
  drawing.beginPath();
  drawing.moveTo(from.x + across * 7, from.y + down * 7);
  drawing.quadraticCurveTo(bow.x, bow.y, neck.x, neck.y);
  drawing.stroke();
  drawing.beginPath();
  drawing.moveTo(tip.x, tip.y);
  for (const turn of [-1, 1]) {
    const half = (width / 2 + 3) * turn;
    drawing.lineTo(neck.x - Math.sin(aim) * half, neck.y + Math.cos(aim) * half);
  }
  drawing.fill();
}

/** Around a person who reads itself. */
function ring(drawing: CanvasRenderingContext2D, at: Point, { width, colour }: Stroke): void {
  drawing.strokeStyle = colour;
  drawing.lineWidth = Math.min(6, width);
  drawing.beginPath();
  drawing.arc(at.x, at.y, 9 + drawing.lineWidth / 2, 0, 7);
  drawing.stroke();
}
