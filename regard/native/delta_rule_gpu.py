"""Triton kernel of a memory that is written: the chunks of regard.ops.delta_rule, in turn.

    U = V - W S         O = Q S + P U         S <- r S + K^T U          of one chunk

P, Q, K, r and, with strength, V and W are computed for all chunks at once, by torch. A program has
one matrix, or some of its columns, in registers for all chunks: one launch in place of six for each
chunk. All numbers are float32, and so are the products.

Not yet run on a GPU: Triton's interpreter ran it, and Triton compiled it for sm_80 and sm_90.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS, WARPS = 32, 4
"""Columns of S of a program, and its warps."""


@triton.jit
@no_type_check
def scan_kernel(
    pairs, reads, keys, remaining, values, old, state, out, end, chunks, key_dim, value_dim,
    HAS_OLD: tl.constexpr, CHUNK: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute COLUMNS columns of one matrix in each program."""
    row = tl.program_id(0).to(tl.int64)
    time, key = tl.arange(0, CHUNK), tl.arange(0, KEYS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_key, is_column = key[None, :] < key_dim, column[None, :] < value_dim
    is_state = (key[:, None] < key_dim) & is_column
    at_state = (row * key_dim + key[:, None]) * value_dim + column[None, :]
    matrix = tl.load(state + at_state, mask=is_state, other=0.0)
    for chunk in range(chunks):
        number = row * chunks + chunk
        item = number * CHUNK + time[:, None]
        at_key, at_value = item * key_dim + key[None, :], item * value_dim + column[None, :]
        new = tl.load(values + at_value, mask=is_column, other=0.0)
        if HAS_OLD:
            part = tl.load(old + at_key, mask=is_key, other=0.0)
            new -= tl.dot(part, matrix, input_precision="ieee")
        part = tl.load(reads + at_key, mask=is_key, other=0.0)
        result = tl.dot(part, matrix, input_precision="ieee")
        pair = tl.load(pairs + item * CHUNK + time[None, :])
        result += tl.dot(pair, new, input_precision="ieee")
        tl.store(out + at_value, result, mask=is_column)
        part = tl.load(keys + at_key, mask=is_key, other=0.0)
        matrix = tl.load(remaining + number) * matrix
        matrix += tl.dot(tl.trans(part), new, input_precision="ieee")
    tl.store(end + at_state, matrix, mask=is_state)


def scan(
    pairs: Tensor,
    reads: Tensor,
    keys: Tensor,
    remaining: Tensor,
    values: Tensor,
    old: Tensor | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the reads of all items, and the last state, of the parts of `by_chunks`."""
    has_old = old is not None
    parts = [pairs, reads, keys, remaining, values, old if has_old else reads, state]
    parts = [part.contiguous() for part in parts]
    chunks, size, value_dim = values.shape[-3:]
    key_dim = keys.shape[-1]
    out, end = torch.empty_like(parts[4]), torch.empty_like(parts[6])
    launch: Any = scan_kernel[(state[..., 0, 0].numel(), triton.cdiv(value_dim, COLUMNS))]
    sizes = chunks, key_dim, value_dim, has_old, size
    rows = max(16, triton.next_power_of_2(key_dim))
    with torch.cuda.device_of(state):
        launch(*parts, out, end, *sizes, KEYS=rows, COLUMNS=COLUMNS, num_warps=WARPS, num_stages=1)
    return out.flatten(-3, -2), end
