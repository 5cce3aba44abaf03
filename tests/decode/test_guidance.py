"""Sampling with classifier-free guidance: probabilities and guidance by hand, independent rows."""

import math
from dataclasses import dataclass

import pytest
import torch

from regard.attention.masks import Padded
from regard.decode.config import DrawingConfig
from regard.decode.guidance import sample_guided, sample_inverse_cdf
from regard.errors import UserError
from tests.helpers import close

EOS = 1


@dataclass(frozen=True)
class TableState:
    """State of `Table`: the row of the table for each row of the batch."""

    rows: torch.Tensor

    def select(self, index):
        return TableState(self.rows[index])

    reorder = select


class Table:
    """p(token | source) from the row of a table given by the first id of the source."""

    def __init__(self, probs):
        self.log_p = torch.tensor(probs).log()

    def start(self, source: Padded) -> TableState:
        return TableState(source.items[:, 0])

    def step(self, tokens, state):
        assert len(tokens) == len(state.rows)
        return self.log_p[state.rows].clone(), state


PROBS = [[0.25, 0.25, 0.25, 0.25], [0.0, 0.2, 0.4, 0.4], [0.0, 0.1, 0.8, 0.1], [0.0, 0.6, 0.2, 0.2]]


def draw(sources, seeds, length=200, **settings):
    items = torch.tensor([[source, EOS] for source in sources])
    source = Padded(items, torch.full((len(sources),), 2))
    config = DrawingConfig(**{"guidance": 1.0, "temperature": 1.0, **settings})
    given = {"empty_source": [EOS], "length": length, "bos": 0, "banned": [0], "seeds": seeds}
    return sample_guided(Table(PROBS), source, config=config, **given)


def test_inverse_cdf_sampling_by_hand():
    probs = torch.tensor([[0.25, 0.0, 0.5, 0.25]]).repeat(5, 1)
    uniform = torch.tensor([0.0, 0.24, 0.25, 0.74, 0.999])
    assert sample_inverse_cdf(probs, uniform).tolist() == [0, 0, 2, 2, 3]


def test_frequencies_of_tokens_are_their_probabilities():
    tokens = draw([2], [7], length=4000)[0]
    frequencies = tokens[0].bincount(minlength=4) / 4000
    assert (frequencies - torch.tensor(PROBS[2])).abs().max() < 0.03  # four standard deviations
    assert 0 not in tokens


def test_the_score_is_the_mean_log_probability():
    samples = draw([2, 3], [7, 8], length=50)
    expected = torch.tensor(PROBS).log()[torch.tensor([2, 3])].gather(1, samples[0]).mean(1)
    close(samples[1], expected)


def test_guidance_scales_the_effect_of_the_source():
    # log p(. | empty) + 3 (log p(. | source) - log p(. | empty)), normalized, by hand.
    weights = [math.exp(3 * math.log(PROBS[2][i]) - 2 * math.log(PROBS[EOS][i])) for i in (1, 2, 3)]
    expected = weights[1] / sum(weights)
    tokens = draw([2], [7], length=4000, guidance=3.0)[0]
    assert float((tokens == 2).float().mean()) == pytest.approx(expected, abs=0.01)
    # With guidance 0 the source has no effect.
    unguided = draw([2], [7], length=4000, guidance=0.0)[0]
    assert float((unguided == 2).float().mean()) == pytest.approx(0.4, abs=0.03)


def test_temperature_zero_takes_the_likeliest():
    assert draw([2, 3], [1, 2], length=3, temperature=0.0)[0].tolist() == [[2, 2, 2], [1, 1, 1]]


def test_rules_of_outputs_hold_and_the_score_is_that_of_the_model():
    tokens, score = draw([2, 3], [7, 8], length=3, guidance=2.0, no_repeat_ngram_size=1)
    assert [sorted(row) for row in tokens.tolist()] == [[1, 2, 3]] * 2
    log_probs = torch.tensor(PROBS).log()[torch.tensor([2, 3])]
    close(score, log_probs.gather(1, tokens).mean(1))
    with pytest.raises(UserError, match=r"got none; relax .*: no_repeat_ngram_size"):
        draw([2], [7], length=4, no_repeat_ngram_size=1)


def test_a_row_does_not_depend_on_its_batch():
    batch, single = draw([2, 3], [7, 8], guidance=2.0), draw([3], [8], guidance=2.0)
    assert torch.equal(batch[0][1], single[0][0])
    assert not torch.equal(single[0], draw([3], [9], guidance=2.0)[0])


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="seeds must be one for each of 1 rows, got 2"):
        draw([2], [1, 2])
