"""The read by torch's FlexAttention: fused, with masks as functions of indices, whose empty blocks are skipped.

    out = softmax(cap(scale query keys^T) + bias, over allowed keys) values

For scores that are a scaled (and capped) inner product, with the soft choice. torch compiles it for each kind of read,
which takes seconds the first time, and on a CPU needs a C++ compiler; there it has no backward.

Source: dong2024.
"""

import functools
import shutil
import weakref
from collections.abc import Callable
from typing import Any, cast, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from regard.attention.choices import Soft
from regard.attention.kernels.problem import Problem
from regard.attention.kernels.sdpa import spread
from regard.attention.masks import Mask
from regard.attention.scores import InnerProduct

_BLOCKS: weakref.WeakKeyDictionary[Mask, dict[tuple, BlockMask]] = weakref.WeakKeyDictionary()
"""Block masks of masks that are used again: finding the empty blocks costs more than a short read."""

_MOST_KINDS = 256
"""Kinds of read (shapes, dtypes, masks, biases) compiled in one process."""


def refusal(problem: Problem) -> str | None:
    """Why this kernel cannot do the problem; None if it can."""
    if not isinstance(problem.form, InnerProduct):
        return f"score {type(problem.score).__name__} is no inner product"
    if not isinstance(problem.choose, Soft):
        return f"choice {type(problem.choose).__name__} is not Soft"
    if problem.num_axes > 4:
        return f"the read has {problem.num_axes - 2} leading axes, more than batch and head"
    return _refusal_on_cpu(problem) if problem.query.device.type == "cpu" else None


def has_compiler() -> bool:
    """Whether a C++ compiler is there, which torch needs to compile for a CPU."""
    return any(shutil.which(name) is not None for name in ("c++", "g++", "clang++"))


def _refusal_on_cpu(problem: Problem) -> str | None:
    tensors = (problem.query, problem.keys, problem.values)
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return "it has no gradient on a CPU"
    if problem.query.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"dtype {problem.query.dtype} is not for it on a CPU"
    if not has_compiler():
        return "it needs a C++ compiler on a CPU"
    return None


def read(problem: Problem) -> Float[Tensor, "... query value_dim"]:
    """out = softmax(cap(scale query keys^T) + bias, over allowed keys) values, without forming the weights."""
    form, choose = problem.form, problem.choose
    assert isinstance(form, InnerProduct)
    assert isinstance(choose, Soft)
    if problem.query.shape[-1] != problem.keys.shape[-1]:
        problem.score.compare(problem.query[..., :1, :], problem.keys[..., :1, :])  # raises, and says what to do
    grouped = problem.group > 1
    query, keys, values = spread(problem, problem.query, grouped=grouped)
    leading = query.shape[:-2]
    query, keys, values = (_with_four_axes(x) for x in (query, keys, values))
    out = _flex(
        query,
        keys,
        values,
        score_mod=_score_mod(problem, choose.beta, form.cap),
        block_mask=_block_mask(problem, query.shape[:2]),
        scale=form.scale,
        enable_gqa=grouped,
    )
    return cast("Tensor", out).reshape(*leading, *out.shape[-2:])


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    # A read that torch cannot compile must fail, and not be computed in another way that stores all scores.
    return cast("Callable[..., Tensor]", torch.compile(flex_attention, dynamic=False, fullgraph=True))


def _flex(query: Tensor, keys: Tensor, values: Tensor, **rules: Any) -> Tensor:
    if torch.compiler.is_compiling():
        return cast("Tensor", flex_attention(query, keys, values, **rules))  # compiles with the function that calls it
    with torch._dynamo.config.patch(recompile_limit=_MOST_KINDS):
        return _compiled()(query, keys, values, **rules)


def _score_mod(problem: Problem, beta: float | Tensor, cap: float | None):
    """What happens to a score on its way to the softmax; None if nothing."""
    bias, diagonals, num_queries = problem.added(), problem.diagonals(), problem.places.num_queries
    bias = None if bias is None else _with_four_axes(bias)
    diagonals = None if diagonals is None else _with_four_axes(diagonals.unsqueeze(-2)).squeeze(-2)
    if bias is None and cap is None and not isinstance(beta, Tensor) and beta == 1:
        return None
    if isinstance(beta, Tensor):
        beta = _with_four_axes(beta[(None,) * (problem.num_axes - beta.dim()) + (...,)])  # lines up from the right

    @no_type_check
    def modify(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if cap is not None:
            score = cap * torch.tanh(score / cap)
        if diagonals is not None:
            score = score + _at(diagonals, row, head, key - query + num_queries - 1)
        elif bias is not None:
            score = score + _at(bias, row, head, query, key)
        if isinstance(beta, Tensor):
            return score * _at(beta, row, head, query, torch.zeros_like(key))
        return score * beta

    return modify


@no_type_check
def _at(table: Tensor, *index: Tensor) -> Tensor:
    """An entry of a table of which any axis may have size 1."""
    return table[tuple(at if size > 1 else torch.zeros_like(at) for at, size in zip(index, table.shape, strict=True))]


def _block_mask(problem: Problem, leading: torch.Size) -> BlockMask | None:
    mask = problem.mask
    if mask is None:
        return None
    places = problem.places
    made = _BLOCKS.setdefault(mask, {})
    key = (*leading, places.num_queries, places.num_keys, places.rows, str(places.device))
    if places.aligned and key in made:
        return made[key]
    problem.tile(0, 1).allowed()  # raises where the mask's leading axes are not those of the read
    rule = mask.rule(places)

    @no_type_check  # torch counts the arguments in the signature, which a checked function hides
    def allows(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return rule(row, head, query, key)

    batch, heads = leading
    block_mask = create_block_mask(allows, batch, heads, places.num_rows, places.num_keys, device=places.device.type)
    if places.aligned:
        made[key] = block_mask
    return block_mask


def _with_four_axes(tensor: Tensor) -> Tensor:
    """(batch, head, ..., ...): a read without heads has one, and one without a batch a batch of one."""
    if tensor.dim() == 3:
        return tensor.unsqueeze(1)
    return tensor[(None,) * (4 - tensor.dim()) + (...,)]
