/** Help dialog: keyboard shortcuts, and the limits of attention weights. */

import { make } from "./dom.js";
import { KEYS, WARNING } from "./texts.js";

/** Open or close the help. */
export function toggleHelp(): void {
  const open = document.querySelector<HTMLDialogElement>("dialog.help");
  if (open) open.close();
  else show();
}

function show(): void {
  const rows = KEYS.map(([keys, does]) => {
    const keyElements = keys.flatMap((key) => [make("kbd", {}, key), " "]);
    return make("tr", {}, make("th", { scope: "row" }, ...keyElements), make("td", {}, does));
  });
  const close = make("button", { type: "button", click: () => dialog.close() }, "Close");
  const dialog = make(
    "dialog",
    { class: "help", "aria-label": "Help", close: () => dialog.remove() },
    make("h2", {}, "Keyboard shortcuts"),
    make("table", {}, make("tbody", {}, ...rows)),
    make("p", {}, "Hover over a cell for its labels and its exact weight. Click to pin a query."),
    make("p", {}, "Zoom with the wheel or a pinch, pan by dragging, reset with a double click. " +
      "Cells smaller than a pixel are merged, with the color of the largest weight among them."),
    make("h2", {}, "Limitations"),
    make("p", {}, WARNING),
    close,
  );
  document.body.append(dialog);
  dialog.showModal();
}
