/** Keyboard shortcuts of the page; other keys are passed to the open view. */

import { toggleHelp } from "./help.js";
import type { Panel } from "./pane.js";
import { isPresenting } from "./present.js";
import { toggleTheme } from "./theme.js";

/** Part of the page that shortcuts act on. */
export interface ShortcutTarget {
  active(): Panel | null;
  compare(): void;
  present(): void;
  save(): void;
}

type Action = (app: ShortcutTarget, pane: Panel) => void;

const ACTIONS: Record<string, Action> = {
  "[": (_, pane) => pane.step("head", -1),
  "]": (_, pane) => pane.step("head", 1),
  "{": (_, pane) => pane.step("layer", -1),
  "}": (_, pane) => pane.step("layer", 1),
  ",": (_, pane) => pane.step("layer", -1),
  ".": (_, pane) => pane.step("layer", 1),
  "<": (_, pane) => pane.step("sample", -1),
  ">": (_, pane) => pane.step("sample", 1),
  v: (_, pane) => pane.step("view", 1),
  n: (_, pane) => pane.step("query", 1),
  p: (_, pane) => pane.step("query", -1),
  c: (app) => app.compare(),
  f: (app) => app.present(),
  s: (app) => app.save(),
  t: () => toggleTheme(),
  "?": () => toggleHelp(),
  Escape: (app, pane) => {
    if (isPresenting()) return app.present();
    pane.tip(null, pane.shown, null, null);
    pane.choose({ query: null, key: null });
  },
};

/** Add the event listener for shortcuts. */
export function addKeyboardShortcuts(app: ShortcutTarget): void {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (document.querySelector("dialog[open]")) {
      if (event.key === "?") toggleHelp();
      return;
    }
    const pane = app.active();
    if (!pane || isTyping(event)) return;
    const action = ACTIONS[event.key];
    const isHandled = action ? (action(app, pane), true) : (pane.drawn?.handleKey?.(event.key) ?? false);
    if (isHandled) event.preventDefault();
  });
}

/** Return true if the focused element handles this key itself. */
function isTyping(event: KeyboardEvent): boolean {
  const target = event.target as HTMLElement | null;
  if (!target) return false;
  if (target.tagName === "INPUT" || target.tagName === "TEXTAREA") return true;
  // A select uses arrow keys, letters and digits.
  return target.tagName === "SELECT" && /^([a-z0-9]|Arrow.*)$/i.test(event.key);
}
