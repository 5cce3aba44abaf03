"""Tokens of outputs are read while they are decoded: the final ones begin with them."""

import pytest

from regard.decode.progress import UNWRITTEN, DecodingProgress, begin_progress
from regard.errors import UserError


def test_tokens_end_at_eos_and_at_what_is_not_written():
    progress, output = DecodingProgress(), [5, UNWRITTEN, 7]
    assert progress.tokens(0) == []
    progress.begin(3)
    progress.publish([2, 0], [output, [5, 3]], eos=3)
    assert [progress.tokens(number) for number in range(3)] == [[5], [], [5]]
    output[1] = 6
    assert progress.tokens(2) == [5, 6, 7]


def test_outputs_of_several_decodings_are_numbered_on():
    progress = DecodingProgress()
    with progress.follow():
        for token in (4, 5):
            assert begin_progress(2) is progress
            progress.publish([1], [[token]])
    assert begin_progress(2) is None
    assert [progress.tokens(number) for number in range(4)] == [[], [4], [], [5]]


def test_a_beam_search_is_refused_only_if_tokens_are_read():
    assert begin_progress(1, beam=2) is None
    with (
        DecodingProgress().follow(),
        pytest.raises(UserError, match="only with beam 1, got beam 2"),
    ):
        begin_progress(1, beam=2)
