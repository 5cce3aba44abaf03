"""Gradients of a read against the oracle's finite differences, in one random direction each.

    <gradient, d> = lim (f(x + h d) - f(x - h d)) / 2h    f: a random sum of what is read

The bound of the error is that of the terms that the gradient sums, as rounding is of terms and not
of sums:

    sum_ij w_ij (|g_i| |v_j| + sum_l w_il |g_i| |v_l|) |dt_ij|

times a few roundings, and what a total is off.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from regard.attention.choices import Soft
from regard.attention.scores import Concat
from tests.campaigns.reads_cases import Read
from tests.campaigns.reads_oracle import Array, ReadCase, Result, entry, parameter, read, totals

__all__ = ["compare", "parameters"]

_NAMES = {"query_weight": "weight_q", "key_weight": "weight_k", "v": "v", "weight": "weight_q"}


def parameters(sample: Read) -> dict[str, Tensor]:
    """Return the parameters by the oracle's names; "both" is the matrix of Concat."""
    parameters_by_name = {}
    score = getattr(sample.score, "score", sample.score)
    for name, learned in score.named_parameters():
        parameters_by_name[
            "both" if isinstance(score, Concat) and name == "weight" else _NAMES[name]
        ] = learned
    soft = (
        sample.choice if isinstance(sample.choice, Soft) else getattr(sample.choice, "soft", None)
    )
    if soft is not None and soft.log_beta is not None:
        parameters_by_name["log_beta"] = soft.log_beta
    return parameters_by_name


def compare(
    sample: Read, out: Tensor, inputs: dict[str, Tensor], exact: Result
) -> tuple[str, str] | None:
    """Return the problem with the gradients; None without one, or if rounding selects keys."""
    case, kind = sample.case, sample.case.choice["kind"]
    names = f"{case.score['kind']} {kind} {sample.kernel} {sample.dtype}"
    rng = np.random.default_rng(len(sample.text))
    weights = torch.tensor(rng.standard_normal(exact.out.shape)).to(out.dtype)
    weighting = weights.double().numpy()
    gradients = torch.autograd.grad((out * weights).sum(), list(inputs.values()), allow_unused=True)
    largest = torch.finfo(sample.dtype).max
    if _largest_product(case, weighting) / _least_total(case, exact) > largest / 8:
        return None  # products of gradients and values are beyond the range of the dtype
    unclear = np.isnan(exact.error).any() or (
        kind == "sparse" and (case.choice["alpha"] > 2 or case.eps > 1e-12)
    )
    # Where scores are lost in rounding, or all underflow, shares of them may be any, and zero has
    # no gradient.
    unclear |= kind == "shares" and bool((exact.doubt >= 1).any())
    for (name, tensor), gradient in zip(inputs.items(), gradients, strict=True):
        actual = (torch.zeros_like(tensor) if gradient is None else gradient).double().numpy()
        line = WeightedOutput(
            case, name, _get(case, name), _direction(case, name, rng), weighting, exact
        )
        expected, bound, is_settled = line.derivative()
        if not np.isfinite(actual).all():
            if (
                np.isfinite(bound) and np.abs(expected) + bound <= largest / 1e3
            ):  # else the gradient is as large
                return "gradient not finite", f"of {name}; {names}"
        elif (
            not unclear
            and is_settled
            and abs(float((actual * line.direction).sum()) - expected) > bound
        ):
            return "gradient wrong", f"of {name}; {names}"
    return None


@dataclass
class WeightedOutput:
    """Weighted sum of the output as a function of a step in a random direction."""

    case: ReadCase
    name: str
    x: Array
    direction: Array
    weighting: Array
    exact: Result

    def derivative(self) -> tuple[float, float, bool]:
        """Return the derivative, an error bound, and whether finite differences converge."""
        if (
            self.case.choice["kind"] == "hard" and self.name != "values"
        ):  # that of the softmax stands in for its own
            self.case = replace(self.case, choice={"kind": "soft", "beta": 1.0})
            self.exact = read(self.case)
        slopes = self.slopes(self.case)
        h = 1e-4 / max(1.0, *(float(slope.max(initial=0.0)) for slope in slopes.values()), 0.0)
        coarse = (self.at(h) - self.at(-h)) / (2 * h)
        fine = (self.at(h / 2) - self.at(-h / 2)) / h
        terms = self.terms(slopes, None) + self.terms(self.unbent(), 32 * self.case.eps)
        terms += self.case.tiny * float(np.abs(self.direction).sum())
        size = float((np.abs(self.exact.out) * np.abs(self.weighting)).sum())
        noise = 1e-14 * (1 + min(self.exact.scores, 1e300)) * size / h
        bound = terms + abs(coarse - fine) + noise + self.case.step
        settled = abs(coarse - fine) <= 1e-3 * (terms / self.case.eps * 1e-2 + abs(fine)) + noise
        return (4 * fine - coarse) / 3, bound, settled

    def at(self, step: float) -> float:
        """Return the sum after a step."""
        return float(
            (
                read(_with(self.case, self.name, self.x + step * self.direction)).out
                * self.weighting
            ).sum()
        )

    def slopes(self, case: ReadCase) -> dict[tuple[int, ...], Array]:
        """sum_d |dt_ij / dx_d| |direction_d|, (query, key), by leading index."""
        leading = self.exact.out.shape[:-2]
        slopes = {index: np.zeros(self.exact.weights.shape[-2:]) for index in np.ndindex(leading)}
        if self.name == "values":
            return slopes
        for column in range(self.x.shape[-1] if self.x.ndim else 1):
            h, direction = 1e-6, self.direction
            if self.x.ndim:
                direction = np.zeros_like(self.direction)
                direction[..., column] = self.direction[..., column]
            up, down = (_with(case, self.name, self.x + step * direction) for step in (h, -h))
            for index in slopes:
                (high, *_), (low, *_) = totals(up, index, leading), totals(down, index, leading)
                with np.errstate(invalid="ignore"):
                    slopes[index] += np.nan_to_num(np.abs(high - low) / (2 * h))
        return slopes

    def unbent(self) -> dict[tuple[int, ...], Array]:
        """Return the slopes without tanh, to bound the rounding error of its derivative."""
        case, leading = self.case, self.exact.out.shape[:-2]
        inner = case.score.get("inner") or case.score
        if not (self.name in inner or self.name in ("both", "query", "keys")):
            return {}
        if inner["kind"] not in ("additive", "concat", "bare"):
            return {} if inner is case.score else self.slopes(replace(case, score=inner))
        if (
            self.name == "v"
        ):  # tanh itself is off by a few roundings of one (decision 0008), and v's gradient sums it
            size, shape = np.abs(self.direction), self.exact.weights.shape[-2:]
            return {
                index: np.full(shape, parameter(size, index, 1).sum())
                for index in np.ndindex(leading)
            }
        score = {part: np.abs(x) for part, x in inner.items() if part != "kind"}
        finite = {
            part: np.abs(np.nan_to_num(getattr(case, part), posinf=0, neginf=0))
            for part in ("query", "keys")
        }
        case = replace(case, score={"kind": "unbent", **score}, biases=[], **finite)
        further = _with(case, self.name, _get(case, self.name) + np.abs(self.direction))
        slopes = {}
        for index in np.ndindex(leading):
            with np.errstate(invalid="ignore"):
                slopes[index] = np.nan_to_num(
                    totals(further, index, leading)[0] - totals(case, index, leading)[0]
                )
        return slopes

    def terms(self, slopes: dict[tuple[int, ...], Array], relative: float | None) -> float:
        """Return the terms' magnitudes times their relative rounding error or a number."""
        case, exact, leading = self.case, self.exact, self.exact.out.shape[:-2]
        values, total = np.abs(np.where(np.isfinite(case.values), case.values, 0.0)), 0.0
        for index, slope in slopes.items():
            w, g, v = (
                exact.weights[index],
                np.abs(self.weighting[index]),
                entry(values, index, leading),
            )
            rounding = 16 * (
                8 * case.eps
                + case.eps_sum * (8 + sum(w.shape) + v.shape[-1] + case.query.shape[-1])
            )
            if self.name == "values":
                d = entry(np.abs(self.direction), index, leading)
                total += float(
                    ((w * rounding + np.nan_to_num(exact.doubt[index], nan=1.0)) @ d * g).sum()
                )
                continue
            off = (
                rounding + np.expm1(np.minimum(4 * exact.blurred[index], 700.0))[:, None]
                if relative is None
                else relative
            )
            products = g @ v.T
            size = products + (w * products).sum(-1, keepdims=True)
            if case.choice["kind"] == "sparse":
                w = np.ones_like(w)
            elif case.choice["kind"] == "shares":
                t, _, allowed, _ = totals(case, index, leading)
                row_total = np.where(allowed, t, 0.0).sum(-1, keepdims=True)
                w = np.where(row_total > 0, 1 / np.maximum(row_total, 1e-300), 0.0) * allowed
            with np.errstate(over="ignore", invalid="ignore"):
                total += float(
                    np.nan_to_num((off * w + case.tiny) * size * slope, nan=np.inf).sum()
                )
        return total


def _largest_product(case: ReadCase, weighting: Array) -> float:
    """Return the largest magnitude of the sums in a gradient of weights."""
    values = np.abs(np.where(np.isfinite(case.values), case.values, 0.0))
    return (
        float(values.max(initial=0.0))
        * float(np.abs(weighting).max(initial=0.0))
        * max(1, values.shape[-1])
    )


def _least_total(case: ReadCase, exact: Result) -> float:
    """Return the smallest divisor in gradients of shares, the sum of a row's scores; else 1."""
    if case.choice["kind"] != "shares":
        return 1.0
    leading = exact.out.shape[:-2]
    sums = []
    for index in np.ndindex(leading):
        scores, _, allowed, _ = totals(case, index, leading)
        sums.append(np.where(allowed, scores, 0.0).sum(-1))
    least = np.concatenate(sums) if sums else np.ones(1)
    return float(min(1.0, least[least > 0].min(initial=1.0)))


def _get(case: ReadCase, name: str) -> Array:
    if name.startswith("bias"):
        return case.biases[int(name[5:])][1]
    if name == "log_beta":
        return np.log(np.asarray(case.choice["beta"]))
    score = case.score.get("inner") or case.score
    if name == "both":
        return np.concatenate((score["weight_q"], score["weight_k"]), -1)
    return score[name] if name in score else getattr(case, name)


def _with(case: ReadCase, name: str, x: Array) -> ReadCase:
    """Return the case with other numbers for one input."""
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


def _direction(case: ReadCase, name: str, rng: np.random.Generator) -> Array:
    """Return a random direction of each vector's size; zero at infinities and zeros of cosine."""
    x = _get(case, name)
    direction = rng.standard_normal(x.shape)
    if name in ("query", "keys", "values"):
        largest = np.abs(np.where(np.isfinite(x), x, 0.0)).max(-1, keepdims=True, initial=0.0)
        kinds = case.score["kind"], (case.score.get("inner") or {}).get("kind")
        size = np.where(
            largest < case.tiny, 0.0 if "cosine" in kinds and name != "values" else 1.0, largest
        )
        direction = direction * size
    return np.where(np.isfinite(x), direction, 0.0)
