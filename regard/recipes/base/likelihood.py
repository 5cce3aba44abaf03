"""What answers are made of: log-probability of a detected set, and contributions to the logits of
output tokens."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.look.maps import SampleMaps
from regard.look.measures import decoder_contribution_map
from regard.look.sample import Sample
from regard.models.decoder_terms import explain_decoder
from regard.models.writers.sets import SetPredictions
from regard.models.writers.vector import NoTermsError
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
            f"threshold (a setting "
            "of the run) detects more"
        )
    return nn.functional.logsigmoid(predictions.logits[0].float())[pairs[:, 0], pairs[:, 1]].sum()


def explain_tokens(
    model: Any,
    source: Any,
    target: Padded,
    sample: Sample,
    *,
    tokens: Sequence[str],
    row: int,
    notify: Callable[[str], None],
) -> SampleMaps | None:
    """Return the contributions of the parts of a decoder to the logits of output tokens; None if
    there are none.

    target: BOS, or the first token, and the output tokens; further ones are ignored.
    tokens: labels of the output tokens.
    """
    try:
        found = explain_decoder(model, source, target)
    except NoTermsError as error:
        if row == 0:
            notify(f"contributions to the logits are not shown: {error}")
        return None
    terms, bias = found.terms[0, :, : len(tokens)], found.bias[0, : len(tokens)]
    return decoder_contribution_map(
        sample, found.parts, terms, bias, tokens=tokens, key=f"contribution/{row}"
    )
