/** Creation of elements and canvases. */

type Child = Node | string | null;
type Attributes = Record<string, string | number | boolean | ((event: never) => void)>;

/** Create an element; function values are event listeners, `true` is an empty attribute, `false` omits it. */
export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value as (event: Event) => void);
    else if (value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child): child is Node | string => child !== null));
  return element;
}

/** Resize and clear a canvas, and return its drawing context in CSS pixels. */
export function prepareCanvas(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const ratio = window.devicePixelRatio || 1;
  const wide = Math.max(1, Math.round(width * ratio));
  const high = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const drawing = canvas.getContext("2d");
  if (!drawing) throw new Error("This browser gives no canvas to draw on.");
  drawing.setTransform(ratio, 0, 0, ratio, 0, 0);
  drawing.clearRect(0, 0, width, height);
  return drawing;
}

/** Value of a CSS variable of style.css, such as "--ink". */
export function cssVariable(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** CSS font of labels on canvases. */
export function font(size: number, weight = 400): string {
  return `${weight} ${size}px ${cssVariable("--font") || "sans-serif"}`;
}
