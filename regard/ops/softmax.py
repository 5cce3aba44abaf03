"""Softmax of each row; of many short rows on a CPU by compiled loops, as torch does not vectorize
those.

    p = exp(s - max s) / sum exp(s - max s)

Other softmaxes are torch's own.
"""

from jaxtyping import Float
from torch import Tensor

from regard.ops.dispatch import native


def softmax(scores: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """Return the softmax of each row; scores of minus infinity have weight exactly 0."""
    implementation = native("softmax", scores)
    return scores.softmax(-1) if implementation is None else implementation.run(scores)
