/** The help: keys, and what the page does not show. */

import { make } from "./dom.js";
import { KEYS, WARNING } from "./texts.js";

/** Open the help, or close it. */
export function toggleHelp(): void {
  const open = document.querySelector<HTMLDialogElement>("dialog.help");
  if (open) open.close();
  else show();
}

function show(): void {
  const rows = KEYS.map(([keys, does]) => {
    const caps = keys.flatMap((key) => [make("kbd", {}, key), " "]);
    return make("tr", {}, make("th", { scope: "row" }, ...caps), make("td", {}, does));
  });
  const close = make("button", { type: "button", click: () => dialog.close() }, "Close");
  const dialog = make(
    "dialog",
    { class: "help", "aria-label": "Help", close: () => dialog.remove() },
    make("h2", {}, "Keys"),
    make("table", {}, make("tbody", {}, ...rows)),
    make("p", {}, "Point at a cell for its labels and its number, exactly as it was computed. Click to pin a query."),
    make("p", {}, "The wheel or two fingers zoom, dragging moves, a double click shows all of it. " +
      "Cells smaller than a pixel are drawn as one, in the color of the largest number among them."),
    make("h2", {}, "What this does not show"),
    make("p", {}, WARNING),
    close,
  );
  document.body.append(dialog);
  dialog.showModal();
}
