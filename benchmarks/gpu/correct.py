"""Reads with gradients on the device, compared with the reference in float64 on the CPU.

error = |x - x_reference| / |x_reference|, the largest of the output and the gradients of queries,
keys, values and parameters of the score. A choice that selects keys may select others after
rounding to bfloat16, so these reads have no bound.
"""

import copy
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

import regard
from benchmarks.gpu.measure import Setting

BOUNDS = {torch.float64: 1e-10, torch.float32: 3e-4, torch.bfloat16: 0.06}
SCORES = {
    "dot": regard.Dot,
    "scaled dot": regard.ScaledDot,
    "general": lambda: regard.General(8, 8),
    "additive": lambda: regard.Additive(8, 8, 16),
    "concat": lambda: regard.Concat(8, 8, 16),
    "cosine": regard.Cosine,
}
CHOICES = {
    "soft": regard.Soft(),
    "sharp": regard.Soft(3.0),
    "hard": regard.Hard(),
    "sparse": regard.Sparse(1.5),
    "top-k": regard.TopK(3),
}
MASKS = {
    "none": None,
    "causal": regard.causal(),
    "padding": regard.padding([23, 9]),
    "window": regard.window(5),
    "fully masked": regard.padding([23, 0]),
}


def error(device: torch.device, dtype: torch.dtype, shapes: list[tuple], **read: Any) -> float:
    """Return the largest relative error of a read of random queries, keys and values."""
    tensors = [torch.randn(shape).to(dtype).double() for shape in shapes]
    if isinstance(read["score"], nn.Module):
        read["score"].to(dtype).double()
    actual = _values(device, dtype, tensors, **read)
    expected = _values(torch.device("cpu"), torch.float64, tensors, **read, kernel="reference")
    errors = []
    for a, b in zip(actual, expected, strict=True):
        assert (a is None) == (b is None), "one of the two has no gradient"
        if a is not None and b is not None:
            relative = float((a.cpu().double() - b).norm() / (b.norm() + 1e-9))
            errors.append(float("inf") if relative != relative else relative)  # noqa: PLR0124  # NaN
    return max(errors)


def _values(
    device: torch.device, dtype: torch.dtype, tensors: list[Tensor], *, score: Any, **read: Any
) -> list[Tensor | None]:
    """Return the output and all gradients."""
    wanted = [tensor.to(device, dtype).detach().requires_grad_() for tensor in tensors]
    query, keys, values = wanted
    if isinstance(score, nn.Module):
        score = copy.deepcopy(score).to(device, dtype)
        wanted = wanted + list(score.parameters())
    out = regard.attend(query, (keys, values), score=score, **read)
    gradient = torch.linspace(-1, 1, out.numel()).bfloat16().reshape(out.shape).to(out)
    return [out.detach(), *torch.autograd.grad(out, wanted, gradient, allow_unused=True)]


def run(setting: Setting) -> None:
    choices = ["soft", "top-k"] if setting.quick else list(CHOICES)
    masks = ["none", "fully masked"] if setting.quick else list(MASKS)
    count, excesses = 0, []
    print(f"{'score':<12}" + "".join(f"{str(dtype)[6:]:>12}" for dtype in BOUNDS))
    for score, make in SCORES.items():
        line = f"{score:<12}"
        for dtype, bound in BOUNDS.items():
            worst = 0.0
            for choice, mask in product(choices, masks):
                torch.manual_seed(1)
                read = {"score": make(), "choice": CHOICES[choice], "mask": MASKS[mask]}
                shapes = [(2, 3, 17, 8), (2, 3, 23, 8), (2, 3, 23, 6)]
                relative = error(setting.device, dtype, shapes, **read)
                count += 1
                if dtype == torch.bfloat16 and choice in ("hard", "sparse", "top-k"):
                    continue
                worst = max(worst, relative)
                if relative > bound:
                    name = f"{score}, {choice}, {mask}, {str(dtype)[6:]}"
                    excesses.append(f"    BEYOND {bound:.0e}: {name}: {relative:.1e}")
            line += f"{worst:12.1e}"
        print(line, flush=True)
    batch, queries, keys, hidden = (2, 33, 65, 16) if setting.quick else (8, 256, 256, 128)
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(1)
        shapes = [(batch, queries, hidden), (batch, keys, hidden), (batch, keys, hidden)]
        relative = error(setting.device, dtype, shapes, score=regard.BareAdditive(hidden))
        word = "within" if relative <= BOUNDS[dtype] else "BEYOND"
        size = f"additive, {(batch, queries, keys, hidden)}, {str(dtype)[6:]}"
        print(f"{size}: {relative:.1e}, {word} {BOUNDS[dtype]:.0e}")
    print("\n".join([f"{count} reads, {len(excesses)} beyond the bound", *excesses[:40]]))
