/** What is read over time: a curve above the spectrogram, and the events that were heard. */

import { context, font, make, styled } from "../dom.js";
import { plural, readable, short } from "../format.js";
import type { Picture, Sounding } from "../page.js";
import type { Drawn, Pane, Shown, View } from "../view.js";
import { focusOf, spanAt, withoutPlace } from "./focus.js";
import { lanes, type Lane } from "./lanes.js";
import { flow, Light, named, type Side } from "./light.js";
import { chips, press, strongest } from "./lists.js";
import { inFrame, listen, rove, toggle } from "./parts.js";
import { colourOf, drawPicture, inkFor, picture, type Area } from "./picture.js";
import { ticks } from "./spread.js";

type Sound = Extract<Picture, { kind: "sound" }>;

const [LEFT, RIGHT, TOP] = [48, 12, 20];
const [CURVE, LANE, AXIS] = [96, 24, 34];

export const sound: View = {
  name: "sound",
  about: "What is read over time: the curve stands above the moments of the sound that it is about",
  fits: (scene, read) => focusOf(scene, read, "sound") !== null,
  open: (host, pane) => new SoundView(host, pane),
};

class SoundView implements Drawn {
  private readonly tools = make("div", { class: "tools" });
  private readonly stage = make("div", { class: "stage" });
  private readonly canvas = make("canvas", { role: "img" });
  private readonly told = make("p", { class: "told", "aria-live": "polite" });
  private readonly side = make("aside", { class: "side" });
  private readonly read = make("div", { class: "read-at" });
  private light: Light | null = null;
  private image: HTMLImageElement | null = null;
  private width = 0;
  private lanes: Lane[] = [];
  private at: number | null = null;
  private readonly redraw = inFrame(() => this.draw());

  constructor(
    private readonly host: HTMLElement,
    private readonly pane: Pane,
  ) {
    this.stage.append(this.canvas);
    host.append(make("div", { class: "pictured timed" }, this.tools, this.told, this.stage, this.side));
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    this.canvas.addEventListener("click", (event) => this.pick(event));
    listen(this.side, { point: (entry, at) => this.pointEntry(entry, at), pick: (entry) => this.light?.pick(entry) });
  }

  async show(shown: Shown): Promise<void> {
    const focus = focusOf(shown.scene, shown.read, "sound");
    if (!focus) return;
    const table = await this.pane.table(shown.read);
    this.image = await picture(focus.picture.url);
    const before = this.light;
    this.light = new Light(this.pane, shown, table, focus, before);
    if (before?.shown.read !== shown.read || before.shown.scene !== shown.scene) this.build(this.light);
    this.draw();
  }

  private get sound(): Sound {
    return this.light!.focus.picture as Sound;
  }

  private get placed(): Side {
    return this.light!.focus.heat === "keys" ? "key" : "query";
  }

  private build(light: Light): void {
    this.at = null;
    this.tools.replaceChildren();
    if (light.focus.isOwn) {
      const turn = toggle("who reads it", "Show who reads the moment you point at, not what it reads", (isOn) => {
        const [from, entry] = [light.side, this.light!.entry];
        this.light!.isTurned = isOn;
        this.light!.pane.choose({ query: null, key: null, [from === "query" ? "key" : "query"]: entry });
      });
      turn.setAttribute("aria-pressed", String(light.isTurned));
      this.tools.append(turn);
    }
    const axis = light.axis(light.side);
    const entries = light.focus.isOwn ? withoutPlace(axis) : axis.labels.map((_, i) => i);
    this.side.replaceChildren();
    if (entries.length > (light.focus.isOwn ? 0 : 1)) {
      const found = new Map(light.isFound ? this.sound.events.map((event) => [event.query, event.label]) : []);
      const labels = axis.labels.map((label, i) => (found.has(i) ? `${label}: ${found.get(i)}` : label));
      const group = chips({ ...axis, labels }, entries, `${axis.what}: choose one`);
      rove(group);
      this.side.append(make("h3", {}, plural(axis.what)), group);
    }
    this.side.append(this.read);
  }

  private x(seconds: number): number {
    return LEFT + (seconds / this.sound.seconds) * (this.width - LEFT - RIGHT);
  }

  /** Tops and heights of curve, events, spectrogram, from above to below. */
  private rows(): { curve: Area; events: Area; sound: Area } {
    const { left, width } = { left: LEFT, width: this.width - LEFT - RIGHT };
    const count = Math.max(0, ...this.lanes.map(({ lane }) => lane + 1));
    const curve = { left, width, top: TOP, height: CURVE };
    const events = { left, width, top: TOP + CURVE + 10, height: count * LANE };
    const top = events.top + events.height + (count ? 8 : 0);
    const room = this.host.clientHeight - top - AXIS - 90;
    return { curve, events, sound: { left, width, top, height: Math.min(300, Math.max(130, room)) } };
  }

  private draw(): void {
    const { light, sound } = this;
    if (!light) return;
    this.width = Math.max(200, this.stage.clientWidth);
    const measure = this.canvas.getContext("2d")!;
    measure.font = font(12, 600);
    const spans = sound.events.map((event) => ({
      left: this.x(event.onset),
      width: Math.max(3, this.x(event.onset + event.duration) - this.x(event.onset)),
      name: measure.measureText(heard(event)).width + 12,
    }));
    this.lanes = lanes(spans, this.width - RIGHT);
    const rows = this.rows();
    const drawing = context(this.canvas, this.width, rows.sound.top + rows.sound.height + AXIS);
    const numbers = light.numbers();
    const most = light.most(numbers);
    drawPicture(drawing, this.image, rows.sound, 0);
    this.drawSeconds(drawing, rows.curve, rows.sound);
    this.drawCurve(drawing, rows.curve, numbers, most);
    this.drawEvents(drawing, rows.events, rows.sound);
    this.drawMoments(drawing, rows.curve, rows.sound);
    this.tell(light, most);
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

  private drawCurve(drawing: CanvasRenderingContext2D, area: Area, numbers: Float32Array, most: number): void {
    const isBelow = numbers.some((number) => number < 0);
    const base = isBelow ? area.top + area.height / 2 : area.top + area.height;
    const high = isBelow ? area.height / 2 : area.height;
    drawing.fillStyle = styled("--pale");
    drawing.textAlign = "right";
    drawing.textBaseline = "middle";
    drawing.fillText(short(most), area.left - 6, area.top + 2);
    drawing.fillText("0", area.left - 6, base - 2);
    if (isBelow) drawing.fillText(short(-most), area.left - 6, area.top + area.height - 2);
    const { places } = this.light!.axis(this.light!.heatSide);
    places.forEach((place, i) => {
      if (!place || !numbers[i]) return;
      // Whole pixels, so that no light line stands between neighbours; a gap only where it is seen as one.
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

  private drawEvents(drawing: CanvasRenderingContext2D, area: Area, below: Area): void {
    const { events } = this.sound;
    const colour = colourOf(events);
    const chosen = this.light!.isFound ? this.light!.entry : null;
    const isOne = events.some(({ query }) => query === chosen);
    drawing.font = font(12, 600);
    drawing.textAlign = "left";
    drawing.textBaseline = "middle";
    events.forEach((event, i) => {
      const { lane, left, width, nameLeft, isInside } = this.lanes[i]!;
      const top = area.top + lane * LANE;
      const isChosen = event.query === chosen;
      drawing.globalAlpha = isOne && !isChosen ? 0.4 : 1;
      drawing.fillStyle = colour(event.label);
      drawing.fillRect(left, top, width, LANE - 4);
      drawing.fillStyle = isInside ? inkFor(colour(event.label)) : styled("--ink");
      drawing.fillText(heard(event), nameLeft + 6, top + (LANE - 4) / 2 + 0.5);
      if (isChosen || !isOne) this.bracket(drawing, left, width, below, colour(event.label));
    });
    drawing.globalAlpha = 1;
  }

  /** Where the event begins and ends, down the spectrogram. */
  private bracket(drawing: CanvasRenderingContext2D, left: number, width: number, area: Area, colour: string): void {
    drawing.strokeStyle = colour;
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

  /** The chosen moment and the one pointed at, down to the spectrogram. */
  private drawMoments(drawing: CanvasRenderingContext2D, curve: Area, area: Area): void {
    const light = this.light!;
    const chosen = light.focus.isOwn ? light.entry : null;
    const marks: [number | null, Side, string][] = [
      [chosen, light.side, styled("--pin")],
      [this.at === chosen ? null : this.at, light.focus.isOwn ? light.heatSide : this.placed, styled("--ink")],
    ];
    for (const [entry, side, colour] of marks) {
      const place = entry === null ? null : light.axis(side).places[entry];
      if (!place) continue;
      const left = this.x(place[0]!);
      drawing.strokeStyle = colour;
      drawing.lineWidth = 1.5;
      drawing.strokeRect(left, curve.top, Math.max(2, this.x(place[1]!) - left), area.top + area.height - curve.top);
    }
  }

  private tell(light: Light, most: number): void {
    const told = light.told();
    if (this.told.textContent !== told) this.told.textContent = told;
    this.canvas.setAttribute("aria-label", `spectrogram of ${short(this.sound.seconds)} seconds, and over it ${told}; at most ${short(most)}`);
    press(this.side, light.entry);
    const parts: HTMLElement[] = [];
    if (!light.focus.isOwn && this.at !== null && light.axis(light.side).labels.length > 1) {
      const name = `${named(light.axis(this.placed), this.at)} ${light.side === "query" ? "is read by" : "reads"}`;
      parts.push(make("h3", {}, name), strongest(light.axis(light.side), light.of(this.placed, this.at), { count: 6, about: name }));
    }
    this.read.replaceChildren(...parts);
  }

  private eventAt(event: MouseEvent): Sounding | null {
    const { left, top } = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top - this.rows().events.top];
    if (!this.light!.isFound || y < 0) return null;
    const found = this.lanes.findIndex(({ lane, left: from, width, nameLeft }, i) => {
      const name = Math.max(from + width, nameLeft + 6 * heard(this.sound.events[i]!).length);
      return y >= lane * LANE && y < (lane + 1) * LANE && x >= Math.min(from, nameLeft) && x < name;
    });
    return this.sound.events[found] ?? null;
  }

  private momentAt(event: MouseEvent): number | null {
    const { left } = this.canvas.getBoundingClientRect();
    const seconds = ((event.clientX - left - LEFT) / (this.width - LEFT - RIGHT)) * this.sound.seconds;
    const side = this.light!.focus.isOwn ? this.light!.side : this.placed;
    const found = spanAt(this.light!.axis(side).places, seconds);
    return found < 0 ? null : found;
  }

  private point(event: PointerEvent | null): void {
    const { light } = this;
    if (!light) return;
    const heardAt = event && this.eventAt(event);
    this.at = event && !heardAt ? this.momentAt(event) : null;
    const where = event && { x: event.clientX, y: event.clientY };
    if (heardAt) {
      light.pointed = heardAt.query;
      light.tip(where, light.side, heardAt.query, [`${heard(heardAt)}, from ${short(heardAt.onset)} s, for ${short(heardAt.duration)} s`]);
    } else {
      const isOwn = light.focus.isOwn && !light.isPinned;
      light.pointed = isOwn ? this.at : null;
      light.tip(this.at === null ? null : where, isOwn ? light.side : light.heatSide, this.at);
    }
    this.redraw();
  }

  private pick(event: MouseEvent): void {
    const { light } = this;
    if (!light) return;
    const entry = this.eventAt(event)?.query ?? (light.focus.isOwn ? this.momentAt(event) : null);
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
    const own = light.focus.isOwn;
    const entry = this.placed === "key" ? (key ?? (own ? query : null)) : (query ?? (own ? key : null));
    const place = entry === null ? null : light.axis(this.placed).places[entry];
    const box = this.canvas.getBoundingClientRect();
    const { sound: area, events } = this.rows();
    if (place) return { x: box.left + this.x((place[0]! + place[1]!) / 2), y: box.top + area.top + area.height / 2 };
    const found = this.light!.isFound ? this.sound.events.findIndex((event) => event.query === query) : -1;
    const lane = this.lanes[found];
    if (lane) return { x: box.left + lane.left + Math.min(lane.width, 20) / 2, y: box.top + events.top + (lane.lane + 0.4) * LANE };
    const button = this.side.querySelector(`[data-entry="${query ?? key}"]`)?.getBoundingClientRect();
    return button ? { x: button.left + button.width / 2, y: button.top + button.height / 2 } : null;
  }

  press(key: string): boolean {
    const { light } = this;
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[key];
    if (!light || !step) return false;
    const last = light.axis(light.side).labels.length - 1;
    const from = light.shown[light.side];
    light.pointed = null;
    light.pane.choose({ query: null, key: null, [light.side]: from === null ? 0 : Math.min(last, Math.max(0, from + step)) });
    return true;
  }

  close(): void {
    this.light?.tip(null, "query", null);
    this.host.replaceChildren();
  }
}

function heard({ label, score }: Sounding): string {
  return `${readable(label, 24, " ")} ${score.toFixed(2)}`;
}
