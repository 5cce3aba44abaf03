/** Attention between agents on a plane: observed and predicted tracks, and lines between agents. */

import { category, darkest } from "../color.js";
import { context, font, make, styled } from "../dom.js";
import { plural, readable, short } from "../format.js";
import type { Picture, Track } from "../page.js";
import type { Drawn, Pane, Shown, View } from "../view.js";
import { focusOf } from "./focus.js";
import { largest } from "./largest.js";
import { Frame, type Painter } from "./frame.js";
import { flow, type Light, type Side } from "./light.js";
import { chips, strongest } from "./lists.js";
import { roomOf, rove } from "./parts.js";
import { plan, type Plan, type Point } from "./plan.js";
import { overlap, spread, ticks, type Rectangle } from "./spread.js";

type Plane = Extract<Picture, { kind: "plane" }>;

/** Number of lines per agent while none is selected. */
const FAINT_LINES = 3;
const NUMBERS = 8;
const NEAR = 18;

export const plane: View = {
  name: "plane",
  about: "Attention between agents, as lines; wider lines are larger weights.",
  hasScale: true,
  fits: (sample, read) => focusOf(sample, read, "plane") !== null,
  open: (host, pane) => new PlaneView(host, pane),
};

class PlaneView implements Drawn, Painter {
  private readonly frame: Frame;
  private plan: Plan = plan([], { width: 1, height: 1 });

  constructor(host: HTMLElement, pane: Pane) {
    this.frame = new Frame(host, pane, "plane", this);
  }

  show(shown: Shown): Promise<void> {
    return this.frame.show(shown);
  }

  private get tracks(): Track[] {
    return (this.frame.light!.focus.picture as Plane).tracks;
  }

  build(light: Light): void {
    const { tools, side, below } = this.frame;
    const about = "Show the weights of all queries on the selected key, instead of the weights of a query";
    tools.replaceChildren(
      ...(light.focus.isOwn ? [this.frame.turn("by key", about)] : []),
      make("span", { class: "key-line" }, "observed"),
      make("span", { class: "key-line is-ahead" }, "predicted"),
    );
    const axis = light.axis(light.side);
    const group = chips(axis, axis.labels.map((_, i) => i), `select a ${axis.what}`);
    rove(group);
    side.replaceChildren(make("h3", {}, plural(axis.what)), group, below);
  }

  /** The current position of the agent of an entry: the end of its observed track. */
  private spot(side: Side, entry: number): Point | null {
    const place = this.frame.light!.axis(side).places[entry];
    const track = place && this.tracks[place[0]!];
    const point = track && (track.seen.at(-1) ?? track.ahead[0]);
    return point ? this.plan.spot(point) : null;
  }

  draw(light: Light): void {
    const { width, height } = roomOf(this.frame.stage, 1);
    const drawing = context(this.frame.canvas, width, height);
    const points = this.tracks.flatMap(({ seen, ahead }) => [...seen, ...ahead]);
    this.plan = plan(points, { width, height });
    this.drawAxes(drawing);
    if (light.entry === null) this.drawAll(drawing, light);
    else this.drawLines(drawing, light, light.entry);
    this.tracks.forEach((track, i) => this.drawTrack(drawing, track, this.isChosen(i)));
    this.drawNames(drawing, light);
    this.describe(light);
  }

  private isChosen(track: number): boolean {
    const light = this.frame.light!;
    return light.entry !== null && light.axis(light.side).places[light.entry]?.[0] === track;
  }

  private drawAxes(drawing: CanvasRenderingContext2D): void {
    const { area, from, to } = this.plan;
    drawing.font = font(12);
    drawing.strokeStyle = styled("--line");
    drawing.fillStyle = styled("--pale");
    drawing.lineWidth = 1;
    const { unit } = this.frame.light!.focus.picture as Plane;
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

  /** The lines of the largest weights of each agent, faint; curved, so that both directions are visible. */
  private drawAll(drawing: CanvasRenderingContext2D, light: Light): void {
    const most = darkest(light.shown, light.table);
    const count = light.axis(light.side).labels.length;
    for (let entry = 0; entry < count; entry++) {
      const numbers = light.of(light.side, entry);
      for (const other of largest(numbers, FAINT_LINES)) {
        const [from, to] = [this.spot(light.side, entry), this.spot(light.heatSide, other)];
        if (!from || !to || (from.x === to.x && from.y === to.y)) continue;
        const share = Math.min(1, Math.abs(numbers[other]!) / most);
        const [tail, head] = light.side === "query" ? [from, to] : [to, from];
        drawing.globalAlpha = 0.12 + 0.5 * share;
        arrow(drawing, tail, head, { width: 0.75 + 3 * share, color: flow(numbers[other]! < 0), bend: 0.12 });
      }
    }
    drawing.globalAlpha = 1;
  }

  private drawLines(drawing: CanvasRenderingContext2D, light: Light, chosen: number): void {
    const numbers = light.numbers();
    const most = light.most(numbers);
    const from = this.spot(light.side, chosen);
    if (!from) return;
    for (const other of largest(numbers, numbers.length).reverse()) {
      const to = this.spot(light.heatSide, other);
      if (!to) continue;
      const share = Math.min(1, Math.abs(numbers[other]!) / most);
      drawing.globalAlpha = 0.25 + 0.6 * share;
      const style = { width: 1 + 11 * share, color: flow(numbers[other]! < 0), bend: 0 };
      if (Math.hypot(to.x - from.x, to.y - from.y) < 1) ring(drawing, from, style);
      else if (light.side === "query") arrow(drawing, from, to, style);
      else arrow(drawing, to, from, style);
    }
    drawing.globalAlpha = 1;
  }

  /** Names, with the number below of those that are read. */
  private drawNames(drawing: CanvasRenderingContext2D, light: Light): void {
    drawing.font = font(12, 600);
    const numbers = light.numbers();
    const labeled = new Set(light.entry === null ? [] : largest(numbers, NUMBERS));
    const axis = light.axis(light.heatSide);
    const lines = this.tracks.map((track, i) => {
      const entry = axis.places.findIndex((place) => place?.[0] === i);
      const number = labeled.has(entry) ? `  ${short(numbers[entry]!)}` : "";
      const at = track.seen.at(-1) ?? track.ahead[0];
      const isBelow = (numbers[entry] ?? 0) < 0;
      return { name: readable(track.label, 16, " "), number, isBelow, at, isChosen: this.isChosen(i) };
    });
    const there = lines.filter(({ at }) => at !== undefined);
    // Agents with a number are first: their names get the best places.
    there.sort((one, other) => Number(!!other.number) - Number(!!one.number));
    const names = there.map(({ name, number, at }) => {
      const { x, y } = this.plan.spot(at!);
      return { x, y, width: drawing.measureText(name + number).width + 8, height: 17 };
    });
    const { area } = this.plan;
    const { left, top, width, height } = area;
    const boxes = spread(names, { left: left - 20, top: top - 8, width: width + 28, height: height + 12 }, 9);
    const drawn: Rectangle[] = [];
    there.forEach((line, i) => {
      const box = boxes[i]!;
      // In a crowd some names are left out; they are shown on hover.
      const isCovered = drawn.some((other) => overlap(box, other) > 0.1 * box.width * box.height);
      if (isCovered && !line.number && !line.isChosen) return;
      drawn.push(box);
      this.drawName(drawing, line, box);
    });
  }

  private drawName(drawing: CanvasRenderingContext2D, line: Line, box: Rectangle): void {
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
    drawing.fillStyle = flow(line.isBelow);
    drawing.fillText(line.number, box.left + 4 + drawing.measureText(line.name).width, y);
  }

  private describe(light: Light): void {
    const isAll = light.entry === null;
    const caption = isAll ? `the largest weights of all ${this.tracks.length}; select one` : light.caption();
    const about = light.side === "query" ? "largest weights (keys)" : "largest weights (queries)";
    const list = strongest(light.axis(light.heatSide), light.numbers(), { count: NUMBERS, about });
    const below = isAll ? [] : [make("h3", {}, about), list];
    this.frame.describe(caption, `${this.tracks.length} tracks on a plane; ${caption}`, below);
  }

  private agentAt(event: MouseEvent, side: Side): number | null {
    const { x, y } = this.frame.inside(event);
    let found: number | null = null;
    let least = NEAR;
    this.frame.light!.axis(side).places.forEach((_, entry) => {
      const spot = this.spot(side, entry);
      const far = spot ? Math.hypot(spot.x - x, spot.y - y) : Infinity;
      if (far < least) [found, least] = [entry, far];
    });
    return found;
  }

  point(event: PointerEvent | null, light: Light): void {
    const isFree = light.focus.isOwn && !light.isPinned;
    const side = isFree ? light.side : light.heatSide;
    const at = event && this.agentAt(event, side);
    this.frame.at = at;
    light.pointed = isFree ? at : null;
    light.tip(event && at !== null ? { x: event.clientX, y: event.clientY } : null, side, at);
  }

  picked(event: MouseEvent, light: Light): number | null {
    return light.focus.isOwn ? this.agentAt(event, light.side) : null;
  }

  place(query: number | null, key: number | null): { x: number; y: number } | null {
    if (!this.frame.light) return null;
    const spot = key !== null ? this.spot("key", key) : query !== null ? this.spot("query", query) : null;
    return spot ? this.frame.outside(spot.x, spot.y) : this.frame.listed(query);
  }

  press(key: string): boolean {
    return this.frame.press(key);
  }

  close(): void {
    this.frame.close();
  }
}

interface Line {
  name: string;
  number: string;
  /** The number is negative. */
  isBelow: boolean;
  isChosen: boolean;
}

interface Stroke {
  width: number;
  color: string;
  /** How far the line bows to its left, as a share of its length. */
  bend: number;
}

/** A line that leaves room around both points, with a head at its end. */
function arrow(drawing: CanvasRenderingContext2D, from: Point, to: Point, { width, color, bend }: Stroke): void {
  const [wide, high] = [to.x - from.x, to.y - from.y];
  const long = Math.hypot(wide, high);
  const size = 5 + width * 1.1;
  if (long < 18 + size) return;
  const [across, down] = [wide / long, high / long];
  const bow = { x: (from.x + to.x) / 2 + high * bend, y: (from.y + to.y) / 2 - wide * bend };
  const aim = Math.atan2(to.y - bow.y, to.x - bow.x);
  const tip = { x: to.x - Math.cos(aim) * 8, y: to.y - Math.sin(aim) * 8 };
  const neck = { x: tip.x - Math.cos(aim) * size, y: tip.y - Math.sin(aim) * size };
  drawing.strokeStyle = drawing.fillStyle = color;
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

/** A loop for the weight of an agent on itself. */
function ring(drawing: CanvasRenderingContext2D, at: Point, { width, color }: Stroke): void {
  drawing.strokeStyle = color;
  drawing.lineWidth = Math.min(6, width);
  drawing.beginPath();
  drawing.arc(at.x, at.y, 9 + drawing.lineWidth / 2, 0, 7);
  drawing.stroke();
}
