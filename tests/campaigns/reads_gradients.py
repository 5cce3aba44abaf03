"""Gradients of a read against finite differences of the oracle: one random direction for each thing that learns.

    <gradient, d>  =  lim (f(x + h d) - f(x - h d)) / 2h        f = sum of what is read, times random numbers

The bound of the error is that of the terms that the gradient sums, as rounding is of terms and not of sums:

    sum_ij w_ij (|g_i| |v_j| + sum_l w_il |g_i| |v_l|) |dt_ij|         relative: a few roundings, and what a total is off
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from regard.attention.choices import Soft
from regard.attention.scores import Concat
from tests.campaigns.reads_cases import Read
from tests.campaigns.reads_oracle import Array, Case, Result, entry, read, totals

__all__ = ["compared", "parameters"]

VERBOSE = False
_NAMES = {"query_weight": "weight_q", "key_weight": "weight_k", "v": "v", "weight": "weight_q"}


def parameters(made: Read) -> dict[str, Tensor]:
    """What learns, by the oracle's names; "both" is the matrix of Concat."""
    found = {}
    score = getattr(made.score, "score", made.score)
    for name, parameter in score.named_parameters():
        found["both" if isinstance(score, Concat) and name == "weight" else _NAMES[name]] = parameter
    soft = made.choose if isinstance(made.choose, Soft) else getattr(made.choose, "soft", None)
    if soft is not None and soft.log_beta is not None:
        found["log_beta"] = soft.log_beta
    return found


def compared(made: Read, out: Tensor, inputs: dict[str, Tensor], exact: Result) -> tuple[str, str] | None:
    """What is wrong with the gradients; None if nothing is, or if rounding decides which keys are chosen."""
    case, kind = made.case, made.case.choice["kind"]
    names = f"{case.score['kind']} {kind} {made.kernel} {made.dtype}"
    rng = np.random.default_rng(len(made.text))
    weighting = rng.standard_normal(exact.out.shape)
    given = torch.tensor(weighting).to(out.dtype)
    loss = (out * given).sum()
    gradients = torch.autograd.grad(loss, list(inputs.values()), allow_unused=True)
    unclear = np.isnan(exact.error).any() or (kind == "sparse" and (case.choice["alpha"] > 2 or case.eps > 1e-12))
    for (name, tensor), gradient in zip(inputs.items(), gradients, strict=True):
        if gradient is None:
            gradient = torch.zeros_like(tensor)
        got = gradient.double().numpy()
        x = _get(case, name)
        direction = _direction(case, name, x, rng)
        expected, bound, is_settled = _expected(case, name, x, direction, given.double().numpy(), exact)
        if not np.isfinite(got).all():
            if np.abs(expected) + bound > torch.finfo(made.dtype).max / 1e3 or not np.isfinite(bound):
                continue  # the gradient is as large
            return "gradient not finite", f"of {name}; {names}"
        difference = abs(float((got * direction).sum()) - expected)
        if not unclear and is_settled and difference > bound:
            if VERBOSE:
                print(name, got, "x", x, "dir", direction, "got", (got * direction).sum(), "expected", expected, "bound", bound)
            return "gradient wrong", f"of {name}; {names}"
    return None


def _get(case: Case, name: str) -> Array:
    if name.startswith("bias"):
        return case.biases[int(name[5:])][1]
    if name == "log_beta":
        return np.log(np.asarray(case.choice["beta"]))
    score = case.score.get("inner") or case.score
    if name == "both":
        return np.concatenate((score["weight_q"], score["weight_k"]), -1)
    return score[name] if name in score else getattr(case, name)


def _with(case: Case, name: str, x: Array) -> Case:
    """The case with other numbers at one place."""
    if name.startswith("bias"):
        i = int(name[5:])
        biases = [(bias[0], x, *bias[2:]) if i == j else bias for j, bias in enumerate(case.biases)]
        return replace(case, biases=biases)
    if name == "log_beta":
        return replace(case, choice={**case.choice, "beta": np.exp(x)})
    score = case.score.get("inner") or case.score
    if name == "both":
        size = score["weight_q"].shape[-1]
        score = {**score, "weight_q": x[..., :size], "weight_k": x[..., size:]}
    elif name in score:
        score = {**score, name: x}
    else:
        return replace(case, **{name: x})
    return replace(case, score={**case.score, "inner": score} if "inner" in case.score else score)


def _direction(case: Case, name: str, x: Array, rng: np.random.Generator) -> Array:
    """Random, as large as each vector is; nothing along vectors that a cosine takes for zero, nor along infinities."""
    direction = rng.standard_normal(x.shape)
    if name in ("query", "keys", "values"):
        largest = np.abs(np.where(np.isfinite(x), x, 0.0)).max(-1, keepdims=True, initial=0.0)
        kinds = case.score["kind"], (case.score.get("inner") or {}).get("kind")
        size = np.where(largest < case.tiny, 0.0 if "cosine" in kinds and name != "values" else 1.0, largest)
        direction = direction * size
    return np.where(np.isfinite(x), direction, 0.0)


def _expected(
    case: Case, name: str, x: Array, direction: Array, weighting: Array, exact: Result
) -> tuple[float, float, bool]:
    """The derivative, a bound of the error of the package's, and whether finite differences settle."""
    if case.choice["kind"] == "hard" and name != "values":  # the gradient of the softmax stands in for its own
        case = replace(case, choice={"kind": "soft", "beta": 1.0})
        exact = read(case)
    slopes = _slopes(case, name, x, direction, exact)
    steepest = max((float(one.max(initial=0.0)) for one in slopes.values()), default=0.0)
    h = 1e-4 / max(1.0, steepest)

    def at(step: float) -> float:
        return float((read(_with(case, name, x + step * direction)).out * weighting).sum())

    coarse, fine = (at(h) - at(-h)) / (2 * h), (at(h / 2) - at(-h / 2)) / h
    terms = _terms(case, name, direction, weighting, exact, slopes)
    unbent = {index: 32 * case.eps_sum * slope for index, slope in _unbent(case, name, direction, exact).items()}
    terms += _terms(replace(case, eps_sum=1.0), name, direction, weighting, exact, unbent) if unbent else 0.0
    terms += case.tiny * float(np.abs(direction).sum())
    size = float((np.abs(exact.out) * np.abs(weighting)).sum())
    noise = 1e-14 * (1 + min(exact.scores, 1e300)) * size / h
    bound = terms + abs(coarse - fine) + noise + case.step
    return (4 * fine - coarse) / 3, bound, abs(coarse - fine) <= 1e-3 * (terms / case.eps * 1e-2 + abs(fine)) + noise


def _slopes(case: Case, name: str, x: Array, direction: Array, exact: Result) -> dict[tuple[int, ...], Array]:
    """sum_d |dt_ij / dx_d| |direction_d|, (query, key), by leading index."""
    leading = exact.out.shape[:-2]
    slopes = {index: np.zeros(exact.weights.shape[-2:]) for index in np.ndindex(leading)}
    if name == "values":
        return slopes
    columns = x.shape[-1] if x.ndim else 1
    for column in range(columns):
        h, one = 1e-6, direction
        if x.ndim:
            one = np.zeros_like(direction)
            one[..., column] = direction[..., column]
        up, down = (_with(case, name, x + step * one) for step in (h, -h))
        for index in slopes:
            (high, *_), (low, *_) = totals(up, index, leading), totals(down, index, leading)
            with np.errstate(invalid="ignore"):
                slopes[index] += np.nan_to_num(np.abs(high - low) / (2 * h))
    return slopes


def _unbent(case: Case, name: str, direction: Array, exact: Result) -> dict[tuple[int, ...], Array]:
    """The same if tanh were a line of slope one: its own slope is off by a few roundings of one, however small it is."""
    leading = exact.out.shape[:-2]
    inner = case.score.get("inner") or case.score
    if not (name in inner or name in ("both", "query", "keys")):
        return {}
    if inner["kind"] not in ("additive", "concat", "bare"):
        return {} if inner is case.score else _slopes(replace(case, score=inner), name, _get(case, name), direction, exact)
    score = {part: np.abs(x) for part, x in inner.items() if part != "kind"}
    finite = {part: np.abs(np.nan_to_num(getattr(case, part), posinf=0, neginf=0)) for part in ("query", "keys")}
    case = replace(case, score={"kind": "unbent", **score}, biases=[], **finite)
    further = _with(case, name, _get(case, name) + np.abs(direction))
    slopes = {}
    for index in np.ndindex(leading):
        with np.errstate(invalid="ignore"):
            slopes[index] = np.nan_to_num(totals(further, index, leading)[0] - totals(case, index, leading)[0])
    return slopes


def _terms(
    case: Case, name: str, direction: Array, weighting: Array, exact: Result, slopes: dict[tuple[int, ...], Array]
) -> float:
    """The bound: magnitudes of the terms, times what rounding makes of them."""
    total, leading = 0.0, exact.out.shape[:-2]
    for index, slope in slopes.items():
        w, g = exact.weights[index], np.abs(weighting[index])
        v = np.abs(np.where(np.isfinite(case.values), case.values, 0.0))
        v = entry(v, index, leading)
        own = case.eps_sum * (16 + sum(w.shape) + v.shape[-1] + case.query.shape[-1]) * 16
        with np.errstate(over="ignore"):
            relative = own + np.expm1(np.minimum(4 * exact.blurred[index], 700.0))[:, None]
        if name == "values":
            d = entry(np.abs(direction), index, leading)
            doubt = np.nan_to_num(exact.doubt[index], nan=1.0)
            total += float(((w * own + doubt) @ d * g).sum())
            continue
        products = g @ v.T
        if case.choice["kind"] == "sparse":
            w = np.ones_like(w)
        elif case.choice["kind"] == "shares":
            t, *_, allowed, _ = totals(case, index, leading)
            w = np.where(allowed & (w > 0), w / np.maximum(np.where(allowed, t, 1.0), 1e-300), 1.0)
            whole = np.where(allowed, t, 0.0).sum(-1, keepdims=True)
            w = np.where(whole > 0, 1 / np.maximum(whole, 1e-300), 0.0) * allowed
        mean = (exact.weights[index] * products).sum(-1, keepdims=True)
        total += float((relative * w * (products + mean) * slope).sum())
        floor = case.tiny * (products + mean) * slope
        total += float(np.nan_to_num(floor).sum())
    return total
