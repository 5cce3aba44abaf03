"""Greedy search: the most likely token at every step.

    y_t = argmax_w log p(w | x, y_1 .. y_{t-1})        until EOS or the maximum length

Ties go to the lower id. A finished sentence is removed from the batch, so later steps cost less.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from regard.decode.hypothesis import Hypothesis, Rules, expand_max_length, make_hypothesis
from regard.decode.rules import NO_RULES, TokenRules
from regard.decode.stepper import Source, StateT, Stepper, device_of_source, size_of, trace_likely
from regard.trace import SearchOutput, Trace


@torch.no_grad()
def greedy(
    stepper: Stepper[StateT],
    source: Source,
    *,
    bos: int,
    eos: int,
    max_length: int | Sequence[int],
    banned: Sequence[int] = (),
    length_penalty: float = 1.0,
    token_rules: TokenRules = NO_RULES,
    trace: Trace | None = None,
    found: Sequence[list[int]] | None = None,
) -> list[list[Hypothesis]]:
    """Return the greedy hypothesis of each sentence, in a list of one like results of `beam`.

    Arguments and errors are those of `beam`.

    length_penalty: changes the reported score, not the tokens.
    found: an empty list for each sentence, to which each token is added when it is chosen, EOS too.
    """
    rules = Rules(
        bos=bos, eos=eos, banned=tuple(banned), length_penalty=length_penalty, tokens=token_rules
    )
    max_lengths = expand_max_length(max_length, size_of(source))
    if not max_lengths:
        return []
    device, live = device_of_source(source), list(range(len(max_lengths)))
    outputs: Any = [SearchOutput(own, [], []) for own in found or [[] for _ in live]]
    places, log_probs = [], []
    tokens = torch.full((len(live),), bos, dtype=torch.int64, device=device)
    past = tokens.new_zeros(len(live), 0) if token_rules.active else None
    state = stepper.start(source)
    for step in range(1, max(max_lengths) + 1):
        if trace is not None:
            trace.begin_step(live)
        logits, state = stepper.step(tokens, state)
        all_log_probs = rules.log_probs(logits, past)
        trace_likely(trace, all_log_probs)
        # max returns the first of equal values: the lower id.
        highest, tokens = all_log_probs.max(-1)
        log_probs.append(highest)  # read together below: each read waits for the device
        unfinished = []
        for row, (sentence, token) in enumerate(zip(live, tokens.tolist(), strict=True)):
            places.append((step, sentence))
            outputs[sentence].tokens.append(token)
            outputs[sentence].rows.append(row)
            if token != eos and step < max_lengths[sentence]:
                unfinished.append(row)
        if not unfinished:
            break
        past = None if past is None else torch.cat((past, tokens[:, None]), 1)
        if len(unfinished) < len(live):
            index = torch.tensor(unfinished, device=device)
            tokens, state = tokens[index], state.select(index)
            live = [live[row] for row in unfinished]
            past = None if past is None else past[index]
    for (step, sentence), log_prob in zip(places, torch.cat(log_probs).tolist(), strict=True):
        if math.isnan(log_prob) or log_prob == -math.inf:
            where = f" at step {step} of {token_rules.name(sentence)}"
            if math.isnan(log_prob):
                raise ValueError(f"logits must not hold NaN, got one{where}")
            raise token_rules.none_left(where)
        outputs[sentence].log_probs.append(log_prob)
    if trace is not None:
        trace.add_outputs([[output] for output in outputs])
    hypotheses = []
    for output in outputs:
        log_prob = sum(output.log_probs)
        score = log_prob / len(output.tokens) ** length_penalty
        hypotheses.append([make_hypothesis(output.tokens, eos=eos, score=score, log_prob=log_prob)])
    return hypotheses
