"""Windows of a text: every token is predicted once, and windows change with the epoch."""

from itertools import pairwise

import numpy as np
import pytest

from regard.data.text.windows import WindowBatches
from regard.errors import UserError

IDS = np.arange(100, 200, dtype=np.int32)


def test_fixed_windows_predict_every_token_but_the_first_once():
    batches = WindowBatches(IDS, context=7, rows=4, seed=0, is_fixed=True)
    predicted = []
    for rows in batches.plan(0):
        target = batches.collate(0, rows).target
        for tokens, length in zip(target.items, target.lengths.tolist(), strict=True):
            assert (tokens[1:length] - tokens[: length - 1] == 1).all()
            assert not tokens[length:].any()
            predicted += tokens[1:length].tolist()
    assert sorted(predicted) == IDS[1:].tolist()


def test_training_windows_do_not_overlap_are_complete_and_differ_between_epochs():
    batches = WindowBatches(IDS, context=7, rows=4, seed=3)
    plans = [batches.plan(epoch) for epoch in range(6)]
    assert plans == [
        WindowBatches(IDS, context=7, rows=4, seed=3).plan(epoch) for epoch in range(6)
    ]
    assert len({rows for plan in plans for rows in plan}) == sum(map(len, plans))
    assert len({min(start for rows in plan for start in rows) for plan in plans}) > 1
    for plan in plans:
        starts = sorted(start for rows in plan for start in rows)
        assert all(later - start == 7 for start, later in pairwise(starts))
        assert starts[-1] + 7 < len(IDS)
        assert all(batches.collate(0, rows).target.items.shape == (len(rows), 8) for rows in plan)


def test_text_shorter_than_the_context_is_one_window():
    batches = WindowBatches(IDS[:5], context=64, rows=2, seed=1)
    assert [rows for epoch in range(3) for rows in batches.plan(epoch)] == [(0,)] * 3
    assert batches.collate(0, (0,)).target.items.tolist() == [IDS[:5].tolist()]
    with pytest.raises(UserError, match="at least two tokens, got 1"):
        WindowBatches(IDS[:1], context=4, rows=1, seed=1)
