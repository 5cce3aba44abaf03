"""Walk figures: a read step by step, with the numbers of a trained head (regard.look.vectors).

    walk         X -> Q, K, V -> scores -> weights -> Z of one head, for all queries or for one
    multihead    X -> W, Q, K, V, weights and Z of each head -> [Z_1, ..., Z_l] W_O
    contributions    parts of the model x items, as terms of a score

Source: lectures, A.2, C.1, C.6.
"""

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from regard.errors import UserError
from regard.look.figures.labels import readable
from regard.look.figures.matrix import Matrix, fit_cell, labels_of, plot_matrices
from regard.look.figures.request import FigureRequest
from regard.look.maps import CONTRIBUTION, LOGITS, AttentionMap, SampleMaps
from regard.look.measures import ITEMS
from regard.look.vectors import ReadVectors

_ITEMS_PER_ROW = 16
"""Number of items in a row of contributions: the largest whose cells have numbers."""
_MAX_HEADS = 8
"""Largest number of heads in a figure of all heads."""
_Labels = tuple[list[str], list[str]]
"""Labels of queries and of keys."""
_Rows = list[tuple[str, list[Matrix]]]
"""Rows of matrices, each with a heading."""
_PROJECTIONS = {"Q": "query", "K": "key", "V": "value"}


def plot_walk(figure: Figure, request: FigureRequest) -> None:
    """Plot the steps of one head, by default the first, for all queries or for one."""
    own = request.read()
    vectors = _vectors(own)
    count, labels = len(vectors.queries), _labels(request.maps, own, vectors)
    head = request.index("head", count) or 0
    query = request.index("query", len(labels[0]))
    if query is None:
        rows = _all_queries(own, vectors, head, labels)
    else:
        rows = _one_query(own, vectors, head, labels, query)
    about = f"{own.kind}, layer {own.layer}"
    if count > 1:
        about += f", head {head + 1} of {count}"
    plot_matrices(figure, rows, title=_title(request), about=about)


def plot_multihead(figure: Figure, request: FigureRequest) -> None:
    """Plot the five steps of multi-head attention, with the matrices of a layer."""
    own = request.read()
    vectors = _vectors(own)
    if vectors.items is None or not vectors.projections:
        raise UserError(f"view 'multihead' requires a read of MultiHead, got {own.name}")
    queries, keys = _labels(request.maps, own, vectors)
    count = len(vectors.queries)
    rows: _Rows = [("1  the tokens, 2  their vectors", _item_matrices(vectors, queries, keys))]
    for head in range(min(count, _MAX_HEADS)):
        arrays = {}
        for letter, name in _PROJECTIONS.items():
            projection = vectors.projection(name, head)
            if projection is not None:
                arrays[f"W_{letter}"] = _array(projection[0].T)
        q, k, v, _, weights, z = _numbers(own, vectors, head)
        arrays |= {"Q": q, "K": k, "V": v, "A": weights, "Z": z}
        shown = []
        for letter, numbers in arrays.items():
            title, cell = f"{letter}, head {head + 1}", fit_cell(numbers.shape, 1.1)
            shown.append(Matrix(title, numbers, is_weights=letter == "A", cell=cell))
        rows.append((f"3  weights, 4  vectors of head {head + 1} of {count}", shown))
    joined = vectors.outputs.transpose(0, 1).flatten(1)
    last = [Matrix(f"[Z_1, ..., Z_{count}]", _array(joined), rows=queries)]
    if "output" in vectors.projections:
        last.append(Matrix("W_O", _array(vectors.projections["output"].T)))
    if vectors.result is not None:
        bias = " + b" if "output bias" in vectors.projections else ""
        title = f"[Z_1, ...] W_O{bias}"
        last.append(Matrix(title, _array(vectors.result), rows=queries))
    rows.append(("5  concatenation, times W_O", last))
    about = f"{own.kind}, layer {own.layer}, {count} heads"
    if count > _MAX_HEADS:
        about += f", the first {_MAX_HEADS} shown"
    plot_matrices(figure, rows, title=_title(request), about=about)


def plot_contributions(figure: Figure, request: FigureRequest) -> None:
    """Plot the contributions to one score, by default the best; see regard.look.measures."""
    sample_maps = request.maps
    maps = sample_maps.find(measure=CONTRIBUTION)
    if not maps:
        raise UserError(
            "view 'contributions' shows models that predict from one vector (reviews, images) and "
            "Transformer decoders; this sample has none"
        )
    own = maps[0]
    score = request.index("head", len(own.heads)) or 0
    numbers = own.head(score).numpy()
    labels = [readable(label, spaces=" ") for label in sample_maps.queries(own).labels]
    columns = labels_of(sample_maps.keys(own).labels)
    bound = float(np.abs(numbers).max(initial=0)) or 1.0
    about = f"contributions to the {own.heads[score]}"
    if own.keys != LOGITS:  # numbers of different output tokens are parts of different logits
        states = " of the states of the encoder" if own.keys == ITEMS else ""
        about = (
            f"contributions{states} to the score {own.heads[score]}, with the sum "
            f"{numbers[0].sum():+.3f}"
        )
    rows = []
    # Like a text, the items are wrapped; all rows have the same scale.
    for first in range(0, len(columns), _ITEMS_PER_ROW):
        last = min(len(columns), first + _ITEMS_PER_ROW)
        title, shown = f"{first + 1} to {last} of {len(columns)}", numbers[:, first:last]
        matrix = Matrix(title, shown, rows=labels, columns=columns[first:last], bound=bound)
        rows.append(("", [matrix]))
    steps = np.linspace(-bound, bound, 9)
    names = [f"{step:+.2g}" for step in steps]
    rows.append(("", [Matrix("color scale", steps[None], columns=names, cell=(0.25, 0.15))]))
    plot_matrices(figure, rows, title=_title(request), about=about)


def _all_queries(own: AttentionMap, vectors: ReadVectors, head: int, labels: _Labels) -> _Rows:
    q, k, v, scores, weights, z = _numbers(own, vectors, head)
    queries, keys = labels
    above = _item_matrices(vectors, queries, keys)
    heading = "1  items, 2  queries, keys, values" if above else "1  queries, keys, values"
    for letter, numbers, names in (("Q", q, queries), ("K", k, keys), ("V", v, keys)):
        title = letter
        if _PROJECTIONS[letter] in vectors.projections:
            title = f"{letter} = {_formula(letter, vectors)}"
        above.append(Matrix(title, numbers, rows=names))
    score = vectors.score_text(has_bias="bias" in own.facts)
    below = [
        Matrix(f"S = {score}", scores, rows=queries, columns=keys),
        Matrix(
            f"A = {vectors.choice_text()}", weights, rows=queries, columns=keys, is_weights=True
        ),
        Matrix("Z = A V", z, rows=queries),
    ]
    number = 3 if vectors.items is not None else 2
    heading_below = f"{number}  scores, {number + 1}  weights, {number + 2}  weighted sums"
    return [(heading, above), (heading_below, below)]


def _one_query(
    own: AttentionMap, vectors: ReadVectors, head: int, labels: _Labels, query: int
) -> _Rows:
    q, k, v, scores, weights, z = _numbers(own, vectors, head)
    queries, keys = labels
    number, label = query + 1, [queries[query]]
    asks = []
    if vectors.items is not None:
        item = _array(vectors.items[query : query + 1])
        asks.append(Matrix(f"x_{number}", item, rows=label))
    title = f"q_{number} = {_formula('Q', vectors, f'x_{number}')}"
    asks.append(Matrix(title, q[query : query + 1], rows=() if asks else label))
    share = weights[query][:, None]
    columns = [
        Matrix("k_j, asked", k, rows=keys),
        Matrix(f"s_{number}j", scores[query][:, None]),
        Matrix(f"a_{number}j", share, is_weights=True),
        Matrix("v_j", v),
        Matrix(f"a_{number}j v_j", share * np.where(share > 0, v, 0.0)),
    ]
    title = f"z_{number} = sum_j a_{number}j v_j"
    total = Matrix(title, z[query : query + 1], rows=label)
    score = vectors.score_text(has_bias="bias" in own.facts)
    formulas = f"s = {score},   a = {vectors.choice_text().replace('S', 's')}"
    heading = f"{label[0]} (query {number} of {len(queries)}) asks {len(keys)} keys"
    return [(heading, asks), (formulas, columns), ("", [total])]


def _item_matrices(vectors: ReadVectors, queries: list[str], keys: list[str]) -> list[Matrix]:
    """Return X' and X; X alone if they are the same; none if they are unknown."""
    if vectors.items is None:
        return []
    if _is_self(vectors):
        return [Matrix("X", _array(vectors.items), rows=queries)]
    matrices = [Matrix("X'", _array(vectors.items), rows=queries)]
    if vectors.source is not None:
        matrices.append(Matrix("X", _array(vectors.source), rows=keys))
    return matrices


def _formula(letter: str, vectors: ReadVectors, item: str = "") -> str:
    """Return the formula of queries, keys or values, such as "X' W_Q + b, then Rotary(8)"."""
    name = _PROJECTIONS[letter]
    mapped = f", then {vectors.formula.mapped}" if vectors.formula.mapped and letter != "V" else ""
    if name not in vectors.projections:
        return f"as it is compared{mapped}"
    if not item:
        item = "X'" if letter == "Q" and not _is_self(vectors) else "X"
    bias = " + b" if f"{name} bias" in vectors.projections else ""
    return f"{item} W_{letter}{bias}{mapped}"


def _numbers(own: AttentionMap, vectors: ReadVectors, head: int) -> list[np.ndarray]:
    """Return Q, K, V, scores, weights and Z of a head."""
    shared = vectors.key_head(head)
    asks = vectors.queries[head], vectors.keys[shared], vectors.values[shared]
    gets = vectors.scores[head], own.head(head), vectors.outputs[head]
    return [_array(part) for part in (*asks, *gets)]


def _vectors(own: AttentionMap) -> ReadVectors:
    if own.vectors is None:
        raise UserError(
            f"{own.name} has no items, queries, keys and values: record them with `regard look RUN "
            "INPUT --walk --out FILE.safetensors`, or record(run, vectors=True) in Python"
        )
    return own.vectors()


def _labels(sample_maps: SampleMaps, own: AttentionMap, vectors: ReadVectors) -> _Labels:
    """Return the labels of queries and keys; in self-attention the rows of X have those of keys."""
    queries, keys = sample_maps.queries(own).labels, sample_maps.keys(own).labels
    if _is_self(vectors) and len(queries) == len(keys):
        queries = keys
    return labels_of(queries), labels_of(keys)


def _is_self(vectors: ReadVectors) -> bool:
    if vectors.items is None or vectors.source is None:
        return False
    return torch.equal(vectors.items, vectors.source)


def _title(request: FigureRequest) -> str:
    return readable(request.title, max_length=100, spaces=" ")


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()
