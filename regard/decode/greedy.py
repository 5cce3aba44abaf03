"""Greedy search: the most likely token at every step, as a whole output or as a stream of tokens.

    y_t = argmax_w log p(w | x, y_1 .. y_{t-1})        until EOS or the maximum length

Ties go to the lower id. A finished sentence is removed from the batch, so later steps cost less.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from regard.decode.hypothesis import Hypothesis, Rules, expand_max_length
from regard.decode.stepper import Source, StateT, Stepper, device_of_source, size_of, trace_likely
from regard.trace import SearchOutput, Trace


class GeneratedToken(NamedTuple):
    """One generated token of one sentence."""

    sentence: int
    """Index of the sentence in the source."""
    token: int
    """Token id; EOS is the last of a finished sentence."""
    log_prob: float
    """Log-probability of the token under the model."""


def greedy(
    stepper: Stepper[StateT],
    source: Source,
    *,
    bos: int,
    eos: int,
    max_length: int | Sequence[int] | Int[Tensor, " batch"],
    banned: Sequence[int] = (),
    length_penalty: float = 1.0,
    trace: Trace | None = None,
) -> list[list[Hypothesis]]:
    """Return the greedy hypothesis of each sentence, in a list of one like results of `beam`.

    max_length: maximum number of generated tokens, including EOS; one number, or one per sentence.
    banned:     ids that are never generated (usually PAD and BOS).
    length_penalty: changes the reported score, not the tokens.
    trace:      receives the steps and the outputs (regard.trace).
    The caller sets the model to eval mode; gradients are not recorded.

    Raises: ValueError if an argument is out of range (see `Rules` and `expand_max_length`), if
            logits hold NaN, or
        if no allowed token has a probability above 0.
    """
    rules = Rules(bos=bos, eos=eos, banned=tuple(banned), length_penalty=length_penalty)
    outputs: list[list[GeneratedToken]] = [[] for _ in range(size_of(source))]
    rows: list[list[int]] = [[] for _ in outputs]
    for step in _generate(
        stepper, source, rules, expand_max_length(max_length, len(outputs)), trace
    ):
        for row, generated in enumerate(step):
            outputs[generated.sentence].append(generated)
            rows[generated.sentence].append(row)
    if trace is not None:
        trace.add_outputs([[_search_output(*output)] for output in zip(outputs, rows, strict=True)])
    return [[_to_hypothesis(output, rules)] for output in outputs]


def stream(
    stepper: Stepper[StateT],
    source: Source,
    *,
    bos: int,
    eos: int,
    max_length: int | Sequence[int] | Int[Tensor, " batch"],
    banned: Sequence[int] = (),
    trace: Trace | None = None,
) -> Iterator[list[GeneratedToken]]:
    """Return an iterator over the steps of `greedy`: one token of every unfinished sentence.

    Arguments and errors are those of `greedy`; invalid arguments raise at the call, not at the
    first token.
    """
    rules = Rules(bos=bos, eos=eos, banned=tuple(banned))
    return _generate(stepper, source, rules, expand_max_length(max_length, size_of(source)), trace)


def _generate(
    stepper: Stepper[StateT],
    source: Source,
    rules: Rules,
    max_lengths: list[int],
    trace: Trace | None,
) -> Iterator[list[GeneratedToken]]:
    if not max_lengths:
        return
    sentences = list(range(len(max_lengths)))
    device = device_of_source(source)
    tokens = torch.full((len(max_lengths),), rules.bos, dtype=torch.int64, device=device)
    # Gradients are disabled only while the model runs: between two tokens the caller's own mode is
    # in effect.
    with torch.no_grad():
        state = stepper.start(source)
    for step in range(1, max(max_lengths) + 1):
        if trace is not None:
            trace.begin_step(sentences)
        with torch.no_grad():
            logits, state = stepper.step(tokens, state)
            log_probs = rules.log_probs(logits)
            trace_likely(trace, log_probs)
            # max returns the first of equal values: the lower id.
            highest, tokens = log_probs.max(-1)
            outputs = list(map(GeneratedToken, sentences, tokens.tolist(), highest.tolist()))
            _check(outputs, step)
            ends = [
                output.token == rules.eos or max_lengths[output.sentence] == step
                for output in outputs
            ]
            if any(ends) and not all(ends):
                live = [row for row, is_last in enumerate(ends) if not is_last]
                index = torch.tensor(live, device=device)
                tokens, state = tokens[index], state.select(index)
                sentences = [sentences[row] for row in live]
        yield outputs
        if all(ends):
            return


def _search_output(generated: list[GeneratedToken], rows: list[int]) -> SearchOutput:
    return SearchOutput(
        [step.token for step in generated], rows, [step.log_prob for step in generated]
    )


def _check(outputs: list[GeneratedToken], step: int) -> None:
    for output in outputs:
        if math.isnan(output.log_prob):
            raise ValueError(
                f"logits must not hold NaN, got one at step {step} of sentence {output.sentence}"
            )
        if output.log_prob == -math.inf:
            raise ValueError(
                f"some allowed token must have a probability above 0, "
                f"got none at step {step} of sentence {output.sentence}"
            )


def _to_hypothesis(generated: list[GeneratedToken], rules: Rules) -> Hypothesis:
    tokens = [step.token for step in generated]
    finished = tokens[-1] == rules.eos
    log_prob = sum(step.log_prob for step in generated)
    score = rules.score(log_prob, len(tokens))
    return Hypothesis(
        tokens=tokens[:-1] if finished else tokens,
        score=score,
        log_prob=log_prob,
        finished=finished,
    )
