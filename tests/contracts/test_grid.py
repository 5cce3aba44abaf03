"""Every score x choice x kernel x dtype: right (value, gradient), or refused.

Each with every mask and every bias. In float64 each score and kernel, and each choice and kernel,
meet every pair of these; with --slow each score, choice and kernel.

The reference is the formula in float64, of the rounded inputs. A refusal names a kernel that can.
"""

import functools
import itertools
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.biases import Alibi, Bias, RelativeBias, ShawBias
from regard.attention.choices import Choice, Hard, Proportional, Soft, SoftmaxForm, Sparse, TopK
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
from tests.helpers import NEEDS_NATIVE
from tests.shapes import without_checks

BATCH, HEADS, QUERIES, KEYS, DIM, VALUE_DIM = 3, 2, 5, 7, 11, 13
SHAPES = (QUERIES, DIM), (KEYS, DIM), (KEYS, VALUE_DIM)
HOLES = torch.rand(BATCH, QUERIES, KEYS, generator=torch.Generator().manual_seed(3)) > 0.4


class OwnSink(Choice):
    """Softmax with one more key per head, as a user writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sink", torch.tensor([0.3, -1.0]).view(HEADS, 1, 1))

    def form(self) -> SoftmaxForm:
        return SoftmaxForm(1.7, self.sink)


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
    "sink": OwnSink,
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
"""Largest error allowed, relative to the largest number of the result (to 0.1, if that is smaller):
rounding is of terms, not of sums, and the terms of these reads are of the order of 1."""

ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""Largest relative error of rounding one number to half precision."""

HALF = 4.0
"""Largest relative error allowed in half precision, in units of `ROUNDING`: inputs of products,
weights and results are rounded. The root mean square over all numbers; the largest of the kernels
is 3.5, and a scale wrong by 2 % is 5."""

SELECTIVE = ("hard", "top")
"""Choices that select other keys where rounding changes the order of the scores, in up to 4 % of
the rows of these reads; so the median of the errors of the rows must be within the bound."""

SHAPES_CHECKED = (torch.float32, torch.bfloat16)
"""Dtypes whose calls are checked for shapes: between them they take every path of the others."""

LIMITED = {"shares": ("features",), "sink": ("scaled", "capped", "additive")}
READS = [
    (score, choice)
    for score, choice in itertools.product(SCORES, CHOICES)
    # Shares of negative scores are refused, whatever the kernel.
    if score in LIMITED.get(choice, SCORES)
]
CELLS = [
    (score, choice, kernel)
    for (score, choice), kernel in itertools.product(READS, ["auto", *KERNELS])
    if kernel != "flex"  # compiled, and so in a process of its own: untyped_flex.py
]
cells = pytest.mark.parametrize(
    ("score", "choice", "kernel"), CELLS, ids=["-".join(cell) for cell in CELLS]
)
RULES = list(itertools.product(MASKS, BIASES))
STEPS = {torch.float64: 3, torch.float32: 4, torch.bfloat16: 3, torch.float16: 4}
"""Every how many rules each dtype is computed: with each read, every mask and every bias."""


def rules_of(score: str, choice: str) -> dict[torch.dtype, list[tuple[str, str]]]:
    """Return the masks and biases with which a read is computed in each dtype.

    In float64 each kernel meets every mask with every bias for each score, and for each choice.
    """
    rules = {dtype: RULES[::step] for dtype, step in STEPS.items()}
    if choice in LIMITED:  # of few scores
        return rules | {torch.float64: RULES}
    start = [*SCORES].index(score) + [*CHOICES].index(choice)
    step = STEPS[torch.float64]
    return rules | {torch.float64: RULES[start % step :: step]}


@cells
def test_read_is_correct_or_refused(score: str, choice: str, kernel: str) -> None:
    check_read(score, choice, kernel, rules_of(score, choice))


@pytest.mark.slow
@cells
def test_read_under_any_rule_is_correct_or_refused(score: str, choice: str, kernel: str) -> None:
    check_read(score, choice, kernel, {torch.float64: RULES})


def test_masks_and_biases_of_reads_are_what_the_docstrings_say() -> None:
    met: dict[str, set[tuple[str, str]]] = {}
    for score, choice in READS:
        for dtype, rules in rules_of(score, choice).items():
            masks, biases = map(set, zip(*rules, strict=True))
            assert (masks, biases) == (set(MASKS), set(BIASES))
            if dtype == torch.float64:
                met[score] = met.get(score, set()).union(rules)
                met[choice] = met.get(choice, set()).union(rules)
    assert met.keys() == {*SCORES, *CHOICES}
    assert all(rules == {*RULES} for rules in met.values())


@NEEDS_NATIVE
def test_documented_grid_is_what_kernels_refuse() -> None:
    text = (Path(__file__).parents[2] / "docs/kernels.md").read_text(encoding="utf-8")
    assert grid_table() in text, f"docs/kernels.md must have this table:\n\n{grid_table()}"
    assert _table_of_auto() in text, "docs/kernels.md must have the table of regard.kernels()"


def grid_table() -> str:
    """Return the table of kernels and reads: all masks and biases supported, some, or none."""
    lines = [f"| score | choice | {' | '.join(KERNELS)} |", f"|{'---|' * (2 + len(KERNELS))}"]
    with torch.no_grad():
        for score, choice in READS:
            shares = _supported_shares(score, choice)
            lines.append(f"| {score} | {choice} | {' | '.join(shares)} |")
    return "\n".join(lines)


def make_parts(score: str, choice: str, mask: str, bias: str) -> dict:
    parts = {"score": SCORES[score](), "choice": CHOICES[choice]()}
    return parts | {"mask": MASKS[mask], "bias": BIASES[bias]()}


def _supported_shares(score: str, choice: str) -> list[str]:
    """Return for each kernel whether it supports all masks and biases of a read, some, or none."""
    query, keys, values = (torch.randn(BATCH, HEADS, *shape) for shape in SHAPES)
    supported: dict[str, list[bool]] = {name: [] for name in KERNELS}
    for mask, bias in RULES:
        inputs = prepare_inputs(query, (keys, values), **make_parts(score, choice, mask, bias))
        for name, kernel in KERNELS.items():
            supported[name].append(kernel.unsupported_reason(inputs) is None)
    return ["yes" if all(x) else "some" if any(x) else "" for x in supported.values()]


def _table_of_auto() -> str:
    assert selection.__doc__ is not None
    return "\n".join(line for line in selection.__doc__.splitlines() if line.startswith("|"))


@functools.lru_cache(4 * len(MASKS) * len(BIASES))  # all kernels of one read and choice
def exact_read(names: tuple[str, str, str, str], dtype: torch.dtype) -> list[Tensor]:
    """Return what the formula gives in float64 for the inputs and parameters rounded to a dtype."""
    parts, tensors = _make.__wrapped__(names, dtype)  # parts of its own: they become float64
    return _read(*_cast(parts, tensors, torch.float64), "reference", learns=dtype.itemsize > 2)


def check_read(
    score: str,
    choice: str,
    kernel: str,
    rules: dict[torch.dtype, list[tuple[str, str]]],
) -> int:
    """Fail unless the read is correct or refused in words; return the number computed.

    rules: names of masks and biases, by dtype.
    """
    count = 0
    for dtype, names in rules.items():
        with nullcontext() if dtype in SHAPES_CHECKED else without_checks():
            pairs = _read_or_refuse(score, choice, kernel, names, dtype)
        if dtype in BOUNDS:
            check_largest_errors(pairs, BOUNDS[dtype])
        else:
            check_half_errors(pairs, HALF * ROUNDING[dtype], is_selective=choice in SELECTIVE)
        count += len(pairs)
    return count


def _read_or_refuse(
    score: str, choice: str, kernel: str, rules: list[tuple[str, str]], dtype: torch.dtype
) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Return what the kernel computes, with exact results; check the words of its refusals."""
    pairs = []
    for mask, bias in rules:
        names = score, choice, mask, bias
        try:
            outputs = _read(*_make(names, dtype), kernel)
        except ValueError as refusal:
            check_refusal(kernel, str(refusal))
            continue
        exact = exact_read(names, dtype)
        if kernel == "flex":  # without gradients
            exact = exact[: len(outputs)]
        assert [x.dtype for x in outputs] == [dtype] * len(exact)
        pairs.append((outputs, exact))
    return pairs


def check_largest_errors(pairs: list[tuple[list[Tensor], list[Tensor]]], bound: float) -> None:
    for outputs, exact in pairs:
        for actual, expected in zip(outputs, exact, strict=True):
            size = expected.abs().max().clamp(min=0.1)
            assert (actual.double() - expected).abs().max() <= bound * size


def check_half_errors(
    pairs: list[tuple[list[Tensor], list[Tensor]]], bound: float, *, is_selective: bool
) -> None:
    """Fail if the relative error of all outputs together, or of a gradient, exceeds the bound."""
    for number in range(len(pairs[0][0]) if pairs else 0):
        all_errors, all_sizes = [], []
        for outputs, exact in pairs:
            actual, expected = outputs[number].double(), exact[number]
            all_errors.append((actual - expected).square().mean(-1).flatten())
            all_sizes.append(expected.square().mean(-1).flatten())
        errors, sizes = torch.cat(all_errors), torch.cat(all_sizes)
        error = errors.mean() / sizes.mean()
        if is_selective:
            error = (errors / sizes)[sizes > 0].median()
        assert error.sqrt() <= bound


def check_refusal(kernel: str, refusal: str) -> None:
    """Check that the message names the requested kernel and, last, those that support the read."""
    assert f"kernel {kernel!r} does not support this read" in refusal
    assert kernel != "auto"
    able = refusal.rpartition(". Use ")[2].split(", ")
    assert set(able) <= set(KERNELS) - {kernel}
    assert "reference" in able


@functools.lru_cache(4 * len(MASKS) * len(BIASES))
def _make(names: tuple[str, str, str, str], dtype: torch.dtype) -> tuple[dict, list[Tensor]]:
    """Return the parts of these names, and queries, keys and values: always the same."""
    torch.default_generator.manual_seed(7)
    parts = make_parts(*names)
    return _cast(parts, [torch.randn(BATCH, HEADS, *shape) / 2 for shape in SHAPES], dtype)


def _cast(parts: dict, tensors: list[Tensor], dtype: torch.dtype) -> tuple[dict, list[Tensor]]:
    """Move parts and tensors to another dtype; modules change in place."""
    moved = {
        name: part.to(dtype) if isinstance(part, nn.Module | Tensor) else part
        for name, part in parts.items()
    }
    return moved, [x.detach().to(dtype).requires_grad_() for x in tensors]


def _read(
    parts: dict, tensors: list[Tensor], kernel: str, *, learns: bool | None = None
) -> list[Tensor]:
    """Return the output and the gradients of inputs and parameters.

    In half precision a parameter's gradient is a long sum that is never stored in half precision,
    so it is left out.
    """
    query, keys, values = tensors
    if kernel == "flex":  # It has no gradient on a CPU, and refuses to compute one.
        with torch.no_grad():
            memory = keys.detach(), values.detach()
            return [attend(query.detach(), memory, kernel=kernel, **parts)]
    out = attend(query, (keys, values), kernel=kernel, **parts)
    learns = out.dtype.itemsize > 2 if learns is None else learns
    modules = [part for part in parts.values() if isinstance(part, nn.Module) and learns]
    learned = [p for module in modules for p in module.parameters()]
    weighting = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    gradients = torch.autograd.grad(
        (out * weighting).sum(), [*tensors, *learned], allow_unused=True
    )
    return [out.detach(), *(g for g in gradients if g is not None)]
