"""Floating-point operations of matrix products, counted while the model runs.

    product of (m, k) and (k, n): 2 m k n      attention of q queries to k keys, per head: 2 q k (d_key + d_value)
    backward: two products for each forward    convolutions: as matrix products

Nothing else is counted: no additions, norms, softmax, tanh, dropout or optimizer, and no scores recomputed in the
backward pass. Padding is computed, so it is counted.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

Shape = Sequence[int]


def count_flops(call: Callable[[], object]) -> int:
    """Return the FLOPs of the matrix products in a call, forward and backward."""
    with FlopCounterMode(display=False, custom_mapping=_formulas()) as counter:
        call()
    return counter.get_total_flops()


def _linear(items: Shape, weight: Shape, *_: Any, **__: Any) -> int:
    return 2 * prod(items) * weight[0]  # items (*, k), weight (n, k)


def _matrix_by_vector(matrix: Shape, _vector: Shape, *_: Any, **__: Any) -> int:
    return 2 * prod(matrix)


def _addmv(_bias: Shape, matrix: Shape, vector: Shape, *_: Any, **__: Any) -> int:
    return _matrix_by_vector(matrix, vector)


def _attention(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


def _attention_backward(_gradient: Shape, query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    return 2 * sdpa_flop_count(query, key, value)


_FUSED = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
_FORMULAS: dict[str, Callable[..., int]] = {
    "mkldnn::_linear_pointwise": _linear,
    "aten::mv": _matrix_by_vector,
    "aten::addmv": _addmv,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    **{f"aten::_scaled_dot_product_{kind}_backward": _attention_backward for kind in _FUSED},
}
"""FLOP formulas of operators that torch's counter lacks or counts differently; they take shapes instead of tensors."""


def _formulas() -> dict[Any, Callable[..., int]]:
    """Return the formulas of the operators that this version of torch has."""
    formulas: dict[Any, Callable[..., int]] = {}
    for name, formula in _FORMULAS.items():
        namespace, _, operator = name.partition("::")
        overloads = getattr(getattr(torch.ops, namespace), operator, None)
        if overloads is not None:
            formulas[overloads] = formula
    return formulas
