"""Sampling: temperature, top-k and top-p filters by hand; frequencies, reproducibility."""

import itertools
import random
from collections import Counter
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from transformers.generation import logits_process as hf

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
        ({"temperature": 1.0, "min_p": 0.3}, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        ({"temperature": 1.0, "min_p": 0.31}, [0.625, 0.375, 0, 0]),
        ({"temperature": 1.0, "min_p": 0.2, "top_k": 2}, [0.625, 0.375, 0, 0]),
        ({"temperature": 0.5, "min_p": 0.2}, [0.25 / 0.34, 0.09 / 0.34, 0, 0]),
    ],
)
def test_filter_logits_by_hand(settings, expected):
    order = torch.tensor([2, 0, 3, 1])
    close(
        filter_logits(SHARES.log()[:, order] + 7, SampleConfig(**settings)),
        torch.tensor([expected])[:, order],
    )


def test_filters_equal_those_of_transformers():
    logits = 3 * torch.randn(40, 30)
    config = SampleConfig(temperature=0.7, top_k=20, top_p=0.95, min_p=0.1)
    expected = logits
    for warper in (
        hf.TemperatureLogitsWarper(0.7),
        hf.TopKLogitsWarper(20),
        hf.TopPLogitsWarper(0.95),
        hf.MinPLogitsWarper(0.1),
    ):
        expected = warper(torch.empty(0), expected)
    close(filter_logits(logits, config), expected.softmax(-1))


@pytest.mark.parametrize("seed", range(20))
def test_top_p_that_is_reached_exactly_keeps_no_more_tokens(seed):
    """Shares of hundredths, of which the first sum to exactly p, or to a little less."""
    draw = random.Random(seed)
    for _ in range(50):
        cuts = sorted(draw.sample(range(1, 100), draw.randint(1, 12)))
        shares = [end - start for start, end in pairwise([0, *cuts, 100])]
        ordered = sorted(shares, reverse=True)
        totals = list(itertools.accumulate(ordered))
        count = draw.randint(1, len(shares) - 1)
        for more in (0, 1):
            top_p = totals[count - 1] / 100 + more * 1e-5
            config = SampleConfig(temperature=1.0, top_p=top_p)
            kept = filter_logits(torch.tensor([shares]).float().log(), config) > 0
            assert int(kept.sum()) == count + more


class Chain:
    """Language model whose logits depend on the last token alone; the state counts tokens."""

    def slide(self, state: int, window: int) -> int:
        return state

    def __init__(self, table: Tensor):
        self.table, self.longest = table.log(), 0

    def start(self, source: None = None, *, rows: int = 1) -> int:
        return 0

    def steps(self, tokens: Tensor, state: int) -> tuple[Tensor, int]:
        state += tokens.shape[1]
        self.longest = max(self.longest, state)
        return self.table[tokens[:, -1]].clone(), state


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


class Recorder:
    """Language model that adds 1 to the last token, and records the tokens it predicts from.

    The state is the tokens that were read and are kept, and the most that are kept.
    """

    def __init__(self) -> None:
        self.contexts: list[list[int]] = []

    def predict(self, tokens: list[int]) -> Tensor:
        self.contexts.append(tokens)
        return torch.nn.functional.one_hot(torch.tensor([tokens[-1] + 1]), 99).float()

    def start(self, source: None = None, *, rows: int = 1) -> tuple[list[int], int]:
        return [], 99

    def steps(
        self, tokens: Tensor, state: tuple[list[int], int]
    ) -> tuple[Tensor, tuple[list[int], int]]:
        kept = [*state[0], *tokens[0].tolist()][-state[1] :]
        return self.predict(kept), (kept, state[1])

    def slide(self, state: tuple[list[int], int], window: int) -> tuple[list[int], int]:
        return state[0], window


@pytest.mark.parametrize("first", [1, 4, 7])
@pytest.mark.parametrize("context", ["restart", "slide", "last"])
def test_each_token_is_predicted_from_the_context_of_the_mode(context, first):
    window, length, model = 4, 9, Recorder()
    config = SampleConfig(length=length, temperature=0, context=context)
    predicted, tokens = [], []
    for token in sample(model, list(range(first)), config, window=window, seed=1, banned=[]):
        predicted.append(model.contexts[-1])
        tokens.append(token)
    assert tokens == list(range(first, first + length))
    begin = max(0, first - window)
    # The text before token n is 0 .. n - 1.
    for end, context_read in zip(tokens, predicted, strict=True):
        if context != "restart":
            begin = max(0, end - window)
        elif end - begin > window:
            begin = end - window // 2
        assert context_read == list(range(begin, end))
    assert max(map(len, model.contexts)) == window


@pytest.mark.parametrize("context", ["restart", "slide", "last"])
def test_without_a_window_all_tokens_are_read(context):
    model, config = Recorder(), SampleConfig(length=3, temperature=0, context=context)
    list(sample(model, [5, 6], config, window=None, seed=1, banned=[]))
    assert model.contexts[-1] == [5, 6, 7, 8]
