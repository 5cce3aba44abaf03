/** Light or dark: as the system has it, until the button is pressed; light on paper. */

let selected: "light" | "dark" | null = null;

const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");

/** Set the theme now, and keep to the system's; `changed` is called whenever it is another. */
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

/** The other of light and dark. */
export function toggleTheme(): void {
  toggle();
}
