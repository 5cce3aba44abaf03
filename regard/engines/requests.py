"""Checks of the inputs of engines, the same for all engines.

Engines do not check bounds themselves: an id outside the vocabulary would read memory beyond its table.
"""

from collections.abc import Sequence
from operator import index

from regard.decode.hypothesis import Rules


def check_ids(ids: Sequence[int], vocab: int, where: str) -> None:
    """Raise ValueError for an id outside the vocabulary, TypeError if an id is not an integer."""
    outside = next((i for i in map(index, ids) if not 0 <= i < vocab), None)
    if outside is not None:
        raise ValueError(f"ids must be from 0 to {vocab - 1}, got {outside} in {where}")


def check_sentences(sentences: Sequence[Sequence[int]], vocab: int | None) -> None:
    """Raise ValueError for a sentence without ids, or with an id outside the source vocabulary."""
    for number, sentence in enumerate(sentences):
        if not len(sentence):
            raise ValueError(f"sentences must hold at least one id, got none in sentence {number}")
        if vocab is not None:
            check_ids(sentence, vocab, f"sentence {number}")


def check_specials(*, bos: int, eos: int, pad: int, vocab: int | None) -> None:
    """Raise ValueError for special ids that are outside the vocabulary or contradict each other."""
    if vocab is not None:
        check_ids((bos, eos, pad), vocab, "bos, eos, pad")
    Rules(bos=bos, eos=eos, banned=(pad, bos))


def check_prompts(
    prompts: Sequence[Sequence[int]],
    *,
    seeds: Sequence[int],
    banned: Sequence[int],
    window: int | None,
    vocab: int | None,
) -> None:
    """Raise ValueError for a prompt without tokens or seed, an id outside the vocabulary, or if all ids are banned."""
    if len(seeds) != len(prompts):
        raise ValueError(f"seeds must be one per prompt ({len(prompts)}), got {len(seeds)}")
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    for number, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"prompts must hold at least one token, got none in prompt {number}")
        if vocab is not None:
            check_ids(prompt, vocab, f"prompt {number}")
    if vocab is not None:
        check_ids(banned, vocab, "banned")
        if len(set(banned)) == vocab:
            raise ValueError(f"banned must leave at least one id of {vocab}, got all of them")


def check_positions(count: int, limit: int | None) -> None:
    """Raise ValueError for more items than learned positions; limit None is unlimited."""
    if limit is not None and count > limit:
        raise ValueError(f"position must be at most {limit}, the number of learned positions, got {count}")


def num_positions(longest: int, length: int, window: int | None) -> int:
    """Return the number of positions that a prompt and `length` new tokens need; the last new token is not read."""
    longest += length - 1
    return longest if window is None else min(window, longest)
