"""A sheet of drawings: a text above each few of them, drawn by a run of the recipe `draw`.

python benchmarks/draw_sheet.py runs/draw docs/images/draw.png "a sandal" "two ankle boots" ...
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from regard.recipes.draw import TrainedDraw
from regard.recipes.task import load

COLUMNS, EACH = 5, 3


def sheet(run: TrainedDraw, texts: list[str]) -> Figure:
    drawn = run.predict([text for text in texts for _ in range(EACH)])
    count, channels, height, width = drawn.shape
    framed = np.pad(drawn, ((0, 0), (0, 0), (0, 2), (0, 0)), constant_values=255)
    stacks = framed.transpose(0, 2, 3, 1).reshape(count // EACH, EACH * (height + 2), width, channels)
    rows = -(-len(texts) // COLUMNS)
    size = (1.55 * COLUMNS, (1.5 * EACH * height / width + 0.3) * rows)
    figure = Figure(figsize=size, layout="constrained", dpi=100)
    axes = figure.subplots(rows, COLUMNS, squeeze=False)
    for one in axes.flat:
        one.set_axis_off()
    for one, stack, text in zip(axes.flat, stacks, texts, strict=False):
        one.imshow(stack[..., 0] if channels == 1 else stack, cmap="gray", vmin=0, vmax=255)
        one.set_title(text, fontsize=7)
    return figure


if __name__ == "__main__":
    folder, out, *words = sys.argv[1:]
    if Path(out).exists():
        sys.exit(f"{out} exists")
    sheet(load(folder), words).savefig(out)
