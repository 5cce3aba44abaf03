"""Sampling: temperature, top-k and top-p filtering by hand; frequencies of samples and reproducibility."""

from collections import Counter
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from regard.decode.config import SampleConfig
from regard.decode.sample import filter_logits, sample
from tests.helpers import close

SHARES = torch.tensor([[0.5, 0.3, 0.15, 0.05]])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"temperature": 1.0}, [0.5, 0.3, 0.15, 0.05]),
        ({"temperature": 0.0}, [1.0, 0, 0, 0]),
        ({"temperature": 0.5}, [0.25 / 0.365, 0.09 / 0.365, 0.0225 / 0.365, 0.0025 / 0.365]),
        ({"temperature": 1.0, "top_k": 2}, [0.625, 0.375, 0, 0]),
        ({"temperature": 1.0, "top_k": 9}, [0.5, 0.3, 0.15, 0.05]),
        ({"temperature": 1.0, "top_p": 0.5}, [1.0, 0, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.51}, [0.625, 0.375, 0, 0]),
        ({"temperature": 1.0, "top_p": 1e-6}, [1.0, 0, 0, 0]),
    ],
)
def test_filter_logits_by_hand(settings, expected):
    order = torch.tensor([2, 0, 3, 1])
    close(filter_logits(SHARES.log()[:, order] + 7, SampleConfig(**settings)), torch.tensor([expected])[:, order])


class Chain:
    """Language model whose logits depend on the last token alone; the state counts tokens."""

    def __init__(self, table: Tensor):
        self.table, self.longest = table.log(), 0

    def start(self, source: None = None, *, rows: int = 1) -> int:
        return 0

    def step(self, tokens: Tensor, state: int) -> tuple[Tensor, int]:
        self.longest = max(self.longest, state + 1)
        return self.table[tokens].clone(), state + 1


def test_draws_follow_the_probabilities_and_repeat_for_a_seed():
    chain = Chain(torch.tensor([[0.0, 1, 0], [0.2, 0, 0.8], [1.0, 0, 0]]))
    config = SampleConfig(length=6000, temperature=1.0)
    tokens = list(sample(chain, [0], config, window=None, seed=1, banned=[]))
    pairs = Counter(pairwise(tokens))
    assert pairs[0, 1] + pairs[1, 0] + pairs[1, 2] + pairs[2, 0] == len(tokens) - 1
    assert pairs[1, 2] / (pairs[1, 0] + pairs[1, 2]) == pytest.approx(0.8, abs=0.03)
    assert tokens == list(sample(chain, [0], config, window=None, seed=1, banned=[]))
    assert tokens != list(sample(chain, [0], config, window=None, seed=2, banned=[]))


def test_banned_tokens_are_never_drawn_and_the_window_is_never_exceeded():
    chain = Chain(torch.full((4, 4), 0.25))
    tokens = list(sample(chain, [1] * 9, SampleConfig(length=50), window=5, seed=1, banned=[0, 3]))
    assert set(tokens) == {1, 2}
    assert chain.longest == 5
    with pytest.raises(ValueError, match="prompt must hold at least one token, got none"):
        list(sample(chain, [], SampleConfig(), window=None, seed=1, banned=[]))


@pytest.mark.parametrize(
    ("name", "value"),
    [("length", 0), ("temperature", -1.0), ("temperature", float("inf")), ("top_k", 0), ("top_p", 0.0)],
)
def test_settings_out_of_range_are_named(name, value):
    with pytest.raises(ValueError, match=f"^{name} must"):
        SampleConfig(**{name: value})
