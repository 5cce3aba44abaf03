"""Draw outputs of a known length, many rows at once, guided toward what their sources say.

    log p = log p(u | nothing) + g (log p(u | source) - log p(u | nothing))        g = 1: the model as it is

The model must have seen sources left out in training, so that it knows what to expect of nothing. Each row is drawn by
numbers of its own, so it does not depend on what else is in its batch, beyond the rounding of the model.

Source: ho2022, equation 6 (guidance without a classifier); for tokens of images gafni2022, section 3.5.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.masks import Padded
from regard.decode.config import DrawingConfig
from regard.decode.sample import narrowed
from regard.decode.stepper import StateT, Stepper, scored
from regard.telling import Answer, Answered, Step, tell


class Drawn(NamedTuple):
    """What was drawn, and how likely it was."""

    tokens: Int[Tensor, "rows length"]
    log_prob: Float[Tensor, " rows"]
    """Mean log-probability a token under the model as it is, with the source."""


@torch.no_grad()
def guided(
    stepper: Stepper[StateT],
    source: Padded,
    *,
    nothing: Sequence[int],
    length: int,
    config: DrawingConfig,
    bos: int,
    banned: Sequence[int],
    seeds: Sequence[int],
) -> Drawn:
    """`length` tokens for each row of the source.

    nothing: the ids of a source that says nothing.
    banned:  ids that are never drawn.
    seeds:   one a row: the same seed, source and settings give the same output.
    Raises:  ValueError if there is not a seed for each row.
    """
    rows = len(source.lengths)
    if len(seeds) != rows:
        raise ValueError(f"seeds must be one for each of {rows} rows, got {len(seeds)}")
    device, is_guided = source.items.device, config.guidance != 1
    draws = [torch.rand(length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in seeds]
    numbers = (
        torch.stack(draws, 1).to(device) if draws else torch.empty(length, 0, dtype=torch.float32)
    )  # (length, rows)
    state = stepper.start(_with_nothing(source, nothing) if is_guided else source)
    tokens = torch.full((rows,), bos, dtype=torch.int64, device=device)
    found, likely = [], []
    for number in numbers:
        tell(lambda: Step(range(rows)))  # those that read nothing come behind them
        logits, state = stepper.step(tokens.repeat(2) if is_guided else tokens, state)
        logits[:, list(banned)] = -math.inf
        log_p = logits.log_softmax(-1, dtype=torch.float32)
        plain = log_p[:rows]
        tell(lambda plain=plain: scored(plain))
        if is_guided:
            without = log_p[rows:]
            log_p = torch.where(plain.isfinite(), without + config.guidance * (plain - without), plain)
        tokens = chosen(narrowed(log_p, config.choosing), number)
        likely.append(plain.gather(1, tokens[:, None])[:, 0])
        found.append(tokens)
    drawn = torch.stack(found, 1)
    tell(lambda: Answered(_answers(drawn, torch.stack(likely, 1))))
    return Drawn(drawn, torch.stack(likely, 1).mean(1))


def _answers(tokens: Tensor, log_probs: Tensor) -> list[list[Answer]]:
    rows = zip(tokens.tolist(), log_probs.tolist(), strict=True)
    return [[Answer(said, [i] * len(said), likely)] for i, (said, likely) in enumerate(rows)]


def chosen(shares: Float[Tensor, "rows vocab"], number: Float[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    """The token of each row in whose stretch of the cumulated shares its number within [0, 1) falls."""
    heaped = shares.double().cumsum(-1)
    return torch.searchsorted(heaped, (number * heaped[:, -1])[:, None], right=True)[:, 0]


def _with_nothing(source: Padded, nothing: Sequence[int]) -> Padded:
    """The rows, and as many that say nothing below them."""
    rows, width = source.items.shape
    empty = source.items.new_zeros(rows, width)
    empty[:, : len(nothing)] = torch.tensor(list(nothing), device=source.items.device)
    lengths = torch.full_like(source.lengths, len(nothing))
    return Padded(torch.cat((source.items, empty)), torch.cat((source.lengths, lengths)))
