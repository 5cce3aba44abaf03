"""Inner products on the device, bfloat16: kernel `auto`, and scaled_dot_product_attention and a
compiled FlexAttention called directly, with masks that are built before. n: launches of a call.

FlexAttention keeps its statistics for a backward pass in the rows of inference, too.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import regard
from benchmarks.gpu.measure import Run, Setting, count_launches, medians, ratio, row, verdict

NAMES = ("auto", "sdpa", "flex")
MASKS = ("none", "causal", "padding", "both")
SIZES = {(8, 16, 512): 1.3, (4, 16, 2048): 1.05, (1, 16, 8192): 1.05}
"""Batch, heads and length, and the most times the time of scaled_dot_product_attention."""


def contestants(
    size: tuple[int, int, int], name: str, device: torch.device, flex: Any, *, train: bool
) -> dict[str, Run]:
    """Return a read by each implementation, with a mask of `MASKS`."""
    batch, heads, length = size
    torch.manual_seed(1)
    shape = (batch, length, heads, 64)
    query, keys, values, gradient = (
        torch.randn(shape, device=device, dtype=torch.bfloat16).transpose(1, 2) for _ in range(4)
    )
    tensors = [query, keys, values]
    for tensor in tensors:
        tensor.requires_grad_(train or device.type == "cuda")  # on a CPU, flex has no backward
    lengths = torch.randint(length // 2, length + 1, (batch,)).to(device)
    places = torch.arange(length, device=device)
    causal, padded = name in ("causal", "both"), name in ("padding", "both")
    mask, allowed, blocks = None, None, None
    if name == "causal":
        mask = regard.causal()
    if name == "padding":
        mask, allowed = regard.padding(lengths), (places < lengths[:, None])[:, None, None]
    if name == "both":
        mask = regard.causal() & regard.padding(lengths)
        allowed = (places < lengths[:, None])[:, None, None] & (places <= places[:, None])

    def rule(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        by_order = key <= query if causal else key >= 0
        return by_order & (key < lengths[b]) if padded else by_order

    if causal or padded:
        rows = batch if padded else None
        blocks = create_block_mask(rule, rows, None, length, length, device=device)
    readers = {
        "auto": lambda: regard.attend(query, (keys, values), mask=mask),
        "sdpa": lambda: scaled_dot_product_attention(
            query, keys, values, attn_mask=allowed, is_causal=causal and not padded
        ),
        "flex": lambda: flex(query, keys, values, block_mask=blocks),
    }

    def run(reader: str) -> None:
        with torch.set_grad_enabled(train or reader == "flex"):
            out = readers[reader]()
        if train:
            torch.autograd.grad(out, tensors, gradient)

    return {reader: lambda reader=reader: run(reader) for reader in readers}


def run(setting: Setting) -> None:
    words = [*(f"{name} ms" for name in NAMES), "auto / sdpa", "auto / flex"]
    print(row("batch, heads, length", "mask", *words, "auto n", "sdpa n"))
    verdicts = []
    for size, target in ({(2, 2, 16): 1.3} if setting.quick else SIZES).items():
        worst: list[float] = []
        for name in MASKS:
            torch.compiler.reset()  # else a call looks through the shapes compiled before
            flex = torch.compile(flex_attention, dynamic=False)
            for way in ("infer", "train"):
                runs = contestants(size, name, setting.device, flex, train=way == "train")
                seconds = medians(runs, setting)
                ms = [seconds[n] * 1e3 if n in seconds else None for n in NAMES]
                ratios = [ratio(seconds, "auto", other) for other in NAMES[1:]]
                counts = [count_launches(runs[n], setting) if n in seconds else None for n in NAMES]
                print(row(size, f"{name} {way}", *ms, *ratios, *counts[:2]), flush=True)
                worst.append(float("inf") if ratios[0] is None else ratios[0])
        verdicts.append(verdict(f"{size}, worst auto / sdpa", max(worst), "most", target))
    print("\n".join(verdicts))
