/** Attention over time: a curve above the spectrogram, and the detected events. */

import { prepareCanvas, font, make, cssVariable } from "../dom.js";
import { plural, readable, formatScore, formatShort } from "../format.js";
import type { Picture, SoundEvent } from "../page.js";
import type { OpenView, Pane, Shown, View } from "../view.js";
import { pictureAxes, spanAt, entriesWithoutPlace } from "./picture-axes.js";
import { assignLanes, type Lane } from "./lanes.js";
import { PictureFrame, type Painter } from "./frame.js";
import { lineColor, entryLabel, type Selection } from "./selection.js";
import { belowThreshold, chips, largestBars } from "./lists.js";
import { addRovingFocus } from "./controls.js";
import { labelColor, drawPicture, textColor, loadImage, type Area } from "./picture.js";
import { ticks } from "./label-placement.js";

type Sound = Extract<Picture, { kind: "sound" }>;

const [LEFT, RIGHT, TOP] = [58, 12, 20];
/** Marks of the frequency axis, in hertz. */
const FREQUENCIES = [0, 125, 250, 500, 1000, 2000, 4000, 8000, 16000];
const [CURVE, LANE, AXIS] = [76, 24, 34];

export const sound: View = {
  name: "sound",
  about: "Attention over time, as a curve above the spectrogram.",
  hasScale: true,
  fits: (sample, read) => pictureAxes(sample, read, "sound") !== null,
  open: (host, pane) => new SoundView(host, pane),
};

class SoundView implements OpenView, Painter {
  private readonly frame: PictureFrame;
  private image: HTMLImageElement | null = null;
  private width = 0;
  private lanes: Lane[] = [];

  constructor(
    private readonly host: HTMLElement,
    pane: Pane,
  ) {
    this.frame = new PictureFrame(host, pane, "sound", this);
  }

  async show(shown: Shown): Promise<void> {
    const focus = pictureAxes(shown.sample, shown.read, "sound");
    if (focus) this.image = await loadImage(focus.picture.url);
    await this.frame.show(shown);
  }

  private get sound(): Sound {
    return this.frame.selection!.axes.picture as Sound;
  }

  build(selection: Selection): void {
    const { tools, sidebar, details } = this.frame;
    const about = "Show the weights of all queries on the selected key, instead of the weights of a query";
    tools.replaceChildren(...(selection.axes.isSameAxis ? [this.frame.byKeyToggle("by key", about)] : []));
    const axis = selection.axis(selection.side);
    const entries = selection.axes.isSameAxis ? entriesWithoutPlace(axis) : axis.labels.map((_, i) => i);
    sidebar.replaceChildren(details);
    if (entries.length <= (selection.axes.isSameAxis ? 0 : 1)) return;
    const labelOf = new Map(selection.hasDetections ? this.sound.events.map((event) => [event.query, event.label]) : []);
    const labels = axis.labels.map((label, i) => {
      const eventLabel = labelOf.get(i) ?? "";
      return label.includes(eventLabel) ? label : `${label}: ${eventLabel}`;
    });
    const list = (listed: number[]) => chips({ ...axis, labels }, listed, `select a ${axis.kind}`);
    const heading = (name: string) => make("h3", {}, name);
    const { detected, below } = selection.byThreshold ?? { detected: entries, below: [] };
    const name = selection.byThreshold ? `detected ${plural(axis.kind)}` : plural(axis.kind);
    const parts = detected.length ? [heading(name), list(detected)] : [];
    // Where nothing was detected, all predictions are in sight.
    if (below.length && !detected.length) parts.push(heading(belowThreshold(below.length)), list(below));
    else if (below.length) parts.push(make("details", {}, make("summary", {}, belowThreshold(below.length)), list(below)));
    sidebar.prepend(...parts);
    for (const group of sidebar.querySelectorAll<HTMLElement>(".chips")) addRovingFocus(group);
  }

  private x(seconds: number): number {
    return LEFT + (seconds / this.sound.seconds) * (this.width - LEFT - RIGHT);
  }

  /** Areas of the curve, the events and the spectrogram, from top to bottom. */
  private rows(): Rows {
    const { left, width } = { left: LEFT, width: this.width - LEFT - RIGHT };
    const count = Math.max(0, ...this.lanes.map(({ lane }) => lane + 1));
    const curve = { left, width, top: TOP, height: CURVE };
    const events = { left, width, top: TOP + CURVE + 10, height: count * LANE };
    const top = events.top + events.height + (count ? 8 : 0);
    const room = this.host.clientHeight - top - AXIS - 118;
    return { curve, events, sound: { left, width, top, height: Math.min(300, Math.max(90, room)) } };
  }

  draw(selection: Selection): void {
    this.width = Math.max(200, this.frame.stage.clientWidth);
    const measure = this.frame.canvas.getContext("2d")!;
    measure.font = font(12, 600);
    const spans = this.sound.events.map((event) => ({
      left: this.x(event.onset),
      width: Math.max(3, this.x(event.onset + event.duration) - this.x(event.onset)),
      name: measure.measureText(eventName(event)).width + 12,
    }));
    this.lanes = assignLanes(spans, this.width - RIGHT);
    const rows = this.rows();
    const drawing = prepareCanvas(this.frame.canvas, this.width, rows.sound.top + rows.sound.height + AXIS);
    const numbers = selection.numbers();
    const most = selection.colorMax(numbers);
    drawPicture(drawing, this.image, rows.sound, 0);
    this.drawSeconds(drawing, rows.curve, rows.sound);
    this.drawFrequencies(drawing, rows.sound);
    this.drawCurve(drawing, rows.curve, { numbers, most, places: selection.axis(selection.heatSide).places });
    this.drawEvents(drawing, selection, rows);
    this.drawTimeMarkers(drawing, selection, rows);
    const caption = selection.caption();
    const about = `spectrogram of ${formatShort(this.sound.seconds)} seconds with ${caption}; largest weight ${formatShort(most)}`;
    this.frame.describe(caption, about, this.timeDetails(selection));
  }

  private drawSeconds(drawing: CanvasRenderingContext2D, curve: Area, area: Area): void {
    drawing.strokeStyle = cssVariable("--line");
    drawing.fillStyle = cssVariable("--pale");
    drawing.lineWidth = 1;
    drawing.font = font(12);
    drawing.textAlign = "center";
    drawing.textBaseline = "top";
    const bottom = area.top + area.height;
    const marks = ticks(0, this.sound.seconds, Math.max(2, Math.min(12, area.width / 80)));
    for (const [i, seconds] of marks.entries()) {
      const x = Math.round(this.x(seconds)) + 0.5;
      drawing.beginPath();
      drawing.moveTo(x, curve.top);
      drawing.lineTo(x, curve.top + curve.height);
      drawing.moveTo(x, bottom);
      drawing.lineTo(x, bottom + 5);
      drawing.stroke();
      const unit = i === marks.length - 1 ? " s" : "";
      drawing.fillText(`${seconds}${unit}`, Math.min(x, this.width - 14), bottom + 8);
    }
  }

  /** Draw the frequency axis: bands are evenly spaced on the mel scale, 2595 log10(1 + f / 700). */
  private drawFrequencies(drawing: CanvasRenderingContext2D, area: Area): void {
    const { hertz } = this.sound;
    if (!hertz) return;
    const mel = (frequency: number) => Math.log10(1 + frequency / 700);
    drawing.textAlign = "right";
    drawing.textBaseline = "middle";
    drawing.fillStyle = cssVariable("--pale");
    let last = Infinity;
    for (const frequency of FREQUENCIES.filter((each) => each <= hertz)) {
      const y = area.top + area.height * (1 - mel(frequency) / mel(hertz));
      if (last - y < 14) continue;
      last = y;
      const text = frequency >= 1000 ? `${frequency / 1000} kHz` : `${frequency} Hz`;
      drawing.fillText(text, area.left - 8, y);
      drawing.fillRect(area.left - 5, Math.round(y), 5, 1);
    }
  }

  private drawCurve(drawing: CanvasRenderingContext2D, area: Area, { numbers, most, places }: Curve): void {
    const hasNegative = numbers.some((number) => number < 0);
    const base = hasNegative ? area.top + area.height / 2 : area.top + area.height;
    const high = hasNegative ? area.height / 2 : area.height;
    drawing.fillStyle = cssVariable("--pale");
    drawing.textAlign = "right";
    drawing.textBaseline = "middle";
    drawing.fillText(formatShort(most), area.left - 6, area.top + 2);
    drawing.fillText("0", area.left - 6, base - 2);
    if (hasNegative) drawing.fillText(formatShort(-most), area.left - 6, area.top + area.height - 2);
    places.forEach((place, i) => {
      if (!place || !numbers[i]) return;
      // Rounded to whole pixels, so that there are no seams between neighbors.
      const left = Math.round(this.x(place[0]!));
      const right = Math.round(this.x(place[1]!));
      const width = Math.max(1, right - left - Number(right - left > 7));
      const tall = Math.max(-1, Math.min(1, numbers[i]! / most)) * high;
      drawing.fillStyle = lineColor(tall < 0);
      drawing.fillRect(left, Math.min(base, base - tall), width, Math.abs(tall));
    });
    drawing.strokeStyle = cssVariable("--strong");
    drawing.beginPath();
    drawing.moveTo(area.left, base + 0.5);
    drawing.lineTo(area.left + area.width, base + 0.5);
    drawing.stroke();
  }

  private drawEvents(drawing: CanvasRenderingContext2D, selection: Selection, { events: area, sound: below }: Rows): void {
    const { events } = this.sound;
    const color = (label: string) => labelColor(selection.pane.page, label);
    const selected = selection.hasDetections ? selection.entry : null;
    const hasSelected = events.some(({ query }) => query === selected);
    drawing.font = font(12, 600);
    drawing.textAlign = "left";
    drawing.textBaseline = "middle";
    events.forEach((event, i) => {
      const { lane, left, width, nameLeft, isNameInside } = this.lanes[i]!;
      const top = area.top + lane * LANE;
      const isSelected = event.query === selected;
      drawing.globalAlpha = hasSelected && !isSelected ? 0.4 : 1;
      drawing.fillStyle = color(event.label);
      drawing.fillRect(left, top, width, LANE - 4);
      drawing.fillStyle = isNameInside ? textColor(color(event.label)) : cssVariable("--ink");
      drawing.fillText(eventName(event), nameLeft + 6, top + (LANE - 4) / 2 + 0.5);
      if (isSelected || !hasSelected) this.bracket(drawing, left, width, below, color(event.label));
    });
    drawing.globalAlpha = 1;
  }

  /** Draw lines at the start and the end of an event. */
  private bracket(drawing: CanvasRenderingContext2D, left: number, width: number, area: Area, color: string): void {
    drawing.strokeStyle = color;
    drawing.lineWidth = 1.5;
    drawing.setLineDash([5, 4]);
    drawing.beginPath();
    for (const x of [left, left + width]) {
      drawing.moveTo(x, area.top);
      drawing.lineTo(x, area.top + area.height);
    }
    drawing.stroke();
    drawing.setLineDash([]);
  }

  /** Draw markers of the selected time and the time under the pointer. */
  private drawTimeMarkers(drawing: CanvasRenderingContext2D, selection: Selection, { curve, sound: area }: Rows): void {
    const { hoveredPlace } = this.frame;
    const selected = selection.axes.isSameAxis ? selection.entry : null;
    const hovered = hoveredPlace === selected ? null : hoveredPlace;
    const marks: [number | null, string][] = [[selected, cssVariable("--pin")], [hovered, cssVariable("--ink")]];
    for (const [entry, color] of marks) {
      const place = entry === null ? null : selection.axis(selection.hoverSide).places[entry];
      if (!place) continue;
      const left = this.x(place[0]!);
      drawing.strokeStyle = color;
      drawing.lineWidth = 1.5;
      drawing.strokeRect(left, curve.top, Math.max(2, this.x(place[1]!) - left), area.top + area.height - curve.top);
    }
  }

  /** Bars of the weights of the time under the pointer. */
  private timeDetails(selection: Selection): HTMLElement[] {
    const { hoveredPlace } = this.frame;
    if (selection.axes.isSameAxis || hoveredPlace === null || selection.axis(selection.side).labels.length < 2) return [];
    const name = entryLabel(selection.axis(selection.pictureSide), hoveredPlace);
    const about = `${selection.side === "query" ? "weights on key" : "weights of query"} ${name}`;
    const numbers = selection.numbersOf(selection.pictureSide, hoveredPlace);
    const bars = largestBars(selection.axis(selection.side), numbers, { count: 6, about });
    return [make("h3", {}, about), bars];
  }

  private eventAt(event: MouseEvent, selection: Selection): SoundEvent | null {
    const { x, y } = this.frame.toCanvas(event);
    const down = y - this.rows().events.top;
    if (!selection.hasDetections || down < 0) return null;
    const index = this.lanes.findIndex(({ lane, left, width, nameLeft, nameWidth }) => {
      const [from, to] = [Math.min(left, nameLeft), Math.max(left + width, nameLeft + nameWidth)];
      return down >= lane * LANE && down < (lane + 1) * LANE && x >= from && x < to;
    });
    return this.sound.events[index] ?? null;
  }

  private timeAt(event: MouseEvent, selection: Selection): number | null {
    const across = this.frame.toCanvas(event).x - LEFT;
    const seconds = (across / (this.width - LEFT - RIGHT)) * this.sound.seconds;
    const index = spanAt(selection.axis(selection.hoverSide).places, seconds);
    return index < 0 ? null : index;
  }

  hover(event: PointerEvent | null, selection: Selection): void {
    const hoveredEvent = event && this.eventAt(event, selection);
    const at = event && !hoveredEvent ? this.timeAt(event, selection) : null;
    const point = event && { x: event.clientX, y: event.clientY };
    this.frame.hoveredPlace = at;
    if (hoveredEvent) {
      selection.hovered = hoveredEvent.query;
      const span = `${eventName(hoveredEvent)}, from ${formatShort(hoveredEvent.onset)} s, for ${formatShort(hoveredEvent.duration)} s`;
      selection.tip(point, selection.side, hoveredEvent.query, [span]);
      return;
    }
    const isFree = selection.axes.isSameAxis && !selection.isPinned;
    selection.hovered = isFree ? at : null;
    selection.tip(at === null ? null : point, isFree ? selection.side : selection.heatSide, at);
  }

  entryAt(event: MouseEvent, selection: Selection): number | null {
    return this.eventAt(event, selection)?.query ?? (selection.axes.isSameAxis ? this.timeAt(event, selection) : null);
  }

  place(query: number | null, key: number | null): { x: number; y: number } | null {
    const { selection } = this.frame;
    if (!selection) return null;
    const [first, second] = selection.pictureSide === "key" ? [key, query] : [query, key];
    const entry = first ?? (selection.axes.isSameAxis ? second : null);
    const place = entry === null ? null : selection.axis(selection.pictureSide).places[entry];
    const { sound: area, events } = this.rows();
    if (place) return this.frame.toClient(this.x((place[0]! + place[1]!) / 2), area.top + area.height / 2);
    const lane = selection.hasDetections ? this.lanes[this.sound.events.findIndex((event) => event.query === second)] : undefined;
    if (!lane) return this.frame.listPosition(second);
    return this.frame.toClient(lane.left + Math.min(lane.width, 20) / 2, events.top + (lane.lane + 0.4) * LANE);
  }

  handleKey(key: string): boolean {
    return this.frame.press(key);
  }

  close(): void {
    this.frame.close();
  }
}

interface Rows {
  curve: Area;
  events: Area;
  sound: Area;
}

interface Curve {
  numbers: Float32Array;
  most: number;
  places: readonly (number[] | null)[];
}

function eventName({ label, score }: SoundEvent): string {
  return `${readable(label, 24, " ")} ${formatScore(score)}`;
}
