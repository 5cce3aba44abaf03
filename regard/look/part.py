"""The part of a read's weights that is kept, computed in tiles: bounded memory for reads of any length.

    kept = weights[rows, heads, queries, :]          weights_ij = choose_j(score(query_i, key_j) + bias_ij)

Rows, heads and queries that nobody keeps are not computed. A tile holds whole rows of the softmax, so each tile is
the formula itself, exact by itself. The log-sum-exp that a fused kernel could hand over would only save the sum of
rows that are formed anyway, and would tie the weights to the kernels that have one.

Choices that draw are computed for all rows and heads, in the very tiles of queries in which the kernel drew: a part
of a draw cannot be drawn alone. Choices with tensors that nobody can cut are computed for all rows and heads too.

Source: lectures, A; tiles as in dao2022, whose tiles cut the keys too and so need the log-sum-exp.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from regard.attention.kernels import gather
from regard.attention.kernels.problem import Problem
from regard.look.cut import HEAD, QUERY, Cut, can_cut, sizes_of, take


@dataclass(frozen=True, kw_only=True)
class Part:
    """Numbers of the rows, heads and queries that are kept, in that order; None is all of them.

    Raises: TypeError if they are no integers, ValueError if there are none, or one comes twice.
    """

    rows: Sequence[int] | None = None
    """Of the batch."""
    heads: Sequence[int] | None = None
    queries: Sequence[int] | None = None

    def __post_init__(self) -> None:
        for name in ("rows", "heads", "queries"):
            numbers = getattr(self, name)
            if numbers is not None:
                object.__setattr__(self, name, _checked(name, numbers))

    def shape(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that is kept of weights (batch, [head,] query, key).

        Raises: ValueError if they do not have the rows, heads or queries.
        """
        shape = list(sizes)
        for name, least, what in (("rows", 3, "batch"), ("heads", 4, "heads"), ("queries", 2, "queries")):
            numbers, axis = getattr(self, name), {"rows": 0, "heads": HEAD, "queries": QUERY}[name]
            if numbers is None:
                continue
            if len(sizes) < least:
                raise ValueError(f"{name} can only be chosen of reads that have several, but one has weights {sizes}")
            if not all(0 <= number < sizes[axis] for number in numbers):
                raise ValueError(
                    f"{name} must lie in the {what} of {sizes[axis]} that is read, but are {list(numbers)}"
                )
            shape[axis] = len(numbers)
        return tuple(shape)


class Tile(NamedTuple):
    """Some of the weights that are kept, and where they stand among them."""

    place: tuple[slice, ...]
    """A range in each axis of what is kept."""
    weights: Tensor


def tiles(problem: Problem, part: Part, *, tile_bytes: int, drawn_by: str = "reference") -> Iterator[Tile]:
    """The weights that `part` keeps of a read, each once, tile by tile.

    The largest tensor that a tile needs has at most tile_bytes (the least is one query of a head of a row), and it
    needs a few such tensors. Outer axes are cut first, so that tiles are wide, and follow each other on a disk.
    drawn_by: the kernel that computed the read, which says how a choice that draws went through the queries.
    Raises:   ValueError if the read does not have the rows, heads or queries.
    """
    shape = part.shape(sizes_of(problem))
    cut = Cut(problem)
    num_axes = len(shape)
    if not can_cut(problem.choose):
        yield from _of_all(cut, problem, part, tile_bytes, drawn_by)
        return
    axes = [-num_axes, HEAD, QUERY] if cut.leaves_heads_out else [-num_axes, QUERY]
    most = tile_bytes // cut.bytes_a_pair(shape[HEAD] if num_axes > 3 else 1)
    for offset, first, num_queries in _runs(part.queries, cut.sizes[QUERY]):
        for place in _blocks((*shape[:QUERY], num_queries, shape[-1]), axes, most):
            rows = _numbers(part.rows, place[0], cut.sizes[0]) if num_axes > 2 else None
            heads = _numbers(part.heads, place[HEAD], cut.sizes[HEAD]) if num_axes > 3 else None
            start, stop = place[QUERY].start, place[QUERY].stop
            weights = cut.weights(rows, heads, range(first + start, first + stop))
            yield Tile((*place[:QUERY], slice(offset + start, offset + stop), place[-1]), weights)


def _of_all(cut: Cut, problem: Problem, part: Part, tile_bytes: int, drawn_by: str) -> Iterator[Tile]:
    """The same from all rows and heads, and for a choice that draws from all queries, in their order."""
    sizes, draws = cut.sizes, problem.choose.draws
    pairs_a_query = math.prod(sizes) // max(1, sizes[QUERY])
    step = max(1, tile_bytes // max(1, cut.bytes_a_pair(sizes[HEAD] if len(sizes) > 3 else 1) * pairs_a_query))
    if draws:
        step = gather.queries_a_tile(problem) if drawn_by == "gather" else max(1, sizes[QUERY])
    runs = list(_runs(part.queries, sizes[QUERY]))
    leading = [slice(0, size) for size in part.shape(sizes)]
    for start in range(0, sizes[QUERY], step):
        stop = min(start + step, sizes[QUERY])
        found = [(max(first, start), min(first + size, stop), offset - first) for offset, first, size in runs]
        found = [(a, b, shift) for a, b, shift in found if a < b]
        if not found and not draws:
            continue
        weights = cut.weights(None, None, range(start, stop))
        weights = take(take(weights, -len(sizes), part.rows), HEAD, part.heads)
        for a, b, shift in found:
            place = (*leading[:QUERY], slice(a + shift, b + shift), leading[-1])
            yield Tile(place, weights[..., a - start : b - start, :])


def _numbers(kept: Sequence[int] | None, place: slice, size: int) -> list[int] | None:
    """Which of an axis a tile has; None if all in their order."""
    numbers = list(range(size) if kept is None else kept)[place]
    return None if numbers == list(range(size)) else numbers


def _runs(queries: Sequence[int] | None, num_queries: int) -> Iterator[tuple[int, int, int]]:
    """Where a run of neighbors starts among the queries that are kept, its first query, and its length."""
    if queries is None:
        yield 0, 0, num_queries
        return
    for _, run in itertools.groupby(enumerate(queries), key=lambda pair: pair[1] - pair[0]):
        (offset, first), *others = run
        yield offset, first, 1 + len(others)


def _blocks(shape: tuple[int, ...], axes: Sequence[int], most: int) -> Iterator[list[slice]]:
    """Ranges of every axis: blocks of at most `most` entries, if cutting `axes`, the first ones first, can do it."""
    steps = [max(1, size) for size in shape]
    for axis in axes:
        each = math.prod(steps) // steps[axis]
        steps[axis] = max(1, min(steps[axis], most // each))
    ranges = [
        [slice(start, min(start + step, size)) for start in range(0, size, step)]
        for size, step in zip(shape, steps, strict=True)
    ]
    yield from map(list, itertools.product(*ranges))


def _checked(name: str, numbers: Sequence[int]) -> tuple[int, ...]:
    if isinstance(numbers, str) or not isinstance(numbers, Sequence):
        raise TypeError(f"{name} must be a sequence of numbers, but is {numbers!r}")
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError(f"{name} must be whole numbers, but one is {number!r}")
    if not numbers:
        raise ValueError(f"{name} must name at least one, but are empty; None is all of them")
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{name} must not name one twice, but are {list(numbers)}")
    return tuple(numbers)
