"""Reference of the campaign `reads`: formulas in float64 and plain loops over leading axes.

    out_i = sum_j w_ij v_j    w_i = choice(t_i), where the mask allows
    t_ij  = beta_i (score(q_i, k_j) + bias_ij)

Nothing of the package is imported. Beside each number stands a bound of the error that rounding may
make of it, by forward error analysis: e is the machine epsilon of the dtype that a read is given, a
that of sums (float32 for half precision). A sum of n products is off by a (n + 2) of the sum of
their magnitudes at most, a number that is stored by e of itself; errors go through a function by
its values at the ends of the interval that they leave it.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["ReadCase", "Result", "leading_axes", "parameter", "read", "totals", "visible_keys"]

Array = np.ndarray


@dataclass
class ReadCase:
    """Read as plain numbers: arrays in float64, after rounding to the dtype of the read."""

    query: Array
    keys: Array
    values: Array
    score: dict[str, Any]
    """kind, and its parameters as arrays: weight_q, weight_k, v, cap."""
    choice: dict[str, Any]
    """kind, beta (a number or an array that lines up from the right), alpha, k, temperature."""
    mask: tuple | None
    """("causal",), ("padding", lengths), ("dense", array), ("and", left, right) ..."""
    biases: list[tuple]
    """("given", array), ("alibi", heads), ("shaw", table), ("table", table, buckets)."""
    eps: float
    """e."""
    eps_sum: float
    """a."""
    tiny: float
    """Smallest normal number of the dtype; smaller numbers may be lost."""
    step: float
    """Smallest positive number that products keep."""
    heads: int | None = None
    """Number of heads to which the score expands queries with one head."""

    @property
    def leading(self) -> tuple[int, ...] | None:
        """Leading axes of the read."""
        return leading_axes(self.query, self.keys, self.values, heads=self.heads)


@dataclass
class Result:
    """Output with bounds; leading axes are those of the read."""

    out: Array
    error: Array
    """NaN where rounding may change which keys are chosen: there only the hull is known."""
    weights: Array
    doubt: Array
    """Errors of the weights."""
    low: Array
    high: Array
    """Smallest and largest value that a query may read, with the slack of rounding."""
    closed: Array
    """(..., query): True if the query may attend to no key."""
    scores: float
    """Largest intermediate magnitude of a score or a sum of values."""
    blurred: Array = field(default_factory=lambda: np.zeros(0))
    """(..., query): largest error of a total."""


def leading_axes(*arrays: Array, heads: int | None = None) -> tuple[int, ...] | None:
    """Return the leading axes of a read, lined up from the left; None if they do not fit.

    The query has them all; of keys and values the last ones may be missing.
    """
    most = arrays[0].ndim - 2
    if any(array.ndim - 2 > most for array in arrays):
        return None
    shapes = [(*array.shape[:-2], *(1,) * (most - array.ndim + 2)) for array in arrays]
    leading = []
    for axis in range(most):
        query, *memory = (shape[axis] for shape in shapes)
        if axis == most - 1 and heads is not None and query == 1:
            query = heads  # the score expands them
        size = next((n for n in (query, *memory) if n != 1), 1)
        grouped = axis == most - 1 >= 1
        for n in memory:
            if n not in (1, size) and not (grouped and 0 < n < query and query % n == 0):
                return None
        leading.append(size)
    return tuple(leading)


def entry(array: Array, index: tuple[int, ...], leading: tuple[int, ...]) -> Array:
    """Return an array's part at a leading index of the read; one head may serve several."""
    at = []
    for axis in range(array.ndim - 2):
        size = array.shape[axis]
        at.append(0 if size == 1 else index[axis] * size // leading[axis])
    return array[tuple(at)]


def parameter(array: Array, index: tuple[int, ...], axes: int) -> Array:
    """Return a parameter of `axes` axes, or that of the head at this index."""
    return array if array.ndim == axes else array[index[-1]]


def visible_keys(
    mask: tuple | None, index: tuple[int, ...], num_queries: int, num_keys: int
) -> Array:
    """Return (query, key): True if the query may attend to the key."""
    key = np.arange(num_keys)[None, :]
    position = np.arange(num_queries)[:, None] + num_keys - num_queries
    visible = np.ones((num_queries, num_keys), bool)
    match mask:
        case ("causal",):
            visible = key <= position
        case ("padding", lengths):
            visible = visible & (key < _of_row(lengths, index))
        case ("prefix", lengths):
            visible = (key <= position) | (key < _of_row(lengths, index))
        case ("window", size, ahead):
            visible = (key > position + ahead - size) & (key <= position + ahead)
        case ("documents", ids):
            document_ids = ids[index[0] if len(ids) > 1 else 0]
            rows = [
                [p >= 0 and document_ids[p] == document_ids[j] for j in range(num_keys)]
                for p in position[:, 0]
            ]
            visible = np.array(rows, bool).reshape(num_queries, num_keys)
        case ("dense", array):
            at = tuple(i if n > 1 else 0 for i, n in zip(index, array.shape[:-2], strict=False))
            visible = visible & array[at]
        case ("and", left, right):
            visible = visible_keys(left, index, num_queries, num_keys) & visible_keys(
                right, index, num_queries, num_keys
            )
        case ("or", left, right):
            visible = visible_keys(left, index, num_queries, num_keys) | visible_keys(
                right, index, num_queries, num_keys
            )
        case ("not", hidden):
            visible = ~visible_keys(hidden, index, num_queries, num_keys)
    return visible


def _of_row(lengths: Array, index: tuple[int, ...]) -> int:
    return int(
        lengths[tuple(i if n > 1 else 0 for i, n in zip(index, lengths.shape, strict=False))]
    )


def _linear(case: ReadCase, x: Array, weight: Array | None) -> tuple[Array, Array, Array]:
    """Return W x, its error, and the sum of the magnitudes."""
    if weight is None:
        return _exact(case, x)
    size = np.abs(x) @ np.abs(weight).T
    out = x @ weight.T
    return out, case.eps_sum * (x.shape[-1] + 2) * size + case.eps * size + case.step, size


def _products(case: ReadCase, q: tuple, k: tuple, scale: float) -> tuple[Array, Array, float]:
    """scale <q, k> of numbers with errors."""
    (q, dq, _), (k, dk, _) = q, k
    size = np.abs(q) @ np.abs(k).T
    spread = (np.abs(q) + dq) @ (np.abs(k) + dk).T - size
    scores = scale * (q @ k.T)
    rounding = (
        case.step * (2 + np.abs(q).sum(-1)[:, None] + np.abs(k).sum(-1)[None, :]) * max(1.0, scale)
    )
    error = scale * (spread + size * (case.eps_sum * (q.shape[-1] + 4) + 4 * case.eps)) + rounding
    return scores, error + 2 * case.eps * np.abs(scores), float(size.max(initial=0.0))


def _network(case: ReadCase, q: tuple, k: tuple, v: Array) -> tuple[Array, Array, float]:
    """v . tanh(q + k)."""
    total = q[0][:, None] + k[0][None]
    error = q[1][:, None] + k[1][None] + case.eps * (np.abs(q[0])[:, None] + np.abs(k[0])[None])
    hidden = np.tanh(total)
    off = np.maximum(np.tanh(total + error) - hidden, hidden - np.tanh(total - error))
    off = off + 3 * case.eps + 4 * case.eps_sum  # decision 0008 states 5e-7 in float32
    weight = np.abs(v)
    scores = hidden @ v
    error = (
        off @ weight
        + (case.eps_sum * (len(v) + 3) + 2 * case.eps) * weight.sum()
        + case.eps * np.abs(scores)
    )
    return scores, error, float(np.abs(total).max(initial=0.0))


def _direction(case: ReadCase, x: Array) -> tuple[Array, Array, Array]:
    """x / |x|; a vector without a normal number in it counts as zero."""
    largest = np.abs(x).max(-1, keepdims=True, initial=0.0)
    zero = largest < case.tiny
    scaled = x / np.where(zero, 1.0, largest)
    unit = np.where(
        zero, 0.0, scaled / np.maximum(np.sqrt((scaled**2).sum(-1, keepdims=True)), 1.0)
    )
    off = (case.eps_sum * (x.shape[-1] + 8) + 3 * case.eps) * np.abs(unit) + case.step / np.where(
        zero, 1.0, largest
    )
    return unit, np.where(zero, 0.0, np.minimum(off, 2.0)), np.abs(unit)


def _features(case: ReadCase, x: Array) -> tuple[Array, Array, Array]:
    """elu(x) + 1."""
    features = np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))
    return features, (case.eps * (np.abs(x) + 4) * 2) * features + case.step, features


def score_of(
    case: ReadCase, q: Array, k: Array, index: tuple[int, ...]
) -> tuple[Array, Array, float]:
    """Return scores (query, key) at one leading index, errors, largest intermediate magnitude."""
    score, kind = case.score, case.score["kind"]
    if kind == "capped":
        inner, error, most = score_of(
            ReadCase(**{**vars(case), "score": score["inner"]}), q, k, index
        )
        cap = score["cap"]
        scores = cap * np.tanh(inner / cap)
        ends = (
            cap * np.tanh((inner + error) / cap) - scores,
            scores - cap * np.tanh((inner - error) / cap),
        )
        return scores, np.maximum(*ends) + 4 * (case.eps + case.eps_sum) * cap, most
    functions = {
        name: parameter(score[name], index, 2 if "weight" in name else 1)
        for name in ("weight_q", "weight_k", "v")
        if score.get(name) is not None
    }
    if kind in ("dot", "scaled", "cosine", "features"):
        make = {"cosine": _direction, "features": _features}.get(kind, _exact)
        return _products(
            case,
            make(case, q),
            make(case, k),
            1 / math.sqrt(q.shape[-1]) if kind == "scaled" else 1.0,
        )
    query, keys = (
        _linear(case, q, functions.get("weight_q")),
        _linear(case, k, functions.get("weight_k")),
    )
    if kind == "location":
        scores, error, most = (x[:, : len(k)] for x in query)
        error = error + case.eps * np.abs(scores)
    elif kind == "general":
        scores, error, most = _products(case, query, keys, 1.0)
    elif (
        kind == "unbent"
    ):  # v . (q + k): how much there is for rounding to change in the slopes of tanh
        scores = (query[0] @ functions["v"])[:, None] + (keys[0] @ functions["v"])[None]
        error, most = np.zeros_like(scores), 0.0
    else:
        scores, error, most = _network(case, query, keys, functions["v"])
    return (
        scores,
        error,
        max(
            float(np.max(x, initial=0.0))
            for x in (most, query[2], keys[2] if kind != "location" else 0)
        ),
    )


def _exact(case: ReadCase, x: Array) -> tuple[Array, Array, Array]:
    return x, np.zeros_like(x), np.abs(x)


def bias_of(
    case: ReadCase, q: Array, shape: tuple[int, int], index: tuple[int, ...]
) -> tuple[Array, Array]:
    """Return the sum of the biases and its error."""
    total, error = np.zeros(shape), np.zeros(shape)
    distance = np.arange(shape[1])[None, :] - (np.arange(shape[0])[:, None] + shape[1] - shape[0])
    for bias in case.biases:
        match bias:
            case ("given", array):
                at = tuple(i if n > 1 else 0 for i, n in zip(index, array.shape[:-2], strict=False))
                term, off = np.broadcast_to(array[at], shape), 0.0
            case ("alibi", slopes):
                term = -slopes[index[-1] if len(slopes) > 1 else 0] * np.abs(distance)
                off = 3 * case.eps * np.abs(term)
            case ("table", table, buckets):
                term, off = parameter(table, index, 1)[buckets(distance)], 0.0
            case ("shaw", table):
                reach = len(table) // 2
                vectors = table[np.clip(distance, -reach, reach) + reach]  # (query, key, dim)
                term = (vectors * q[:, None]).sum(-1) / math.sqrt(q.shape[-1])
                size = (np.abs(vectors) * np.abs(q[:, None])).sum(-1) / math.sqrt(q.shape[-1])
                off = size * (case.eps_sum * (q.shape[-1] + 4) + 4 * case.eps)
            case _:
                raise AssertionError(bias)
        with np.errstate(invalid="ignore"):
            total, error = (
                total + term,
                error + off + case.eps * np.where(np.isfinite(term), np.abs(term), 0.0),
            )
    return total, error


def totals(
    case: ReadCase, index: tuple[int, ...], leading: tuple[int, ...]
) -> tuple[Array, Array, Array, float]:
    """Return beta (score + bias) at one leading index, errors, allowed pairs, and magnitude."""
    q, k = entry(case.query, index, leading), entry(case.keys, index, leading)
    shape = len(q), len(k)
    allowed = visible_keys(case.mask, index, *shape)
    bias, off = bias_of(case, q, shape, index)
    allowed = allowed & ~np.isneginf(bias)
    # What nothing sees is absent, whatever its numbers.
    q, k = np.where(allowed.any(1)[:, None], q, 0.0), np.where(allowed.any(0)[:, None], k, 0.0)
    score, error, most = score_of(case, q, k, index)
    bias = np.where(allowed, bias, 0.0)
    beta = np.asarray(case.choice.get("beta", 1.0), float)
    if beta.ndim:
        shape_of = beta.reshape((1,) * (len(leading) + 2 - beta.ndim) + beta.shape)
        beta = shape_of[
            tuple(i if n > 1 else 0 for i, n in zip(index, shape_of.shape, strict=False))
        ]
    total = beta * (score + bias)
    rounding = 2 * case.eps * (np.abs(score) + np.abs(bias))
    error = beta * (error + off + rounding) + 4 * case.eps * np.abs(total)
    return (
        np.where(allowed, total, -np.inf),
        error,
        allowed,
        max(most, float(np.abs(total).max(initial=0.0))),
    )


def weights_of(case: ReadCase, total: Array, error: Array, allowed: Array) -> tuple[Array, Array]:
    """Return weights (query, key) and errors; NaN where rounding may select other keys."""
    choice, kind = case.choice, case.choice["kind"]
    error = np.where(allowed, error, 0.0)
    if kind == "shares":
        shares = np.where(allowed, np.maximum(total, 0.0), 0.0)
        total_share = shares.sum(-1, keepdims=True)
        weights = shares / np.where(total_share > 0, total_share, 1.0)
        off = (error + error.sum(-1, keepdims=True)) / np.maximum(
            total_share - error.sum(-1, keepdims=True), 1e-300
        )
        return weights, np.minimum(off * (weights > 0) + 4 * case.eps * weights, 1.0) * allowed
    if kind == "sparse":
        return _sparse(case, total, error, allowed)
    if kind == "soft":
        return _soft(case, total, error, allowed)
    selected, sure = _best(total, error, allowed, 1 if kind == "hard" else choice["k"])
    if kind == "hard":
        weights, off = selected.astype(float), np.zeros(total.shape)
    else:
        weights, off = _soft(case, np.where(selected, total, -np.inf), error, selected)
    return weights, np.where(sure[:, None], off, np.nan)


def _soft(case: ReadCase, total: Array, error: Array, allowed: Array) -> tuple[Array, Array]:
    """exp(t_j) / sum exp(t_l), each t off by its error: the worst of both sums."""
    most = np.where(allowed, total, -np.inf).max(-1, keepdims=True, initial=-np.inf)
    powers = np.where(allowed, np.exp(total - np.where(np.isfinite(most), most, 0.0)), 0.0)
    total_power = powers.sum(-1, keepdims=True)
    weights = powers / np.where(total_power > 0, total_power, 1.0)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        least = (weights * np.exp(-error)).sum(-1, keepdims=True)
        largest = (weights * np.exp(np.minimum(error, 700.0))).sum(-1, keepdims=True)
        up = weights * (np.exp(np.minimum(error, 700.0)) / least - 1)
        down = weights * (1 - np.exp(-error) / largest)
        # A weight that is nothing by far may become something where its total is off by more than
        # that.
        logarithms = (
            total
            - np.where(np.isfinite(most), most, 0.0)
            - np.log(np.where(total_power > 0, total_power, 1.0))
        )
        lifted = np.exp(
            np.minimum(logarithms + error + error.max(-1, keepdims=True, initial=0.0), 0.0)
        )
        off = np.nan_to_num(np.maximum(up, down), nan=1.0, posinf=1.0)
    off = np.where(weights > 0, off, lifted * (weights <= 0))
    rounding = (8 * case.eps_sum + 2 * case.eps) * weights + case.tiny
    return weights, np.minimum(off + rounding, 1.0) * allowed


def _sparse(case: ReadCase, total: Array, error: Array, allowed: Array) -> tuple[Array, Array]:
    """Entmax by bisection of its threshold; shares change no more than scores."""
    alpha, weights = case.choice["alpha"], np.zeros(total.shape)
    for i, row in enumerate(total):
        if not allowed[i].any():
            continue
        scaled = (alpha - 1) * (row - row.max())
        low, high = -1.0, 0.0
        for _ in range(200):
            middle = (low + high) / 2
            if (np.maximum(scaled - middle, 0.0) ** (1 / (alpha - 1))).sum() >= 1:
                low = middle
            else:
                high = middle
        shares = np.maximum(scaled - low, 0.0) ** (1 / (alpha - 1))
        weights[i] = shares / shares.sum()
    spread = (
        error.max(-1, keepdims=True, initial=0.0)
        + 8 * case.eps_sum * (1 + math.log2(1 + total.shape[-1])) * total.shape[-1]
    )
    off = math.sqrt(total.shape[-1]) * spread
    if alpha > 2:  # a power below one: its slope has no bound, but |x^r - y^r| <= |x - y|^r
        off = np.maximum(off, (2 * (alpha - 1) * off) ** (1 / (alpha - 1)))
    return weights, np.minimum(
        np.broadcast_to(off, total.shape) + 2 * case.eps * weights, 1.0
    ) * allowed


def _best(total: Array, error: Array, allowed: Array, k: int) -> tuple[Array, Array]:
    """Return the k best keys of each query (ties: the first), and whether they are certain."""
    selected, sure = np.zeros(total.shape, bool), np.ones(len(total), bool)
    for i, row in enumerate(total):
        order = sorted(np.flatnonzero(allowed[i]), key=lambda j: (-row[j], j))
        selected[i, order[:k]] = True
        for j in order[k:]:
            for best in order[:k]:
                doubt = error[i, j] + error[i, best]
                sure[i] &= row[best] - row[j] > doubt or (row[best] == row[j] and doubt == 0)
    return selected, sure


def read(case: ReadCase) -> Result:
    """Return the output with bounds of its errors."""
    leading = case.leading
    assert leading is not None
    num_queries, value_dim = case.query.shape[-2], case.values.shape[-1]
    shape = *leading, num_queries, value_dim
    out, error, low, high = np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape)
    weights = np.zeros((*leading, num_queries, case.keys.shape[-2]))
    doubts = np.zeros_like(weights)
    closed, blurred, most = np.ones(shape[:-1], bool), np.zeros(shape[:-1]), 0.0
    for index in np.ndindex(leading):
        total, off, allowed, magnitude = totals(case, index, leading)
        v = entry(case.values, index, leading)
        v = np.where(allowed.any(0)[:, None], v, 0.0)
        shares, doubt = weights_of(case, total, off, allowed)
        sums = len(v) * float(np.abs(v).max(initial=0.0))
        most = max(
            most, magnitude, sums, magnitude * sums if case.choice["kind"] == "shares" else 0.0
        )
        size = shares @ np.abs(v)
        weights[index], out[index], closed[index], doubts[index] = (
            shares,
            shares @ v,
            ~allowed.any(1),
            doubt,
        )
        # Shares may be taken of sums of values, so that the least step is divided by a row's total.
        step = case.step
        if case.choice["kind"] == "shares":
            total_share = np.where(allowed, np.maximum(total, 0.0), 0.0).sum(-1, keepdims=True)
            step = case.step / np.clip(total_share, 1e-6, 1.0)
        sums = (case.eps_sum * (len(v) + 4) + 3 * case.eps) * size + step * (1 + np.abs(v).sum(0))
        error[index] = doubt @ np.abs(v) + sums
        slack = (case.eps_sum * (len(v) + 8) + 4 * case.eps) * np.abs(v).max(0, initial=0.0) + len(
            v
        ) * case.step
        for i in np.flatnonzero(allowed.any(1)):
            low[index][i] = v[allowed[i]].min(0, initial=np.inf) - slack
            high[index][i] = v[allowed[i]].max(0, initial=-np.inf) + slack
        blurred[index] = np.where(allowed, off, 0.0).max(-1, initial=0.0)
    return Result(out, error, weights, doubts, low, high, closed, most, blurred)
