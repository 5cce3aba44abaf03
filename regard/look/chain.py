"""Chains: attention of a recurrent layer over its own past states.

    weights[t, i]    weight of the state after token i, in the read at token t

Row t has weights up to t-1 for cells that read before they compute a state (LSTM-Network), up to t for those that read
with the new state (RNN with self-attention). A row without a read is zero: the first token has no past.

Source: cheng2016, figure 1; lectures, B (self-attention).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Chain:
    """Attention of one layer over its past in one direction: labels in the order of reading, and weights.

    Raises: ValueError if sizes do not match, a weight is not finite, or a weight of a later token is not zero.
    """

    labels: Sequence[str]
    """Label of each token."""
    weights: Float[Tensor, "step word"]
    """Rows sum to one, or are zero."""
    layer: int = 1
    """Number of the layer, from 1."""
    direction: str = ""
    """Direction of reading, "from the start" or "from the end"; empty if the model has only one."""
    title: str = ""
    """Title of the figure."""

    def __post_init__(self) -> None:
        expected = len(self.labels), len(self.labels)
        if tuple(self.weights.shape) != expected:
            raise ValueError(
                f"weights must have the shape (labels, labels) = {expected}, got {tuple(self.weights.shape)}"
            )
        if not bool(self.weights.isfinite().all()):
            raise ValueError("weights must be finite, got NaN or infinity from the model")
        if bool(self.weights.triu(1).any()):
            raise ValueError("weights must be zero for later tokens, got nonzero weights")
