"""Random reads by every kernel, compared with independently written formulas in float64.

Scores, choices, masks, biases, memories, dtypes, sizes from none on, leading axes that are missing or of size 1,
grouped heads, layouts, and numbers that are huge, tiny, zero, equal or not finite. A read must be correct within the
rounding bound that the oracle derives, or be refused with a message of the package; a valid read may be refused only by
a kernel that was selected by name.
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
    made = make(seed, number)
    kind, detail = _judge(made, number)
    return Outcome(kind, made.text, detail)


def _judge(made: Read, number: int) -> tuple[str, str]:
    gradients = _wants_gradients(made, number)
    try:
        with torch.set_grad_enabled(gradients):
            out, inputs = _read(made, gradients)
    except Exception as error:  # noqa: BLE001  # any exception is judged
        return _judge_refusal(made, error)
    if made.misfits and 0 not in _sizes(made):
        return "taken though it does not fit", ", ".join(sorted(set(made.misfits)))
    if made.misfits:
        return "equal", ""
    exact = read(made.case)
    found = _compare(made, out, exact)
    if found is None and number % 4 == 0:
        try:
            found = _compare_weights(made, exact)
        except Exception as error:  # noqa: BLE001
            found = _judge_refusal(made, error)
            found = None if found[0] == "refused" else found
    if found is None and gradients and out.numel():
        found = reads_gradients.compare(made, out, inputs, exact)
        if found is not None and _is_beyond(made, exact):
            found = "beyond the range, not a number", ""
    return found or ("equal", "")


def _sizes(made: Read) -> tuple[int, ...]:
    return *made.case.query.shape[:-1], *made.case.keys.shape[:-1], *made.case.values.shape


def _wants_gradients(made: Read, number: int) -> bool:
    """Return True for some of the small reads."""
    small = max(made.case.keys.size, made.case.query.size, made.case.values.size) <= 300
    return number % 2 == 0 and small and made.memory != "static"


def _attend_options(made: Read) -> dict[str, Any]:
    bias: Bias | Tensor | None = None
    for one in (bias if isinstance(bias, Bias) else TensorBias(bias) for bias in made.biases):
        bias = one if bias is None else bias + one
    mask = None if made.memory == "masked" else made.mask
    return {"score": made.score, "choose": made.choose, "mask": mask, "bias": bias, "kernel": made.kernel}


def _read(made: Read, gradients: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the output, and the inputs that may need gradients, by the oracle's names."""
    inputs: dict[str, Tensor] = {}
    if gradients:
        for name in ("query", "keys", "values"):
            inputs[name] = getattr(made, name).detach().requires_grad_()
            setattr(made, name, inputs[name])
        for i, bias in enumerate(made.biases):
            if isinstance(bias, Tensor):
                inputs[f"bias {i}"] = made.biases[i] = bias.detach().requires_grad_()
            elif isinstance(bias, nn.Module) and any(True for _ in bias.parameters()):
                inputs[f"bias {i}"] = next(bias.parameters())
        inputs |= reads_gradients.parameters(made)
    return attend(made.query, made.make_memory(), **_attend_options(made)), inputs


def _judge_refusal(made: Read, error: Exception) -> tuple[str, str]:
    """Return the outcome of a refusal: expected or not, and whether the message is the package's own."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = re.sub(r"\d+", "N", str(error).splitlines()[0] if str(error) else "")[:160]
    detail = f"{type(error).__name__}: {text} at {'/'.join(where.filename.split('/')[-2:])}:{where.lineno}"
    if not isinstance(error, ValueError | TypeError) or "/regard/" not in where.filename:
        return "foreign error", detail
    if "does not support this read" in text and made.kernel in text and "reference" in str(error):
        return "refused by this kernel", ""
    if made.misfits:
        return "refused", ""
    # A bias computed from the queries may leave the range as scores do, and so may queries times beta.
    is_range = "must be finite, but overflow" in str(error) or "bias must be finite" in str(error)
    given = (np.nan_to_num(one, posinf=0, neginf=0) for one in (made.case.query, made.case.keys))
    largest = max(float(np.abs(one).max(initial=0.0)) for one in given)
    if is_range and max(largest, read(made.case).scores) > torch.finfo(made.dtype).max / 8:
        return "refused", ""
    return "refused though it fits", detail


def _compare(made: Read, out: Tensor, exact: Result) -> tuple[str, str] | None:
    names = f"{made.case.score['kind']} {made.case.choice['kind']} {made.kernel} {made.dtype}"
    if tuple(out.shape) != exact.out.shape or out.dtype != made.dtype:
        return "wrong", f"shape {tuple(out.shape)} {out.dtype}, not {exact.out.shape}; {names}"
    got = out.detach().double().numpy()
    with np.errstate(invalid="ignore"):
        is_wrong = (np.abs(got - exact.out) > exact.error).any()
    has_hull = made.case.choice["kind"] != "shares"  # where all shares are zero, so is what is read
    faults = {
        "not zero": (got[exact.closed] != 0).any(),
        "not finite": not np.isfinite(got).all(),
        "wrong": is_wrong,
        "outside the hull": has_hull and ((got < exact.low) | (got > exact.high)).any(),
    }
    fault = next((name for name, found in faults.items() if found), None)
    if fault in ("not zero", "not finite") and _is_beyond(made, exact):
        return "beyond the range, not a number", ""
    return None if fault is None else (fault, names)


def _is_beyond(made: Read, exact: Result) -> bool:
    """Return True if scores overflow in a read of a memory, where overflow is not checked and gives NaN."""
    is_large = exact.scores > torch.finfo(made.dtype).max / 8 or "enormous" in made.text  # hidden ones count
    return made.memory != "pair" and is_large


def _compare_weights(made: Read, exact: Result) -> tuple[str, str] | None:
    if made.memory == "static":
        return None
    with torch.no_grad():
        weights = attention_weights(made.query, made.make_memory(), **_attend_options(made)).double().numpy()
    names = f"weights {made.case.score['kind']} {made.case.choice['kind']} {made.dtype}"
    if weights.shape != exact.weights.shape:
        return "wrong", f"{names}: shape {weights.shape}, not {exact.weights.shape}"
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        return ("beyond the range, not a number", "") if _is_beyond(made, exact) else ("not finite", names)
    with np.errstate(invalid="ignore"):
        return ("wrong", names) if (np.abs(weights - exact.weights) > exact.doubt).any() else None


CAMPAIGN = Campaign(
    name="reads",
    about="random reads against a float64 oracle",
    cases=10_000,
    run=_case,
    fine=frozenset({"equal", "refused", "refused by this kernel", "beyond the range, not a number"}),
)
