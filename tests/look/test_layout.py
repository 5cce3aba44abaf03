"""Layouts: arrangement of panels, limits of sizes, labels without overlap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.look.figures.layout import Layout, lay_out


def layout_of(
    panels: int, *, targets: int, sources: int, label: str = "word", width: float | None = None
) -> Layout:
    titles = [f"head {i}" for i in range(panels)]
    return lay_out(titles, source=[label] * sources, target=[label] * targets, width=width)


def test_few_small_panels_are_in_one_row():
    layout = layout_of(4, targets=5, sources=9)
    assert (layout.columns, layout.rows) == (4, 1)


def test_wide_panels_are_in_rows_of_equal_length():
    for width, shape in ((18, (3, 2)), (12, (2, 3)), (None, (1, 6))):
        layout = layout_of(6, targets=30, sources=40, width=width)
        assert (layout.columns, layout.rows) == shape


@given(st.integers(1, 20), st.integers(1, 3000), st.integers(1, 3000))
def test_figures_have_a_limited_size(panels, targets, sources):
    layout = layout_of(panels, targets=targets, sources=sources)
    assert layout.columns * layout.rows >= panels
    assert layout.columns * layout.width <= 16
    assert layout.rows * layout.height <= 40.001


@given(st.integers(1, 12), st.integers(1, 500), st.integers(1, 500), st.integers(1, 24))
def test_labels_do_not_overlap(panels, targets, sources, length):
    layout = layout_of(panels, targets=targets, sources=sources, label="x" * length)
    cells = layout.width / sources, layout.height / targets
    assert layout.source_font / 72 <= cells[0] * layout.source_every
    assert layout.target_font / 72 <= cells[1] * layout.target_every


@given(st.integers(1, 12), st.integers(1, 60), st.integers(1, 60))
def test_panels_are_inside_the_figure_without_overlap(panels, targets, sources):
    layout = layout_of(panels, targets=targets, sources=sources)
    boxes = [layout.box(number) for number in range(panels)]
    for left, bottom, width, height in boxes:
        assert left >= 0
        assert bottom >= -1e-9
        assert left + width <= 1
        assert bottom + height <= 1 + 1e-9
    rights = {round(left + width, 6): left for left, _, width, _ in boxes}
    assert all(right < left for right in rights for left in rights.values() if left > rights[right])


@pytest.mark.parametrize("size", [1, 7])
def test_cells_are_square_while_there_is_room(size):
    layout = layout_of(1, targets=size, sources=3)
    assert layout.width / 3 == pytest.approx(layout.height / size)
    assert layout.source_every == layout.target_every == 1
