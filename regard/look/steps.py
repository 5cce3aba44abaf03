"""Decoding steps of a sample, from a trace: tokens of an output, their alternatives, the beams."""

import math

from regard.look.sample import Alternative, Beam, DecodingStep, Sample
from regard.trace import SearchOutput, Segment


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
    tokens = sample.tokens
    text = sample.text or (lambda ids: " ".join(tokens(ids)))
    prefixes: list[tuple[int, ...]] = []
    if segment.steps:
        prefixes = [()] * len(segment.steps[0].source_rows)
    steps = []
    labels, _ = token_labels(sample, output)
    for t, (step_row, token) in enumerate(zip(output.rows, output.tokens, strict=True)):
        step, likely = segment.steps[t], {}
        if step_row < len(step.tokens):
            likely = dict(zip(step.tokens[step_row], step.log_probs[step_row], strict=True))
        log_prob = likely.get(token, -math.inf)
        if t < len(output.log_probs):
            log_prob = output.log_probs[t]
        beams: list[Beam] = []
        if step.beam is not None:
            parents = zip(step.beam.rows, step.beam.tokens, strict=True)
            prefixes = [(*prefixes[parent], new_token) for parent, new_token in parents]
            next_rows = segment.steps[t + 1].source_rows if t + 1 < len(segment.steps) else []
            next_row = output.rows[t + 1] if t + 1 < len(output.rows) else None
            for index, source_row in enumerate(next_rows):
                score = step.beam.log_probs[index]
                if source_row == row and score > -math.inf:
                    is_prefix = index == next_row
                    beams.append(Beam(text=text(prefixes[index]), score=score, is_prefix=is_prefix))
            beams.sort(key=lambda beam: -beam.score)
        alternatives = []
        for likely_token, value in likely.items():
            name, probability = tokens([likely_token])[0], math.exp(min(0.0, value))
            alternatives.append(Alternative(token=name, probability=probability))
        shown = DecodingStep(
            token=labels[t],
            probability=math.exp(min(0.0, log_prob)),
            alternatives=tuple(alternatives),
            beams=tuple(beams),
        )
        steps.append(shown)
    return tuple(steps)
