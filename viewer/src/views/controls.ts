/** Controls and event handlers shared by several views. */

import { make } from "../dom.js";

/** Create a toggle button. */
export function toggle(text: string, about: string, change: (isOn: boolean) => void): HTMLButtonElement {
  const button = make("button", { type: "button", class: "toggle", "aria-pressed": "false", title: about }, text);
  button.addEventListener("click", () => {
    const isOn = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(isOn));
    change(isOn);
  });
  return button;
}

/** Create a labeled slider from 0 to 1. */
export function slider(text: string, value: number, change: (value: number) => void): HTMLLabelElement {
  const input = make("input", { type: "range", min: "0", max: "1", step: "0.05", value: String(value) });
  input.addEventListener("input", () => change(Number(input.value)));
  return make("label", { class: "slider" }, make("span", {}, text), input);
}

/**
 * Roving tabindex: the buttons of a group are one tab stop, and arrow keys move between them.
 *
 * Without it, hundreds of words would be tab stops.
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

/** Available size of a picture. On a narrow page, where the picture is above the lists, its height follows its aspect
 *  ratio (`shape`, height / width). */
export function availableSize(stage: HTMLElement, shape: number): { width: number; height: number } {
  const { clientWidth: width, clientHeight: height } = stage;
  const isNarrow = getComputedStyle(stage.firstElementChild!).position === "static";
  return { width, height: isNarrow ? Math.min(width * shape, 0.8 * window.innerHeight) : height };
}

/** Return a function that runs `run` at most once per animation frame. */
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
  /** Entry `i` is hovered or focused; null: none. `at`: position of the tooltip. */
  hover(i: number | null, at: { x: number; y: number } | null): void;
  select(i: number): void;
}

/** Add handlers for hover, keyboard focus and clicks to the elements with data-entry in a group. */
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

/** Scroll a box (but not its ancestors) until an element in it is visible. */
export function scrollIntoBox(box: HTMLElement, element: Element | undefined): void {
  if (!element) return;
  const [outer, inner] = [box.getBoundingClientRect(), element.getBoundingClientRect()];
  if (inner.top < outer.top) box.scrollTop -= outer.top - inner.top + 4;
  else if (inner.bottom > outer.bottom) box.scrollTop += inner.bottom - outer.bottom + 4;
}

/** Center of an element, in client coordinates. */
export function centerOf(element: Element | null | undefined): { x: number; y: number } | null {
  if (!element) return null;
  const { left, top, width, height } = element.getBoundingClientRect();
  if (!width && !height) return null; // in a closed list
  return { x: left + width / 2, y: top + height / 2 };
}
