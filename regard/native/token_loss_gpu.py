"""Triton kernel of the output layer's loss: exponentials of scores, in place.

    z_v  ->  exp(z_v - max z)        and, for each row, max z and the sum of the exponentials

As in regard.native.token_loss, in one launch that reads the scores twice, the second time mostly
from the L2 cache, and writes them once. The sum of a row with NaN or plus infinity is NaN.

Not yet run on a GPU: Triton's interpreter ran it, and Triton compiled it for sm_80 and sm_90.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 4096, 8
"""Scores that a program loads at a time, and its warps: 16 scores in the registers of a thread."""


@triton.jit
@no_type_check
def exponentiate_kernel(scores, stats, rows, columns, BLOCK: tl.constexpr):
    """Compute one row in each program."""
    row = tl.program_id(0).to(tl.int64)
    scores += row * columns
    at = tl.arange(0, BLOCK)
    highest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for first in range(0, columns, BLOCK):
        inside = first + at < columns
        part = tl.load(scores + first + at, mask=inside, other=float("-inf"))
        highest = tl.maximum(highest, part.to(tl.float32))
    most = tl.max(highest, 0)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, columns, BLOCK):
        inside = first + at < columns
        part = tl.load(scores + first + at, mask=inside, other=float("-inf"))
        exps = tl.exp(part.to(tl.float32) - most)
        total += exps
        tl.store(scores + first + at, exps.to(scores.dtype.element_ty), mask=inside)
    tl.store(stats + row, most)
    tl.store(stats + rows + row, tl.sum(total, 0))


def exponentiate_rows(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Replace scores by exp(score - max); return max and sum of exponentials by row, (rows, 1)."""
    rows, columns = scores.shape
    stats = scores.new_empty(2, rows, 1, dtype=torch.float32)
    launch: Any = exponentiate_kernel[(rows,)]
    with torch.cuda.device_of(scores):
        launch(scores, stats, rows, columns, BLOCK=BLOCK, num_warps=WARPS)
    highest, total = stats
    return highest, total
