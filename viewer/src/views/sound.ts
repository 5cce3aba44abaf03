/** Attention over time: a curve above the spectrogram, and the detected events. */

import { context, font, make, styled } from "../dom.js";
import { plural, readable, short } from "../format.js";
import type { Picture, SoundEvent } from "../page.js";
import type { Drawn, Pane, Shown, View } from "../view.js";
import { focusOf, spanAt, withoutPlace } from "./focus.js";
import { lanes, type Lane } from "./lanes.js";
import { Frame, type Painter } from "./frame.js";
import { flow, named, type Light } from "./light.js";
import { chips, strongest } from "./lists.js";
import { rove } from "./parts.js";
import { colorOf, drawPicture, inkFor, picture, type Area } from "./picture.js";
import { ticks } from "./spread.js";

type Sound = Extract<Picture, { kind: "sound" }>;

const [LEFT, RIGHT, TOP] = [48, 12, 20];
const [CURVE, LANE, AXIS] = [96, 24, 34];

export const sound: View = {
  name: "sound",
  about: "Attention over time, as a curve above the spectrogram.",
  hasScale: true,
  fits: (sample, read) => focusOf(sample, read, "sound") !== null,
  open: (host, pane) => new SoundView(host, pane),
};

class SoundView implements Drawn, Painter {
  private readonly frame: Frame;
  private image: HTMLImageElement | null = null;
  private width = 0;
  private lanes: Lane[] = [];

  constructor(
    private readonly host: HTMLElement,
    pane: Pane,
  ) {
    this.frame = new Frame(host, pane, "sound", this);
  }

  async show(shown: Shown): Promise<void> {
    const focus = focusOf(shown.sample, shown.read, "sound");
    if (focus) this.image = await picture(focus.picture.url);
    await this.frame.show(shown);
  }

  private get sound(): Sound {
    return this.frame.light!.focus.picture as Sound;
  }

  build(light: Light): void {
    const { tools, side, below } = this.frame;
    const about = "Show the weights of all queries on the selected key, instead of the weights of a query";
    tools.replaceChildren(...(light.focus.isOwn ? [this.frame.turn("by key", about)] : []));
    const axis = light.axis(light.side);
    const entries = light.focus.isOwn ? withoutPlace(axis) : axis.labels.map((_, i) => i);
    side.replaceChildren(below);
    if (entries.length <= (light.focus.isOwn ? 0 : 1)) return;
    const found = new Map(light.isFound ? this.sound.events.map((event) => [event.query, event.label]) : []);
    const labels = axis.labels.map((label, i) => {
      const own = found.get(i) ?? "";
      return label.includes(own) ? label : `${label}: ${own}`;
    });
    const group = chips({ ...axis, labels }, entries, `select a ${axis.what}`);
    rove(group);
    side.prepend(make("h3", {}, plural(axis.what)), group);
  }

  private x(seconds: number): number {
    return LEFT + (seconds / this.sound.seconds) * (this.width - LEFT - RIGHT);
  }

  /** Tops and heights of curve, events, spectrogram, from above to below. */
  private rows(): Rows {
    const { left, width } = { left: LEFT, width: this.width - LEFT - RIGHT };
    const count = Math.max(0, ...this.lanes.map(({ lane }) => lane + 1));
    const curve = { left, width, top: TOP, height: CURVE };
    const events = { left, width, top: TOP + CURVE + 10, height: count * LANE };
    const top = events.top + events.height + (count ? 8 : 0);
    const room = this.host.clientHeight - top - AXIS - 90;
    return { curve, events, sound: { left, width, top, height: Math.min(300, Math.max(130, room)) } };
  }

  draw(light: Light): void {
    this.width = Math.max(200, this.frame.stage.clientWidth);
    const measure = this.frame.canvas.getContext("2d")!;
    measure.font = font(12, 600);
    const spans = this.sound.events.map((event) => ({
      left: this.x(event.onset),
      width: Math.max(3, this.x(event.onset + event.duration) - this.x(event.onset)),
      name: measure.measureText(eventName(event)).width + 12,
    }));
    this.lanes = lanes(spans, this.width - RIGHT);
    const rows = this.rows();
    const drawing = context(this.frame.canvas, this.width, rows.sound.top + rows.sound.height + AXIS);
    const numbers = light.numbers();
    const most = light.most(numbers);
    drawPicture(drawing, this.image, rows.sound, 0);
    this.drawSeconds(drawing, rows.curve, rows.sound);
    this.drawCurve(drawing, rows.curve, { numbers, most, places: light.axis(light.heatSide).places });
    this.drawEvents(drawing, light, rows);
    this.drawMoments(drawing, light, rows);
    const caption = light.caption();
    const about = `spectrogram of ${short(this.sound.seconds)} seconds with ${caption}; largest weight ${short(most)}`;
    this.frame.describe(caption, about, this.below(light));
  }

  private drawSeconds(drawing: CanvasRenderingContext2D, curve: Area, area: Area): void {
    drawing.strokeStyle = styled("--line");
    drawing.fillStyle = styled("--pale");
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

  private drawCurve(drawing: CanvasRenderingContext2D, area: Area, { numbers, most, places }: Curve): void {
    const isBelow = numbers.some((number) => number < 0);
    const base = isBelow ? area.top + area.height / 2 : area.top + area.height;
    const high = isBelow ? area.height / 2 : area.height;
    drawing.fillStyle = styled("--pale");
    drawing.textAlign = "right";
    drawing.textBaseline = "middle";
    drawing.fillText(short(most), area.left - 6, area.top + 2);
    drawing.fillText("0", area.left - 6, base - 2);
    if (isBelow) drawing.fillText(short(-most), area.left - 6, area.top + area.height - 2);
    places.forEach((place, i) => {
      if (!place || !numbers[i]) return;
      // Whole pixels, so that no light line stands between neighbors; a gap only where it is seen as one.
      const left = Math.round(this.x(place[0]!));
      const right = Math.round(this.x(place[1]!));
      const width = Math.max(1, right - left - Number(right - left > 7));
      const tall = Math.max(-1, Math.min(1, numbers[i]! / most)) * high;
      drawing.fillStyle = flow(tall < 0);
      drawing.fillRect(left, Math.min(base, base - tall), width, Math.abs(tall));
    });
    drawing.strokeStyle = styled("--strong");
    drawing.beginPath();
    drawing.moveTo(area.left, base + 0.5);
    drawing.lineTo(area.left + area.width, base + 0.5);
    drawing.stroke();
  }

  private drawEvents(drawing: CanvasRenderingContext2D, light: Light, { events: area, sound: below }: Rows): void {
    const { events } = this.sound;
    const color = colorOf(events);
    const chosen = light.isFound ? light.entry : null;
    const isOne = events.some(({ query }) => query === chosen);
    drawing.font = font(12, 600);
    drawing.textAlign = "left";
    drawing.textBaseline = "middle";
    events.forEach((event, i) => {
      const { lane, left, width, nameLeft, isInside } = this.lanes[i]!;
      const top = area.top + lane * LANE;
      const isChosen = event.query === chosen;
      drawing.globalAlpha = isOne && !isChosen ? 0.4 : 1;
      drawing.fillStyle = color(event.label);
      drawing.fillRect(left, top, width, LANE - 4);
      drawing.fillStyle = isInside ? inkFor(color(event.label)) : styled("--ink");
      drawing.fillText(eventName(event), nameLeft + 6, top + (LANE - 4) / 2 + 0.5);
      if (isChosen || !isOne) this.bracket(drawing, left, width, below, color(event.label));
    });
    drawing.globalAlpha = 1;
  }

  /** Where the event begins and ends, down the spectrogram. */
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

  /** Markers of the selected time and the time under the pointer, down to the spectrogram. */
  private drawMoments(drawing: CanvasRenderingContext2D, light: Light, { curve, sound: area }: Rows): void {
    const { at } = this.frame;
    const chosen = light.focus.isOwn ? light.entry : null;
    const marks: [number | null, string][] = [[chosen, styled("--pin")], [at === chosen ? null : at, styled("--ink")]];
    for (const [entry, color] of marks) {
      const place = entry === null ? null : light.axis(light.pointedSide).places[entry];
      if (!place) continue;
      const left = this.x(place[0]!);
      drawing.strokeStyle = color;
      drawing.lineWidth = 1.5;
      drawing.strokeRect(left, curve.top, Math.max(2, this.x(place[1]!) - left), area.top + area.height - curve.top);
    }
  }

  /** Bars of the weights of the time under the pointer. */
  private below(light: Light): HTMLElement[] {
    const { at } = this.frame;
    if (light.focus.isOwn || at === null || light.axis(light.side).labels.length < 2) return [];
    const about = `${light.side === "query" ? "weights on key" : "weights of query"} ${named(light.axis(light.placed), at)}`;
    const bars = strongest(light.axis(light.side), light.of(light.placed, at), { count: 6, about });
    return [make("h3", {}, about), bars];
  }

  private eventAt(event: MouseEvent, light: Light): SoundEvent | null {
    const { x, y } = this.frame.inside(event);
    const down = y - this.rows().events.top;
    if (!light.isFound || down < 0) return null;
    const found = this.lanes.findIndex(({ lane, left, width, nameLeft, nameWidth }) => {
      const [from, to] = [Math.min(left, nameLeft), Math.max(left + width, nameLeft + nameWidth)];
      return down >= lane * LANE && down < (lane + 1) * LANE && x >= from && x < to;
    });
    return this.sound.events[found] ?? null;
  }

  private timeAt(event: MouseEvent, light: Light): number | null {
    const across = this.frame.inside(event).x - LEFT;
    const seconds = (across / (this.width - LEFT - RIGHT)) * this.sound.seconds;
    const found = spanAt(light.axis(light.pointedSide).places, seconds);
    return found < 0 ? null : found;
  }

  point(event: PointerEvent | null, light: Light): void {
    const found = event && this.eventAt(event, light);
    const at = event && !found ? this.timeAt(event, light) : null;
    const where = event && { x: event.clientX, y: event.clientY };
    this.frame.at = at;
    if (found) {
      light.pointed = found.query;
      const span = `${eventName(found)}, from ${short(found.onset)} s, for ${short(found.duration)} s`;
      light.tip(where, light.side, found.query, [span]);
      return;
    }
    const isFree = light.focus.isOwn && !light.isPinned;
    light.pointed = isFree ? at : null;
    light.tip(at === null ? null : where, isFree ? light.side : light.heatSide, at);
  }

  picked(event: MouseEvent, light: Light): number | null {
    return this.eventAt(event, light)?.query ?? (light.focus.isOwn ? this.timeAt(event, light) : null);
  }

  place(query: number | null, key: number | null): { x: number; y: number } | null {
    const { light } = this.frame;
    if (!light) return null;
    const [first, second] = light.placed === "key" ? [key, query] : [query, key];
    const entry = first ?? (light.focus.isOwn ? second : null);
    const place = entry === null ? null : light.axis(light.placed).places[entry];
    const { sound: area, events } = this.rows();
    if (place) return this.frame.outside(this.x((place[0]! + place[1]!) / 2), area.top + area.height / 2);
    const lane = light.isFound ? this.lanes[this.sound.events.findIndex((event) => event.query === second)] : undefined;
    if (!lane) return this.frame.listed(second);
    return this.frame.outside(lane.left + Math.min(lane.width, 20) / 2, events.top + (lane.lane + 0.4) * LANE);
  }

  press(key: string): boolean {
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
  return `${readable(label, 24, " ")} ${score.toFixed(2)}`;
}
