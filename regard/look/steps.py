"""Decoding steps of a sample, from a trace: tokens of an output, their alternatives, the beams."""

import math
from collections.abc import Callable, Sequence

from regard.look.sample import Alternative, Beam, DecodingStep, Sample
from regard.trace import SearchOutput, SearchStep, Segment


def token_labels(sample: Sample, output: SearchOutput) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return labels of the output tokens and the decoder input; empty if the sample has none."""
    if sample.tokens is None or not output.tokens:
        return (), ()
    labels = tuple(sample.tokens(output.tokens))
    begin = sample.begin if output.begin is None else sample.tokens([output.begin])[0]
    inputs = (*sample.decoder_input, *(begin, *labels)[len(sample.decoder_input) :])[: len(labels)]
    return (*inputs[1:], labels[-1]), inputs


def decoding_steps(
    segment: Segment, row: int, output: SearchOutput, sample: Sample
) -> tuple[DecodingStep, ...]:
    """Return the steps of the search that led to one output; empty without labels for tokens."""
    if sample.tokens is None or not output.tokens:
        return ()
    prefixes: list[tuple[int, ...]] = [()] * (
        len(segment.steps[0].source_rows) if segment.steps else 0
    )
    steps = []
    labels, _ = token_labels(sample, output)
    for t, (step_row, token) in enumerate(zip(output.rows, output.tokens, strict=True)):
        step = segment.steps[t]
        likely = _likely_tokens(step, step_row)
        log_prob = (
            output.log_probs[t] if t < len(output.log_probs) else likely.get(token, -float("inf"))
        )
        beams: tuple[Beam, ...] = ()
        if step.beam is not None:
            parents = zip(step.beam.rows, step.beam.tokens, strict=True)
            prefixes = [(*prefixes[parent], new_token) for parent, new_token in parents]
            beams = _beams(
                segment,
                t,
                row,
                output,
                lambda index, prefixes=prefixes: _to_text(sample, prefixes[index]),
            )
        alternatives = [
            Alternative(token=sample.tokens([token_id])[0], probability=_exp(log_p))
            for token_id, log_p in likely.items()
        ]
        steps.append(
            DecodingStep(
                token=labels[t],
                probability=_exp(log_prob),
                alternatives=tuple(alternatives),
                beams=beams,
            )
        )
    return tuple(steps)


def _likely_tokens(step: SearchStep, row: int) -> dict[int, float]:
    """Return the most probable tokens of a row with their log-probabilities."""
    if row >= len(step.tokens):
        return {}
    return dict(zip(step.tokens[row], step.log_probs[row], strict=True))


def _beams(
    segment: Segment, t: int, row: int, output: SearchOutput, text: Callable[[int], str]
) -> tuple[Beam, ...]:
    """Return the hypotheses of a source's row after step t; text: returns that of a hypothesis."""
    beam = segment.steps[t].beam
    assert beam is not None
    next_rows = segment.steps[t + 1].source_rows if t + 1 < len(segment.steps) else []
    next_row = output.rows[t + 1] if t + 1 < len(output.rows) else None
    hypotheses = [
        Beam(text=text(index), score=beam.log_probs[index], is_prefix=index == next_row)
        for index, source_row in enumerate(next_rows)
        if source_row == row and beam.log_probs[index] > -math.inf
    ]
    return tuple(sorted(hypotheses, key=lambda hypothesis: -hypothesis.score))


def _to_text(sample: Sample, tokens: Sequence[int]) -> str:
    if sample.text is not None:
        return sample.text(tokens)
    return " ".join(sample.tokens(tokens)) if sample.tokens else ""


def _exp(log_probability: float) -> float:
    return math.exp(min(0.0, log_probability))
