"""Walk figures: a read step by step, with the numbers of a trained head.

    walk         X -> Q, K, V -> scores -> softmax -> Z of one head, for all queries
                 of one query: x_i asks, q_i is compared with each k_j, the weighted v_j add up to
                               z_i
    contributions    parts of the model x items, as terms of a score
    multihead    the sentence -> X -> W of each head -> Q, K, V, Z of each head -> [Z_1; ...; Z_l]
                 W_O

All numbers are those of the capture (regard.look.vectors).

Source: lectures, A.2, C.1, C.6.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.errors import UserError
from regard.look.figures.labels import readable
from regard.look.figures.matrix import PALE, Matrix, Sheet, labels_of
from regard.look.maps import CONTRIBUTION, LOGITS, AttentionMap, SampleMaps
from regard.look.measures import ITEMS
from regard.look.vectors import ReadVectors

MISSING = (
    "has no items, queries, keys and values: record them with `regard look RUN INPUT --walk --out "
    "FILE.safetensors`, "
    "or record(run, vectors=True) in Python"
)
"""Message about a capture without vectors, and how to record them."""

_GAP, _EDGE = 0.5, 0.12
_ITEMS_PER_ROW = 16
"""Number of items in a row of contributions: the largest whose cells have numbers, and all of them
a label."""
_MOST_HEADS = 8
"""Largest number of heads in a row of their own."""
_SMALL = 1.1
"""Largest side of a matrix of one head among several."""
_ROW, _MOST_ROWS = 0.19, 24
"""Height of a row with numbers, and the largest number of such rows."""


class _Head(NamedTuple):
    """One head of a read, with the labels of its queries and keys."""

    attention_map: AttentionMap
    vectors: ReadVectors
    number: int
    """From 0."""
    asking: Sequence[str]
    asked: Sequence[str]

    def numbers(self) -> tuple[np.ndarray, ...]:
        """Return Q, K, V, scores, weights and Z."""
        vectors, number = self.vectors, self.number
        shared = vectors.key_head(number)
        parts = (
            vectors.queries[number],
            vectors.keys[shared],
            vectors.values[shared],
            vectors.scores[number],
        )
        return tuple(
            map(_array, (*parts, self.attention_map.head(number), vectors.outputs[number]))
        )


def plot_walk(
    sample_maps: SampleMaps,
    attention_map: AttentionMap,
    path: Path,
    *,
    head: int,
    query: int | None,
    overwrite: bool,
) -> Path:
    """Plot the steps of one head, for all queries or for one.

    head, query: from 0.
    Raises: UserError if the vectors were not recorded, or there is no such head or query.
    """
    vectors = _vectors(attention_map)
    _check_index("head", head, len(vectors.queries))
    sheet = Sheet()
    asking, asked = _labels(sample_maps, attention_map, vectors)
    name = f", head {head + 1} of {len(vectors.queries)}" if len(vectors.queries) > 1 else ""
    top = _title(sheet, sample_maps, f"{attention_map.kind}, layer {attention_map.layer}{name}")
    shown = _Head(attention_map, vectors, head, asking, asked)
    if query is None:
        _all_queries(sheet, shown, top)
    else:
        _check_index("query", query, len(asking))
        _one_query(sheet, shown, query, top)
    return sheet.save(path, overwrite=overwrite)


def plot_multihead(
    sample_maps: SampleMaps, attention_map: AttentionMap, path: Path, *, overwrite: bool
) -> Path:
    """Plot the five steps of multi-head attention, with the matrices of a layer.

    Raises: UserError if the vectors were not recorded, or the read has no projections.
    """
    vectors = _vectors(attention_map)
    if vectors.items is None or not vectors.projections:
        raise UserError(
            f"view 'multihead' requires a read of MultiHead, which projects its items, got "
            f"{attention_map.name}; "
            "view 'walk' shows its steps"
        )
    sheet = Sheet()
    asking, asked = _labels(sample_maps, attention_map, vectors)
    count = len(vectors.queries)
    top = _title(
        sheet, sample_maps, f"{attention_map.kind}, layer {attention_map.layer}, {count} heads"
    )
    left, bottom, left_of_heads = _EDGE, top, 0.0
    _step(sheet, left, top, "1  the tokens, 2  their vectors")
    for matrix in _item_matrices(vectors, asking, asked):
        right, bottom = sheet.add(matrix, left + matrix.label_width, bottom + 0.3)
        left_of_heads = max(left_of_heads, right + _GAP)
    heads = range(min(count, _MOST_HEADS))
    more = f": the first {len(heads)} of {count} heads" if count > len(heads) else ""
    _step(
        sheet,
        left_of_heads,
        top,
        f"3  the weights of each head, 4  its queries, keys, values and outputs{more}",
    )
    row, right = top + 0.3, left_of_heads
    for head in heads:
        place, lowest = left_of_heads, row
        for matrix in (
            *_weight_matrices(vectors, head),
            *_head_matrices(_Head(attention_map, vectors, head, asking, asked)),
        ):
            right, end = sheet.add(matrix, place, row, _fit(matrix, _SMALL))
            place, lowest = right + 0.2, max(lowest, end)
        row = lowest + 0.15
    last = right + _GAP
    _step(sheet, last, top, "5  concatenation, times W_O")
    joined = vectors.outputs.transpose(0, 1).flatten(1)
    matrices = [Matrix(title=f"[Z_1; ...; Z_{count}]", numbers=_array(joined), rows=asking)]
    if "output" in vectors.projections:
        matrices.append(Matrix(title="W_O", numbers=_array(vectors.projections["output"].T)))
    if vectors.result is not None:
        title = "[Z_1; ...] W_O + b" if "output bias" in vectors.projections else "[Z_1; ...] W_O"
        matrices.append(Matrix(title=title, numbers=_array(vectors.result), rows=asking))
    low = top
    for matrix in matrices:
        _, low = sheet.add(matrix, last + matrices[0].label_width, low + 0.3)
    return sheet.save(path, overwrite=overwrite)


def plot_contributions(sample_maps: SampleMaps, path: Path, score: int, *, overwrite: bool) -> Path:
    """Plot the contributions to one score, by its index; see regard.look.measures.

    Raises: UserError if the sample has no contributions, or no such score.
    """
    maps = sample_maps.find(measure=CONTRIBUTION)
    if not maps:
        raise UserError(
            "view 'contributions' shows models that predict from one vector (reviews, images) and "
            "Transformer "
            "decoders; this sample has none"
        )
    names = maps[0].heads
    if not 0 <= score < len(names):
        raise UserError(
            f"head must be between 1 and {len(names)}, the scores {', '.join(names)}, got "
            f"{score + 1}"
        )
    numbers = maps[0].head(score).numpy()
    rows = [readable(label, spaces=" ") for label in sample_maps.queries(maps[0]).labels]
    columns = labels_of(sample_maps.keys(maps[0]).labels)
    bound = float(np.abs(numbers).max(initial=0)) or 1.0
    sheet = Sheet()
    of = " of the states of the encoder" if maps[0].keys == ITEMS else ""
    # Numbers of different output tokens are parts of different logits.
    of_score = f"score {names[score]}, with the sum {numbers[0].sum():+.3f}"
    title = f"contributions{of} to the {names[score] if maps[0].keys == LOGITS else of_score}"
    top = _title(sheet, sample_maps, title)
    left = _EDGE + Matrix(title="", numbers=numbers, rows=rows).label_width
    # Like a text, the items are wrapped; all rows have the same scale.
    for first in range(0, len(columns), _ITEMS_PER_ROW):
        part = slice(first, first + _ITEMS_PER_ROW)
        last = min(len(columns), first + _ITEMS_PER_ROW)
        matrix = Matrix(
            title=f"{first + 1} to {last} of {len(columns)}",
            numbers=numbers[:, part],
            rows=rows,
            columns=columns[part],
            bound=bound,
        )
        _, low = sheet.add(matrix, left, top)
        top = low + 0.2
    steps = np.linspace(-bound, bound, 9)[None]
    scale = Matrix(
        title="color scale",
        numbers=steps,
        columns=[f"{step:+.2g}" for step in steps[0]],
        bound=bound,
    )
    sheet.add(scale, left, top, (9 * 0.25, 0.15))
    return sheet.save(path, overwrite=overwrite)


def _all_queries(sheet: Sheet, shown: _Head, top: float) -> None:
    attention_map, vectors, _, asking, asked = shown
    q, k, v, s, a, z = shown.numbers()
    own = [
        Matrix(title=_projection_title("Q", vectors), numbers=q, rows=asking),
        Matrix(title=_projection_title("K", vectors), numbers=k, rows=asked),
        Matrix(title=_projection_title("V", vectors), numbers=v, rows=asked),
    ]
    title = f"S = {vectors.score_text(has_bias='bias' in attention_map.facts)}"
    scores = Matrix(title=title, numbers=s, rows=asking, columns=asked)
    weights = Matrix(
        title=f"A = {vectors.choice_text()}", numbers=a, rows=asking, columns=asked, is_weights=True
    )
    sums = Matrix(title="Z = A V", numbers=z, rows=asking)
    items = _item_matrices(vectors, asking, asked)
    above = (
        [("items", items), ("queries, keys, values", own)]
        if items
        else [("queries, keys, values", own)]
    )
    below = [("scores", [scores]), ("weights", [weights]), ("weighted sums", [sums])]
    number = 0
    for steps in (above, below):
        # The cells of a row begin at one height.
        cells = top + 0.3 + max(sheet.head(matrix) for _, matrices in steps for matrix in matrices)
        left, bottom = _EDGE, top
        for name, matrices in steps:
            number += 1
            if left > _EDGE:
                sheet.arrow((left - _GAP + 0.08, top + 0.08), (left - 0.08, top + 0.08))
            _step(sheet, left, top, f"{number}  {name}")
            for matrix in matrices:
                right, low = sheet.add(
                    matrix, left + matrix.label_width, cells - sheet.head(matrix)
                )
                left, bottom = right + _GAP, max(bottom, low)
        top = bottom + 0.3


def _one_query(sheet: Sheet, shown: _Head, query: int, top: float) -> None:
    attention_map, vectors, _, asking, asked = shown
    q, k, v, s, a, z = shown.numbers()
    rows = len(asked)
    height = rows * _ROW if rows <= _MOST_ROWS else 2.6
    number = query + 1
    keys = Matrix(title="k_j, asked", numbers=k, rows=asked)
    first = _EDGE + keys.label_width
    _step(sheet, _EDGE, top, f"{asking[query]} (query {number} of {len(asking)}) asks {rows} keys")
    low = top + 0.05
    if vectors.items is not None:
        item = Matrix(
            title=f"x_{number}",
            numbers=_array(vectors.items[query : query + 1]),
            rows=[asking[query]],
        )
        _, low = sheet.add(item, first, low + 0.25, _row_size(item))
    asks = Matrix(
        title=f"q_{number} = {_after('Q', vectors, f'x_{number}')}", numbers=q[query : query + 1]
    )
    _, low = sheet.add(asks, first, low + 0.2, _row_size(asks))
    weights = a[query][:, None]
    columns = [
        keys,
        Matrix(title=f"s_{number}j", numbers=s[query][:, None]),
        Matrix(title=f"a_{number}j", numbers=weights, is_weights=True),
        Matrix(title="v_j", numbers=v),
        Matrix(title=f"a_{number}j v_j", numbers=weights * np.where(weights > 0, v, 0.0)),
    ]
    table, left, place, bottom = low + 0.3, first, first, low
    for matrix in columns:
        place = left
        right, bottom = sheet.add(matrix, place, table, (_width(matrix), height))
        left = right + 0.25
    total = Matrix(title=f"z_{number} = sum_j a_{number}j v_j", numbers=z[query : query + 1])
    _, end = sheet.add(total, place, bottom + 0.12, _row_size(total))
    words = [
        f"s = {vectors.score_text(has_bias='bias' in attention_map.facts)}",
        f"a = {vectors.choice_text().replace('S', 's')}",
    ]
    sheet.text(first, max(end, bottom + 0.3) + 0.1, ",   ".join(words), color=PALE)


def _item_matrices(
    vectors: ReadVectors, asking: Sequence[str], asked: Sequence[str]
) -> list[Matrix]:
    """Return X' and X; X alone if they are the same; none if they are unknown."""
    items, source = vectors.items, vectors.source
    if items is None:
        return []
    if _is_self(vectors):
        return [Matrix(title="X", numbers=_array(items), rows=asking)]
    matrices = [Matrix(title="X'", numbers=_array(items), rows=asking)]
    if source is not None:
        matrices.append(Matrix(title="X", numbers=_array(source), rows=asked))
    return matrices


def _weight_matrices(vectors: ReadVectors, head: int) -> list[Matrix]:
    parts = {"Q": "query", "K": "key", "V": "value"}
    found = {letter: vectors.projection(name, head) for letter, name in parts.items()}
    return [
        Matrix(title=f"W_{letter}, head {head + 1}", numbers=_array(projection[0].T))
        for letter, projection in found.items()
        if projection is not None
    ]


def _head_matrices(shown: _Head) -> list[Matrix]:
    q, k, v, _, a, z = shown.numbers()
    number = shown.number + 1
    matrices = [
        Matrix(title=f"{letter}_{number}", numbers=part)
        for letter, part in (("Q", q), ("K", k), ("V", v))
    ]
    return [
        *matrices,
        Matrix(title=f"A_{number}", numbers=a, is_weights=True),
        Matrix(title=f"Z_{number}", numbers=z),
    ]


def _projection_title(letter: str, vectors: ReadVectors) -> str:
    """Return the title of queries, keys or values, such as "Q = X' W_Q + b"."""
    name = {"Q": "query", "K": "key", "V": "value"}[letter]
    if name not in vectors.projections:
        return letter
    return f"{letter} = {_after(letter, vectors)}"


def _after(letter: str, vectors: ReadVectors, item: str = "") -> str:
    """Return the formula of queries, keys or values, such as "X' W_Q + b, then Rotary(8)"; item:
    instead of X'."""
    name = {"Q": "query", "K": "key", "V": "value"}[letter]
    mapped = f", then {vectors.formula.mapped}" if vectors.formula.mapped and letter != "V" else ""
    if name not in vectors.projections:
        return f"as it is compared{mapped}"
    items = "X'" if letter == "Q" and not _is_self(vectors) else "X"
    bias = " + b" if f"{name} bias" in vectors.projections else ""
    return f"{item or items} W_{letter}{bias}{mapped}"


def _vectors(attention_map: AttentionMap) -> ReadVectors:
    if attention_map.vectors is None:
        raise UserError(f"{attention_map.name} {MISSING}")
    return attention_map.vectors()


def _labels(
    sample_maps: SampleMaps, attention_map: AttentionMap, vectors: ReadVectors
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the labels of queries and keys.

    In self-attention the rows of X have one label each, that of the keys; a decoder names its
    queries by its output.
    """
    asking, asked = (
        sample_maps.queries(attention_map).labels,
        sample_maps.keys(attention_map).labels,
    )
    if _is_self(vectors) and len(asking) == len(asked):
        asking = asked
    return labels_of(asking), labels_of(asked)


def _is_self(vectors: ReadVectors) -> bool:
    return (
        vectors.items is not None
        and vectors.source is not None
        and torch.equal(vectors.items, vectors.source)
    )


def _check_index(name: str, index: int, count: int) -> None:
    if not 0 <= index < count:
        raise UserError(f"{name} must be between 1 and {count}, got {index + 1}")


def _title(sheet: Sheet, sample_maps: SampleMaps, about: str) -> float:
    """Place the title and the name of the read; return the top of what follows."""
    sheet.text(
        _EDGE, 0.08, readable(sample_maps.sample.title, max_length=100, spaces=" "), size=9.0
    )
    sheet.text(_EDGE, 0.26, about, color=PALE)
    return 0.5


def _step(sheet: Sheet, left: float, top: float, text: str) -> None:
    sheet.text(left, top, text, size=8.0, color="#0c56a5")


def _width(matrix: Matrix) -> float:
    return matrix.size(1)[0]


def _row_size(matrix: Matrix) -> tuple[float, float]:
    return _width(matrix), _ROW


def _fit(matrix: Matrix, side: float) -> tuple[float, float]:
    """Return the size of a matrix with cells of at most 0.1, and sides of at most `side`."""
    rows, columns = matrix.numbers.shape
    return min(side, 0.1 * columns), min(side, 0.1 * rows)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()
