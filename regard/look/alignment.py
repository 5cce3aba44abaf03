"""Alignments: which source items a model read when it said each target token.

    weights[h, t, s]    of source item s, in the read by head h, in the step that predicts target token t

A model is led through a target step by step while its reads of the source are recorded: those of each
decoder block of a Transformer, the one read of a recurrent decoder.

Source: bahdanau2015, figure 3.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.errors import UserError
from regard.layers.read import Read
from regard.look.listen import listen as record
from regard.look.recording import Recording
from regard.models.model import Model

__all__ = ["Alignment", "align"]

_SOURCE_READ = re.compile(r"(?:^|\.)core\.(?:decoder\.\d+\.cross\.)?read$")
"""The reads that ask the source: each decoder block's cross-attention, or the recurrent decoder's read."""


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


def align(
    model: Model,
    source: Padded,
    *,
    target: Sequence[int],
    bos: int,
    source_labels: Sequence[str],
    target_labels: Sequence[str],
    title: str = "",
) -> list[Alignment]:
    """Lead `model` through `target` step by step; one Alignment for each layer that reads the source.

    Row t holds the weights of the step that predicts target[t]: it is fed target[t-1], or `bos` first. What a
    model reads before its first step (a recurrent decoder's first context) has no row.

    model:   runs as in evaluation, without dropout and gradient, and is left as it was.
    source:  one row, as the model reads it (its end symbol included if the model was trained so).
    target:  ids that the model said, or should say, without `bos`; the end symbol may be the last of them.
    labels:  one for each item of source and target.
    Raises:  UserError if the model has no attention to its source; ValueError if sizes do not match.
    """
    _check_sizes(source, target, source_labels, target_labels)
    if not any(isinstance(part, Read) and _SOURCE_READ.search(name) for name, part in model.named_modules()):
        raise UserError(
            "this model has no attention to its source (its decoder is handed the final state only): "
            "there is no alignment to look at"
        )
    maps = _led_through(model, source, [bos, *target[:-1]])
    names, num_items = maps.names, len(source_labels)
    alignments = []
    for number, name in enumerate(names, start=1):
        weights = maps.steps(name)[0, ..., :num_items]  # ([head,] target, source)
        alignments.append(
            Alignment(
                source=tuple(source_labels),
                target=tuple(target_labels),
                weights=weights if weights.dim() == 3 else weights.unsqueeze(0),
                layer=f"layer {number}" if len(names) > 1 else "",
                title=title,
            )
        )
    return alignments


def _led_through(model: Model, source: Padded, tokens: Sequence[int]) -> Recording:
    """The source reads of each step, one step for each token."""
    inputs = torch.tensor(tokens, dtype=torch.int64, device=source.items.device)
    with torch.no_grad(), _evaluating(model):
        state = model.start(source)
        # From here on, not earlier: the first step predicts the first token.
        with record(model, only=lambda name: bool(_SOURCE_READ.search(name))) as maps:
            for token in inputs.split(1):
                _, state = model.step(token, state)
    return maps


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _check_sizes(
    source: Padded, target: Sequence[int], source_labels: Sequence[str], target_labels: Sequence[str]
) -> None:
    if len(source.lengths) != 1:
        raise ValueError(f"source must be one row, but has {len(source.lengths)}")
    if not target:
        raise ValueError("target must have a token at least, but is empty")
    sizes = ("source", len(source_labels), int(source.lengths)), ("target", len(target_labels), len(target))
    for name, num_labels, size in sizes:
        if num_labels != size:
            raise ValueError(f"{name}_labels must be {size}, one an item of {name}, but are {num_labels}")
