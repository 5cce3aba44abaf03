"""Bytes of parameters that are read while a model runs, and the number of decoding steps.

    share of the memory bandwidth = bytes of parameters read / seconds / bandwidth

At batch size 1 each parameter is read for one multiplication and one addition, so a decoding step cannot be faster than
reading all parameters once. Of an embedding only the rows looked up count. Code outside torch operators is not counted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.compat.torch import TorchDispatchMode, tree_leaves

_LOOK_UPS = ("aten::embedding", "aten::index_select", "aten::index.Tensor", "aten::gather")


class WeightReads(TorchDispatchMode):
    """Counter of the bytes of a model's parameters that operators read; views read nothing."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.bytes = 0
        self._weights = {value.untyped_storage().data_ptr() for value in model.parameters() if value.numel()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and count."""
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = [leaf for leaf in tree_leaves((args, kwargs or {})) if isinstance(leaf, Tensor)]
            read = [item for item in tensors if item.numel() and item.untyped_storage().data_ptr() in self._weights]
            is_look_up = func.name().startswith(_LOOK_UPS)
            self.bytes += sum(out.nbytes if is_look_up else _extent(weight) for weight in read)
        return out


def bandwidth_share(bytes_read: float, seconds: float, gb_per_second: float) -> float:
    """Return the percentage of the bandwidth that is used by reading these bytes in this time."""
    return 100 * bytes_read / seconds / (gb_per_second * 1e9)


@dataclass
class Steps:
    """Number of decoding steps of a model."""

    count: int = 0
    """Number of calls; each reads all parameters once."""
    rows: int = 0
    """Number of rows in all calls: one token for each sentence, hypothesis of a beam, or text."""


@contextmanager
def count_steps(model: nn.Module) -> Iterator[Steps]:
    """Count the calls of the model's `step` method; zero if it has none."""
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


def _extent(tensor: Tensor) -> int:
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())
