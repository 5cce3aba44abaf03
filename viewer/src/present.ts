/** Presenting: the page fills the screen, zoomed so that type and cells can be read from afar. */

/** Size of a window, in CSS pixels, at which the page is not zoomed. */
const [WIDTH, HEIGHT] = [1060, 600];
const [LEAST, MOST] = [1.2, 3];

/** Start or stop presenting; `changed` is called after each change of the zoom. */
export function togglePresenting(changed: () => void): void {
  if (isPresenting()) stop(changed);
  else start(changed);
}

export function isPresenting(): boolean {
  return document.documentElement.classList.contains("presenting");
}

let fit = () => {};

function start(changed: () => void): void {
  const { documentElement: root } = document;
  fit = () => {
    const zoom = Math.max(LEAST, Math.min(MOST, window.innerWidth / WIDTH, window.innerHeight / HEIGHT));
    root.style.zoom = zoom.toFixed(2);
    changed();
  };
  root.classList.add("presenting");
  window.addEventListener("resize", fit);
  const left = () => {
    if (document.fullscreenElement) return;
    document.removeEventListener("fullscreenchange", left);
    if (isPresenting()) stop(changed);
  };
  // A page in a notebook may not fill the screen; it is zoomed all the same.
  root.requestFullscreen?.().then(
    () => document.addEventListener("fullscreenchange", left),
    () => {},
  );
  fit();
}

function stop(changed: () => void): void {
  const { documentElement: root } = document;
  window.removeEventListener("resize", fit);
  root.classList.remove("presenting");
  root.style.zoom = "";
  if (document.fullscreenElement) void document.exitFullscreen();
  changed();
}
