"""How many bytes of weights are read while a model runs, and how many steps of a search it takes.

    share of the memory's limit = bytes of weights read / seconds / bandwidth

At batch 1 each weight is read for one multiplication and one addition, so decoding cannot be faster than reading its
weights once a step. Of an embedding only the rows asked for count. What runs outside torch's operators is not seen.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_LOOK_UPS = ("aten::embedding", "aten::index_select", "aten::index.Tensor", "aten::gather")


class WeightReads(TorchDispatchMode):
    """Counts the bytes of a model's weights that operators take; views of weights read nothing."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.bytes = 0
        self._weights = {value.untyped_storage().data_ptr() for value in model.parameters() if value.numel()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, and count."""
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            given = [one for one in tree_leaves((args, kwargs or {})) if isinstance(one, Tensor)]
            read = [one for one in given if one.numel() and one.untyped_storage().data_ptr() in self._weights]
            is_look_up = func.name().startswith(_LOOK_UPS)
            self.bytes += sum(out.nbytes if is_look_up else _extent(one) for one in read)
        return out


def _extent(tensor: Tensor) -> int:
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())


def bandwidth_share(bytes_read: float, seconds: float, gb_per_second: float) -> float:
    """Per cent of the bandwidth that reading so many bytes in this time takes."""
    return 100 * bytes_read / seconds / (gb_per_second * 1e9)


@dataclass
class Steps:
    """What a model was asked for, token after token."""

    count: int = 0
    """Calls, each of which reads the weights once."""
    rows: int = 0
    """Rows of all calls: a token for each sentence, hypothesis of a beam, or text."""


@contextmanager
def counted_steps(model: nn.Module) -> Iterator[Steps]:
    """Count the calls of the model's `step`; none, if it has no such method."""
    steps, step = Steps(), getattr(model, "step", None)
    if step is None:
        yield steps
        return

    def counting(tokens: Tensor, *rest: Any, **named: Any) -> Any:
        steps.count += 1
        steps.rows += len(tokens)
        return step(tokens, *rest, **named)

    model.step = counting  # pyrefly: ignore[bad-argument-type]
    try:
        with torch.no_grad():
            yield steps
    finally:
        del model.step
