"""Batches of rows that are answered together: every row once, in order, within the limit."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from regard.data.batches import plan_by_length
from regard.recipes.base.recipe import plan_by_count

LENGTHS = st.lists(st.integers(0, 30), max_size=40)


@given(LENGTHS, st.integers(1, 60))
def test_rows_are_planned_by_length_within_the_limit(lengths, most):
    ranges = plan_by_length(lengths, most)
    assert [row for rows in ranges for row in rows] == list(range(len(lengths)))
    sizes = [len(rows) * max(lengths[row] for row in rows) for rows in ranges]
    assert all(size <= most or len(rows) == 1 for rows, size in zip(ranges, sizes, strict=True))
    # No batch could have taken the row after it.
    for rows, after in pairwise(ranges):
        assert (len(rows) + 1) * max(lengths[row] for row in (*rows, after.start)) > most


@given(LENGTHS, st.integers(1, 12))
def test_rows_are_planned_by_count_within_the_limit(lengths, most):
    ranges = plan_by_count(lengths, most)
    assert [row for rows in ranges for row in rows] == list(range(len(lengths)))
    assert all(len(rows) == most for rows in ranges[:-1])
    assert all(1 <= len(rows) <= most for rows in ranges)
