"""Scores, choices and positional encodings of cores from the names in configs (regard.models.config)."""

import importlib
from collections.abc import Mapping

import torch

from regard.attention.choices import Choice, Soft
from regard.attention.scores.base import Score, ScoreSizes
from regard.layers.positions.base import PositionalEncoding, PositionSizes
from regard.models.config import PositionsConfig


def create_score(field: str, name: str, table: Mapping[str, str], sizes: ScoreSizes) -> Score:
    """Create the score that a field of a config names, for vectors of these sizes.

    table:  `SCORES` or `STATE_SCORES`: "module:Class" by name.
    Raises: ValueError naming the field if the name is not in the table.
    """
    if name not in table:
        raise ValueError(f"{field} must be one of {', '.join(table)}, got {name!r}")
    module, kind = table[name].split(":")
    return getattr(importlib.import_module(module), kind).create(sizes)


def create_positions(config: PositionsConfig, sizes: PositionSizes) -> PositionalEncoding:
    """Create the positional encoding of a config for items, heads and queries of these sizes."""
    module, kind = config.kind.split(":")
    return getattr(importlib.import_module(module), kind).create(config, sizes)


def create_choice(score: Score, num_heads: int | None = None) -> Choice | None:
    """Return a softmax with the factor that the score learns, one for each head; None: the plain softmax."""
    factor = score.initial_factor
    if factor is None:
        return None
    return Soft(factor if num_heads is None else torch.full((num_heads, 1, 1), factor), learn=True)
