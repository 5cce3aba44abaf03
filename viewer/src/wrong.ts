/** Error messages in the page. */

import { make } from "./dom.js";
import { DataError } from "./load.js";

/** Show an error at the top of an element; the same error only once. */
export function say(error: unknown, place: HTMLElement = document.body): void {
  const known = error instanceof DataError;
  const words = error instanceof Error ? error.message : String(error);
  const told = [...place.querySelectorAll(".wrong p:first-of-type")].some((one) => one.textContent === words);
  if (told) return;
  const box = make("div", { class: "wrong", role: "alert" });
  box.append(make("h2", {}, known ? "This page cannot be displayed correctly" : "An error occurred in this page"));
  box.append(make("p", {}, words));
  box.append(make("p", { class: "pale" }, known ? "Create the page again with regard, or open an intact copy." : where(error)));
  place.prepend(box);
}

function where(error: unknown): string {
  const lines = error instanceof Error ? (error.stack ?? "").split("\n").slice(1, 3) : [];
  return `This is a bug in the viewer. ${lines.map((line) => line.trim()).join(" ")}`;
}

/** Show uncaught errors. */
export function sayUncaught(): void {
  window.addEventListener("error", (event) => {
    // Harmless: the observers are notified in the next frame.
    if (!event.message.startsWith("ResizeObserver loop")) say(event.error ?? event.message);
  });
  window.addEventListener("unhandledrejection", (event) => say(event.reason));
}
