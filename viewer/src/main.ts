/** Starts the page: one pane, or two side by side; the address's fragment follows what is shown. */

import { make } from "./dom.js";
import { toggleHelp } from "./help.js";
import { listen } from "./keyboard.js";
import { DataError, page } from "./load.js";
import type { Page } from "./page.js";
import { Panel } from "./pane.js";
import { read, written, type State } from "./state.js";
import { keepTheme, turnTheme } from "./theme.js";
import { hideTip, putTip } from "./tip.js";
import { say, sayUncaught } from "./wrong.js";

class App {
  private readonly panes: Panel[] = [];
  private readonly place = make("main", { class: "panes" });
  private readonly comparing = button("Compare", "c", () => this.compare());
  private readonly linking = button("Linked", "", () => this.link(!this.linked));
  private linked = true;
  private last = 0;

  constructor(
    private readonly page: Page,
    root: HTMLElement,
  ) {
    const buttons = [this.linking, this.comparing, button("Theme", "t", turnTheme), button("?", "?", toggleHelp)];
    buttons[3]!.setAttribute("aria-label", "Help");
    root.append(make("nav", { "aria-label": "Page" }, ...buttons), this.place);
    this.linking.title = "Head, layer and view of both sides are synchronized.";
    this.restore();
    window.addEventListener("hashchange", () => this.restore());
    window.addEventListener("scroll", hideTip, { passive: true });
    listen(this);
  }

  active(): Panel | null {
    return this.panes[this.last] ?? this.panes[0] ?? null;
  }

  /** Put a second pane beside the first, or take it away. */
  compare(): void {
    const [first, second] = this.panes;
    if (!first) return;
    if (second) {
      second.close();
      this.panes.pop();
      this.last = 0;
    } else {
      const other = this.other({ shown: first.shown, view: first.view });
      // The same sample on both sides is for comparing heads or layers.
      this.linked = other.shown.sample !== first.shown.sample;
      this.add(other);
    }
    this.arrange();
    this.write();
  }

  redraw(): void {
    for (const pane of this.panes) pane.choose({});
  }

  /** For tests: what is drawn where, what is shown, and when drawing is done. */
  get tests(): object {
    const app = this;
    const pane = (index: number) => app.panes[index]!;
    return {
      place: (query: number | null, key: number | null, index = 0) => pane(index).drawn?.place(query, key) ?? null,
      shown: (index = 0) => plain(pane(index)),
      get ready() {
        return app.settled();
      },
    };
  }

  private async settled(): Promise<void> {
    for (const pane of this.panes) {
      let settled;
      do {
        ({ settled } = pane);
        await settled;
      } while (settled !== pane.settled);
    }
    await new Promise((done) => setTimeout(done, 50));
  }

  private restore(): void {
    const { hash } = window.location;
    const first = read(this.page, hash);
    if (!first) throw new DataError("The page contains no reads: the recorded model has no attention.");
    this.panes.splice(0).forEach((pane) => pane.close());
    this.add(first);
    const second = /[#&]b\./.test(hash) ? read(this.page, hash, "b.") : null;
    if (second) this.add(second);
    this.arrange();
  }

  private add(state: State): void {
    const index = this.panes.length;
    const pane = new Panel(this.page, state, { changed: (pane, byHand) => this.changed(pane, byHand) });
    const touch = () => (this.last = this.panes.indexOf(pane));
    pane.root.addEventListener("pointerdown", touch, { capture: true });
    pane.root.addEventListener("focusin", touch);
    pane.root.setAttribute("aria-label", index ? "Second sample" : "Attention weights");
    this.panes.push(pane);
    this.place.append(pane.root);
    this.arrange();
    pane.open();
  }

  private arrange(): void {
    const two = this.panes.length > 1;
    this.place.classList.toggle("two", two);
    this.comparing.setAttribute("aria-pressed", String(two));
    this.linking.hidden = !two;
    this.linking.setAttribute("aria-pressed", String(this.linked));
  }

  private link(linked: boolean): void {
    this.linked = linked;
    this.arrange();
    const from = this.active();
    if (linked && from) this.changed(from, true);
  }

  private changed(from: Panel, byHand: boolean): void {
    if (byHand && this.linked) {
      const state = { shown: from.shown, view: from.view };
      for (const pane of this.panes) if (pane !== from) pane.follow(state);
    }
    this.write();
  }

  private write(): void {
    const parts = this.panes.map((pane, index) =>
      written(this.page, { shown: pane.shown, view: pane.view }, index ? "b." : ""),
    );
    try {
      window.history.replaceState(null, "", `#${parts.join("&")}`);
    } catch {
      // In a notebook's frame the address is not ours to write.
    }
    const sample = this.panes[0]?.shown.sample.title;
    document.title = sample ? `${sample} - regard` : "regard";
  }

  /** What to put beside: the same sample of the next capture, else the next sample, else the same once more. */
  private other({ shown, view }: State): State {
    const { captures } = this.page;
    const at = captures.indexOf(shown.capture);
    const sample = shown.capture.scenes.indexOf(shown.sample);
    const places = [
      [(at + 1) % captures.length, sample],
      [(at + 1) % captures.length, 0],
      [at, (sample + 1) % shown.capture.scenes.length],
    ] as const;
    for (const [capture, sample] of places) {
      const found = captures[capture]?.scenes[sample];
      if (found && found !== shown.sample && found.reads.length) {
        const state = read(this.page, `#capture=${capture}&scene=${sample}&view=${view}`);
        if (state) return state;
      }
    }
    return { shown: { ...shown }, view };
  }
}

function plain(pane: Panel): object {
  const { capture, sample, read, head, query, key, scale } = pane.shown;
  const scenes = capture.scenes.indexOf(sample);
  return {
    capture: pane.page.captures.indexOf(capture), sample: scenes, read: read.name, layer: read.layer, kind: read.kind,
    measure: read.measure, head, query, key, scale, view: pane.view, views: pane.views.map((view) => view.name),
  };
}

function button(name: string, key: string, click: () => void): HTMLButtonElement {
  return make("button", { type: "button", click, title: key ? `Key: ${key}` : "" }, name);
}

async function start(): Promise<void> {
  sayUncaught();
  const root = document.getElementById("app")!;
  putTip();
  let app: App | null = null;
  keepTheme(() => app?.redraw());
  try {
    app = new App(await page(), root);
    Object.assign(window, { regard: app.tests });
  } catch (error) {
    say(error);
  }
}

document.addEventListener("DOMContentLoaded", () => void start());
