"""What a search drives: a source is read once into a state, and each step turns one token a row into logits.

    state = start(source)        logits, state = step(tokens, state)

A search has no other view of a model, so a recurrent core, a Transformer with its growing memory and a table
of probabilities are all searched by the same code. Rows are sentences in `greedy`, and in `beam` they are
hypotheses, sentence by sentence.
"""

from collections.abc import Sequence
from typing import Protocol, Self, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.masks import Padded
from regard.telling import Scored

_ALTERNATIVES = 8


@runtime_checkable
class State(Protocol):
    """What a stepper remembers of each row between steps. It is an argument and a result."""

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        """The state of rows `index`: any rows, in any number and order, source memory included."""
        ...

    def reorder(self, index: Int[Tensor, " rows"]) -> Self:
        """As `select`, where each new row has the sentence of the old one: the source memory may stay."""
        ...


StateT = TypeVar("StateT", bound=State)


@runtime_checkable
class Stepper(Protocol[StateT]):
    """Starts from a source and continues it by a token a step, as every model of this library does."""

    def start(self, source: Padded) -> StateT:
        """The state before the first token: one row a sentence of the source."""
        ...

    def step(self, tokens: Int[Tensor, " rows"], state: StateT) -> tuple[Float[Tensor, "rows vocab"], StateT]:
        """Logits of the token that follows `tokens` (BOS at the first step), and the state after them."""
        ...


def scored(log_probs: Float[Tensor, "rows vocab"], least: int = 1) -> Scored:
    """The likeliest few tokens of each row, at least so many, for whoever looks on."""
    values, tokens = log_probs.topk(min(max(_ALTERNATIVES, least), log_probs.shape[-1]), dim=-1)
    return Scored(tokens.tolist(), values.tolist())


def score(
    stepper: Stepper[StateT], source: Padded, *, targets: Sequence[Sequence[int]], bos: int
) -> Float[Tensor, " batch"]:
    """Log-probability of given targets, by the same steps that a search takes.

        log p(y | x) = sum_t log softmax(logits_t)[y_t]        logits_t follow BOS, y_1, ..., y_{t-1}

    A target is exactly what has to be produced: EOS counts where the target holds it, BOS is not part of it.
    Softmax in float32. An empty target scores 0.

    Raises: ValueError if there are not as many targets as sentences.
    """
    count = len(source.lengths)
    if len(targets) != count:
        raise ValueError(f"targets must be one a sentence of the source ({count}), got {len(targets)}")
    device = source.items.device
    total = torch.zeros(count, dtype=torch.float32, device=device)
    if not count:
        return total
    longest = max(map(len, targets))
    filled = [[*target, *[bos] * (longest - len(target))] for target in targets]
    wanted = torch.tensor(filled, dtype=torch.int64, device=device)  # (batch, time)
    lengths = torch.tensor([len(target) for target in targets], device=device)
    tokens = torch.full((count,), bos, dtype=torch.int64, device=device)
    state = stepper.start(source)
    for time in range(longest):
        logits, state = stepper.step(tokens, state)
        tokens = wanted[:, time]
        log_probs = logits.log_softmax(-1, dtype=torch.float32).gather(1, tokens[:, None])[:, 0]
        total = total + torch.where(time < lengths, log_probs, 0.0)
    return total
