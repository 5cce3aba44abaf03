"""Alignments: attention weights between target and source tokens, the input of regard.look.plot.

    weights[h, t, s]    weight of source token s in head h, in the step that predicts target token t

Source: bahdanau2015, figure 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Alignment:
    """Attention weights of one layer between target and source tokens, with the labels of both.

    Raises: ValueError if sizes do not match, or a weight is not finite.
    """

    source: Sequence[str]
    """Label of each source token."""
    target: Sequence[str]
    """Label of each target token."""
    weights: Float[Tensor, "head target source"]
    """Each row sums to one."""
    layer: str = ""
    """Name of the layer; empty if there is only one."""
    head_names: Sequence[str] = ()
    """Name of each head; default: "head 1", "head 2", ..."""
    title: str = ""
    """Title of the figure."""

    def __post_init__(self) -> None:
        if not self.head_names:
            names = tuple(f"head {number}" for number in range(1, self.weights.shape[0] + 1))
            object.__setattr__(self, "head_names", names)
        expected = len(self.head_names), len(self.target), len(self.source)
        if tuple(self.weights.shape) != expected:
            raise ValueError(
                f"weights must have the shape (head names, target labels, source labels) = {expected}, "
                f"got {tuple(self.weights.shape)}"
            )
        if 0 in expected:
            raise ValueError(f"weights must have at least one head, target and source token, got sizes {expected}")
        if not bool(self.weights.isfinite().all()):
            raise ValueError("weights must be finite, got NaN or infinity from the model")

    def mean(self) -> Float[Tensor, "target source"]:
        """Return the weights averaged over the heads."""
        return self.weights.mean(0)
