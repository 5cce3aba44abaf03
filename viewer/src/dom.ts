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

/** Zoom of the whole page, by which a length in CSS pixels of an element is smaller than on the screen. */
export function pageZoom(): number {
  return Number(document.documentElement.style.zoom) || 1;
}

/** Zoom of an element, by which its lengths in CSS pixels are smaller than on the screen. */
export function zoomOf(element: Element): number {
  return element.isConnected ? (element.currentCSSZoom ?? pageZoom()) : pageZoom();
}

/** Pixels of the screen per CSS pixel of the page. */
export function pixelRatio(): number {
  return (window.devicePixelRatio || 1) * pageZoom();
}

/** Convert client coordinates to coordinates of an element. */
export function toElement(element: Element, at: { clientX: number; clientY: number }): { x: number; y: number } {
  const { left, top } = element.getBoundingClientRect();
  return { x: (at.clientX - left) / zoomOf(element), y: (at.clientY - top) / zoomOf(element) };
}

/** Convert coordinates of an element to client coordinates. */
export function toClient(element: Element, x: number, y: number): { x: number; y: number } {
  const { left, top } = element.getBoundingClientRect();
  return { x: left + x * zoomOf(element), y: top + y * zoomOf(element) };
}

/** Function that returns another drawing context for a canvas while a picture is saved (save.ts). */
type Substitute = (canvas: HTMLCanvasElement, width: number, height: number) => CanvasRenderingContext2D;
let substitute: Substitute | null = null;

export function setSubstitute(value: Substitute | null): void {
  substitute = value;
}

/** Return true while a picture is saved. */
export function isSaving(): boolean {
  return substitute !== null;
}

/** Resize and clear a canvas, and return its drawing context in CSS pixels. */
export function prepareCanvas(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  if (substitute) {
    // A canvas that was just created gets the size that it has on the page.
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    return substitute(canvas, width, height);
  }
  const ratio = (window.devicePixelRatio || 1) * zoomOf(canvas);
  const wide = Math.max(1, Math.round(width * ratio));
  const high = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
  }
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
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
