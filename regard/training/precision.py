"""Precision of training: float32, tf32, bfloat16, or (auto) the faster of float32 and bfloat16.

On a CPU with bfloat16 instructions `auto` times a product y = x W^T + b, forward and backward, in
each type, because some CPUs multiply bfloat16 more slowly than float32. On CUDA it is bfloat16 if
the device multiplies it natively, on all other devices float32.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch

from regard.errors import UserError
from regard.ops.linear import linear

Precision = Literal["float32", "tf32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
_ROWS, _IN, _OUT = 1024, 128, 512
"""Sizes of x and of the weight, which is that of the feed-forward layer of the recipe `dates`."""
_REPEATS = 10
_MAX_RATIO = 0.8
"""Maximum ratio of the times for bfloat16: it costs time outside of products, too."""


def resolve_precision(setting: Literal["auto"] | Precision, device: torch.device) -> Precision:
    """Return the precision for a setting on this device. Raises: UserError for tf32 on a CPU."""
    if setting == "tf32" and device.type == "cpu":
        raise UserError("train.precision tf32 needs a GPU, got device cpu: choose float32.")
    if setting != "auto":
        return setting
    if not has_native_bfloat16(device):
        return "float32"
    if device.type != "cpu":
        return "bfloat16"
    _time_product("bfloat16")  # the first products of a process take longer
    _time_product("float32")
    # Alternately, so that other load on the machine slows both.
    times = [(_time_product("bfloat16"), _time_product("float32")) for _ in range(_REPEATS)]
    bfloat16, float32 = map(min, zip(*times, strict=True))
    return "bfloat16" if bfloat16 <= _MAX_RATIO * float32 else "float32"


@contextmanager
def tf32_products() -> Iterator[None]:
    """Round the inputs of float32 products to tf32, on GPUs that have it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def has_native_bfloat16(device: torch.device) -> bool:
    """Return True if the device has bfloat16 instructions; on a CPU they may be slow."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    names = ("avx512_bf16", "amx_bf16", "bf16") if device.type == "cpu" else ()
    return any(torch.cpu.get_capabilities().get(name, False) for name in names)


def emulates_bfloat16(device: torch.device) -> bool:
    """Return True for a CPU or CUDA device without bfloat16 instructions; others are not known."""
    return device.type in ("cpu", "cuda") and not has_native_bfloat16(device)


def _time_product(precision: str) -> float:
    """Return the seconds of a product of ones, forward and backward."""
    shapes = (_ROWS, _IN), (_OUT, _IN), (_OUT,)
    x, weight, bias = (
        torch.ones(shape, dtype=torch.float32, device="cpu", requires_grad=True) for shape in shapes
    )
    start = time.perf_counter()
    with torch.enable_grad():
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            y = linear(x, weight, bias)
        y.sum().backward()
    return time.perf_counter() - start
