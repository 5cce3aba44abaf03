import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention.masks import Padded, Unpadded
from regard.decode.beam import beam
from regard.decode.config import DecodeConfig
from regard.decode.search import batch_by_length, search
from tests.decode.toys import BOS, EOS, IDS, PAD, HashStepper, Prefixes, is_equal, padded

SENTENCES = [[5, 4, 6], [4], [6, 6, 5, 4, 5], [5, 5], [4, 6, 4, 4], [7, 5, 6], [5]]
SENTENCES += [[4, 4, 4, 4, 7, 7, 7]]
SPECIAL = {"bos": BOS, "eos": EOS, "pad": PAD}


class RecordingStepper(HashStepper):
    """Stepper that records the sources it was started with."""

    sources: list[Padded]

    def start(self, source: Padded) -> Prefixes:
        self.sources = [*getattr(self, "sources", []), source]
        return super().start(source)


@pytest.mark.parametrize("width", [1, 3])
def test_search_equals_beam_of_each_sentence_in_the_given_order(
    width: int, device: torch.device
) -> None:
    config = DecodeConfig(
        beam=width, length_penalty=0.8, n_best=width, batch_tokens=12 * width, max_extra=3
    )
    stepper = RecordingStepper(11)
    results = search(stepper, SENTENCES, config=config, device=device, **SPECIAL)
    assert len(stepper.sources) > 2
    expected = [
        beam(
            stepper,
            padded([sentence], device),
            beam=width,
            n_best=width,
            length_penalty=0.8,
            max_length=2 * len(sentence) + 3,
            **IDS,
        )[0]
        for sentence in SENTENCES
    ]
    assert is_equal(results, expected)


def test_search_batches_sentences_of_similar_length_within_the_budget() -> None:
    stepper = RecordingStepper(11)
    search(stepper, SENTENCES, config=DecodeConfig(beam=3, batch_tokens=25), **SPECIAL)
    lengths = [source.lengths.tolist() for source in stepper.sources]
    assert lengths == [[7], [5], [4, 3], [3, 2], [1, 1]]
    assert stepper.sources[2].items.tolist() == [[4, 6, 4, 4], [5, 4, 6, PAD]]


def test_search_of_no_sentences_is_empty() -> None:
    assert search(HashStepper(7), [], config=DecodeConfig(), **SPECIAL) == []


def test_search_refuses_a_sentence_without_ids() -> None:
    with pytest.raises(ValueError, match="at least one id, got none in sentence 1"):
        search(HashStepper(7), [[4], []], config=DecodeConfig(), **SPECIAL)


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(0, 100))
def test_batches_hold_every_sentence_once_within_the_budget(
    lengths: list[int], budget: int
) -> None:
    batches = batch_by_length(lengths, budget=budget)
    order = [index for batch in batches for index in batch]
    assert order == sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * lengths[batch[0]] <= budget
    for batch in batches[:-1]:
        assert (len(batch) + 1) * lengths[batch[0]] > budget


def test_batches_of_one_length_have_no_padding_mask() -> None:
    stepper = RecordingStepper(11)
    config = DecodeConfig(beam=1, batch_tokens=6)
    search(stepper, [[5, 4, 6], [6, 6, 4], [4, 5], [5]], config=config, **SPECIAL)
    assert [type(source) for source in stepper.sources] == [Unpadded, Padded]
