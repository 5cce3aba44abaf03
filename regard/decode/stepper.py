"""Interface of decoding: `start` encodes the source, `step` maps tokens to next-token logits.

    state = start(source)        logits, state = step(tokens, state)

A source is padded token ids, or a tensor with a row for each input, such as images.

Searches use a model through this interface only, so recurrent models, Transformers with a key-value
cache and tables of probabilities share the same code. Rows are sentences in `greedy`; in `beam`
they are hypotheses, sentence by sentence.
"""

from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.masks import Padded
from regard.trace import Trace

_ALTERNATIVES = 8

Source = Padded | Tensor
"""Input of a batch: padded token ids, or a tensor with a row for each input."""


@runtime_checkable
class DecoderState(Protocol):
    """State of a model between two steps, one entry per row; immutable."""

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        """Return rows `index`, any number in any order, including their source memory."""

    def reorder(self, index: Int[Tensor, " rows"]) -> Self:
        """Return rows `index` of the same sentences: the source memory may stay."""


StateT = TypeVar("StateT", bound=DecoderState)


@runtime_checkable
class Stepper(Protocol[StateT]):
    """Interface of a model that generates one token per row and step, given a source."""

    def start(self, source: Any) -> StateT:
        """Return the state before the first token, with one row per sentence of the source."""

    def step(
        self, tokens: Int[Tensor, " rows"], state: StateT
    ) -> tuple[Float[Tensor, "rows vocab"], StateT]:
        """Return the logits of the token that follows `tokens`, and the new state."""


def size_of(source: Source) -> int:
    """Return the number of rows of a source."""
    return len(source) if isinstance(source, Tensor) else len(source.lengths)


def device_of_source(source: Source) -> torch.device:
    """Return the device of a source."""
    return source.device if isinstance(source, Tensor) else source.items.device


def trace_likely(
    trace: Trace | None, log_probs: Float[Tensor, "rows vocab"], least: int = 1
) -> None:
    """Add the most likely tokens of each row, at least `least`, to a trace, if there is one."""
    if trace is not None:
        values, tokens = log_probs.topk(min(max(_ALTERNATIVES, least), log_probs.shape[-1]), dim=-1)
        trace.add_likely_tokens(tokens.tolist(), values.tolist())
