/** Attention between agents on a plane: observed and predicted tracks, and lines between agents. */

import { category, darkest } from "../color.js";
import { prepareCanvas, font, make, cssVariable } from "../dom.js";
import { plural, readable, formatShort } from "../format.js";
import type { Picture, Track } from "../page.js";
import type { OpenView, Pane, Shown, View } from "../view.js";
import { pictureAxes } from "./picture-axes.js";
import { largestIndices } from "./largest.js";
import { PictureFrame, type Painter } from "./frame.js";
import { lineColor, type Selection, type Side } from "./selection.js";
import { chips, largestBars } from "./lists.js";
import { availableSize, addRovingFocus } from "./controls.js";
import { project, type Projection, type Point } from "./projection.js";
import { overlap, placeLabels, ticks, type Rectangle } from "./label-placement.js";

type Plane = Extract<Picture, { kind: "plane" }>;

/** Number of lines per agent while none is selected. */
const FAINT_LINES = 3;
const NUMBERS = 8;
const HOVER_PX = 18;

export const plane: View = {
  name: "plane",
  about: "Attention between agents, as lines; wider lines are larger weights.",
  hasScale: true,
  fits: (sample, read) => pictureAxes(sample, read, "plane") !== null,
  open: (host, pane) => new PlaneView(host, pane),
};

class PlaneView implements OpenView, Painter {
  private readonly frame: PictureFrame;
  private projection: Projection = project([], { width: 1, height: 1 });

  constructor(host: HTMLElement, pane: Pane) {
    this.frame = new PictureFrame(host, pane, "plane", this);
  }

  show(shown: Shown): Promise<void> {
    return this.frame.show(shown);
  }

  private get tracks(): Track[] {
    return (this.frame.selection!.axes.picture as Plane).tracks;
  }

  build(selection: Selection): void {
    const { tools, sidebar, details } = this.frame;
    const about = "Show the weights of all queries on the selected key, instead of the weights of a query";
    tools.replaceChildren(
      ...(selection.axes.isSameAxis ? [this.frame.byKeyToggle("by key", about)] : []),
      make("span", { class: "key-line" }, make("i"), "observed"),
      make("span", { class: "key-line is-future" }, make("i"), "predicted"),
    );
    const axis = selection.axis(selection.side);
    const group = chips(axis, axis.labels.map((_, i) => i), `select a ${axis.kind}`);
    addRovingFocus(group);
    sidebar.replaceChildren(make("h3", {}, plural(axis.kind)), group, details);
  }

  /** Current position of the agent of an entry: the last observed one. */
  private agentPosition(side: Side, entry: number): Point | null {
    const place = this.frame.selection!.axis(side).places[entry];
    const track = place && this.tracks[place[0]!];
    const point = track && (track.history.at(-1) ?? track.future[0]);
    return point ? this.projection.toCanvas(point) : null;
  }

  draw(selection: Selection): void {
    // The caption comes first: it determines the height of the drawing.
    this.describe(selection);
    const { width, height } = availableSize(this.frame.stage, 1);
    const drawing = prepareCanvas(this.frame.canvas, width, height);
    const points = this.tracks.flatMap(({ history, future }) => [...history, ...future]);
    this.projection = project(points, { width, height });
    this.drawAxes(drawing);
    if (selection.entry === null) this.drawAll(drawing, selection);
    else this.drawLines(drawing, selection, selection.entry);
    this.tracks.forEach((track, i) => this.drawTrack(drawing, track, this.isSelected(i)));
    this.drawNames(drawing, selection);
  }

  private isSelected(track: number): boolean {
    const selection = this.frame.selection!;
    return selection.entry !== null && selection.axis(selection.side).places[selection.entry]?.[0] === track;
  }

  private drawAxes(drawing: CanvasRenderingContext2D): void {
    const { area, min, max } = this.projection;
    drawing.font = font(12);
    drawing.strokeStyle = cssVariable("--line");
    drawing.fillStyle = cssVariable("--pale");
    drawing.lineWidth = 1;
    const { unit } = this.frame.selection!.axes.picture as Plane;
    const count = area.width / 70;
    drawing.textAlign = "center";
    drawing.textBaseline = "top";
    for (const x of ticks(min[0], max[0], count)) {
      const at = Math.round(this.projection.toCanvas([x, 0]).x) + 0.5;
      this.drawLine(drawing, at, area.top, at, area.top + area.height);
      drawing.fillText(String(x), at, area.top + area.height + 6);
    }
    drawing.textAlign = "right";
    drawing.textBaseline = "middle";
    for (const y of ticks(min[1], max[1], (count * area.height) / area.width)) {
      const at = Math.round(this.projection.toCanvas([0, y]).y) + 0.5;
      this.drawLine(drawing, area.left, at, area.left + area.width, at);
      drawing.fillText(String(y), area.left - 6, at);
    }
    drawing.textAlign = "right";
    drawing.textBaseline = "bottom";
    drawing.fillText(unit, area.left + area.width, area.top + area.height + 34);
  }

  private drawLine(drawing: CanvasRenderingContext2D, x0: number, y0: number, x1: number, y1: number): void {
    drawing.beginPath();
    drawing.moveTo(x0, y0);
    drawing.lineTo(x1, y1);
    drawing.stroke();
  }

  private drawTrack(drawing: CanvasRenderingContext2D, { history, future }: Track, isSelected: boolean): void {
    drawing.strokeStyle = drawing.fillStyle = isSelected ? category(1) : cssVariable("--ink");
    drawing.lineWidth = isSelected ? 2.5 : 1.75;
    drawing.lineJoin = "round";
    this.drawPath(drawing, history);
    drawing.setLineDash([5, 4]);
    const now = history.at(-1);
    this.drawPath(drawing, now ? [now, ...future] : future);
    drawing.setLineDash([]);
    const at = now ?? future[0];
    if (!at) return;
    const { x, y } = this.projection.toCanvas(at);
    drawing.beginPath();
    drawing.arc(x, y, isSelected ? 6 : 4.5, 0, 7);
    drawing.fill();
    drawing.lineWidth = 1.5;
    drawing.strokeStyle = cssVariable("--ground");
    drawing.stroke();
  }

  private drawPath(drawing: CanvasRenderingContext2D, points: readonly [number, number][]): void {
    drawing.beginPath();
    for (const point of points) {
      const { x, y } = this.projection.toCanvas(point);
      drawing.lineTo(x, y);
    }
    drawing.stroke();
  }

  /** Draw faint lines of the largest weights of each agent, curved so that both directions are visible. */
  private drawAll(drawing: CanvasRenderingContext2D, selection: Selection): void {
    const most = darkest(selection.shown, selection.table);
    const count = selection.axis(selection.side).labels.length;
    for (let entry = 0; entry < count; entry++) {
      const numbers = selection.numbersOf(selection.side, entry);
      for (const other of largestIndices(numbers, FAINT_LINES)) {
        const [from, to] = [this.agentPosition(selection.side, entry), this.agentPosition(selection.heatSide, other)];
        if (!from || !to || (from.x === to.x && from.y === to.y)) continue;
        const share = Math.min(1, Math.abs(numbers[other]!) / most);
        const [tail, head] = selection.side === "query" ? [from, to] : [to, from];
        drawing.globalAlpha = 0.12 + 0.5 * share;
        arrow(drawing, tail, head, { width: 0.75 + 3 * share, color: lineColor(numbers[other]! < 0), bend: 0.12 });
      }
    }
    drawing.globalAlpha = 1;
  }

  private drawLines(drawing: CanvasRenderingContext2D, selection: Selection, selected: number): void {
    const numbers = selection.numbers();
    const most = selection.colorMax(numbers);
    const from = this.agentPosition(selection.side, selected);
    if (!from) return;
    for (const other of largestIndices(numbers, numbers.length).reverse()) {
      const to = this.agentPosition(selection.heatSide, other);
      if (!to) continue;
      const share = Math.min(1, Math.abs(numbers[other]!) / most);
      drawing.globalAlpha = 0.25 + 0.6 * share;
      const style = { width: 1 + 11 * share, color: lineColor(numbers[other]! < 0), bend: 0 };
      if (Math.hypot(to.x - from.x, to.y - from.y) < 1) ring(drawing, from, style);
      else if (selection.side === "query") arrow(drawing, from, to, style);
      else arrow(drawing, to, from, style);
    }
    drawing.globalAlpha = 1;
  }

  /** Draw the names of agents, with the largest weights. */
  private drawNames(drawing: CanvasRenderingContext2D, selection: Selection): void {
    drawing.font = font(12, 600);
    const numbers = selection.numbers();
    const labeled = new Set(selection.entry === null ? [] : largestIndices(numbers, NUMBERS));
    const axis = selection.axis(selection.heatSide);
    const lines = this.tracks.map((track, i) => {
      const entry = axis.places.findIndex((place) => place?.[0] === i);
      const number = labeled.has(entry) ? `  ${formatShort(numbers[entry]!)}` : "";
      const at = track.history.at(-1) ?? track.future[0];
      const isNegative = (numbers[entry] ?? 0) < 0;
      return { name: readable(track.label, 16, " "), number, isNegative, at, isSelected: this.isSelected(i) };
    });
    const visibleLines = lines.filter(({ at }) => at !== undefined);
    // Agents with a number are first: their names get the best places.
    visibleLines.sort((one, other) => Number(!!other.number) - Number(!!one.number));
    const names = visibleLines.map(({ name, number, at }) => {
      const { x, y } = this.projection.toCanvas(at!);
      return { x, y, width: drawing.measureText(name + number).width + 8, height: 17 };
    });
    const { area } = this.projection;
    const { left, top, width, height } = area;
    const boxes = placeLabels(names, { left: left - 20, top: top - 8, width: width + 28, height: height + 12 }, 9);
    const drawn: Rectangle[] = [];
    visibleLines.forEach((line, i) => {
      const box = boxes[i]!;
      // Names without room are left out; they are shown on hover.
      const isCovered = drawn.some((other) => overlap(box, other) > 0.1 * box.width * box.height);
      if (isCovered && !line.number && !line.isSelected) return;
      drawn.push(box);
      this.drawName(drawing, line, box);
    });
  }

  private drawName(drawing: CanvasRenderingContext2D, line: NameLabel, box: Rectangle): void {
    drawing.globalAlpha = 0.82;
    drawing.fillStyle = cssVariable("--ground");
    drawing.fillRect(box.left, box.top, box.width, box.height);
    drawing.globalAlpha = 1;
    drawing.textAlign = "left";
    drawing.textBaseline = "middle";
    const y = box.top + box.height / 2 + 0.5;
    drawing.fillStyle = line.isSelected ? category(1) : cssVariable("--ink");
    drawing.fillText(line.name, box.left + 4, y);
    if (!line.number) return;
    drawing.fillStyle = lineColor(line.isNegative);
    drawing.fillText(line.number, box.left + 4 + drawing.measureText(line.name).width, y);
  }

  private describe(selection: Selection): void {
    const isAll = selection.entry === null;
    const caption = isAll ? `the largest weights of all ${this.tracks.length}; select one` : selection.caption();
    const about = selection.side === "query" ? "largest weights (keys)" : "largest weights (queries)";
    const list = largestBars(selection.axis(selection.heatSide), selection.numbers(), { count: NUMBERS, about });
    const below = isAll ? [] : [make("h3", {}, about), list];
    this.frame.describe(caption, `${this.tracks.length} tracks on a plane; ${caption}`, below);
  }

  private agentAt(event: MouseEvent, side: Side): number | null {
    const { x, y } = this.frame.toCanvas(event);
    let nearest: number | null = null;
    let minDistance = HOVER_PX;
    this.frame.selection!.axis(side).places.forEach((_, entry) => {
      const spot = this.agentPosition(side, entry);
      const distance = spot ? Math.hypot(spot.x - x, spot.y - y) : Infinity;
      if (distance < minDistance) [nearest, minDistance] = [entry, distance];
    });
    return nearest;
  }

  hover(event: PointerEvent | null, selection: Selection): void {
    const isFree = selection.axes.isSameAxis && !selection.isPinned;
    const side = isFree ? selection.side : selection.heatSide;
    const at = event && this.agentAt(event, side);
    this.frame.hoveredPlace = at;
    selection.hovered = isFree ? at : null;
    selection.tip(event && at !== null ? { x: event.clientX, y: event.clientY } : null, side, at);
  }

  entryAt(event: MouseEvent, selection: Selection): number | null {
    return selection.axes.isSameAxis ? this.agentAt(event, selection.side) : null;
  }

  place(query: number | null, key: number | null): { x: number; y: number } | null {
    if (!this.frame.selection) return null;
    const spot = key !== null ? this.agentPosition("key", key) : query !== null ? this.agentPosition("query", query) : null;
    return spot ? this.frame.toClient(spot.x, spot.y) : this.frame.listPosition(query);
  }

  handleKey(key: string): boolean {
    return this.frame.press(key);
  }

  close(): void {
    this.frame.close();
  }
}

interface NameLabel {
  name: string;
  number: string;
  /** True if the number is negative. */
  isNegative: boolean;
  isSelected: boolean;
}

interface Stroke {
  width: number;
  color: string;
  /** Curvature to the left, as a fraction of the length. */
  bend: number;
}

/** Draw an arrow, with a gap around both points. */
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

/** Draw a ring, for the weight of an agent on itself. */
function ring(drawing: CanvasRenderingContext2D, at: Point, { width, color }: Stroke): void {
  drawing.strokeStyle = color;
  drawing.lineWidth = Math.min(6, width);
  drawing.beginPath();
  drawing.arc(at.x, at.y, 9 + drawing.lineWidth / 2, 0, 7);
  drawing.stroke();
}
