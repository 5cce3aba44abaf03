"""Reads in half precision: scores are in float32, as a rounded score changes its weight by a factor."""

import torch

from regard.attention.axes import widen
from regard.attention.inputs import AttentionInputs


def half_dtype(inputs: AttentionInputs) -> torch.dtype | None:
    """Return the half-precision dtype of the products of a read, that of autocast included; None if there is none."""
    query = inputs.query
    dtype = query.dtype
    if dtype != torch.float64 and torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
    return dtype if dtype in (torch.bfloat16, torch.float16) else None


def with_wide_scores(inputs: AttentionInputs) -> AttentionInputs:
    """Return the inputs with queries (mapped and raw) and keys in float32, so that scores are in float32 too."""
    return inputs._replace(
        query=widen(inputs.query), keys=widen(inputs.keys), raw_query=widen(inputs.raw_query), kernel_cache=None
    )
