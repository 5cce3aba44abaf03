"""Recorded part of a read's weights, computed in tiles: bounded memory for reads of any length.

    recorded = weights[rows, heads, queries, :]          weights_ij = choice_j(score(query_i, key_j)
    + bias_ij)

Other rows, heads and queries are not computed. A tile holds whole rows of the softmax, so it is
exact by itself. The log-sum-exp of a fused kernel would only save the sums of rows that are
computed anyway, and would tie the weights to the kernels that return it.

Choices that sample are computed for all rows and heads, in the same tiles of queries as in the
kernel: random numbers cannot be drawn in part. Choices with tensors that cannot be selected are
        computed for all rows and heads too.

Source: lectures, A.2; tiles as in dao2022, whose tiles cut the keys too and so need the
        log-sum-exp.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from regard.attention.inputs import AttentionInputs
from regard.attention.kernels import gather
from regard.look.slicing import HEAD, QUERY, SlicedRead, can_slice, sizes_of, take


@dataclass(frozen=True, kw_only=True)
class Part:
    """Indices of the rows, heads and queries to record; None is all of them.

    Raises: TypeError if they are not integers, ValueError if they are empty or repeated.
    """

    rows: Sequence[int] | None = None
    """Rows of the batch."""
    heads: Sequence[int] | None = None
    queries: Sequence[int] | None = None

    def __post_init__(self) -> None:
        for name in ("rows", "heads", "queries"):
            indices = getattr(self, name)
            if indices is not None:
                object.__setattr__(self, name, _to_indices(name, indices))

    def shape(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the recorded shape of weights (batch, [head,] query, key).

        Raises: ValueError if the weights do not have the rows, heads or queries.
        """
        shape = list(sizes)
        for name, min_axes in (("rows", 3), ("heads", 4), ("queries", 2)):
            indices, axis = getattr(self, name), {"rows": 0, "heads": HEAD, "queries": QUERY}[name]
            if indices is None:
                continue
            if len(sizes) < min_axes:
                raise ValueError(
                    f"{name} can be selected only in reads that have them, got weights of shape "
                    f"{sizes}"
                )
            if not all(0 <= index < sizes[axis] for index in indices):
                raise ValueError(
                    f"{name} must be between 0 and {sizes[axis] - 1} in this read, got "
                    f"{list(indices)}"
                )
            shape[axis] = len(indices)
        return tuple(shape)


class Tile(NamedTuple):
    """Block of the recorded weights and its position."""

    position: tuple[slice, ...]
    """Range in each axis of the recorded weights."""
    weights: Tensor


def tiles(
    inputs: AttentionInputs, part: Part, *, tile_bytes: int, drawn_by: str = "reference"
) -> Iterator[Tile]:
    """Yield the recorded weights of a read tile by tile, each weight once.

    The largest tensor of a tile has at most tile_bytes (at the least one query of one head of one
    row), and a tile needs a few such tensors. Outer axes are split first, so that tiles are wide
    and consecutive on disk.

    drawn_by: kernel that computed the read; it decides in which tiles of queries a choice draws
    random numbers.
    Raises:   ValueError if the read does not have the rows, heads or queries.
    """
    shape = part.shape(sizes_of(inputs))
    sliced_read = SlicedRead(inputs)
    num_axes = len(shape)
    if not can_slice(inputs.choice):
        yield from _tiles_of_all(sliced_read, inputs, part, tile_bytes, drawn_by)
        return
    axes = [-num_axes, HEAD, QUERY] if sliced_read.saves_memory_by_head else [-num_axes, QUERY]
    most = tile_bytes // sliced_read.bytes_per_weight(shape[HEAD] if num_axes > 3 else 1)
    for offset, first, num_queries in _runs(part.queries, sliced_read.sizes[QUERY]):
        for block in _blocks((*shape[:QUERY], num_queries, shape[-1]), axes, most):
            rows = _indices(part.rows, block[0], sliced_read.sizes[0]) if num_axes > 2 else None
            heads = (
                _indices(part.heads, block[HEAD], sliced_read.sizes[HEAD]) if num_axes > 3 else None
            )
            start, stop = block[QUERY].start, block[QUERY].stop
            weights = sliced_read.weights(rows, heads, range(first + start, first + stop))
            yield Tile((*block[:QUERY], slice(offset + start, offset + stop), block[-1]), weights)


def _tiles_of_all(
    sliced_read: SlicedRead, inputs: AttentionInputs, part: Part, tile_bytes: int, drawn_by: str
) -> Iterator[Tile]:
    """Yield the tiles from the weights of all rows and heads, and for a choice that draws, of all
    queries in order."""
    sizes, is_random = sliced_read.sizes, inputs.choice.is_random
    weights_per_query = math.prod(sizes) // max(1, sizes[QUERY])
    bytes_per_weight = sliced_read.bytes_per_weight(sizes[HEAD] if len(sizes) > 3 else 1)
    step = max(1, tile_bytes // max(1, bytes_per_weight * weights_per_query))
    if is_random:
        step = gather.queries_per_tile(inputs) if drawn_by == "gather" else max(1, sizes[QUERY])
    runs = list(_runs(part.queries, sizes[QUERY]))
    leading = [slice(0, size) for size in part.shape(sizes)]
    for start in range(0, sizes[QUERY], step):
        stop = min(start + step, sizes[QUERY])
        ranges = [
            (max(first, start), min(first + size, stop), offset - first)
            for offset, first, size in runs
        ]
        ranges = [(a, b, shift) for a, b, shift in ranges if a < b]
        if not ranges and not is_random:
            continue
        weights = sliced_read.weights(None, None, range(start, stop))
        weights = take(take(weights, -len(sizes), part.rows), HEAD, part.heads)
        for a, b, shift in ranges:
            position = (*leading[:QUERY], slice(a + shift, b + shift), leading[-1])
            yield Tile(position, weights[..., a - start : b - start, :])


def _indices(recorded: Sequence[int] | None, block: slice, size: int) -> list[int] | None:
    """Return the indices of a block of an axis of `size` entries; None if they are all entries in
    order."""
    indices = list(range(size) if recorded is None else recorded)[block]
    return None if indices == list(range(size)) else indices


def _runs(queries: Sequence[int] | None, num_queries: int) -> Iterator[tuple[int, int, int]]:
    """Yield runs of consecutive queries: start among the recorded queries, first query, length."""
    if queries is None:
        yield 0, 0, num_queries
        return
    for _, run in itertools.groupby(enumerate(queries), key=lambda pair: pair[1] - pair[0]):
        (offset, first), *others = run
        yield offset, first, 1 + len(others)


def _blocks(shape: tuple[int, ...], axes: Sequence[int], most: int) -> Iterator[list[slice]]:
    """Yield the ranges of blocks of at most `most` entries, as far as splitting `axes` in this
    order achieves it."""
    steps = [max(1, size) for size in shape]
    for axis in axes:
        entries = math.prod(steps) // steps[axis]
        steps[axis] = max(1, min(steps[axis], most // entries))
    ranges = [
        [slice(start, min(start + step, size)) for start in range(0, size, step)]
        for size, step in zip(shape, steps, strict=True)
    ]
    yield from map(list, itertools.product(*ranges))


def _to_indices(name: str, indices: Sequence[int]) -> tuple[int, ...]:
    if isinstance(indices, str) or not isinstance(indices, Sequence):
        raise TypeError(f"{name} must be a sequence of integers, got {indices!r}")
    for index in indices:
        if not isinstance(index, int) or isinstance(index, bool):
            raise TypeError(f"{name} must be a sequence of integers, got {index!r} in it")
    if not indices:
        raise ValueError(f"{name} must not be empty; use None for all of them")
    if len(set(indices)) < len(indices):
        raise ValueError(f"{name} must not contain an index twice, got {list(indices)}")
    return tuple(indices)
