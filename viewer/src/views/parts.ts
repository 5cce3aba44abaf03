/** Elements that several views are made of. */

import { make } from "../dom.js";

/** A button that is on or off. */
export function toggle(text: string, about: string, change: (isOn: boolean) => void): HTMLButtonElement {
  const button = make("button", { type: "button", class: "toggle", "aria-pressed": "false", title: about }, text);
  button.addEventListener("click", () => {
    const isOn = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(isOn));
    change(isOn);
  });
  return button;
}

/** A slider from 0 to 1 with its name before it. */
export function slider(text: string, value: number, change: (value: number) => void): HTMLLabelElement {
  const input = make("input", { type: "range", min: "0", max: "1", step: "0.05", value: String(value) });
  input.addEventListener("input", () => change(Number(input.value)));
  return make("label", { class: "slider" }, make("span", {}, text), input);
}

/**
 * Arrow keys move between the buttons of a group, which the tab key enters once.
 *
 * Without it, some hundred words would have to be passed by tab to reach what stands behind them.
 */
export function rove(group: HTMLElement): void {
  const buttons = () => [...group.querySelectorAll<HTMLElement>("button")];
  const enter = (chosen: HTMLElement | undefined) => {
    for (const button of buttons()) button.tabIndex = button === chosen ? 0 : -1;
  };
  enter(buttons().find((button) => button.getAttribute("aria-pressed") === "true") ?? buttons()[0]);
  group.addEventListener("focusin", (event) => enter(event.target as HTMLElement));
  group.addEventListener("keydown", (event) => {
    const all = buttons();
    const at = all.indexOf(document.activeElement as HTMLElement);
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const to = event.key === "Home" ? 0 : event.key === "End" ? all.length - 1 : step && at + step;
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    all[Math.min(all.length - 1, Math.max(0, to))]!.focus();
  });
}

/** The room of a picture: what there is beside lists; above them, in a narrow page, as high as its shape asks for. */
export function roomOf(stage: HTMLElement, shape: number): { width: number; height: number } {
  const { clientWidth: width, clientHeight: height } = stage;
  const isAbove = getComputedStyle(stage.firstElementChild!).position === "static";
  return { width, height: isAbove ? Math.min(width * shape, 0.8 * window.innerHeight) : height };
}

/** Calls of a function in one frame become one. */
export function inFrame(run: () => void): () => void {
  let isAsked = false;
  return () => {
    if (isAsked) return;
    isAsked = true;
    requestAnimationFrame(() => {
      isAsked = false;
      run();
    });
  };
}

export interface Pointing {
  /** The pointer or the keyboard is on entry `i`; null: on none. `at` is where a tip may stand. */
  point(i: number | null, at: { x: number; y: number } | null): void;
  pick(i: number): void;
}

/** Tell of buttons with a data-entry in a group: pointed at, or focused by keyboard, or pressed. */
export function listen(group: HTMLElement, { point, pick }: Pointing): void {
  const entry = (event: Event) => (event.target as Element).closest<HTMLElement>("[data-entry]");
  const number = (element: HTMLElement) => Number(element.dataset["entry"]);
  group.addEventListener("pointermove", (event) => {
    const element = entry(event);
    point(element && number(element), element && { x: event.clientX, y: event.clientY });
  });
  group.addEventListener("pointerleave", () => point(null, null));
  group.addEventListener("focusin", (event) => {
    const element = entry(event);
    if (!element?.matches(":focus-visible")) return;
    const { left, bottom } = element.getBoundingClientRect();
    point(number(element), { x: left, y: bottom });
  });
  group.addEventListener("focusout", () => point(null, null));
  group.addEventListener("click", (event) => {
    const element = entry(event);
    if (element) pick(number(element));
  });
}

/** Scroll a box, and nothing around it, as little as needed to bring what it holds into sight. */
export function reveal(box: HTMLElement, held: Element | undefined): void {
  if (!held) return;
  const [outer, inner] = [box.getBoundingClientRect(), held.getBoundingClientRect()];
  if (inner.top < outer.top) box.scrollTop -= outer.top - inner.top + 4;
  else if (inner.bottom > outer.bottom) box.scrollTop += inner.bottom - outer.bottom + 4;
}

/** The middle of an element, in client coordinates. */
export function middle(element: Element | null | undefined): { x: number; y: number } | null {
  if (!element) return null;
  const { left, top, width, height } = element.getBoundingClientRect();
  return { x: left + width / 2, y: top + height / 2 };
}
