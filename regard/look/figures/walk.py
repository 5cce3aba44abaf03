"""Walk figures: a read step by step, with the numbers of a trained head (regard.look.vectors).

    walk         X -> Q, K, V -> scores -> weights -> Z of one head, for all queries or for one;
                 of a recurrent decoder s_j, h_i -> scores -> weights -> contexts c_j
    multihead    X -> W, Q, K, V, weights and Z of each head -> [Z_1, ..., Z_l] W_O
    contributions    parts of the model x items, as terms of a score

Source: lectures, A.2, B.4 to B.6, C.1, C.6.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from regard.errors import UserError
from regard.look.figures.canvas import signed_colors
from regard.look.figures.heat import plot_heat
from regard.look.figures.labels import readable
from regard.look.figures.matrix import Matrix, fit_cell, ink_on, labels_of, plot_matrices
from regard.look.figures.request import FigureRequest, image_of
from regard.look.maps import CONTRIBUTION, AttentionMap, SampleMaps
from regard.look.measures import ITEMS
from regard.look.vectors import ReadVectors

_ITEMS_PER_ROW = 16
"""Number of items in a row of contributions: the largest whose cells have numbers."""
_WORD_FONT, _TEXT_WIDTH, _EDGE, _SPACE = 10.0, 6.0, 0.12, "\u2581"
"""Font of the words of a text, least width and left edge in inches of its lines; the mark of a
subword that begins a word."""
_MAX_HEADS = 8
"""Largest number of heads in a figure of all heads."""
_Labels = tuple[list[str], list[str]]
"""Labels of queries and of keys."""
_Rows = list[tuple[str, list[Matrix]]]
"""Rows of matrices, each with a heading."""
_WIDTH = 9.8
"""Width in inches, beyond which the matrices of a row continue below."""
_MOST, _MOST_PER_KEY, _MOST_OF_WEIGHT, _MOST_OF_HEADS = (24, 8), (24, 5), (5, 8), (8, 8)
"""Largest number of rows and columns: of vectors, of those beside the keys of one query, of W, and
of W where all heads are drawn."""
_PROJECTIONS = {"Q": "query", "K": "key", "V": "value"}


def plot_walk(figure: Figure, request: FigureRequest) -> None:
    """Plot the steps of one head, by default the first, for all queries or for one."""
    own = request.read()
    vectors = _vectors(own)
    count, labels = len(vectors.queries), _labels(request.maps, own, vectors)
    head = request.index("head", count) or 0
    query = request.index("query", len(labels[0]))
    if own.kind == "recurrent" and not vectors.formula.mapped:
        rows = _alignment(own, vectors, labels, query)
    elif query is None:
        rows = _all_queries(own, vectors, head, labels)
    else:
        rows = _one_query(own, vectors, head, labels, query)
    about = f"{own.kind}, layer {own.layer}"
    if count > 1:
        about += f", head {head + 1} of {count}"
    plot_matrices(figure, rows, title=_title(request), about=about, width=_WIDTH)


def plot_multihead(figure: Figure, request: FigureRequest) -> None:
    """Plot the five steps of multi-head attention, by default of the first read with heads."""
    own = _multihead_read(request)
    vectors = _vectors(own)
    queries, keys = _labels(request.maps, own, vectors)
    count = len(vectors.queries)
    rows: _Rows = [("1  the tokens, 2  their vectors", _item_matrices(vectors, queries, keys))]
    heads: list[dict[str, np.ndarray]] = []
    for head in range(min(count, _MAX_HEADS)):
        arrays = {}
        for letter, name in _PROJECTIONS.items():
            projection = vectors.projection(name, head)
            if projection is not None:
                arrays[f"W_{letter}"] = _array(projection[0].T)
        q, k, v, _, weights, z = _numbers(own, vectors, head)
        heads.append(arrays | {"Q": q, "K": k, "V": v, "A": weights, "Z": z})
    side = min(0.8, 4.8 / len(heads))
    for head, arrays in enumerate(heads):
        shown = []
        for letter, numbers in arrays.items():
            # The heads of a column have one scale, which is above the first.
            bound = max(float(np.abs(one[letter]).max(initial=0)) for one in heads)
            scale = "0 to 1" if letter == "A" else f"\u00b1{bound:.2g}"
            most, room = numbers.shape, max(side, 0.45)
            if letter.startswith("W"):
                most, room = _MOST_OF_HEADS, 0.9
                scale = f"{numbers.shape[0]} x {numbers.shape[1]}, {scale}"
            matrix = Matrix(
                letter if head == 0 else "",
                numbers,
                names=("" if shown else f"head {head + 1}", ""),
                is_weights=letter == "A",
                bound=bound,
                cell=fit_cell(tuple(map(min, numbers.shape, most)), side),
                most=most,
                about=scale if head == 0 else "",
                room=room,
            )
            shown.append(matrix)
        text = f"3  weights, 4  vectors of each of {count} heads; a column has one color scale"
        rows.append(("" if head else text, shown))
    joined = vectors.outputs.transpose(0, 1).flatten(1)
    side = 1.3
    last = [_heat(f"[Z_1, ..., Z_{count}]", joined, side, queries)]
    if "output" in vectors.projections:
        output = _array(vectors.projections["output"].T)
        last.append(Matrix("W_O", output, most=_MOST_OF_HEADS))
    if vectors.result is not None:
        bias = " + b" if "output bias" in vectors.projections else ""
        last.append(_heat(f"[Z_1, ..., Z_{count}] W_O{bias}", vectors.result, side, queries))
    rows.append(("5  concatenation, times W_O", last))
    about = f"{own.kind}, layer {own.layer}, {count} heads"
    if count > _MAX_HEADS:
        about += f", the first {_MAX_HEADS} shown"
    plot_matrices(figure, rows, title=_title(request), about=about, width=_WIDTH)


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
    numbers, keys = own.head(score).numpy(), sample_maps.keys(own)
    labels = [readable(label, spaces=" ") for label in sample_maps.queries(own).labels]
    columns, items, words = labels_of(keys.labels), numbers, []
    about, title = f"contributions to the {own.heads[score]}", request.title
    if own.keys == ITEMS:  # numbers of different output tokens are parts of different logits
        items, bias = numbers[:, :-1], numbers[0, -1]  # a bias may be much larger
        about = (
            f"contributions to the score {own.heads[score]}: {items[0].sum():+.3f} of the states "
            f"of the encoder, {bias:+.3f} of the bias, the sum {items[0].sum() + bias:+.3f}"
        )
        words, title = list(keys.labels[:-1]), title.rpartition(" -> ")[2]
    if image := image_of(sample_maps, own.keys):
        panels = list(zip(labels[:-1], numbers[:-1], strict=True))  # the bias has no place
        texts = {"title": request.title, "about": about}
        plot_heat(figure, image.pixels, keys.places, panels, is_signed=True, **texts)
        return
    bound = float(np.abs(items).max(initial=0)) or 1.0
    rows: _Rows = []
    # Like a text, the items are wrapped; all rows have the same scale.
    for first in range(0, len(columns), _ITEMS_PER_ROW):
        last = min(len(columns), first + _ITEMS_PER_ROW)
        shown, names = numbers[:, first:last], columns[first:last]
        rows.append(("", [Matrix("", shown, rows=labels, columns=names, bound=bound, about="")]))
    note = f"blue: for the score, orange: against it; the last colors: {bound:.3g} and more"
    title = readable(title, max_length=100, spaces=" ")
    plot_matrices(figure, rows, title=title, about=about, note=note)
    _write_words(figure, words, items[0] / bound)


def _write_words(figure: Figure, words: Sequence[str], numbers: np.ndarray) -> None:
    """Write a text above a figure, each word on the color of its number from -1 to 1."""
    width, height = figure.get_size_inches()
    texts, left, line = [], 0.02, 0
    has_subwords = any(word.startswith(_SPACE) for word in words)
    for word, number in zip(words, numbers, strict=False):
        color = signed_colors()((1 + number) / 2)
        box = {"facecolor": color, "edgecolor": "none", "pad": 1.5}
        style = {"fontsize": _WORD_FONT, "color": ink_on(color), "bbox": box}
        shown = readable(word.removeprefix(_SPACE) or " ", spaces=" ")
        text = figure.text(0, 0, shown, **style)
        wide = text.get_window_extent().width / figure.dpi
        left += 0.05 if has_subwords and not word.startswith(_SPACE) else 0.1
        if left + wide > max(width, _TEXT_WIDTH):
            left, line = _EDGE, line + 1
        texts.append((text, left, line))
        left += wide
    for text, start, row in texts:
        text.set_position((start / width, 1 + (line - row) * 0.24 / height))


def _all_queries(own: AttentionMap, vectors: ReadVectors, head: int, labels: _Labels) -> _Rows:
    q, k, v, scores, weights, z = _numbers(own, vectors, head)
    queries, keys = labels
    items, projected = _item_matrices(vectors, queries, keys), []
    for letter, numbers, names in (("Q", q, queries), ("K", k, keys), ("V", v, keys)):
        title = letter
        if _PROJECTIONS[letter] in vectors.projections:
            title = f"{letter} = {_formula(letter, vectors)}"
        projected.append(Matrix(title, numbers, rows=names, most=_MOST))
    score = vectors.score_text(has_bias="bias" in own.facts)
    below = [
        Matrix(f"S = {score}", scores, rows=queries, columns=keys),
        Matrix(
            f"A = {vectors.choice_text()}", weights, rows=queries, columns=keys, is_weights=True
        ),
        Matrix("Z = A V", z, rows=queries, most=_MOST),
    ]
    rows: _Rows = [("1  items", items)] if items else []
    number = len(rows) + 1
    rows.append((f"{number}  queries, keys, values", projected))
    heading = f"{number + 1}  scores, {number + 2}  weights, {number + 3}  weighted sums"
    return [*rows, (heading, below)]


def _one_query(
    own: AttentionMap, vectors: ReadVectors, head: int, labels: _Labels, query: int
) -> _Rows:
    q, k, v, scores, weights, z = _numbers(own, vectors, head)
    queries, keys = labels
    number, label = query + 1, [queries[query]]
    name = f"x_{number}" if _is_self(vectors) else f"x'_{number}"
    asks = []
    if vectors.items is not None:
        item = _array(vectors.items[query : query + 1])
        asks.append(Matrix(name, item, rows=label, most=_MOST))
    title = f"q_{number}"
    if "query" in vectors.projections:
        title += f" = {_formula('Q', vectors, name)}"
    asks.append(Matrix(title, q[query : query + 1], rows=() if asks else label, most=_MOST))
    share = weights[query][:, None]
    columns = [
        Matrix("k_j, asked", k, rows=keys, most=_MOST_PER_KEY),
        Matrix(f"s_{number}j", scores[query][:, None]),
        Matrix(f"a_{number}j", share, is_weights=True),
        Matrix("v_j", v, most=_MOST_PER_KEY),
        Matrix(f"a_{number}j v_j", share * np.where(share > 0, v, 0.0), most=_MOST_PER_KEY),
    ]
    title = f"z_{number} = sum_j a_{number}j v_j"
    total = Matrix(title, z[query : query + 1], rows=label, most=_MOST)
    is_additive = vectors.formula.is_additive
    score = vectors.score_text(
        has_bias="bias" in own.facts, query=f"q_{number}", key="k_j" if is_additive else ""
    )
    scores = f"s_{number}j" if is_additive else f"s_{number}"
    formulas = f"{scores} = {score},   a_{number} = {vectors.choice_text(f's_{number}')}"
    heading = f"{label[0]} (query {number} of {len(queries)}) asks {len(keys)} keys"
    return [(heading, asks), (formulas, columns), ("", [total])]


def _alignment(
    own: AttentionMap, vectors: ReadVectors, labels: _Labels, query: int | None
) -> _Rows:
    """Return the steps of a recurrent decoder in the letters of the lectures, for all j or one.

    s_j: states of the decoder; h_i: states that it reads. For one j, the hidden layer of an
    additive score is drawn, too. Source: lectures, B.4 to B.8.
    """
    q, k, v, scores, weights, z = _numbers(own, vectors, 0)
    (outputs, sources), parts = labels, vectors.projections
    j, these = ("j", slice(None)) if query is None else (f"{query + 1}", slice(query, query + 1))
    from_s, from_h, value = f"s_{j}", "h_i", "h_i"
    of_outputs, of_sources = {from_s: q}, {"h_i": k}
    if "query" in parts:
        of_outputs = {} if vectors.items is None else {from_s: _array(vectors.items)}
        of_sources = {} if vectors.source is None else {"h_i": _array(vectors.source)}
        from_s, from_h = f"W_q s_{j}" + (" + b" if "query bias" in parts else ""), "W_k h_i"
        of_outputs[from_s], of_sources[from_h] = q, k
    if query is not None and vectors.formula.is_additive:
        of_sources[f"tanh({from_h} + {from_s})"] = np.tanh(k + q[query])
    if "value" in parts:
        value, of_sources["v_i = W_v h_i"] = "v_i", v
    about = "parameters"
    if vectors.formula.score.startswith("Concat("):
        about += f" of v . tanh(W [s_{j}; h_i]), W = [W_q W_k]"
    parameters = []
    for name, title in (("query", "W_q"), ("key", "W_k"), ("v", "v"), ("value", "W_v")):
        if name in parts:
            array = np.atleast_2d(_array(parts[name]))
            parameters.append(Matrix(title, array, most=_MOST_OF_WEIGHT))
    score = vectors.score_text(has_bias="bias" in own.facts, query=from_s, key=from_h)
    choice = vectors.choice_text(f"a_i{j}").replace("softmax", "softmax_i")
    states = {title: numbers[these] for title, numbers in of_outputs.items()}
    context = Matrix(f"c_{j} = sum_i alpha_i{j} {value}", z[these], rows=outputs[these], most=_MOST)
    if query is None:
        a = Matrix(f"a_ij = {score}", scores, rows=outputs, columns=sources)
        title = f"alpha_ij = {choice}"
        alpha = Matrix(title, weights, rows=outputs, columns=sources, is_weights=True)
        rows = [
            ("states of the decoder", _matrices(states, outputs)),
            ("states that it reads", _matrices(of_sources, sources)),
            (about, parameters),
            ("scores, weights, contexts", [a, alpha, context]),
        ]
    else:
        share = weights[these].T
        of_sources |= {f"a_i{j}": scores[these].T, f"alpha_i{j}": share}
        of_sources[f"alpha_i{j} {value}"] = share * np.where(share > 0, v, 0.0)
        columns = []
        for title, array in of_sources.items():
            names, is_weights = () if columns else sources, array is share
            column = Matrix(title, array, rows=names, is_weights=is_weights, most=_MOST_PER_KEY)
            columns.append(column)
        heading = f"{outputs[query]} (output {j} of {len(outputs)}) reads {len(sources)} states"
        rows = [
            (heading, _matrices(states, outputs[these])),
            (about, parameters),
            (f"a_i{j} = {score},   alpha_i{j} = {choice}", columns),
            ("", [context]),
        ]
    return [row for row in rows if row[1]]


def _matrices(arrays: Mapping[str, np.ndarray], rows: Sequence[str]) -> list[Matrix]:
    return [Matrix(title, numbers, rows=rows, most=_MOST) for title, numbers in arrays.items()]


def _item_matrices(vectors: ReadVectors, queries: list[str], keys: list[str]) -> list[Matrix]:
    """Return X' and X; X alone if they are the same; none if they are unknown."""
    if vectors.items is None:
        return []
    if _is_self(vectors):
        return [Matrix("X", _array(vectors.items), rows=queries, most=_MOST)]
    matrices = [Matrix("X'", _array(vectors.items), rows=queries, most=_MOST)]
    if vectors.source is not None:
        matrices.append(Matrix("X", _array(vectors.source), rows=keys, most=_MOST))
    return matrices


def _heat(title: str, numbers: Tensor, side: float, rows: Sequence[str]) -> Matrix:
    array = _array(numbers)
    return Matrix(title, array, rows=rows, cell=fit_cell(array.shape, side))


def _formula(letter: str, vectors: ReadVectors, item: str = "") -> str:
    """Return the formula of queries, keys or values, such as "X' W_Q + b, then Rotary(8)"."""
    name = _PROJECTIONS[letter]
    mapped = f", then {vectors.formula.mapped}" if vectors.formula.mapped and letter != "V" else ""
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


def _multihead_read(request: FigureRequest) -> AttentionMap:
    """Return the read to draw: of the kind asked for, or the first with heads and W_O."""
    for own in request.reads() if request.kind else request.maps.find():
        if own.vectors is None or own.vectors().result is not None:
            kinds = [one for one in request.maps.find(own.kind) if one.queries == own.queries]
            return request.read(kinds)
    found = ", ".join(dict.fromkeys(own.kind for own in request.maps.find()))
    raise UserError(
        f"view 'multihead' requires a read of MultiHead, this sample has reads of kind {found}"
    )


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
