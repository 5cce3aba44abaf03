"""Alignments: which source items a model read when it said each target token.

    weights[h, t, s]    of source item s, in the read by head h, in the step that predicts target token t

This is what a picture of them takes (regard.look.plot).

Source: bahdanau2015, figure 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Alignment:
    """What a picture of target x source needs: tokens of both sides, and one layer's weights between them.

    Raises: ValueError if sizes do not match, or a weight is not finite.
    """

    source: Sequence[str]
    """A label for each item that was read."""
    target: Sequence[str]
    """A label for each token that was said."""
    weights: Float[Tensor, "head target source"]
    """Each row sums to one."""
    layer: str = ""
    """Which layer's reads these are; empty when there is but one."""
    head_names: Sequence[str] = ()
    """A name for each head; "head 1" and so on if not given."""
    title: str = ""
    """What the picture shows, in words."""

    def __post_init__(self) -> None:
        if not self.head_names:
            names = tuple(f"head {number}" for number in range(1, self.weights.shape[0] + 1))
            object.__setattr__(self, "head_names", names)
        expected = len(self.head_names), len(self.target), len(self.source)
        if tuple(self.weights.shape) != expected:
            raise ValueError(
                f"weights must be (head names, target labels, source labels) = {expected}, "
                f"but are {tuple(self.weights.shape)}"
            )
        if 0 in expected:
            raise ValueError(f"an alignment needs heads, target and source, but has sizes {expected}")
        if not bool(self.weights.isfinite().all()):
            raise ValueError("weights must be finite, but some are not: the model computes NaN or infinity")

    def mean(self) -> Float[Tensor, "target source"]:
        """The weights averaged over the heads."""
        return self.weights.mean(0)
