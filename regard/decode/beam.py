"""Keep the best few hypotheses of each sentence at every step, and end exactly when no better one can come.

At each step the live hypotheses of a sentence (one at the start, `beam` later) are continued by every token,
and the 2 * beam likeliest continuations are looked at. Those of the first `beam` that end go to the pool of
ended hypotheses; the first `beam` that do not end live on, so that ended ones do not narrow the beam.

    score(y) = log p(y | x) / |y|^alpha          |y| counts EOS, see `regard.decode.hypothesis`

A log-probability only falls as a hypothesis grows, so that no continuation of y scores above
log p(y | x) / max_length^alpha. A sentence is done when this bound of its likeliest live hypothesis does not
exceed the worst of its `n_best` in the pool: going on could not change the result. There is no earlier stop.

Equal scores: the earlier beam comes first, then the lower id; in the pool, the one that ended first.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.masks import Padded
from regard.decode.greedy import greedy
from regard.decode.hypothesis import Hypothesis, Rules, limits
from regard.decode.pool import Moves, Pool
from regard.decode.stepper import StateT, Stepper, scored
from regard.telling import Answered, Lived, Step, tell


def beam(
    stepper: Stepper[StateT],
    source: Padded,
    *,
    beam: int,
    bos: int,
    eos: int,
    max_length: int | Sequence[int] | Int[Tensor, " batch"],
    banned: Sequence[int] = (),
    length_penalty: float = 1.0,
    n_best: int = 1,
) -> list[list[Hypothesis]]:
    """The `n_best` hypotheses of each sentence, best first; fewer only where fewer are possible.

    beam:       hypotheses kept a sentence. 1 is `greedy`: it ends at the first EOS, which the rule above
                would not when a longer output may score better.
    max_length: tokens a sentence may produce at most, EOS counted; one number, or one a sentence. What is
                that long without EOS is ended there (`finished` is False) and scored as the others.
    banned:     ids never produced (PAD and BOS, as a rule).
    A model is put in evaluation mode by its owner; no gradients are recorded.

    Cost: a step of the stepper on sentences * beam rows, and one topk of sentences * beam * vocab numbers.
    Raises: ValueError if an argument is out of range (beam < 1, n_best outside 1 to beam, Rules, limits), if
        logits hold NaN, or if no token that is allowed has a probability above 0.
    """
    rules = Rules(bos=bos, eos=eos, banned=tuple(banned), length_penalty=length_penalty)
    most = limits(max_length, len(source.lengths))
    if beam < 1:
        raise ValueError(f"beam must be at least 1, got {beam}")
    if not 1 <= n_best <= beam:
        raise ValueError(f"n_best must be from 1 to beam ({beam}), got {n_best}")
    if beam == 1:
        return greedy(
            stepper,
            source,
            bos=bos,
            eos=eos,
            max_length=most,
            banned=banned,
            length_penalty=length_penalty,
        )
    if not most:
        return []
    return _search(stepper, source, rules, most=most, width=beam, n_best=n_best)


def best(
    scores: Float[Tensor, "batch candidates"], count: int
) -> tuple[Float[Tensor, "batch count"], Int[Tensor, "batch count"]]:
    """The `count` highest scores of each row and their places; of equals the lower place comes first.

    As `topk`, which leaves open which of equal numbers it takes; bfloat16 logits are often equal.

    Raises: ValueError if a row holds NaN.
    """
    candidates = scores.shape[1]
    values, places = scores.topk(min(count + 1, candidates), dim=1)
    doubt = values[:, 0].isnan()  # topk takes NaN for the highest
    if count < candidates:
        doubt = doubt | (values[:, count - 1] == values[:, count])
    if bool(doubt.any()):
        if bool(values[:, 0].isnan().any()):
            raise ValueError("logits must not hold NaN, got NaN")
        places = _first_of_equals(scores, values[:, count - 1 : count], count)
    places = places[:, :count].sort(dim=1).values
    values, order = scores.gather(1, places).sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, order)


def _first_of_equals(
    scores: Float[Tensor, "batch candidates"], lowest: Float[Tensor, "batch 1"], count: int
) -> Int[Tensor, "batch count"]:
    """Places of all scores above `lowest`, then of the first that equal it, `count` in all, in no order."""
    candidates = scores.shape[1]
    rank = -torch.arange(candidates, device=scores.device).expand_as(scores)
    rank = rank.masked_fill(scores < lowest, -candidates).masked_fill(scores > lowest, 1)
    return rank.topk(count, dim=1).indices


class _Live(NamedTuple):
    """The sentences that go on, each with the same number of hypotheses, likeliest first."""

    sentence: Tensor  # (sentences,) place in the source
    limit: Tensor  # (sentences,) the most tokens
    log_prob: Tensor  # (sentences, hypotheses), -inf where there is none


@torch.no_grad()
def _search(
    stepper: Stepper[StateT], source: Padded, rules: Rules, *, most: list[int], width: int, n_best: int
) -> list[list[Hypothesis]]:
    device = source.items.device
    count = len(most)
    # powers[length] = length^alpha, rounded once so that scores and bounds compare exactly.
    powers = torch.arange(max(most) + 1, dtype=torch.float64) ** rules.length_penalty
    powers = powers.to(device, torch.float32)
    sentence = torch.arange(count, device=device)
    live = _Live(sentence, torch.tensor(most, device=device), torch.zeros(count, 1, dtype=torch.float32, device=device))
    pool = Pool(count, n_best=n_best, device=device)
    tokens = torch.full((count,), rules.bos, dtype=torch.int64, device=device)
    state = stepper.start(source)
    history: list[Moves] = []
    for step in range(1, max(most) + 1):
        tell(lambda live=live: Step(live.sentence.repeat_interleave(live.log_prob.shape[1]).tolist()))
        logits, state = stepper.step(tokens, state)
        log_probs = rules.log_probs(logits)
        tell(lambda log_probs=log_probs: scored(log_probs, 2 * width))
        moves = _continue(live, log_probs, 2 * width)
        ends = (moves.token == rules.eos) | (live.limit == step)[:, None]
        first = Moves(*(part[:, :width] for part in moves))
        score = (first.log_prob / powers[step]).masked_fill(~ends[:, :width], -torch.inf)
        pool.add(live.sentence, score, first, step=step)
        moves = _go_on(moves, ends, width)
        bound = moves.log_prob[:, 0] / powers[live.limit]
        done = (bound <= pool.score[live.sentence, -1]).tolist()
        if all(done):
            break
        same_rows = moves.log_prob.shape == live.log_prob.shape and not any(done)
        live = live._replace(log_prob=moves.log_prob)
        if any(done):
            keep = torch.tensor([row for row, over in enumerate(done) if not over], device=device)
            live = _Live(*(part[keep] for part in live))
            moves = Moves(*(part[keep] for part in moves))
        history.append(Moves(*(part.flatten() for part in moves)))
        tell(lambda moves=history[-1]: Lived(*(part.tolist() for part in (moves.row, moves.token, moves.log_prob))))
        _, rows, tokens = history[-1]
        state = state.reorder(rows) if same_rows else state.select(rows)
    tell(lambda: Answered(pool.answers(history)))
    return _not_empty(pool.read(history, eos=rules.eos))


def _continue(live: _Live, log_probs: Float[Tensor, "rows vocab"], count: int) -> Moves:
    """The `count` likeliest continuations of each sentence, each (sentences, count), likeliest first."""
    sentences, hypotheses = live.log_prob.shape
    vocab = log_probs.shape[1]
    total = log_probs.add_(live.log_prob.reshape(-1, 1)).view(sentences, hypotheses * vocab)
    log_prob, place = best(total, min(count, hypotheses * vocab))
    row = place // vocab + torch.arange(0, sentences * hypotheses, hypotheses, device=place.device)[:, None]
    return Moves(log_prob, row, place % vocab)


def _go_on(moves: Moves, ends: Tensor, width: int) -> Moves:
    """The first `width` moves of each sentence that do not end; -inf where there are not so many."""
    order = ends.to(torch.int8).argsort(dim=1, stable=True)[:, :width]
    log_prob, row, token = (part.gather(1, order) for part in moves)
    return Moves(log_prob.masked_fill(ends.gather(1, order), -torch.inf), row, token)


def _not_empty(results: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
    for sentence, hypotheses in enumerate(results):
        if not hypotheses:
            raise ValueError(f"some allowed token must have a probability above 0, got none in sentence {sentence}")
    return results
