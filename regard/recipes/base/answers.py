"""Parts of answers: generated texts, log p of detected sets, contributions to logits."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.data.tokenizer import BOS, EOS
from regard.decode.hypothesis import Hypothesis
from regard.look.maps import SampleMaps
from regard.look.measures import decoder_contribution_map
from regard.look.sample import Sample
from regard.models.decoder_terms import explain_decoder
from regard.models.writers.sets import SetPredictions
from regard.recipes.base.recipe import Answer, EmptyAnswerError, Ranked, one_line


def outputs_answer(hypotheses: Sequence[Hypothesis], decode: Callable[[list[int]], str]) -> Answer:
    """Return the texts of a search, best first."""
    outputs, ranked = [], []
    for found in hypotheses:
        text = decode(found.tokens)
        ranked.append(Ranked(text, found.score))
        scores = {"score": found.score, "log_prob": found.log_prob, "finished": found.finished}
        outputs.append({"text": text} | scores)
    best = ranked[0].text
    return Answer(best, {"outputs": outputs}, [one_line(best)], ranked)


def set_log_prob(
    predictions: SetPredictions, elements: Iterable[tuple[int, int]], noun: str
) -> Tensor:
    """Return the sum of log p of elements of one row, given as (query, class).

    noun:   for an element in messages, such as "box".
    Raises: EmptyAnswerError if there is none.
    """
    pairs = torch.tensor(list(elements), device=predictions.logits.device)
    if not len(pairs):
        raise EmptyAnswerError(
            f"no {noun} is detected in it, so there is no probability to differentiate: a lower "
            "threshold (a setting of the run) detects more"
        )
    return nn.functional.logsigmoid(predictions.logits[0].float())[pairs[:, 0], pairs[:, 1]].sum()


def teacher_tokens(best: Hypothesis) -> list[int]:
    """Return the ids of an output after BOS, with EOS if it is finished, for teacher forcing."""
    return [BOS, *best.tokens, *([EOS] if best.finished else [])]


def explain_tokens(
    model: Any,
    source: Any,
    target: Padded,
    sample: Sample,
    *,
    tokens: Sequence[str] | None = None,
) -> SampleMaps:
    """Return the contributions of the parts of a decoder to the logits of output tokens.

    target: BOS, or the first token, and the output tokens; further ones are ignored.
    tokens: labels of the output tokens; by default those of the sample's steps.
    """
    found = explain_decoder(model, source, target)
    if tokens is None:
        tokens = [step.token for step in sample.steps]
    terms, bias = found.terms[0, :, : len(tokens)], found.bias[0, : len(tokens)]
    return decoder_contribution_map(sample, found.parts, terms, bias, tokens=tokens)
