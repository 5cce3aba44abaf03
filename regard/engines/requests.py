"""What may be asked of an engine: the same of each, and refused with the same words.

Engines look at no bounds of their own: an id that no table holds would be read from whatever lies behind it.
"""

from collections.abc import Sequence
from operator import index

from regard.decode.hypothesis import Rules


def check_ids(ids: Sequence[int], vocab: int, where: str) -> None:
    """Raises ValueError for an id outside the vocabulary, TypeError for what is no whole number."""
    outside = next((one for one in map(index, ids) if not 0 <= one < vocab), None)
    if outside is not None:
        raise ValueError(f"ids must lie in 0 .. {vocab - 1}, got {outside} in {where}")


def check_sentences(sentences: Sequence[Sequence[int]], vocab: int | None) -> None:
    """Raises ValueError for a sentence without ids, or with one outside the vocabulary of sources."""
    for number, sentence in enumerate(sentences):
        if not len(sentence):
            raise ValueError(f"sentences must hold at least one id, got none in sentence {number}")
        if vocab is not None:
            check_ids(sentence, vocab, f"sentence {number}")


def check_specials(*, bos: int, eos: int, pad: int, vocab: int | None) -> None:
    """Raises ValueError for special ids that no search takes."""
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
    """Raises ValueError for a prompt without tokens or a seed, an id outside the vocabulary, or if none is allowed."""
    if len(seeds) != len(prompts):
        raise ValueError(f"seeds must be one a prompt ({len(prompts)}), got {len(seeds)}")
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
            raise ValueError(f"some allowed token must be left, but all {vocab} are banned")


def check_places(count: int, most: int | None) -> None:
    """Raises ValueError for more items than there are learned positions (most; None: any number)."""
    if most is not None and count > most:
        raise ValueError(f"there are {most} learned positions, but position {count} was asked for")


def most_read(longest: int, length: int, window: int | None) -> int:
    """Places at which a text of so many tokens, and `length` more, is read; the last that is drawn is not read."""
    longest += length - 1
    return longest if window is None else min(window, longest)
