"""Take the likeliest token, step by step; whole, or as a stream while it is made.

    y_t = argmax_w log p(w | x, y_1 .. y_{t-1})        until EOS or the maximal length

The lower id wins a tie. A sentence leaves the batch when it ends, so that later steps cost less.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from regard.attention.masks import Padded
from regard.decode.hypothesis import Hypothesis, Rules, limits
from regard.decode.stepper import StateT, Stepper, scored
from regard.telling import Answer, Answered, Step, tell


class Produced(NamedTuple):
    """One token of one sentence."""

    sentence: int
    """Its place in the source."""
    token: int
    """The id; EOS is the last of a sentence that finished."""
    log_prob: float
    """The model's log-probability of the token."""


def greedy(
    stepper: Stepper[StateT],
    source: Padded,
    *,
    bos: int,
    eos: int,
    max_length: int | Sequence[int] | Int[Tensor, " batch"],
    banned: Sequence[int] = (),
    length_penalty: float = 1.0,
) -> list[list[Hypothesis]]:
    """The greedy hypothesis of each sentence, in a list of one, as `beam` gives them.

    max_length: tokens a sentence may produce at most, EOS counted; one number, or one a sentence.
    banned:     ids never produced (PAD and BOS, as a rule).
    length_penalty: changes the score that is reported, not the tokens.
    A model is put in evaluation mode by its owner; no gradients are recorded.

    Raises: ValueError if an argument is out of range (Rules, limits), if logits hold NaN, or if no token that
        is allowed has a probability above 0.
    """
    rules = Rules(bos=bos, eos=eos, banned=tuple(banned), length_penalty=length_penalty)
    produced: list[list[Produced]] = [[] for _ in range(len(source.lengths))]
    rows: list[list[int]] = [[] for _ in produced]
    for step in _steps(stepper, source, rules, limits(max_length, len(produced))):
        for row, one in enumerate(step):
            produced[one.sentence].append(one)
            rows[one.sentence].append(row)
    tell(lambda: Answered([[_answer(*found)] for found in zip(produced, rows, strict=True)]))
    return [[_hypothesis(sentence, rules)] for sentence in produced]


def stream(
    stepper: Stepper[StateT],
    source: Padded,
    *,
    bos: int,
    eos: int,
    max_length: int | Sequence[int] | Int[Tensor, " batch"],
    banned: Sequence[int] = (),
) -> Iterator[list[Produced]]:
    """The tokens of `greedy` as they are made: at each step one of every sentence that has not ended.

    Arguments and errors as those of `greedy`; bad arguments raise at the call, not at the first token.
    """
    rules = Rules(bos=bos, eos=eos, banned=tuple(banned))
    return _steps(stepper, source, rules, limits(max_length, len(source.lengths)))


def _steps(stepper: Stepper[StateT], source: Padded, rules: Rules, most: list[int]) -> Iterator[list[Produced]]:
    if not most:
        return
    sentences = list(range(len(most)))
    device = source.items.device
    tokens = torch.full((len(most),), rules.bos, dtype=torch.int64, device=device)
    # Gradients are off around the work only: between two tokens the caller's own mode holds.
    with torch.no_grad():
        state = stepper.start(source)
    for step in range(1, max(most) + 1):
        tell(lambda now=sentences: Step(now))
        with torch.no_grad():
            logits, state = stepper.step(tokens, state)
            every = rules.log_probs(logits)
            tell(lambda every=every: scored(every))
            # max gives the first of equal values: the lower id.
            log_probs, tokens = every.max(-1)
            produced = list(map(Produced, sentences, tokens.tolist(), log_probs.tolist()))
            _check(produced, step)
            ends = [one.token == rules.eos or most[one.sentence] == step for one in produced]
            if any(ends) and not all(ends):
                keep = [row for row, over in enumerate(ends) if not over]
                index = torch.tensor(keep, device=device)
                tokens, state = tokens[index], state.select(index)
                sentences = [sentences[row] for row in keep]
        yield produced
        if all(ends):
            return


def _answer(produced: list[Produced], rows: list[int]) -> Answer:
    return Answer([one.token for one in produced], rows, [one.log_prob for one in produced])


def _check(produced: list[Produced], step: int) -> None:
    for one in produced:
        if math.isnan(one.log_prob):
            raise ValueError(f"logits must not hold NaN, got one at step {step} of sentence {one.sentence}")
        if one.log_prob == -math.inf:
            raise ValueError(
                f"some allowed token must have a probability above 0, "
                f"got none at step {step} of sentence {one.sentence}"
            )


def _hypothesis(produced: list[Produced], rules: Rules) -> Hypothesis:
    tokens = [one.token for one in produced]
    finished = tokens[-1] == rules.eos
    log_prob = sum(one.log_prob for one in produced)
    score = rules.score(log_prob, len(tokens))
    return Hypothesis(tokens=tokens[:-1] if finished else tokens, score=score, log_prob=log_prob, finished=finished)
