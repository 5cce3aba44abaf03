"""Chains: what a recurrent layer read of its own past, word after word.

    weights[t, i]    of the state after word i, in the read at word t

Row t has numbers up to t-1 for cells that read before they make a state (LSTM-Network), up to t for those that read
with the state they have made (RNN with self-attention). A row is zero where nothing was read: at the first word.

Source: cheng2016, figure 1; lectures, B (self-attention).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Chain:
    """One layer's reads of its past in one direction: labels in the order of reading, and weights.

    Raises: ValueError if sizes do not match, a weight is not finite, or one lies in the future.
    """

    labels: Sequence[str]
    """A label for each word."""
    weights: Float[Tensor, "step word"]
    """Rows sum to one, or are zero."""
    layer: int = 1
    """Number of the layer, from 1."""
    direction: str = ""
    """From which end the words were read, if the model reads from both or could."""
    title: str = ""
    """What the picture shows, in words."""

    def __post_init__(self) -> None:
        expected = len(self.labels), len(self.labels)
        if tuple(self.weights.shape) != expected:
            raise ValueError(f"weights must be (labels, labels) = {expected}, but are {tuple(self.weights.shape)}")
        if not bool(self.weights.isfinite().all()):
            raise ValueError("weights must be finite, but some are not: the model computes NaN or infinity")
        if bool(self.weights.triu(1).any()):
            raise ValueError("weights must be zero for words that come later, but some are not")
