"""Layouts: panels side by side while they can be read, and pictures of a bearable size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.look.figures.layout import Layout, lay_out


def laid_out(panels: int, *, targets: int, sources: int, label: str = "word") -> Layout:
    return lay_out([f"head {i}" for i in range(panels)], source=[label] * sources, target=[label] * targets)


def test_few_small_panels_stand_in_one_row():
    layout = laid_out(4, targets=5, sources=9)
    assert (layout.columns, layout.rows) == (4, 1)


def test_wide_panels_stand_in_rows_of_equal_length():
    layout = laid_out(6, targets=30, sources=40)
    assert (layout.columns, layout.rows) == (3, 2)


@given(st.integers(1, 20), st.integers(1, 3000), st.integers(1, 3000))
def test_pictures_have_a_bearable_size(panels, targets, sources):
    layout = laid_out(panels, targets=targets, sources=sources)
    assert layout.columns * layout.rows >= panels
    assert layout.columns * layout.width <= 16
    assert layout.rows * layout.height <= 40.001


@given(st.integers(1, 12), st.integers(1, 500), st.integers(1, 500), st.integers(1, 24))
def test_labels_do_not_overlap(panels, targets, sources, length):
    layout = laid_out(panels, targets=targets, sources=sources, label="x" * length)
    cells = layout.width / sources, layout.height / targets
    assert layout.source_font / 72 <= cells[0] * layout.source_every
    assert layout.target_font / 72 <= cells[1] * layout.target_every


@given(st.integers(1, 12), st.integers(1, 60), st.integers(1, 60))
def test_panels_lie_inside_the_picture_and_apart(panels, targets, sources):
    layout = laid_out(panels, targets=targets, sources=sources)
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
    layout = laid_out(1, targets=size, sources=3)
    assert layout.width / 3 == pytest.approx(layout.height / size)
    assert layout.source_every == layout.target_every == 1
