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
export function addRovingFocus(group: HTMLElement): void {
  const buttons = () => [...group.querySelectorAll<HTMLElement>("button")];
  const setTabStop = (focused: HTMLElement | undefined) => {
    for (const button of buttons()) button.tabIndex = button === focused ? 0 : -1;
  };
  setTabStop(buttons().find((button) => button.getAttribute("aria-pressed") === "true") ?? buttons()[0]);
  group.addEventListener("focusin", (event) => setTabStop(event.target as HTMLElement));
  group.addEventListener("keydown", (event) => {
    const all = buttons();
    const index = all.indexOf(document.activeElement as HTMLElement);
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const to = event.key === "Home" ? 0 : event.key === "End" ? all.length - 1 : step && index + step;
    if (index < 0 || to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    all[Math.min(all.length - 1, Math.max(0, to))]!.focus();
  });
}

/** The room of a picture: what there is beside lists; above them, in a narrow page, as high as its shape asks for. */
export function availableSize(stage: HTMLElement, shape: number): { width: number; height: number } {
  const { clientWidth: width, clientHeight: height } = stage;
  const isNarrow = getComputedStyle(stage.firstElementChild!).position === "static";
  return { width, height: isNarrow ? Math.min(width * shape, 0.8 * window.innerHeight) : height };
}

/** Calls of a function in one frame become one. */
export function oncePerFrame(run: () => void): () => void {
  let isPending = false;
  return () => {
    if (isPending) return;
    isPending = true;
    requestAnimationFrame(() => {
      isPending = false;
      run();
    });
  };
}

export interface EntryHandlers {
  /** The pointer or the keyboard is on entry `i`; null: on none. `at` is where a tip may stand. */
  hover(i: number | null, at: { x: number; y: number } | null): void;
  select(i: number): void;
}

/** Tell of buttons with a data-entry in a group: pointed at, or focused by keyboard, or pressed. */
export function addEntryHandlers(group: HTMLElement, { hover, select }: EntryHandlers): void {
  const entry = (event: Event) => (event.target as Element).closest<HTMLElement>("[data-entry]");
  const number = (element: HTMLElement) => Number(element.dataset["entry"]);
  group.addEventListener("pointermove", (event) => {
    const element = entry(event);
    hover(element && number(element), element && { x: event.clientX, y: event.clientY });
  });
  group.addEventListener("pointerleave", () => hover(null, null));
  group.addEventListener("focusin", (event) => {
    const element = entry(event);
    if (!element?.matches(":focus-visible")) return;
    const { left, bottom } = element.getBoundingClientRect();
    hover(number(element), { x: left, y: bottom });
  });
  group.addEventListener("focusout", () => hover(null, null));
  group.addEventListener("click", (event) => {
    const element = entry(event);
    if (element) select(number(element));
  });
}

/** Scroll a box, and nothing around it, as little as needed to bring what it holds into sight. */
export function scrollIntoBox(box: HTMLElement, element: Element | undefined): void {
  if (!element) return;
  const [outer, inner] = [box.getBoundingClientRect(), element.getBoundingClientRect()];
  if (inner.top < outer.top) box.scrollTop -= outer.top - inner.top + 4;
  else if (inner.bottom > outer.bottom) box.scrollTop += inner.bottom - outer.bottom + 4;
}

/** The middle of an element, in client coordinates. */
export function centerOf(element: Element | null | undefined): { x: number; y: number } | null {
  if (!element) return null;
  const { left, top, width, height } = element.getBoundingClientRect();
  return { x: left + width / 2, y: top + height / 2 };
}
