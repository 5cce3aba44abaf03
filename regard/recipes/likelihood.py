"""How likely an answer was, as a number that can be differentiated (regard.look.gradients).

    class     log p of the likeliest                     labels    sum of log p of those that are said
    a set     sum of log p of what was found, each by the query that found it

Numbers and positions have no probability.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from regard.models.writes.sets import Found
from regard.recipes.targets import LabelsTarget, Target
from regard.recipes.task import NothingSaidError
from regard.recipes.vector_scores import SAID


def of_answer(target: Target, answers: Tensor) -> Tensor:
    """log p of what is said of one row: its class, or its labels. Raises NothingSaidError if no label is said."""
    if not isinstance(target, LabelsTarget):
        return answers[0].max().log()
    said = answers[0] >= SAID
    if not said.any():
        raise NothingSaidError("no label is said of it, so there is no probability whose gradient could be shown")
    return answers[0][said].log().sum()


def of_found(said: Found, elements: Iterable[tuple[int, int]], what: str) -> Tensor:
    """Sum of log p of elements of one row, each a query and the class that it said.

    what:   they are, such as "box". Raises NothingSaidError if there is none.
    """
    pairs = torch.tensor(list(elements), device=said.logits.device)
    if not len(pairs):
        raise NothingSaidError(
            f"no {what} is found in it, so there is no probability whose gradient could be shown: a lower threshold "
            "(a setting of the run) finds more"
        )
    return nn.functional.logsigmoid(said.logits[0].float())[pairs[:, 0], pairs[:, 1]].sum()
