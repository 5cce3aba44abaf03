"""Softmax of each row; of many short rows on a CPU by compiled loops.

p = exp(s - max s) / sum exp(s - max s)
"""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.ops.dispatch import native

MIN_COMPILED = 1 << 14
"""Number of elements from which a compiled softmax is faster, call overhead included."""


def softmax(scores: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """Return the softmax of each row; scores of minus infinity have weight exactly 0."""
    if not torch.compiler.is_compiling() and scores.numel() >= MIN_COMPILED:
        implementation = native("softmax", scores)
        if implementation is not None:
            return implementation.run(scores)
    return scores.softmax(-1)
