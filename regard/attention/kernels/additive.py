"""The read by our own fused additive attention: neither weights nor hidden units are ever stored.

    score_ij = v . tanh(q_i + k_j) + bias_ij     out_i = sum_j softmax_j(beta score_ij) v_j     in O((m + n) d) memory

Compiled for CPUs (numba) and GPUs (Triton) behind one operator, regard::additive_read. Masks that are a range of
keys a query bound the loops; biases that are the same along diagonals stay m + n - 1 numbers.

Source: bahdanau2015, appendix A.1.2; the online softmax milakov2018, dao2022.
"""

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.axes import can_look_at
from regard.attention.choices import Soft
from regard.attention.features import widen
from regard.attention.kernels.additive_op import REACH, additive_read, is_step
from regard.attention.kernels.half import with_wide_scores
from regard.attention.kernels.problem import Problem
from regard.attention.scores import TanhSum


def refusal(problem: Problem) -> str | None:
    """Why this kernel cannot do the problem; None if it can."""
    if not isinstance(problem.form, TanhSum):
        return f"score {type(problem.score).__name__} is not additive"
    if not isinstance(problem.choose, Soft):
        return f"choice {type(problem.choose).__name__} is not Soft"
    beta = problem.choose.beta
    if isinstance(beta, Tensor) and not _a_head_or_all(beta, problem.num_axes):
        return f"beta of shape {tuple(beta.shape)} differs between queries"
    if problem.num_axes > 4:
        return f"the read has {problem.num_axes - 2} leading axes, more than batch and head"
    if problem.query.device.type not in ("cpu", "cuda"):
        return f"there is no such kernel for {problem.query.device.type}"
    return None


def read(problem: Problem) -> Float[Tensor, "... query value_dim"]:
    """out = softmax(beta (v . tanh(query + keys) + bias), over allowed keys) values."""
    form, choose = problem.form, problem.choose
    assert isinstance(form, TanhSum)
    assert isinstance(choose, Soft)
    has_heads, given = form.v.dim() == 2, problem
    if problem.query.device.type == "cpu":
        # The loops compute in float32; what they keep for the gradient is then not rounded either.
        problem = with_wide_scores(problem)._replace(values=widen(problem.values))
    four = functools.partial(_with_four_axes, has_heads=has_heads)
    query, keys, values = four(problem.query), four(problem.keys), four(problem.values)
    # Under autocast what a score maps is in half precision, and values are as they come.
    query, keys, values = _with_one_batch(query, keys.to(query.dtype), values.to(query.dtype))
    v = form.v.to(query.dtype)
    v = v if has_heads else v.unsqueeze(0)  # (head or 1, hidden)
    diagonals = problem.diagonals()
    added = problem.added() if diagonals is None else None
    bias = None if added is None else four(added).to(query.dtype)  # (batch, head, query, key)
    diagonals = None if diagonals is None else four(diagonals.unsqueeze(-2)).squeeze(-2).to(query.dtype)
    beta = choose.beta
    if isinstance(beta, Tensor):
        beta = beta.to(query.dtype).reshape(-1, 1)  # (head or 1, 1)
        v = v * beta
        if bias is not None and (allowed := problem.allowed(added)) is not None:
            bias = _times(bias, beta[:, None], four(allowed))
        diagonals = None if diagonals is None else diagonals * beta
    elif beta != 1:
        v = v * beta
        bias = None if bias is None else bias * beta
        diagonals = None if diagonals is None else diagonals * beta
    interval, allowed = problem.split_mask()
    first, last = (None, None) if interval is None else (four(bound).squeeze(-1) for bound in interval)
    allowed = None if allowed is None else four(allowed)
    exps = _kept_exponentials(given) if is_step(query, keys) else None
    exps = None if exps is None else four(exps.view(problem.keys.shape)).expand_as(keys)
    out, _ = additive_read(query, keys, values, v, first, last, allowed, bias, diagonals, exps)
    return out.to(given.query.dtype).reshape(*problem.leading, *out.shape[-2:])


def _times(bias: Tensor, beta: Tensor, allowed: Tensor) -> Tensor:
    """The bias times beta where a pair is read, -inf elsewhere: an infinity must not reach the gradient of beta."""
    return (bias.masked_fill(~allowed, 0.0) * beta).masked_fill(~allowed, float("-inf"))


@dataclass
class _Kept:
    """e^{2 keys} of a memory that is read step by step."""

    version: int
    """Of the keys, which are not looked at again until they are written to."""
    reads: int = 0
    exps: Tensor | None = None
    """None if the memory was not read often enough yet, or if keys are too large."""


def _kept_exponentials(problem: Problem) -> Tensor | None:
    """e^{2 keys} as they lie in memory, kept from the second step on that reads them; None if there are none to use."""
    prepared, keys = problem.prepared, problem.keys
    if prepared is None or not can_look_at(keys) or keys.numel() == 0:
        return None
    version = 0 if keys.is_inference() else keys._version
    kept = prepared.get("additive")
    if not isinstance(kept, _Kept) or kept.version != version:
        kept = prepared["additive"] = _Kept(version)
    kept.reads += 1
    if kept.reads == 2:
        wide = keys.detach().to(torch.promote_types(keys.dtype, torch.float32))
        if wide.abs().max() <= REACH:  # not so for NaN
            kept.exps = (2 * wide).exp_()
    return kept.exps


def _with_four_axes(tensor: Tensor, *, has_heads: bool) -> Tensor:
    """(batch, head, ..., ...): of three axes the first is that of heads where v has them, else that of the batch."""
    if tensor.dim() == 3:
        return tensor.unsqueeze(0 if has_heads else 1)
    return tensor[(None,) * (4 - tensor.dim()) + (...,)]


def _with_one_batch(query: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Leading axes spelled out where they differ; heads may stay fewer in the memory."""
    if query.shape[:2] == keys.shape[:2] == values.shape[:2]:
        return query, keys, values
    batch = torch.broadcast_shapes(query.shape[:1], keys.shape[:1], values.shape[:1])
    memory_heads = max(keys.shape[1], values.shape[1])
    heads = max(query.shape[1], memory_heads)
    query = query.expand(*batch, heads, *query.shape[2:])
    keys, values = (x.expand(*batch, memory_heads, *x.shape[2:]) for x in (keys, values))
    return query, keys, values


def _a_head_or_all(beta: Tensor, num_axes: int) -> bool:
    if beta.numel() == 1:
        return True
    return num_axes == 4 and beta.dim() >= 3 and beta.numel() == beta.shape[-3]
