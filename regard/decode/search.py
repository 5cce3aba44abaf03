"""Search for the outputs of any number of sentences of any lengths, in batches that fit.

Sentences are sorted by length and cut into batches by tokens, so that little is padding; the results come
back in the order of the sentences. What else is in its batch does not change the result of a sentence, beyond
the rounding of the model.
"""

from collections.abc import Sequence

import torch

from regard.attention.masks import Padded
from regard.decode.beam import beam
from regard.decode.config import DecodeConfig
from regard.decode.hypothesis import Hypothesis
from regard.decode.stepper import StateT, Stepper
from regard.telling import Rows, tell


def search(
    stepper: Stepper[StateT],
    sentences: Sequence[Sequence[int]],
    *,
    config: DecodeConfig,
    bos: int,
    eos: int,
    pad: int,
    device: torch.device | str = "cpu",
) -> list[list[Hypothesis]]:
    """The hypotheses of each sentence (ids as the model reads them), best first, in the order given.

    PAD and BOS are never produced. device: where the stepper lives.

    Raises: ValueError if a sentence holds no ids, and as `beam`.
    """
    lengths = [len(sentence) for sentence in sentences]
    if 0 in lengths:
        raise ValueError(f"sentences must hold at least one id, got none in sentence {lengths.index(0)}")
    results: list[list[Hypothesis]] = [[] for _ in sentences]
    for rows in in_batches(lengths, budget=config.batch_tokens // config.beam):
        tell(lambda rows=rows: Rows(rows))
        found = beam(
            stepper,
            _padded([sentences[row] for row in rows], pad=pad, device=device),
            beam=config.beam,
            bos=bos,
            eos=eos,
            max_length=[config.limit(lengths[row]) for row in rows],
            banned=(pad, bos),
            length_penalty=config.length_penalty,
            n_best=config.n_best,
        )
        for row, hypotheses in zip(rows, found, strict=True):
            results[row] = hypotheses
    return results


def in_batches(lengths: Sequence[int], *, budget: int) -> list[list[int]]:
    """Places of all lengths, longest first, cut so that rows * longest <= budget; at least one a batch.

    Equal lengths stay in their order.
    """
    batches: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= budget:
            batches[-1].append(place)
        else:
            batches.append([place])
    return batches


def _padded(rows: Sequence[Sequence[int]], *, pad: int, device: torch.device | str) -> Padded:
    longest = max(map(len, rows))
    items = [[*row, *[pad] * (longest - len(row))] for row in rows]
    lengths = [len(row) for row in rows]
    return Padded(torch.tensor(items, device=device), torch.tensor(lengths, device=device))
