/** Zoom, pan, hover and click from wheel, drag and pinch events. Points are relative to the element. */

import { toElement } from "./dom.js";

export interface Point {
  x: number;
  y: number;
}

export interface Gestures {
  /** Return false if nothing changed; then the page scrolls. */
  zoom(factor: number, at: Point): boolean;
  move(x: number, y: number): void;
  hover(at: Point | null): void;
  click(at: Point): void;
  fit(): void;
}

/** Largest movement of a click between pointerdown and pointerup. */
const STILL_PX = 4;

/** Add the event listeners to an element. */
export function addGestures(element: HTMLElement, gestures: Gestures): void {
  const pointers = new Map<number, Point>();
  let traveled = 0;
  const positionOf = (event: MouseEvent): Point => toElement(element, event);
  element.addEventListener("wheel", (event) => {
    const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
    const factor = Math.exp(-Math.max(-160, Math.min(160, event.deltaY * lines)) / 300);
    if (gestures.zoom(factor, positionOf(event))) event.preventDefault();
  }, { passive: false });
  element.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    if (pointers.size === 0) traveled = 0;
    pointers.set(event.pointerId, positionOf(event));
    element.setPointerCapture(event.pointerId);
  });
  element.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    const now = positionOf(event);
    if (!before) return gestures.hover(now);
    traveled += Math.hypot(now.x - before.x, now.y - before.y);
    const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    pointers.set(event.pointerId, now);
    if (other) pinch(gestures, before, now, other);
    else if (traveled >= STILL_PX) gestures.move(now.x - before.x, now.y - before.y);
  });
  element.addEventListener("pointerup", (event) => {
    if (pointers.size === 1 && pointers.has(event.pointerId) && traveled < STILL_PX) gestures.click(positionOf(event));
    pointers.delete(event.pointerId);
  });
  element.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
  element.addEventListener("pointerleave", (event) => {
    // Lifting a finger also leaves the element; the tooltip stays.
    if (event.pointerType !== "touch") gestures.hover(null);
  });
  element.addEventListener("dblclick", () => gestures.fit());
}

function pinch(gestures: Gestures, before: Point, now: Point, other: Point): void {
  const distance = (place: Point) => Math.max(20, Math.hypot(place.x - other.x, place.y - other.y));
  const middle = { x: (now.x + other.x) / 2, y: (now.y + other.y) / 2 };
  gestures.zoom(distance(now) / distance(before), middle);
  gestures.move((now.x - before.x) / 2, (now.y - before.y) / 2);
}
