/** Error messages on the page. */

import { make } from "./dom.js";
import { DataError } from "./load.js";

/** Show an error at the top of an element, unless it is already shown. */
export function showError(error: unknown, parent: HTMLElement = document.body): void {
  const isDataError = error instanceof DataError;
  const message = error instanceof Error ? error.message : String(error);
  const shown = [...parent.querySelectorAll(".error p:first-of-type")];
  if (shown.some((element) => element.textContent === message)) return;
  const box = make("div", { class: "error", role: "alert" });
  box.append(make("h2", {}, isDataError ? "This page cannot be displayed correctly" : "An error occurred in this page"));
  box.append(make("p", {}, message));
  const hint = isDataError ? "Create the page again with regard, or open an intact copy." : stackTop(error);
  box.append(make("p", { class: "pale" }, hint));
  parent.prepend(box);
}

function stackTop(error: unknown): string {
  const lines = error instanceof Error ? (error.stack ?? "").split("\n").slice(1, 3) : [];
  return `This is a bug in the viewer. ${lines.map((line) => line.trim()).join(" ")}`;
}

/** Show uncaught errors. */
export function showUncaughtErrors(): void {
  window.addEventListener("error", (event) => {
    // Harmless: the observers are notified in the next frame.
    if (!event.message.startsWith("ResizeObserver loop")) showError(event.error ?? event.message);
  });
  window.addEventListener("unhandledrejection", (event) => showError(event.reason));
}
