"""Drawing codes: shares by hand, guidance by hand, rows that do not depend on one another."""

import math
from dataclasses import dataclass

import pytest
import torch

from regard.attention.masks import Padded
from regard.decode.config import DrawingConfig
from regard.decode.guided import chosen, guided
from tests.helpers import close

EOS = 1


@dataclass(frozen=True)
class Count:
    """What a table remembers: its rows and how far it is."""

    rows: torch.Tensor

    def select(self, index):
        return Count(self.rows[index])

    reorder = select


class Table:
    """p(token | source): rows of a table by the first id of the source; the tokens so far say nothing."""

    def __init__(self, shares):
        self.log_p = torch.tensor(shares).log()

    def start(self, source: Padded) -> Count:
        return Count(source.items[:, 0])

    def step(self, tokens, state):
        assert len(tokens) == len(state.rows)
        return self.log_p[state.rows].clone(), state


SHARES = [[0.25, 0.25, 0.25, 0.25], [0.0, 0.2, 0.4, 0.4], [0.0, 0.1, 0.8, 0.1], [0.0, 0.6, 0.2, 0.2]]


def drawn(sources, seeds, length=200, **settings):
    items = torch.tensor([[source, EOS] for source in sources])
    source = Padded(items, torch.full((len(sources),), 2))
    config = DrawingConfig(**{"guidance": 1.0, "temperature": 1.0, **settings})
    return guided(Table(SHARES), source, nothing=[EOS], length=length, config=config, bos=0, banned=[0], seeds=seeds)


def test_a_number_falls_in_the_stretch_of_its_token():
    shares = torch.tensor([[0.25, 0.0, 0.5, 0.25]]).repeat(5, 1)
    numbers = torch.tensor([0.0, 0.24, 0.25, 0.74, 0.999])
    assert chosen(shares, numbers).tolist() == [0, 0, 2, 2, 3]


def test_tokens_are_drawn_as_often_as_they_are_likely():
    found = drawn([2], [7], length=4000).tokens
    shares = found[0].bincount(minlength=4) / 4000
    assert (shares - torch.tensor(SHARES[2])).abs().max() < 0.03  # four standard deviations
    assert 0 not in found


def test_the_score_is_the_mean_log_probability():
    found = drawn([2, 3], [7, 8], length=50)
    expected = torch.tensor(SHARES).log()[torch.tensor([2, 3])].gather(1, found.tokens).mean(1)
    close(found.log_prob, expected)


def test_guidance_sharpens_what_the_source_adds():
    # log p(. | nothing) + 3 (log p(. | source) - log p(. | nothing)), normalized, by hand.
    weights = [math.exp(3 * math.log(SHARES[2][i]) - 2 * math.log(SHARES[EOS][i])) for i in (1, 2, 3)]
    share = weights[1] / sum(weights)
    found = drawn([2], [7], length=4000, guidance=3.0).tokens
    assert float((found == 2).float().mean()) == pytest.approx(share, abs=0.01)
    # Without any guidance the source says nothing.
    unguided = drawn([2], [7], length=4000, guidance=0.0).tokens
    assert float((unguided == 2).float().mean()) == pytest.approx(0.4, abs=0.03)


def test_temperature_zero_takes_the_likeliest():
    assert drawn([2, 3], [1, 2], length=3, temperature=0.0).tokens.tolist() == [[2, 2, 2], [1, 1, 1]]


def test_a_row_is_the_same_whatever_else_is_drawn():
    both, alone = drawn([2, 3], [7, 8], guidance=2.0), drawn([3], [8], guidance=2.0)
    assert torch.equal(both.tokens[1], alone.tokens[0])
    assert not torch.equal(alone.tokens, drawn([3], [9], guidance=2.0).tokens)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="seeds must be one for each of 1 rows, got 2"):
        drawn([2], [1, 2])
    with pytest.raises(ValueError, match="guidance must be from 0 to 1,000, but is -1"):
        DrawingConfig(guidance=-1)
    with pytest.raises(ValueError, match="temperature must be from 0 to 1,000"):
        DrawingConfig(temperature=-1.0)
