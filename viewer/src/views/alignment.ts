/** Queries down, keys across, the number as a colour. */

import { scaleOf } from "../colour.js";
import { context, make } from "../dom.js";
import type { Drawn, Pane, Shown, View } from "../view.js";

export const alignment: View = {
  name: "alignment",
  about: "Queries down, keys across: the darker a cell, the more that query read of that key.",
  fits: () => true,
  open(host: HTMLElement, pane: Pane): Drawn {
    const canvas = make("canvas", { role: "img" });
    host.append(canvas);
    return {
      async show(shown: Shown) {
        const table = await pane.table(shown.read);
        const drawing = context(canvas, host.clientWidth, host.clientHeight);
        const scale = scaleOf(shown, table);
        const { rows, columns, numbers } = table.overview(shown.head, 128);
        const [wide, high] = [host.clientWidth / columns, host.clientHeight / rows];
        numbers.forEach((number, index) => {
          drawing.fillStyle = scale.css(number);
          drawing.fillRect((index % columns) * wide, Math.floor(index / columns) * high, wide, high);
        });
      },
      place: () => null,
      close() {},
    };
  },
};
