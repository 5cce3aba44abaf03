"""Random-block mask: each block of queries attends to a few random blocks of keys (zaheer2020)."""

from typing import final

import torch
from jaxtyping import Bool
from torch import Tensor

from regard.attention.axes import Rule, check_integer
from regard.attention.masks.base import Mask, PositionMask
from regard.attention.positions import Positions

_WORD = 2**32 - 1


@final
class RandomBlocks(PositionMask):
    """Random-block mask; see `random_blocks`."""

    def __init__(self, block: int, per_query: int, *, seed: int, length: int | None = None):
        self.block, self.per_query, self.seed, self.length = block, per_query, seed, length

    def materialize(self, positions: Positions) -> Bool[Tensor, "query key"]:
        return self._is_drawn(positions.query, positions.key)

    def rule(self, positions: Positions) -> Rule:
        first = positions.first
        return lambda row, head, query, key: self._is_drawn(query + first, key)

    def _is_drawn(self, query: Tensor, key: Tensor) -> Tensor:
        """Return True where the key's block is one of `per_query` drawn for the query's block.

        Floyd's algorithm to draw r of N without replacement: for top = N - r .. N - 1, draw one of
        0 .. top, and use top itself if that one was drawn before.
        """
        block = query // self.block
        count = block + 1
        if self.length is not None:
            count = torch.full_like(block, -(-self.length // self.block))
        state = _hash(_hash(block & _WORD) ^ self.seed)
        allowed = torch.zeros_like(query + key, dtype=torch.bool)
        choices: list[Tensor] = []
        for number in range(self.per_query):
            top = count - self.per_query + number
            choice = _hash(state + number) % (top + 1).clamp(min=1)
            for earlier in choices:
                choice = torch.where(choice == earlier, top, choice)
            choice = torch.where(top < 0, -1, choice)
            choices.append(choice)
            allowed = allowed | (key // self.block == choice)
        return allowed & (key >= 0)

    def __repr__(self) -> str:
        length = "" if self.length is None else f", length={self.length}"
        return f"random_blocks({self.block}, {self.per_query}, seed={self.seed}{length})"


def random_blocks(block: int, per_query: int, *, seed: int, length: int | None = None) -> Mask:
    """Random-block mask: each block of queries attends to random blocks of keys. (BigBird)

    block:          number of positions per block.
    length None:    blocks are drawn up to the query's own, so that a growing memory gives the same
                    mask as the whole sequence; the first blocks have fewer to draw from, and attend
                    to all of them. Within its own block a query attends to later keys: combine with
                    causal() to exclude them.
    length n:       blocks are drawn from all blocks of n keys, before and after the query
                    (encoders).
    The draw is an integer hash of (seed, block of the query, length): the same on every device, in
    every tile and step. Usually combined as `random_blocks(...) | window(...)`.
    Raises: TypeError unless all are integers, ValueError unless block, per_query, length >= 1 and
            0 <= seed < 2^32.
    Source: zaheer2020, section 2 (random attention) and appendix D (in blocks).
    """
    check_integer("block", block, 1)
    check_integer("per_query", per_query, 1)
    check_integer("length", 1 if length is None else length, 1)
    check_integer("seed", seed, 0, _WORD)
    return RandomBlocks(block, per_query, seed=seed, length=length)


def _hash(word: Tensor) -> Tensor:
    """Permute the integers below 2^32 pseudo-randomly; intermediate products stay below 2^63."""
    word = word & _WORD
    for _ in range(2):
        word = ((word ^ (word >> 16)) * 0x45D9F3B) & _WORD
    return word ^ (word >> 16)
