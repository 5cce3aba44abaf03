"""Sees that a model has changed since it was lowered, at a small part of the time that a sentence takes.

Looked at, in one to four tenths of a millisecond: the class of every module; its hooks, parts, settings and tensors,
by identity; the version that torch counts for each tensor, and where it lies; the functions of the classes. What is
written past torch's count, through `tensor.data` or an array of numpy that shares the memory, is seen where it changes
the first, the middle or the last number of a tensor: an update of all of them does, one of a single number may not.
Parts and tensors that are added without replacing one are not looked for: no class that is known uses them.
"""

import ctypes
from collections.abc import Iterable
from operator import attrgetter, getitem, is_
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from regard.engines.lowering import GLOBAL_HOOKS, HOOKS, ORIGINALS
from regard.layers.dropout import Dropout

__all__ = ["Samples", "Watch"]

_OF_TORCH = frozenset(vars(nn.Module()))
"""What torch gives every module, watched otherwise or without effect on what a module computes."""
_version = attrgetter("_version")


class Watch:
    """A model as it is when this is made."""

    def __init__(self, model: nn.Module):
        modules = list(model.modules())
        self._modules = modules
        self._kinds = list(map(type, modules))
        self._own = list(map(vars, modules))
        self._length = sum(map(len, self._own))
        self._hooks = [getattr(module, name) for module in modules for name in HOOKS]
        self._handles = RemovableHandle.next_id
        tables = [*self._own, *(table for module in modules for table in (module._parameters, module._buffers))]
        tables += [module._modules for module in modules]
        entries = [(table, name) for table in tables for name in table if name not in _OF_TORCH]
        entries += [(vars(module), "training") for module in modules if type(module) is Dropout]
        self._owners, self._names = [table for table, _ in entries], [name for _, name in entries]
        self._values = [table[name] for table, name in entries]
        self._tensors = [value for value in self._values if _is_counted(value)]
        self._versions, self._places = list(map(_version, self._tensors)), list(map(Tensor.data_ptr, self._tensors))
        self._samples = Samples(self._tensors)
        self._numbers = self._samples.read()

    def is_current(self) -> bool:
        """Whether the model is as it was."""
        try:
            now: Iterable[Any] = map(getitem, self._owners, self._names)
            return (
                all(map(is_, now, self._values))
                and list(map(_version, self._tensors)) == self._versions
                and list(map(Tensor.data_ptr, self._tensors)) == self._places
                and self._samples.read() == self._numbers
                and list(map(type, self._modules)) == self._kinds
                and sum(map(len, self._own)) == self._length
                and self.is_written_so()
            )
        except KeyError:  # something is gone
            return False

    def is_written_so(self) -> bool:
        """Whether no class was changed, and no hook was added: what can be done without having the model."""
        return self._has_no_hooks() and ORIGINALS.changed() is None

    def _has_no_hooks(self) -> bool:
        # Each hook is given a number, wherever it is registered: they are looked for when one was given since.
        if self._handles != RemovableHandle.next_id:
            if any(self._hooks) or any(GLOBAL_HOOKS):
                return False
            self._handles = RemovableHandle.next_id
        return True


class Samples:
    """The first, the middle and the last number of each tensor that lies in memory as plain float32."""

    def __init__(self, tensors: Iterable[Tensor]):
        self._held = [one.detach() for one in tensors if _is_plain(one)]  # or the memory might be another's by then
        places = [one.data_ptr() + 4 * at for one in self._held for at in _some(one)]
        self._numbers, self._at = np.zeros(0, np.uint32), (np.array(places, np.int64) - min(places, default=0)) // 4
        if places:
            # One array from the first of all these numbers to the last. What lies between them is never touched.
            kind: Any = ctypes.c_uint32 * (int(self._at.max()) + 1)
            self._numbers = np.frombuffer(kind.from_address(min(places)), dtype=np.uint32)

    def read(self) -> bytes:
        """Their bits, as they are now."""
        return self._numbers.take(self._at).tobytes()


def _is_counted(value: Any) -> TypeGuard[Tensor]:
    """Whether it is a tensor with a version and a place in memory; no engine runs a model that has others."""
    return type(value) in (Tensor, nn.Parameter) and value.layout == torch.strided and not value.is_inference()


def _is_plain(tensor: Tensor) -> bool:
    is_dense = tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.dtype == torch.float32
    return is_dense and tensor.numel() > 0 and not tensor.is_inference()


def _some(tensor: Tensor) -> list[int]:
    """Where these three numbers lie, counted from where the tensor begins."""
    sizes = [(size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)]
    middle = sum((size // 2) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return sorted({0, middle, sum(sizes)})
