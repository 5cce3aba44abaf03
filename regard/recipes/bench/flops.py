"""The floating-point operations of matrix products, counted while they are made.

    a product of (m, k) and (k, n): 2 m k n        attention of q queries to k keys, a head: 2 q k (d_key + d_value)
    backward: two products for each one forward    convolutions: as the products that they are

Nothing else is counted: no additions, norms, softmax, tanh, dropout, optimizer, and no scores that the backward pass
computes once more. Padding is computed and counted.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

Shape = Sequence[int]


def count_flops(call: Callable[[], object]) -> int:
    """What a call's matrix products cost, forward and backward."""
    with FlopCounterMode(display=False, custom_mapping=_formulas()) as counter:
        call()
    return counter.get_total_flops()


def _linear(items: Shape, weight: Shape, *_: Any, **__: Any) -> int:
    return 2 * prod(items) * weight[0]  # items (*, k), weight (n, k)


def _matrix_by_vector(matrix: Shape, _vector: Shape, *_: Any, **__: Any) -> int:
    return 2 * prod(matrix)


def _added(_bias: Shape, matrix: Shape, vector: Shape, *_: Any, **__: Any) -> int:
    return _matrix_by_vector(matrix, vector)


def _attention(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


def _attention_backward(_gradient: Shape, query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    return 2 * sdpa_flop_count(query, key, value)


_FUSED = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
_FORMULAS: dict[str, Callable[..., int]] = {
    "mkldnn::_linear_pointwise": _linear,
    "aten::mv": _matrix_by_vector,
    "aten::addmv": _added,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    **{f"aten::_scaled_dot_product_{kind}_backward": _attention_backward for kind in _FUSED},
}
"""Operators that torch's counter does not know, or counts otherwise; the formula takes shapes in place of tensors."""


def _formulas() -> dict[Any, Callable[..., int]]:
    """By operator, those that this torch has."""
    found: dict[Any, Callable[..., int]] = {}
    for name, formula in _FORMULAS.items():
        room, _, operator = name.partition("::")
        known = getattr(getattr(torch.ops, room), operator, None)
        if known is not None:
            found[known] = formula
    return found
