"""Beam search over any number of sentences or images, in batches of limited size.

Sentences are sorted by length and batched by number of tokens, which keeps padding small; results
are returned in the original order. The result of a sentence does not depend on its batch, apart
from rounding in the model.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.masks import Padded, Unpadded
from regard.decode.beam import beam
from regard.decode.config import DecodeConfig
from regard.decode.hypothesis import Hypothesis
from regard.decode.progress import begin_progress
from regard.decode.rules import TokenRules, make_rules
from regard.decode.stepper import Source, StateT, Stepper
from regard.system.progress import track
from regard.trace import Trace


def search(
    stepper: Stepper[StateT],
    inputs: Sequence[Sequence[int]] | Float[Tensor, "batch channels height width"],
    *,
    config: DecodeConfig,
    bos: int,
    eos: int,
    pad: int,
    device: torch.device | str = "cpu",
    length: int = 0,
    rules: TokenRules | None = None,
    trace: Trace | None = None,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each sentence or image, best first, in the order of the inputs.

    inputs: sentences of ids as the model reads them, or images.
    device: device of the model, for sentences.
    length: number of items that the model reads from an image, which counts as the length of a
            sentence.
    rules:  rules of outputs; by default those of `config`.
    trace:  receives the batches, steps and outputs (regard.trace).
    PAD and BOS are never generated. Tokens can be read meanwhile (regard.decode.progress).

    Raises: ValueError if a sentence holds no ids; also see `beam`.
    """
    lengths = [length if isinstance(inputs, Tensor) else len(sentence) for sentence in inputs]
    if 0 in lengths:
        number = lengths.index(0)
        raise ValueError(f"sentences must hold at least one id, got none in sentence {number}")
    rules = make_rules(config, eos=eos) if rules is None else rules
    results: list[list[Hypothesis]] = [[] for _ in lengths]
    progress = begin_progress(len(lengths), beam=config.beam)
    batches = batch_by_length(lengths, budget=config.batch_tokens // config.beam)
    for rows in track(batches, "outputs", len(lengths)):
        if trace is not None:
            trace.begin_segment(rows)
        if isinstance(inputs, Tensor):
            source: Source = inputs[rows]
        else:
            sizes = [lengths[row] for row in rows]
            ids = [[*inputs[row], *[pad] * (max(sizes) - lengths[row])] for row in rows]
            kind = Unpadded if min(sizes) == max(sizes) else Padded
            source = kind(torch.tensor(ids, device=device), torch.tensor(sizes, device=device))
        glossary = tuple(rules.glossary[row] for row in rows) if rules.glossary else ()
        found: list[list[int]] = [[] for _ in rows]
        if progress is not None:
            progress.publish(rows, found, eos=eos)
        batch = beam(
            stepper,
            source,
            beam=config.beam,
            bos=bos,
            eos=eos,
            max_length=[config.limit(lengths[row], rules.num_required(row)) for row in rows],
            banned=(pad, bos),
            length_penalty=config.length_penalty,
            n_best=config.n_best,
            token_rules=replace(rules, glossary=glossary, names=tuple(map(rules.name, rows))),
            trace=trace,
            found=found,
        )
        for row, hypotheses in zip(rows, batch, strict=True):
            results[row] = hypotheses
    return results


def batch_by_length(lengths: Sequence[int], *, budget: int) -> list[list[int]]:
    """Return batches of indices, longest first, with rows * longest <= budget or a single row.

    Indices of equal lengths keep their order.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches
