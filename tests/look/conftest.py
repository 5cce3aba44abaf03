"""Fixtures of the tests of figures."""

import pytest
from matplotlib.figure import Figure

from regard.look.figures import canvas


@pytest.fixture
def figures(monkeypatch) -> list[Figure]:
    """Record the figures that are drawn."""
    drawn = []

    class RecordedFigure(Figure):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            drawn.append(self)

    monkeypatch.setattr(canvas, "Figure", RecordedFigure)
    return drawn
