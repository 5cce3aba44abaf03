"""Beam search with an exact stopping rule.

At each step every live hypothesis of a sentence (one at the start, `beam` later) is expanded by
every token, and the 2 * beam most likely candidates are selected. Of the first `beam`, those that
end are added to the finished hypotheses; the first `beam` that do not end stay live, so finished
hypotheses take no slot of the beam.

    score(y) = log p(y | x) / |y|^alpha          |y| counts EOS, see `regard.decode.hypothesis`

The log-probability of a hypothesis never increases as it grows, so no continuation of y scores
above log p(y | x) / max_length^alpha. A sentence is done when this bound for its most likely live
hypothesis does not exceed the worst of its `n_best` finished hypotheses: further steps cannot
change the result. It never stops earlier.

Ties: the earlier beam comes first, then the lower id; among finished hypotheses, the one that
      finished first.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.decode.finished import Candidates, FinishedHypotheses
from regard.decode.greedy import greedy
from regard.decode.hypothesis import Hypothesis, Rules, expand_max_length
from regard.decode.rules import NO_RULES, TokenRules
from regard.decode.stepper import Source, StateT, Stepper, device_of_source, size_of, trace_likely
from regard.decode.terms import RequiredTerms
from regard.trace import Trace


class _LiveHypotheses(NamedTuple):
    """Live hypotheses of the unfinished sentences, most likely first."""

    sentence: Tensor  # (sentences,) index in the source
    limit: Tensor  # (sentences,) maximum length
    log_prob: Tensor  # (sentences, hypotheses), -inf for missing hypotheses


@torch.no_grad()
def beam(
    stepper: Stepper[StateT],
    source: Source,
    *,
    beam: int,
    bos: int,
    eos: int,
    max_length: int | Sequence[int],
    banned: Sequence[int] = (),
    length_penalty: float = 1.0,
    n_best: int = 1,
    token_rules: TokenRules = NO_RULES,
    trace: Trace | None = None,
    found: Sequence[list[int]] | None = None,
) -> list[list[Hypothesis]]:
    """Return the `n_best` hypotheses of each sentence, best first, or all that are possible.

    beam:       number of live hypotheses per sentence. With 1 the result is that of `greedy`, which
                stops at the first EOS even if a longer output could score better.
    max_length: maximum number of generated tokens, including EOS; one number, or one per sentence.
                A hypothesis of that length without EOS is cut (`finished` is False) and scored like
                the others.
    banned:     ids that are never generated (usually PAD and BOS).
    token_rules: rules that depend on the tokens so far; its glossary is of these sentences.
    trace:      receives the steps, the hypotheses after each step and the outputs (regard.trace).
    found:      as in `greedy`; not filled by a beam above 1.
    The caller sets the model to eval mode; gradients are not recorded.

    Cost: per step, one step of the model on sentences * beam rows and one topk over sentences *
    beam * vocab scores.
    Raises: ValueError if an argument is out of range (see also `Rules` and `expand_max_length`), if
            logits hold NaN, or if no allowed token has a probability above 0.
    """
    terms = RequiredTerms(token_rules.glossary, eos) if token_rules.glossary else None
    rules = Rules(
        bos=bos, eos=eos, banned=tuple(banned), length_penalty=length_penalty, tokens=token_rules
    )
    max_lengths = expand_max_length(max_length, size_of(source))
    _check_widths(beam, n_best)
    if (beam == 1 and terms is None) or not max_lengths:
        return greedy(
            stepper,
            source,
            bos=bos,
            eos=eos,
            max_length=max_lengths,
            banned=banned,
            length_penalty=length_penalty,
            token_rules=token_rules,
            trace=trace,
            found=found,
        )
    device, count = device_of_source(source), len(max_lengths)
    # powers[length] = length^alpha, rounded once so that scores and bounds compare exactly.
    lengths = torch.arange(max(max_lengths) + 1, dtype=torch.float64, device="cpu")
    powers = (lengths**rules.length_penalty).to(device, torch.float32)
    live = _LiveHypotheses(
        sentence=torch.arange(count, device=device),
        limit=torch.tensor(max_lengths, device=device),
        log_prob=torch.zeros(count, 1, dtype=torch.float32, device=device),
    )
    finished = FinishedHypotheses(count, n_best=n_best, device=device)
    tokens = torch.full((count,), rules.bos, dtype=torch.int64, device=device)
    past = tokens.new_zeros(count, 0) if token_rules.active else None
    state = stepper.start(source)
    history: list[Candidates] = []
    for step in range(1, max(max_lengths) + 1):
        if trace is not None:
            trace.begin_step(live.sentence.repeat_interleave(live.log_prob.shape[1]).tolist())
        logits, state = stepper.step(tokens, state)
        log_probs = rules.log_probs(logits, past)
        trace_likely(trace, log_probs, 2 * beam)
        candidates, is_last = _expand(live, log_probs, 2 * beam), live.limit == step
        if terms is not None and past is not None:
            candidates = terms.allocate(candidates, log_probs, past, live.sentence, is_last)
        ends = (candidates.token == rules.eos) | is_last[:, None]
        first = Candidates(*(field[:, :beam] for field in candidates))
        score = (first.log_prob / powers[step]).masked_fill(~ends[:, :beam], -torch.inf)
        finished.add(live.sentence, score, first, step=step)
        candidates = _select_unfinished(candidates, ends, beam)
        # The first is the most probable, unless terms were allocated.
        best = candidates.log_prob[:, 0] if terms is None else candidates.log_prob.amax(1)
        done = (best / powers[live.limit] <= finished.score[live.sentence, -1]).tolist()
        if all(done):
            break
        same_rows = candidates.log_prob.shape == live.log_prob.shape and not any(done)
        live = live._replace(log_prob=candidates.log_prob)
        if any(done):
            unfinished = [row for row, is_done in enumerate(done) if not is_done]
            index = torch.tensor(unfinished, device=device)
            live = _LiveHypotheses(*(field[index] for field in live))
            candidates = Candidates(*(field[index] for field in candidates))
        history.append(Candidates(*(field.flatten() for field in candidates)))
        log_prob, rows, tokens = history[-1]
        past = None if past is None else torch.cat((past[rows], tokens[:, None]), 1)
        if trace is not None:
            trace.add_beams(rows.tolist(), tokens.tolist(), log_prob.tolist())
        state = state.reorder(rows) if same_rows else state.select(rows)
    if trace is not None:
        trace.add_outputs(finished.outputs(history))
    results = finished.hypotheses(history, eos=rules.eos)
    if [] in results:
        raise token_rules.none_left(f" in {token_rules.name(results.index([]))}")
    return results


def _check_widths(beam: int, n_best: int) -> None:
    """Raise ValueError for a beam or a number of hypotheses out of range."""
    if beam < 1:
        raise ValueError(f"beam must be at least 1, got {beam}")
    if not 1 <= n_best <= beam:
        raise ValueError(f"n_best must be from 1 to beam ({beam}), got {n_best}")


def stable_topk(
    scores: Float[Tensor, "batch candidates"], count: int
) -> tuple[Float[Tensor, "batch count"], Int[Tensor, "batch count"]]:
    """Return the `count` highest scores of each row and their indices, the lower first in ties.

    `torch.topk` does not specify the order of equal scores, which are frequent in bfloat16.

    Raises: ValueError if a row holds NaN.
    """
    candidates = scores.shape[1]
    values, indices = scores.topk(min(count + 1, candidates), dim=1)
    ambiguous = values[:, 0].isnan()  # topk treats NaN as the highest
    if count < candidates:
        ambiguous = ambiguous | (values[:, count - 1] == values[:, count])
    if bool(ambiguous.any()):
        if bool(values[:, 0].isnan().any()):
            raise ValueError("logits must not hold NaN, got NaN")
        # Scores above the lowest one, then the first that equal it.
        lowest = values[:, count - 1 : count]
        rank = -torch.arange(candidates, device=scores.device).expand_as(scores)
        rank = rank.masked_fill(scores < lowest, -candidates).masked_fill(scores > lowest, 1)
        indices = rank.topk(count, dim=1).indices
    indices = indices[:, :count].sort(dim=1).values
    values, order = scores.gather(1, indices).sort(dim=1, descending=True, stable=True)
    return values, indices.gather(1, order)


def _expand(
    live: _LiveHypotheses, log_probs: Float[Tensor, "rows vocab"], count: int
) -> Candidates:
    """Return the `count` most likely candidates (sentences, count), most likely first."""
    sentences, hypotheses = live.log_prob.shape
    vocab = log_probs.shape[1]
    total = log_probs.add_(live.log_prob.reshape(-1, 1)).view(sentences, hypotheses * vocab)
    log_prob, index = stable_topk(total, min(count, hypotheses * vocab))
    first = torch.arange(0, sentences * hypotheses, hypotheses, device=index.device)[:, None]
    return Candidates(log_prob, first + index // vocab, index % vocab)


def _select_unfinished(candidates: Candidates, ends: Tensor, width: int) -> Candidates:
    """Return the first `width` candidates of each sentence that do not end."""
    order = ends.to(torch.int8).argsort(dim=1, stable=True)[:, :width]
    log_prob, row, token = (field.gather(1, order) for field in candidates)
    return Candidates(log_prob.masked_fill(ends.gather(1, order), -torch.inf), row, token)
