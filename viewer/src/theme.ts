/** Light or dark: as the system has it, until the button is pressed; light on paper. */

let chosen: "light" | "dark" | null = null;

const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");

/** Set the theme now, and keep to the system's; `changed` is called whenever it is another. */
export function keepTheme(changed: () => void): void {
  const set = (theme: "light" | "dark") => {
    if (document.documentElement.dataset["theme"] === theme) return;
    document.documentElement.dataset["theme"] = theme;
    changed();
  };
  const natural = () => set(chosen ?? (prefersDark.matches ? "dark" : "light"));
  natural();
  prefersDark.addEventListener("change", natural);
  window.addEventListener("beforeprint", () => set("light"));
  window.addEventListener("afterprint", natural);
  turn = () => {
    chosen = document.documentElement.dataset["theme"] === "dark" ? "light" : "dark";
    natural();
  };
}

let turn = () => {};

/** The other of light and dark. */
export function turnTheme(): void {
  turn();
}
