/** What is wrong, said in the page: it is never blank. */

import { make } from "./dom.js";
import { DataError } from "./load.js";

/** Say it in an element, above what it holds, or above whatever is shown; the same thing once. */
export function say(error: unknown, place: HTMLElement = document.body): void {
  const known = error instanceof DataError;
  const words = error instanceof Error ? error.message : String(error);
  const told = [...place.querySelectorAll(".wrong p:first-of-type")].some((one) => one.textContent === words);
  if (told) return;
  const box = make("div", { class: "wrong", role: "alert" });
  box.append(make("h2", {}, known ? "This page cannot be shown as it should" : "Something in this page went wrong"));
  box.append(make("p", {}, words));
  box.append(make("p", { class: "pale" }, known ? "Write the page anew with regard, or open an intact copy." : where(error)));
  place.prepend(box);
}

function where(error: unknown): string {
  const lines = error instanceof Error ? (error.stack ?? "").split("\n").slice(1, 3) : [];
  return `A defect of the viewer. ${lines.map((line) => line.trim()).join(" ")}`;
}

/** Show what nothing else caught. */
export function sayUncaught(): void {
  window.addEventListener("error", (event) => {
    // Observers that could not tell all in one frame do so in the next: nothing is lost.
    if (!event.message.startsWith("ResizeObserver loop")) say(event.error ?? event.message);
  });
  window.addEventListener("unhandledrejection", (event) => say(event.reason));
}
