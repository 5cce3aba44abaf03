"""Top-k keys of each query; of equal scores the first wins.

    best_keys(a, k) = the k indices j with the largest (a_j, -j), in lexicographic order of the pair

torch.topk does not specify which of equal scores it returns; in half precision scores are often equal, and results
would differ between machines. torch.argmax returns the first, but scans the row one number at a time (on a CPU it
takes longer than a softmax), so long rows take two rounds: the best blocks of keys by their largest scores, then the
best keys in those blocks. No key outside them can be among the k best, since each of the k blocks has one that is
better, or equal and earlier.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK = 64
"""Keys per block: below 64 the maximum over blocks is no faster than a plain scan."""


def best_keys(scores: Float[Tensor, "... query key"], k: int) -> Int[Tensor, "... query selected"]:
    """Return the indices (..., query, selected) of the k best keys, all different; selected = min(k, key).

    Cost: one pass over the scores if key is at least 256 k, then O(64 k) per query; otherwise a few passes.
    """
    num_keys = scores.shape[-1]
    num_blocks = num_keys // BLOCK
    if num_blocks < 4 * k:
        return _best(scores, min(k, num_keys))
    in_blocks = num_blocks * BLOCK
    largest = scores[..., :in_blocks].unflatten(-1, (num_blocks, BLOCK)).amax(-1)  # (..., query, block)
    blocks = _best(largest, k).sort(-1).values  # in the order of the keys, so that ties go to the first
    offsets = torch.arange(BLOCK, device=scores.device)
    candidates = (blocks.unsqueeze(-1) * BLOCK + offsets).flatten(-2)  # (..., query, k * BLOCK)
    if in_blocks < num_keys:
        rest = torch.arange(in_blocks, num_keys, device=scores.device)
        candidates = torch.cat((candidates, rest.expand(*candidates.shape[:-1], -1)), -1)
    return candidates.gather(-1, _best(scores.gather(-1, candidates), k))


def _best(scores: Tensor, k: int) -> Tensor:
    """Return the best keys in one round."""
    if k == 1:
        return scores.argmax(-1, keepdim=True)
    if k == scores.shape[-1]:
        return torch.arange(k, device=scores.device).expand(scores.shape)
    top = scores.topk(k)
    # All keys above the smallest selected score are in; of those equal to it, the first ones fill the rest.
    edge = top.values[..., -1:]
    above = ~(top.values <= edge)  # NaN counts as the largest, so that it shows in the output
    count = (scores == edge).cumsum(-1, dtype=torch.int32)  # number of scores so far that equal the smallest
    rank = torch.arange(1, k + 1, device=scores.device, dtype=torch.int32) - above.sum(-1, keepdim=True)
    first = torch.searchsorted(count, rank.to(torch.int32).clamp(min=1))
    first = first.clamp(max=scores.shape[-1] - 1)  # no number equals NaN
    return torch.where(above, top.indices, first)
