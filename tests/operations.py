"""Count of the operations that torch dispatches: on a GPU each is a launch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_FREE = {"_unsafe_view", "detach", "empty", "empty_like", "new_empty", "promote_types"}
"""Names of operations that compute nothing, besides views."""


class Operations(TorchDispatchMode):
    """Names of the operations that are dispatched, without and with those that compute nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.computed: list[str] = []
        self.all: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.all.append(name)
        if not func.is_view and name not in _FREE:
            self.computed.append(name)
        return func(*args, **(kwargs or {}))


class _FusedAttention(TorchFunctionMode):
    """Fused attention of a GPU for meta tensors, for which torch computes the formula."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not nn.functional.scaled_dot_product_attention or not args[0].is_meta:
            return func(*args, **kwargs)
        query, keys, values = args
        mask, scale = kwargs.get("attn_mask"), kwargs.get("scale")
        if mask is not None:
            mask = mask.expand(*query.shape[:-1], keys.shape[-2])
        fused = torch.ops.aten._scaled_dot_product_efficient_attention
        is_causal = kwargs.get("is_causal", False)
        return fused(query, keys, values, mask, True, is_causal=is_causal, scale=scale)[0]


def count(function: Callable[[], object], *, warm: bool = True) -> Operations:
    """Return the operations of a call; warm: of the second call."""
    for _ in range(1 + warm):
        operations = Operations()
        with operations, _FusedAttention():
            function()
    return operations
