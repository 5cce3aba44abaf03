/** Keyboard navigation in a table of buttons: one tab stop, arrow keys move between cells (ARIA grid). */

/** Add navigation and clicks to the buttons with data-row and data-column of a table. */
export function addGridNavigation(table: HTMLElement, pick: (row: number, column: number) => void): void {
  const button = (row: number, column: number) =>
    table.querySelector<HTMLElement>(`button[data-row="${row}"][data-column="${column}"]`);
  const setTabStop = (focused: HTMLElement | null) => {
    for (const each of table.querySelectorAll("button")) each.tabIndex = each === focused ? 0 : -1;
  };
  const cellOf = (event: Event) => {
    const button = (event.target as Element).closest<HTMLElement>("button[data-row]");
    return button && { row: Number(button.dataset["row"]), column: Number(button.dataset["column"]) };
  };
  setTabStop(table.querySelector("button"));
  table.addEventListener("focusin", (event) => setTabStop(event.target as HTMLElement));
  table.addEventListener("click", (event) => {
    const at = cellOf(event);
    if (at) pick(at.row, at.column);
  });
  table.addEventListener("keydown", (event) => {
    const steps: Record<string, [number, number]> = {
      ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
    };
    const [step, at] = [steps[event.key], cellOf(event)];
    if (!step || !at) return;
    event.preventDefault();
    event.stopPropagation();
    button(at.row + step[0], at.column + step[1])?.focus();
  });
}
