"""Misfits of a random read that must be refused, determined from the numbers alone."""

import numpy as np

from tests.campaigns.reads_oracle import ReadCase, entry, visible_keys

__all__ = ["numbers_that_do_not_fit", "sizes_that_do_not_fit", "used_items"]

Array = np.ndarray


def sizes_that_do_not_fit(
    leading: tuple[int, ...], heads: int | None, kind: str, case: ReadCase, memory: str
) -> list[str]:
    """Return the misfits of leading axes, sizes and heads."""
    misfits = ["leading axes"] if case.leading is None else []
    if 0 in (case.query.shape[-1], case.keys.shape[-1]):
        misfits.append("dim")
    if heads is None:
        return misfits
    most, maps = len(leading), {"location": "q", "bare": ""}.get(kind, "qk")
    for array, name in ((case.query, "q"), (case.keys, "k")):
        size = array.shape[most - 1] if array.ndim - 2 == most else 1
        if name in maps and size not in (1, heads):
            misfits.append("heads")
    if memory != "pair" and case.keys.ndim - 2 < most:
        misfits.append("heads of a memory")
    return misfits


def numbers_that_do_not_fit(case: ReadCase) -> list[str]:
    """Return the misfit of numbers that are not finite and visible to a query."""
    for name in ("query", "keys", "values"):
        if (~np.isfinite(getattr(case, name)).all(-1) & used_items(case, name)).any():
            return ["not finite"]
    if any(bias[0] == "given" and not _is_bias(case, bias[1]) for bias in case.biases):
        return ["not finite"]
    return []


def _is_bias(case: ReadCase, array: Array) -> bool:
    """Return True if a bias is finite or minus infinity wherever a query may attend to a key."""
    leading = case.leading
    assert leading is not None
    shape = case.query.shape[-2], case.keys.shape[-2]
    for index in np.ndindex(leading):
        at = tuple(i if n > 1 else 0 for i, n in zip(index, array.shape[:-2], strict=False))
        bad = np.broadcast_to(np.isnan(array[at]) | np.isposinf(array[at]), shape)
        if (bad & visible_keys(case.mask, index, *shape)).any():
            return False
    return True


def used_items(case: ReadCase, name: str) -> Array:
    """Return (..., item): True if any query may attend to the item; for queries, if it may attend
    to any key."""
    array = getattr(case, name)
    used_items = np.zeros(array.shape[:-1], bool)
    leading = case.leading
    if leading is None or any(n not in (1, m) for n, m in _rule_axes(case, leading)):
        return used_items
    shape = case.query.shape[-2], case.keys.shape[-2]
    for index in np.ndindex(leading):
        allowed = visible_keys(case.mask, index, *shape)
        for bias in case.biases:
            if bias[0] == "given":
                at = tuple(
                    i if n > 1 else 0 for i, n in zip(index, bias[1].shape[:-2], strict=False)
                )
                allowed = allowed & ~np.isneginf(np.broadcast_to(bias[1][at], shape))
        entry(used_items[..., None], index, leading)[..., 0] |= allowed.any(
            1 if name == "query" else 0
        )
    return used_items


def _rule_axes(case: ReadCase, leading: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return pairs of the sizes of leading axes, of mask and bias tensors and of the read; (0, 9)
    for an extra axis."""
    arrays = [bias[1] for bias in case.biases if bias[0] == "given"]
    rules = [case.mask]
    while rules:
        rule = rules.pop()
        if rule and rule[0] == "dense":
            arrays.append(rule[1])
        elif rule and rule[0] in ("and", "or", "not"):
            rules += rule[1:]
    pairs = [pair for array in arrays for pair in zip(array.shape[:-2], leading, strict=False)]
    return [*pairs, *((0, 9) for array in arrays if array.ndim - 2 > len(leading))]
