"""The read of choices that keep few keys: gather what was picked instead of weighting everything.

    out_i = sum_r share_ir values[index_ir]        r = 1 .. k;  k = 1 for Hard

Scores are compared as their formula says, a tile of queries at a time, so that memory is bounded; the values are then
read in O(query * k * value_dim), however many keys there are. For Hard and TopK with any score, mask and bias.

Backward: values get theirs at the keys that were read. TopK's scores get theirs from the kept keys. Hard's get the
gradient that stands in for the pick's own, <gradient of out_i, value_j> through a softmax: O(query * key * value_dim),
as in a soft read. Where a read has several tiles, each is computed once more for it, and nothing of it is kept.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.attention.choices import Few, Picked
from regard.attention.kernels import reference
from regard.attention.kernels.problem import Problem
from regard.attention.scores import InnerProduct

TILE = 1 << 20
"""Numbers in a tile: scores, or what a score that is no inner product makes of each pair, or gathered values. A read
holds a few tensors of this size at a time (twice as many in backward), beside its inputs and its result; one query
alone may need larger ones."""


def refusal(problem: Problem) -> str | None:
    """Why this kernel cannot do the problem; None if it can."""
    if not isinstance(problem.choose, Few):
        return f"choice {type(problem.choose).__name__} may weight every key"
    return None


def read(problem: Problem) -> Float[Tensor, "... query value_dim"]:
    """Pick, tile by tile, and gather.

    Under torch.func and torch.compile nothing is computed twice: those decide themselves what is kept for backward.
    """
    num_queries = problem.query.shape[-2]
    choose, step = problem.choose, queries_a_tile(problem)
    assert isinstance(choose, Few)
    tiles = [problem.tile(first, min(first + step, num_queries)) for first in range(0, num_queries, step)]
    again = len(tiles) > 1 and torch.is_grad_enabled() and not _is_transformed()
    run = _twice(draws=choose.draws) if again else _read_tile
    outs, log_probs = [], []
    for tile in tiles:
        out, log_prob = run(tile)
        outs.append(out)
        if log_prob is not None:
            log_probs.append(log_prob)
    choose.settle(torch.cat(log_probs, -1) if log_probs else None)
    return _as_a_product(outs[0] if len(outs) == 1 else torch.cat(outs, -2))


def _read_tile(problem: Problem) -> tuple[Tensor, Tensor | None]:
    choose = problem.choose
    assert isinstance(choose, Few)
    picked = choose.pick(*reference.scored(problem))
    if problem.group == 1:
        return _gather(picked, problem.values), picked.log_prob
    group, slope = problem.group, picked.slope
    folded = Picked(
        reference.fold(picked.index, group),
        reference.fold(picked.share, group),
        None if slope is None else reference.fold(slope, group),
    )
    return reference.unfold(_gather(folded, problem.values), group), picked.log_prob


def _gather(picked: Picked, values: Tensor) -> Tensor:
    """sum_r share_ir values[index_ir], by rows of all values one below the other."""
    *leading, num_keys, value_dim = values.shape
    first = torch.arange(math.prod(leading), device=values.device).view(*leading, 1, 1) * num_keys
    index = picked.index + first  # (..., query, kept): leading axes of 1 broadcast
    taken = values.reshape(-1, value_dim).index_select(0, index.flatten()).view(*index.shape, value_dim)
    share = picked.share.to(values.dtype)
    out = taken.squeeze(-2) * share if index.shape[-1] == 1 else (share.unsqueeze(-2) @ taken).squeeze(-2)
    if picked.slope is None:
        return out
    leading = out.shape[:-2]
    slope = picked.slope.to(values.dtype).expand(*leading, -1, -1)
    return out + _Standing.apply(slope, values.expand(*leading, -1, -1))  # pyrefly: ignore


class _Standing(torch.autograd.Function):
    """(slope - s) values, where s is a number that happens to equal slope: zero, but not so its derivatives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(slope: Tensor, values: Tensor) -> Tensor:
        return values.new_zeros(()).expand(*slope.shape[:-1], values.shape[-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        slope, values = ctx.saved_tensors
        # The gradient of values is zero as well, but not so its own: second derivatives are those of the formula.
        of_values = _Standing.apply(slope.transpose(-2, -1), gradient) if torch.is_grad_enabled() else None
        return gradient @ values.transpose(-2, -1), of_values


def _twice(*, draws: bool) -> Callable[[Problem], tuple[Tensor, Tensor | None]]:
    """_read_tile that keeps nothing for backward and runs again instead, with the same random numbers."""

    def run(tile: Problem) -> tuple[Tensor, Tensor | None]:
        return checkpoint(_read_tile, tile, use_reentrant=False, preserve_rng_state=draws)

    return run


def queries_a_tile(problem: Problem) -> int:
    """As many as keep a tile's largest tensor within TILE numbers."""
    choose, form = problem.choose, problem.form
    assert isinstance(choose, Few)
    num_reads = math.prod(problem.leading)
    num_keys, value_dim = problem.values.shape[-2:]
    a_pair = 1 if isinstance(form, InnerProduct) else problem.query.shape[-1]
    a_query = max(num_keys * a_pair, min(choose.num_kept, num_keys) * value_dim)
    return max(1, TILE // max(1, num_reads * a_query))


def _as_a_product(out: Tensor) -> Tensor:
    """Rounded as the product of weights and values would be: a gather means nothing to autocast."""
    device = out.device.type
    if out.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return out
    return out.to(torch.get_autocast_dtype(device))


def _is_transformed() -> bool:
    return torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None
