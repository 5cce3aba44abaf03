"""Picture of an outline: the stages of a model with the shapes between them."""

from pathlib import Path

from matplotlib.axes import Axes

from regard.look.figures.canvas import INK, open_figure
from regard.models.outline import Outline, format_shape

_WIDTH, _HEIGHT, _STEP, _APART = 3.2, 0.62, 1.12, 4.3
_FILLS = {"input": "#f3f4f6", "encoder": "#d6e6f4", "predictor": "#fbe3c8", "decoder": "#d3ecdf"}
_SYMBOLS = {"h^Enc": r"$h^\mathrm{Enc}$", "h^Dec": r"$h^\mathrm{Dec}$", "y~": r"$\tilde{y}$"}


def plot_outline(outline: Outline, path: Path, *, title: str, overwrite: bool = False) -> None:
    """Plot an outline: columns of stages from below, the encoder left of predictor and decoder."""
    columns = [stages for stages in (outline.encoding, outline.predicting) if stages]
    # The stage that reads h^Enc is at least as high as the last one of the encoder.
    lift = max(0, len(outline.encoding) - 1 - outline.joint) if len(columns) == 2 else 0
    rows = max(len(columns[0]), len(columns[-1]) + lift)
    with open_figure(path, overwrite=overwrite) as figure:
        figure.set_size_inches(1.15 * _APART * len(columns), 0.95 * (rows * _STEP + 0.7))
        figure.set_layout_engine("constrained")
        axes = figure.subplots()
        axes.set_axis_off()
        axes.set_title(title, fontsize=10, loc="left", color=INK)
        right = _APART * (len(columns) - 1) + _WIDTH + 0.3
        axes.set(xlim=(-0.3, right), ylim=(-0.3, rows * _STEP + 0.05))
        for column, stages in enumerate(columns):
            left, middle = _APART * column, _APART * column + _WIDTH / 2
            for number, stage in enumerate(stages, lift if column else 0):
                bottom, top = number * _STEP, number * _STEP + _HEIGHT + 0.05
                text = "\n".join(filter(None, (stage.name, stage.detail)))
                box = {"boxstyle": "round", "facecolor": _FILLS[stage.part], "edgecolor": INK}
                center = bottom + _HEIGHT / 2
                axes.text(middle, center, text, ha="center", va="center", fontsize=8, bbox=box)
                if stage.part != "input":
                    style = {"fontsize": 6.5, "fontstyle": "italic", "va": "bottom"}
                    axes.text(left, top, stage.part, **style)
                symbol = _SYMBOLS.get(stage.symbol, f"${stage.symbol}$" if stage.symbol else "")
                label = f"{symbol}  {format_shape(stage.shape)}".strip()
                axes.text(middle + 0.1, top + 0.2, label, fontsize=7.5, parse_math=True)
                if column == len(columns) - 1 or stage is not stages[-1]:
                    _draw_arrow(axes, (middle, top), (middle, bottom + _STEP))
        if len(columns) == 2:  # h^Enc goes to the stage that reads it
            start = _WIDTH / 2, (len(outline.encoding) - 1) * _STEP + _HEIGHT + 0.05
            end = _APART + 0.2, (outline.joint + lift) * _STEP + _HEIGHT / 2
            _draw_arrow(axes, start, end)


def _draw_arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": INK})
