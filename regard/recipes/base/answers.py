"""Log p of detected sets, and contributions to the logits of tokens."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.look.maps import SampleMaps
from regard.look.measures import decoder_contribution_map
from regard.look.sample import Sample
from regard.models.decoder_terms import explain_decoder
from regard.models.writers.sets import SetPredictions
from regard.recipes.base.recipe import EmptyAnswerError


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
