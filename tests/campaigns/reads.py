"""Random reads by every kernel, compared with independently written formulas in float64.

Scores, choices, masks, biases, memories, dtypes, sizes from none on, leading axes that are missing
or of size 1, grouped heads, layouts, and numbers that are huge, tiny, zero, equal or not finite. A
read must be correct within the rounding bound that the oracle derives, or be refused with a message
of the package; a valid read may be refused only by a kernel that was selected by name.
"""

import re
import traceback
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention.attend import attend, attention_weights
from regard.attention.biases import Bias, TensorBias
from tests.campaigns import reads_gradients
from tests.campaigns.campaign import Campaign, Outcome
from tests.campaigns.reads_cases import Read, make
from tests.campaigns.reads_oracle import Result, read

__all__ = ["CAMPAIGN"]


def _case(seed: int, number: int) -> Outcome:
    torch.set_num_threads(1)
    torch.manual_seed(number)
    sample = make(seed, number)
    kind, detail = _judge(sample, number)
    return Outcome(kind, sample.text, detail)


def _judge(sample: Read, number: int) -> tuple[str, str]:
    gradients = _wants_gradients(sample, number)
    try:
        with torch.set_grad_enabled(gradients):
            out, inputs = _read(sample, gradients)
    except Exception as error:  # noqa: BLE001  # any exception is judged
        return _judge_refusal(sample, error)
    if sample.misfits and 0 not in _sizes(sample):
        return "taken though it does not fit", ", ".join(sorted(set(sample.misfits)))
    if sample.misfits:
        return "equal", ""
    exact = read(sample.case)
    problem = _compare(sample, out, exact)
    if problem is None and number % 4 == 0:
        try:
            problem = _compare_weights(sample, exact)
        except Exception as error:  # noqa: BLE001
            problem = _judge_refusal(sample, error)
            problem = None if problem[0] == "refused" else problem
    if problem is None and gradients and out.numel():
        problem = reads_gradients.compare(sample, out, inputs, exact)
        if problem is not None and _is_beyond(sample, exact):
            problem = "beyond the range, not a number", ""
    return problem or ("equal", "")


def _sizes(sample: Read) -> tuple[int, ...]:
    return *sample.case.query.shape[:-1], *sample.case.keys.shape[:-1], *sample.case.values.shape


def _wants_gradients(sample: Read, number: int) -> bool:
    """Return True for some of the small reads."""
    small = max(sample.case.keys.size, sample.case.query.size, sample.case.values.size) <= 300
    return number % 2 == 0 and small and sample.memory != "static"


def _attend_options(sample: Read) -> dict[str, Any]:
    bias: Bias | Tensor | None = None
    for term in (bias if isinstance(bias, Bias) else TensorBias(bias) for bias in sample.biases):
        bias = term if bias is None else bias + term
    mask = None if sample.memory == "masked" else sample.mask
    return {
        "score": sample.score,
        "choice": sample.choice,
        "mask": mask,
        "bias": bias,
        "kernel": sample.kernel,
    }


def _read(sample: Read, gradients: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the output, and the inputs that may need gradients, by the oracle's names."""
    inputs: dict[str, Tensor] = {}
    if gradients:
        for name in ("query", "keys", "values"):
            inputs[name] = getattr(sample, name).detach().requires_grad_()
            setattr(sample, name, inputs[name])
        for i, bias in enumerate(sample.biases):
            if isinstance(bias, Tensor):
                inputs[f"bias {i}"] = sample.biases[i] = bias.detach().requires_grad_()
            elif isinstance(bias, nn.Module) and any(True for _ in bias.parameters()):
                inputs[f"bias {i}"] = next(bias.parameters())
        inputs |= reads_gradients.parameters(sample)
    return attend(sample.query, sample.make_memory(), **_attend_options(sample)), inputs


def _judge_refusal(sample: Read, error: Exception) -> tuple[str, str]:
    """Return the outcome of a refusal: expected or not, and the package's own message or not."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = re.sub(r"\d+", "N", str(error).splitlines()[0] if str(error) else "")[:160]
    detail = (
        f"{type(error).__name__}: {text} at "
        f"{'/'.join(where.filename.split('/')[-2:])}:{where.lineno}"
    )
    if sample.misfits and isinstance(error, ValueError | TypeError | RuntimeError):
        return "refused", ""
    if not isinstance(error, ValueError | TypeError) or "/regard/" not in where.filename:
        return "foreign error", detail
    if "does not support this read" in text and sample.kernel in text and "reference" in str(error):
        return "refused by this kernel", ""
    return "refused though it fits", detail


def _compare(sample: Read, out: Tensor, exact: Result) -> tuple[str, str] | None:
    names = (
        f"{sample.case.score['kind']} {sample.case.choice['kind']} {sample.kernel} {sample.dtype}"
    )
    if tuple(out.shape) != exact.out.shape or out.dtype != sample.dtype:
        return "wrong", f"shape {tuple(out.shape)} {out.dtype}, not {exact.out.shape}; {names}"
    actual = out.detach().double().numpy()
    with np.errstate(invalid="ignore"):
        is_wrong = (np.abs(actual - exact.out) > exact.error).any()
    has_hull = (
        sample.case.choice["kind"] != "shares"
    )  # where all shares are zero, so is what is read
    faults = {
        "not zero": (actual[exact.closed] != 0).any(),
        "not finite": not np.isfinite(actual).all(),
        "wrong": is_wrong,
        "outside the hull": has_hull and ((actual < exact.low) | (actual > exact.high)).any(),
    }
    fault = next((name for name, is_present in faults.items() if is_present), None)
    if fault in ("not zero", "not finite") and _is_beyond(sample, exact):
        return "beyond the range, not a number", ""
    return None if fault is None else (fault, names)


def _is_beyond(sample: Read, exact: Result) -> bool:
    """Return True if scores overflow, hidden ones included, which gives NaN."""
    return exact.scores > torch.finfo(sample.dtype).max / 8 or "enormous" in sample.text


def _compare_weights(sample: Read, exact: Result) -> tuple[str, str] | None:
    if sample.memory == "static":
        return None
    with torch.no_grad():
        weights = (
            attention_weights(sample.query, sample.make_memory(), **_attend_options(sample))
            .double()
            .numpy()
        )
    names = f"weights {sample.case.score['kind']} {sample.case.choice['kind']} {sample.dtype}"
    if weights.shape != exact.weights.shape:
        return "wrong", f"{names}: shape {weights.shape}, not {exact.weights.shape}"
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        return (
            ("beyond the range, not a number", "")
            if _is_beyond(sample, exact)
            else ("not finite", names)
        )
    with np.errstate(invalid="ignore"):
        return ("wrong", names) if (np.abs(weights - exact.weights) > exact.doubt).any() else None


CAMPAIGN = Campaign(
    name="reads",
    about="random reads against a float64 oracle",
    cases=10_000,
    run=_case,
    fine=frozenset(
        {"equal", "refused", "refused by this kernel", "beyond the range, not a number"}
    ),
)
