"""The best keys of each query, ties to the first.

    best_keys(a, k) = the k numbers j with the largest (a_j, -j), in lexicographic order of the pair

torch.topk leaves open which of equal scores it returns; scores of half precision are equal often, and a choice that
depends on it would differ between machines. torch.argmax does return the first, but walks the row one number at a
time (on a CPU it takes longer than a softmax), so long rows go in two rounds: the best blocks of keys by their largest
scores, then the best keys in those blocks. No key outside them can be among the k best, since each of the k blocks
holds one that is better, or equal and earlier.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK = 64
"""Keys of a block: below 64 the maximum of a block is no faster than a plain walk."""


def best_keys(scores: Float[Tensor, "... query key"], k: int) -> Int[Tensor, "... query kept"]:
    """Numbers (..., query, kept) of the k best keys of each query, kept = min(k, key), all different.

    Cost: one pass over the scores where key is at least 256 k, then O(64 k) a query; a few passes elsewhere.
    """
    num_keys = scores.shape[-1]
    num_blocks = num_keys // BLOCK
    if num_blocks < 4 * k:
        return _best(scores, min(k, num_keys))
    in_blocks = num_blocks * BLOCK
    largest = scores[..., :in_blocks].unflatten(-1, (num_blocks, BLOCK)).amax(-1)  # (..., query, block)
    blocks = _best(largest, k).sort(-1).values  # in the order of the keys, which settles ties
    places = torch.arange(BLOCK, device=scores.device)
    candidates = (blocks.unsqueeze(-1) * BLOCK + places).flatten(-2)  # (..., query, k * BLOCK)
    if in_blocks < num_keys:
        rest = torch.arange(in_blocks, num_keys, device=scores.device)
        candidates = torch.cat((candidates, rest.expand(*candidates.shape[:-1], -1)), -1)
    return candidates.gather(-1, _best(scores.gather(-1, candidates), k))


def _best(scores: Tensor, k: int) -> Tensor:
    """In one round."""
    if k == 1:
        return scores.argmax(-1, keepdim=True)
    if k == scores.shape[-1]:
        return torch.arange(k, device=scores.device).expand(scores.shape)
    top = scores.topk(k)
    # All keys above the smallest that is kept are in; of those equal to it, the first ones fill what is left.
    edge = top.values[..., -1:]
    above = ~(top.values <= edge)  # NaN is above all, so that what it spoils shows
    count = (scores == edge).cumsum(-1, dtype=torch.int32)  # how many so far equal the smallest
    turn = torch.arange(1, k + 1, device=scores.device, dtype=torch.int32) - above.sum(-1, keepdim=True)
    first = torch.searchsorted(count, turn.to(torch.int32).clamp(min=1))
    first = first.clamp(max=scores.shape[-1] - 1)  # no number equals NaN
    return torch.where(above, top.indices, first)
