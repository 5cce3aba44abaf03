"""Every score x choice x mask x bias x kernel x dtype: right to the stated bound, in value and gradient, or refused.

The reference is the formula in float64, of the rounded inputs. A refusal names a kernel that can.
"""

import copy
import functools
import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.biases import Alibi, Bias, RelativeBias, ShawBias
from regard.attention.choices import Choice, Hard, Proportional, Soft, Sparse, TopK
from regard.attention.inputs import prepare_inputs
from regard.attention.kernels import selection
from regard.attention.kernels.selection import KERNELS
from regard.attention.masks import Mask, causal, dense, padding, window
from regard.attention.scores import (
    Additive,
    Concat,
    Cosine,
    Dot,
    FeatureMap,
    General,
    Location,
    ScaledDot,
    Score,
    SoftCap,
)

BATCH, HEADS, QUERIES, KEYS, DIM, VALUE_DIM = 3, 2, 5, 7, 11, 13
HOLES = torch.rand(BATCH, QUERIES, KEYS, generator=torch.Generator().manual_seed(3)) > 0.4

SCORES: dict[str, Callable[[], Score]] = {
    "dot": Dot,
    "scaled": ScaledDot,
    "general": lambda: General(DIM, DIM, hidden=3),
    "additive": lambda: Additive(DIM, DIM, hidden=17),
    "concat": lambda: Concat(DIM, DIM, hidden=3),
    "cosine": Cosine,
    "location": lambda: Location(DIM, max_keys=KEYS + 2),
    "capped": lambda: SoftCap(ScaledDot(), 1.5),
    "heads": lambda: Additive(DIM, DIM, hidden=5, num_heads=HEADS),
    "features": FeatureMap,
}
CHOICES: dict[str, Callable[[], Choice]] = {
    "soft": Soft,
    "sharp": lambda: Soft(beta=1.7),
    "learned": lambda: Soft(beta=torch.tensor([0.5, 2.0]).view(HEADS, 1, 1), learn=True),
    "hard": Hard,
    "sparse": lambda: Sparse(1.5),
    "top": lambda: TopK(2),
    "shares": Proportional,
}
MASKS: dict[str, Mask | None] = {
    "none": None,
    "causal": causal(),
    "ranges": causal() & padding([7, 0, 4]),
    "holes": dense(HOLES) & padding([6, 7, 2]),
    "window": window(3, ahead=1) & padding([7, 5, 1]),
    "not": ~window(2),
}
BIASES: dict[str, Callable[[], Bias | Tensor | None]] = {
    "none": lambda: None,
    "given": lambda: torch.randn(BATCH, 1, QUERIES, KEYS),
    "alibi": lambda: Alibi(HEADS),
    "relative": lambda: RelativeBias(HEADS, buckets=4, max_distance=6),
    "shaw": lambda: ShawBias(DIM, max_distance=2),
}
BOUNDS = {torch.float64: 1e-10, torch.float32: 2e-5}
"""Largest error allowed, relative to the largest number of the result (to 0.1, if that is smaller): rounding is of
terms, not of sums, and the terms of these reads are of the order of 1."""

HALF = 2.0
"""Largest root mean square error allowed in half precision, relative to that of torch's fused attention.

These reads are so small that rounding the weights shows; tests/attention/test_half.py has larger ones and 1.5.
"""

READS = [
    (score, choice)
    for score, choice in itertools.product(SCORES, CHOICES)
    if choice != "shares" or score == "features"  # shares of negative scores are refused, whatever the kernel
]
CELLS = [
    (score, choice, kernel)
    for (score, choice), kernel in itertools.product(READS, KERNELS)
    if kernel != "flex"  # compiled, and so in a process of its own: untyped_flex.py
]
SEPARATED = ("soft", "sharp", "learned")
"""Choices whose weights change little when scores are rounded; others are compared in float32 and float64 only."""
RULES = list(itertools.product(MASKS, BIASES))


@pytest.mark.parametrize(("score", "choice", "kernel"), CELLS, ids=["-".join(cell) for cell in CELLS])
def test_read_is_correct_or_refused(score: str, choice: str, kernel: str) -> None:
    for mask, bias in RULES:
        check_cell(score, choice, mask, bias, kernel)
    check_half(score, choice, kernel, RULES)


@pytest.mark.parametrize(("score", "choice"), READS)
def test_auto_supports_every_read(score: str, choice: str) -> None:
    for mask, bias in RULES:
        assert check_cell(score, choice, mask, bias, "auto")
    check_half(score, choice, "auto", RULES)


def test_documented_grid_is_what_kernels_refuse() -> None:
    text = (Path(__file__).parents[2] / "docs/kernels.md").read_text(encoding="utf-8")
    assert grid_table() in text, f"docs/kernels.md must have this table:\n\n{grid_table()}"
    assert _table_of_auto() in text, "docs/kernels.md must have the table of regard.kernels()"


def grid_table() -> str:
    """Return the table of kernels and reads: all masks and biases supported, some, or none."""
    lines = [f"| score | choice | {' | '.join(KERNELS)} |", f"|{'---|' * (2 + len(KERNELS))}"]
    with torch.no_grad():
        for score, choice in READS:
            cells = (_supported_share(score, choice, kernel) for kernel in KERNELS)
            lines.append(f"| {score} | {choice} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _supported_share(score: str, choice: str, kernel: str) -> str:
    shapes = ((QUERIES, DIM), (KEYS, DIM), (KEYS, VALUE_DIM))
    query, keys, values = (torch.randn(BATCH, HEADS, *shape) for shape in shapes)
    supported = []
    for mask, bias in itertools.product(MASKS, BIASES):
        parts = {"score": SCORES[score](), "choose": CHOICES[choice](), "mask": MASKS[mask], "bias": BIASES[bias]()}
        supported.append(KERNELS[kernel].refusal(prepare_inputs(query, (keys, values), **parts)) is None)
    return "yes" if all(supported) else "some" if any(supported) else ""


def _table_of_auto() -> str:
    assert selection.__doc__ is not None
    return "\n".join(line for line in selection.__doc__.splitlines() if line.startswith("|"))


def check_cell(score: str, choice: str, mask: str, bias: str, kernel: str) -> bool:
    torch.default_generator.manual_seed(7)
    parts = {"score": SCORES[score](), "choose": CHOICES[choice](), "mask": MASKS[mask], "bias": BIASES[bias]()}
    tensors = _tensors()
    is_supported = False
    for dtype, bound in BOUNDS.items():
        # FlexAttention has no gradient on a CPU; it refuses to compute one.
        with torch.set_grad_enabled(kernel != "flex"):
            rounded = _cast(parts, tensors, dtype)
            try:
                outputs = _read(*rounded, kernel)
            except ValueError as refusal:
                _check_refusal(kernel, refusal)
                continue
        is_supported = True
        with torch.set_grad_enabled(kernel != "flex"):
            exact = _read(*_cast(*rounded, torch.float64), "reference")
        for actual, expected in zip(outputs, exact, strict=True):
            assert actual.dtype == dtype
            assert (actual.double() - expected).abs().max() <= bound * expected.abs().max().clamp(min=0.1)
    return is_supported


def check_half(score: str, choice: str, kernel: str, rules: list[tuple[str, str]]) -> None:
    """Fail if errors in half precision are larger than those of torch's fused attention, in value and gradients."""
    # Scores of features are sums of positive terms, large ones: rounded to half precision they say little.
    if choice not in SEPARATED or score == "features":
        return
    for dtype in (torch.bfloat16, torch.float16):
        with torch.set_grad_enabled(kernel != "flex"):
            errors = half_errors(score, choice, kernel, dtype, tuple(rules))
            # Capped scores have no fused kernel, and additive and location scores are not of two vectors.
            like = score if score in ("dot", "scaled", "general", "cosine") else "dot"
            fused = half_errors(like, choice, "sdpa", dtype, tuple(rules))
        for error, fused_error in zip(errors, fused, strict=False):  # location scores have no gradient of keys
            assert error <= HALF * fused_error


@functools.cache
def half_errors(score: str, choice: str, kernel: str, dtype: torch.dtype, rules: tuple) -> list[float]:
    """Return relative root mean square errors of the output and of the gradients of query, keys and values.

    Over all rules together; of the reads that the kernel does not refuse.
    """
    squared_errors, squares = {}, {}
    for mask, bias in rules:
        torch.default_generator.manual_seed(7)
        parts = {"score": SCORES[score](), "choose": CHOICES[choice](), "mask": MASKS[mask], "bias": BIASES[bias]()}
        rounded = _cast(parts, _tensors(), dtype)
        try:
            outputs = _read(*rounded, kernel)
        except ValueError as refusal:
            _check_refusal(kernel, refusal)
            continue
        exact = _read(*_cast(*rounded, torch.float64), "reference")
        for number, (actual, expected) in enumerate(zip(outputs, exact, strict=False)):
            assert actual.dtype == dtype
            squared_errors[number] = (
                squared_errors.get(number, 0.0) + (actual.double() - expected).square().sum().item()
            )
            squares[number] = squares.get(number, 0.0) + expected.square().sum().item()
    return [math.sqrt(squared_errors[number] / squares[number]) for number in squared_errors]


def _tensors() -> list[Tensor]:
    return [torch.randn(BATCH, HEADS, n, dim) / 2 for n, dim in ((QUERIES, DIM), (KEYS, DIM), (KEYS, VALUE_DIM))]


def _cast(parts: dict, tensors: list[Tensor], dtype: torch.dtype) -> tuple[dict, list[Tensor]]:
    """Copy parts and tensors to another dtype."""
    cast = {}
    for name, part in parts.items():
        moves = isinstance(part, nn.Module) or (isinstance(part, Tensor) and part.is_floating_point())
        cast[name] = copy.deepcopy(part).to(dtype) if moves else part
    return cast, [x.detach().to(dtype).requires_grad_(torch.is_grad_enabled()) for x in tensors]


def _read(parts: dict, tensors: list[Tensor], kernel: str) -> list[Tensor]:
    """Return the output and, if anything requires them, the gradients of inputs and parameters."""
    query, keys, values = tensors
    out = attend(query, (keys, values), kernel=kernel, **parts)
    if not out.requires_grad:
        return [out.detach()]
    # In half precision a parameter's gradient is a long sum that is never stored in half precision.
    modules = [part for part in parts.values() if isinstance(part, nn.Module) and out.dtype.itemsize > 2]
    learned = [p for module in modules for p in module.parameters()]
    weighting = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    gradients = torch.autograd.grad((out * weighting).sum(), [*tensors, *learned], allow_unused=True)
    return [out, *(g for g in gradients if g is not None)]


def _check_refusal(kernel: str, refusal: ValueError) -> None:
    """Check that the message names the requested kernel and, at the end, those that support the read."""
    assert f"kernel {kernel!r} does not support this read" in str(refusal)
    able = str(refusal).rpartition(". Use ")[2].split(", ")
    assert set(able) <= set(KERNELS) - {kernel}
    assert "reference" in able
