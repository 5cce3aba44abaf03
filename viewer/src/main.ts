/** The page: one pane, or two side by side; its state is in the fragment of the address. */

import { make } from "./dom.js";
import { toggleHelp } from "./help.js";
import { addKeyboardShortcuts } from "./keyboard.js";
import { startLive } from "./live/live.js";
import { DataError, page } from "./load.js";
import type { Page } from "./page.js";
import { Panel } from "./pane.js";
import { startServed } from "./serve/serve.js";
import { fromFragment, toFragment, type State } from "./state.js";
import { togglePresenting } from "./present.js";
import { askToSave } from "./save.js";
import { initTheme, toggleTheme } from "./theme.js";
import { hideTip, addTip } from "./tip.js";
import { showError, showUncaughtErrors } from "./errors.js";

class App {
  private readonly panes: Panel[] = [];
  private readonly container = make("main", { class: "panes" });
  private readonly compareButton = button("Compare", "c", () => this.compare());
  private readonly linkButton = button("Linked", "", () => this.link(!this.isLinked));
  private isLinked = true;
  private activeIndex = 0;

  constructor(
    private readonly page: Page,
    root: HTMLElement,
  ) {
    const help = button("?", "?", toggleHelp);
    help.setAttribute("aria-label", "Help");
    const buttons = [
      this.linkButton,
      this.compareButton,
      button("Save", "s", () => this.save()),
      button("Present", "f", () => this.present()),
      button("Theme", "t", toggleTheme),
      help,
    ];
    root.append(make("nav", { "aria-label": "Page" }, ...buttons), this.container);
    this.linkButton.title = "Head, layer and view of both sides are synchronized.";
    this.restore();
    window.addEventListener("hashchange", () => this.restore());
    window.addEventListener("scroll", hideTip, { passive: true });
    addKeyboardShortcuts(this);
  }

  active(): Panel | null {
    return this.panes[this.activeIndex] ?? this.panes[0] ?? null;
  }

  /** Add or remove the second pane. */
  compare(): void {
    const [first, second] = this.panes;
    if (!first) return;
    if (second) {
      second.close();
      this.panes.pop();
      this.activeIndex = 0;
    } else {
      const other = this.otherState({ shown: first.shown, view: first.view });
      // Two panes of the same sample compare heads or layers.
      this.isLinked = other.shown.sample !== first.shown.sample;
      this.add(other);
      if (this.isLinked) this.panes[1]!.follow({ shown: first.shown, view: first.view });
    }
    this.arrange();
    this.updateAddress();
  }

  /** Show or hide the page as large as the window allows. */
  present(): void {
    togglePresenting(() => this.redraw());
  }

  /** Ask for a format, and save the panes as one picture. */
  save(): void {
    if (this.panes.length) askToSave(this.panes);
  }

  /** Draw again in other colors or another size; the state stays as it is. */
  redraw(): void {
    for (const pane of this.panes) pane.redraw();
  }

  /** Show another page in place of this one, which has one capture; of the same model, with the same selection. */
  async replace(page: Page): Promise<void> {
    const capture = this.page.captures[0]!;
    const isOther = capture.title !== page.captures[0]!.title;
    const full = () => capture.samples.filter(({ reads }) => reads.length);
    const places = this.panes.map((pane) => full().indexOf(pane.shown.sample));
    this.page.note = page.note;
    Object.assign(capture, page.captures[0]!);
    if (isOther) this.restore("");
    else this.panes.forEach((pane, index) => pane.replace(full()[places[index]!] ?? full()[0]!));
    await Promise.all(this.panes.map((pane) => pane.settled));
  }

  /** Interface for tests (`window.regard`): positions, state, and a promise of the end of drawing. */
  get testApi(): object {
    const app = this;
    const pane = (index: number) => app.panes[index]!;
    return {
      place: (query: number | null, key: number | null, index = 0) => pane(index).drawn?.place(query, key) ?? null,
      shown: (index = 0) => describe(pane(index)),
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

  private restore(hash = window.location.hash): void {
    const first = fromFragment(this.page, hash);
    if (!first) throw new DataError("The page contains no reads: the recorded model has no attention.");
    this.panes.splice(0).forEach((pane) => pane.close());
    this.add(first);
    const second = /[#&]b\./.test(hash) ? fromFragment(this.page, hash, "b.") : null;
    if (second) this.add(second);
    else if (hash.length < 2 && this.page.captures.length > 1) this.add(this.otherState(first));
    this.arrange();
  }

  private add(state: State): void {
    const index = this.panes.length;
    const pane = new Panel(this.page, state, { changed: (pane, byHand) => this.onChange(pane, byHand) });
    const touch = () => (this.activeIndex = this.panes.indexOf(pane));
    pane.root.addEventListener("pointerdown", touch, { capture: true });
    pane.root.addEventListener("focusin", touch);
    pane.root.setAttribute("aria-label", index ? "Second sample" : "Attention weights");
    this.panes.push(pane);
    this.container.append(pane.root);
    this.arrange();
    pane.open();
  }

  private arrange(): void {
    const two = this.panes.length > 1;
    this.container.classList.toggle("two", two);
    this.compareButton.setAttribute("aria-pressed", String(two));
    this.linkButton.hidden = !two;
    this.linkButton.setAttribute("aria-pressed", String(this.isLinked));
  }

  private link(linked: boolean): void {
    this.isLinked = linked;
    this.arrange();
    const from = this.active();
    if (linked && from) this.onChange(from, true);
  }

  private onChange(from: Panel, byHand: boolean): void {
    if (byHand && this.isLinked) {
      const state = { shown: from.shown, view: from.view };
      for (const pane of this.panes) if (pane !== from) pane.follow(state);
    }
    this.updateAddress();
  }

  private updateAddress(): void {
    const parts = this.panes.map((pane, index) =>
      toFragment(this.page, { shown: pane.shown, view: pane.view }, index ? "b." : ""),
    );
    try {
      window.history.replaceState(null, "", `#${parts.join("&")}`);
    } catch {
      // In a sandboxed iframe (a notebook) the address is read-only.
    }
    const sample = this.panes[0]?.shown.sample.title;
    document.title = sample ? `${sample} - regard` : "regard";
  }

  /** State of the second pane: the same sample of the next capture, else the next sample, else the same sample. */
  private otherState({ shown, view }: State): State {
    const { captures } = this.page;
    const index = captures.indexOf(shown.capture);
    const sample = shown.capture.samples.indexOf(shown.sample);
    const candidates = [
      [(index + 1) % captures.length, sample],
      [(index + 1) % captures.length, 0],
      [index, (sample + 1) % shown.capture.samples.length],
    ] as const;
    for (const [capture, sample] of candidates) {
      const candidate = captures[capture]?.samples[sample];
      if (candidate && candidate !== shown.sample && candidate.reads.length) {
        const state = fromFragment(this.page, `#capture=${capture}&sample=${sample}&view=${view}`);
        if (state) return state;
      }
    }
    return { shown: { ...shown }, view };
  }
}

function describe(pane: Panel): object {
  const { capture, sample, read, head, query, key, scale } = pane.shown;
  const sampleIndex = capture.samples.indexOf(sample);
  return {
    capture: pane.page.captures.indexOf(capture), sample: sampleIndex, read: read.name, layer: read.layer, kind: read.kind,
    measure: read.measure, head, query, key, scale, view: pane.view, views: pane.views.map((view) => view.name),
  };
}

function button(name: string, key: string, click: () => void): HTMLButtonElement {
  return make("button", { type: "button", click, title: key ? `Key: ${key}` : "" }, name);
}

async function start(): Promise<void> {
  showUncaughtErrors();
  const root = document.getElementById("app")!;
  addTip();
  let app: App | null = null;
  initTheme(() => app?.redraw());
  try {
    const open = (page: Page) => (app = new App(page, root));
    const [isLive, isServed] = [document.getElementById("model"), document.getElementById("serve")];
    // A page of a model or of a service opens when there is a text.
    let live: object | null = null;
    if (isLive) live = await startLive(root, open);
    else if (isServed) live = await startServed(root, open);
    else open(await page());
    Object.assign(window, { live });
    Object.defineProperty(window, "regard", { get: () => app?.testApi ?? {} });
  } catch (error) {
    showError(error);
  }
}

document.addEventListener("DOMContentLoaded", () => void start());
