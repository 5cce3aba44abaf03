"""Chains: what a recurrent layer read of its own past, word after word.

    weights[t, i]    of the state after word i, in the read at word t

Row t has numbers up to t-1 for cells that read before they make a state (LSTM-Network), up to t for those that read
with the state they have made (RNN with self-attention). A row is zero where nothing was read: at the first word.

Source: cheng2016, figure 1; lectures, B (self-attention).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import UserError
from regard.layers.read import Read
from regard.look.listen import listen as record

__all__ = ["Chain", "chains", "reads_its_past"]

_OWN_READ = re.compile(r"(?:^|\.)core\.(?:cells|encoder\.(forwards|backwards))\.(\d+)\.read$")
"""The reads in which layers of a self-attentive core ask their own past."""
_DIRECTIONS = {"forwards": "from the start", "backwards": "from the end", None: ""}


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


def reads_its_past(model: nn.Module) -> bool:
    """Whether the layers of a model's core read their own past."""
    return any(isinstance(part, Read) and _OWN_READ.search(name) for name, part in model.named_modules())


def chains(model: nn.Module, run: Callable[[], object], labels: Sequence[str], *, title: str = "") -> list[Chain]:
    """The reads of the past in every layer and direction while `run()` leads the model through one text, once.

    model:   as in evaluation.
    labels:  one for each item that the core takes in.
    Raises:  UserError if no layer reads its past, or the text is one item long; ValueError if labels do not match.
    """
    if not reads_its_past(model):
        raise UserError(
            "the layers of this model do not read their own past, so that there is no chain to look at: "
            "those of a self-attentive core do (--model.core self-attentive)"
        )
    if len(labels) < 2:
        raise UserError(f"a chain needs two pieces of text at least, but there is {len(labels)}")
    with torch.no_grad(), record(model, only=lambda name: bool(_OWN_READ.search(name))) as maps:
        run()
    found = []
    for name in maps.names:
        direction, number = _parts(name)
        weights = _square(maps.steps(name)[0], len(labels))
        shown = labels[::-1] if direction == "backwards" else labels
        found.append(
            Chain(
                labels=tuple(shown),
                weights=weights,
                layer=int(number) + 1,
                direction=_DIRECTIONS[direction],
                title=title,
            )
        )
    return found


def _parts(name: str) -> tuple[str | None, str]:
    found = _OWN_READ.search(name)
    assert found is not None
    return found[1], found[2]


def _square(weights: Float[Tensor, "call key"], size: int) -> Float[Tensor, "step word"]:
    """With rows of zeros for the first steps, which read nothing, and columns for the last words, which nobody read."""
    calls, keys = weights.shape
    if calls > size or keys > size:
        raise ValueError(f"there are {size} labels, but {calls} reads of up to {keys} states")
    return nn.functional.pad(weights, (0, size - keys, size - calls, 0))
