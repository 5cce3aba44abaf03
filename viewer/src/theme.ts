/** Light or dark theme: that of the system, until the button is pressed; light for printing. */

let selected: "light" | "dark" | null = null;

const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");

/** Set the theme, and follow the system; `changed` is called after each change. */
export function initTheme(changed: () => void): void {
  const set = (theme: "light" | "dark") => {
    if (document.documentElement.dataset["theme"] === theme) return;
    document.documentElement.dataset["theme"] = theme;
    changed();
  };
  const update = () => set(selected ?? (prefersDark.matches ? "dark" : "light"));
  update();
  prefersDark.addEventListener("change", update);
  window.addEventListener("beforeprint", () => set("light"));
  window.addEventListener("afterprint", update);
  toggle = () => {
    selected = document.documentElement.dataset["theme"] === "dark" ? "light" : "dark";
    update();
  };
}

let toggle = () => {};

/** Switch between light and dark. */
export function toggleTheme(): void {
  toggle();
}
