/** A table of buttons that the tab key enters once; arrows move between them. */

/** Listen to the buttons with a data-row and a data-column in a table. */
export function watchGrid(table: HTMLElement, pick: (row: number, column: number) => void): void {
  const button = (row: number, column: number) =>
    table.querySelector<HTMLElement>(`button[data-row="${row}"][data-column="${column}"]`);
  const enter = (chosen: HTMLElement | null) => {
    for (const each of table.querySelectorAll("button")) each.tabIndex = each === chosen ? 0 : -1;
  };
  const placed = (event: Event) => {
    const found = (event.target as Element).closest<HTMLElement>("button[data-row]");
    return found && { row: Number(found.dataset["row"]), column: Number(found.dataset["column"]) };
  };
  enter(table.querySelector("button"));
  table.addEventListener("focusin", (event) => enter(event.target as HTMLElement));
  table.addEventListener("click", (event) => {
    const at = placed(event);
    if (at) pick(at.row, at.column);
  });
  table.addEventListener("keydown", (event) => {
    const steps: Record<string, [number, number]> = {
      ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
    };
    const [step, at] = [steps[event.key], placed(event)];
    if (!step || !at) return;
    event.preventDefault();
    event.stopPropagation();
    button(at.row + step[0], at.column + step[1])?.focus();
  });
}
