"""Trace of a recording: the events emitted while reads were recorded, each with the calls made by every read so far.

A trace is a list of segments: calls whose rows belong to the same samples. In a segment, the model either computes all
outputs at once, or runs a search: the calls before its first step are the encoder pass.

    segment    rows -> samples       encoder pass: calls [start, first step)      steps: calls [step t, step t + 1)
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from regard.look.sample import Alternative, Beam, DecodingStep, Sample
from regard.trace import BeamStep, RowOrder, SampleBatch, SearchEnd, SearchOutput, SearchStep, StepScores, TraceEvent

Counts = Mapping[str, int]
"""Number of calls of each read so far, by the name of the read."""


@dataclass(kw_only=True)
class TraceStep:
    """One step of a search."""

    start: Counts
    source_rows: Sequence[int]
    """The row of the source that each row belongs to."""
    scores: StepScores | None = None
    beam: BeamStep | None = None


@dataclass(kw_only=True)
class Segment:
    """Calls whose rows belong to the same samples."""

    start: Counts
    stop: Counts = field(default_factory=dict)
    samples: Sequence[Sample] | None
    """The samples of the current batch; None outside of a span."""
    rows: Sequence[int] | None = None
    """Index of the sample of each row; None: row i belongs to sample i."""
    steps: list[TraceStep] = field(default_factory=list)
    outputs: Sequence[Sequence[SearchOutput]] = ()
    """Of each row of the source, best first."""

    @property
    def encoder_stop(self) -> Counts:
        """Counts at the end of the encoder pass; without a search, at the end of the segment."""
        return self.steps[0].start if self.steps else self.stop

    def step_range(self, step: int) -> tuple[Counts, Counts]:
        """Return the counts before and after a step."""
        stop = self.steps[step + 1].start if step + 1 < len(self.steps) else self.stop
        return self.steps[step].start, stop

    def sample(self, row: int) -> Sample | None:
        """Return the sample of a row of the source, None if it has none."""
        if self.samples is None:
            return None
        index = row if self.rows is None else self.rows[row]
        return self.samples[index] if index < len(self.samples) else None

    def outputs_of(self, row: int) -> Sequence[SearchOutput]:
        """Return the outputs of a row; if none were emitted, a path through its first row of each step."""
        if row < len(self.outputs):
            return self.outputs[row]
        path = [step.source_rows.index(row) for step in self.steps if row in step.source_rows]
        return [SearchOutput([], path)] if path else []


class Trace:
    """Subscriber that collects events (`add`) into segments."""

    def __init__(self, count: Callable[[], Counts], *, samples: Sequence[Sample] | None = None):
        """count: returns the number of calls of each read so far. samples: of rows outside of any span."""
        self._count, self._default_samples = count, samples
        self._segments = [Segment(start={}, samples=samples)]

    def add(self, event: TraceEvent) -> None:
        """Add an event."""
        now, last = self._count(), self._segments[-1]
        match event:
            case SampleBatch(samples):
                self._begin(Segment(start=now, samples=self._default_samples if samples is None else samples))
            case RowOrder(rows):
                self._begin(Segment(start=now, samples=last.samples, rows=rows))
            case SearchStep(source_rows):
                last.steps.append(TraceStep(start=now, source_rows=list(source_rows)))
            case StepScores() if last.steps:
                last.steps[-1].scores = event
            case BeamStep() if last.steps:
                last.steps[-1].beam = event
            case SearchEnd(outputs):
                last.outputs = outputs

    def segments(self) -> list[tuple[int, Segment]]:
        """Return the segments in which a read ran, in order, each with the index of its batch of samples."""
        self._segments[-1].stop = self._count()
        batches: dict[int, int] = {}
        segments = []
        for segment in self._segments:
            batch = batches.setdefault(id(segment if segment.samples is None else segment.samples), len(batches))
            if any(segment.stop[name] > segment.start.get(name, 0) for name in segment.stop):
                segments.append((batch, segment))
        return segments

    def _begin(self, segment: Segment) -> None:
        self._segments[-1].stop = segment.start
        self._segments.append(segment)


def token_labels(sample: Sample, output: SearchOutput) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the labels of the output tokens and of the decoder input; empty if the sample has no labels for tokens."""
    if sample.tokens is None or not output.tokens:
        return (), ()
    labels = tuple(sample.tokens(output.tokens))
    begin = sample.begin if output.begin is None else sample.tokens([output.begin])[0]
    inputs = (*sample.decoder_input, *(begin, *labels)[len(sample.decoder_input) :])[: len(labels)]
    return (*inputs[1:], labels[-1]), inputs


def decoding_steps(segment: Segment, row: int, output: SearchOutput, sample: Sample) -> tuple[DecodingStep, ...]:
    """Return the steps of the search that led to one output; empty if the sample has no labels for tokens."""
    if sample.tokens is None or not output.tokens:
        return ()
    prefixes: list[tuple[int, ...]] = [()] * (len(segment.steps[0].source_rows) if segment.steps else 0)
    steps = []
    labels, _ = token_labels(sample, output)
    for t, (step_row, token) in enumerate(zip(output.rows, output.tokens, strict=True)):
        step = segment.steps[t]
        top_tokens = _top_tokens(step, step_row)
        log_prob = output.log_probs[t] if t < len(output.log_probs) else top_tokens.get(token, -float("inf"))
        beams: tuple[Beam, ...] = ()
        if step.beam is not None:
            parents = zip(step.beam.rows, step.beam.tokens, strict=True)
            prefixes = [(*prefixes[parent], new_token) for parent, new_token in parents]
            beams = _beams(segment, t, row, output, lambda index, prefixes=prefixes: _to_text(sample, prefixes[index]))
        alternatives = [
            Alternative(token=sample.tokens([token_id])[0], probability=_exp(log_p))
            for token_id, log_p in top_tokens.items()
        ]
        steps.append(
            DecodingStep(token=labels[t], probability=_exp(log_prob), alternatives=tuple(alternatives), beams=beams)
        )
    return tuple(steps)


def _top_tokens(step: TraceStep, row: int) -> dict[int, float]:
    """Return the most probable tokens of a row with their log-probabilities."""
    if step.scores is None or row >= len(step.scores.tokens):
        return {}
    return dict(zip(step.scores.tokens[row], step.scores.log_probs[row], strict=True))


def _beams(segment: Segment, t: int, row: int, output: SearchOutput, text: Callable[[int], str]) -> tuple[Beam, ...]:
    """Return the hypotheses of a row of the source after step t; text: returns the text of a hypothesis."""
    beam = segment.steps[t].beam
    assert beam is not None
    next_rows = segment.steps[t + 1].source_rows if t + 1 < len(segment.steps) else []
    own = [index for index, source_row in enumerate(next_rows) if source_row == row]
    next_row = output.rows[t + 1] if t + 1 < len(output.rows) else None
    hypotheses = [
        Beam(text=text(index), score=beam.log_probs[index], is_prefix=index == next_row)
        for index in own
        if beam.log_probs[index] > -math.inf
    ]
    return tuple(sorted(hypotheses, key=lambda hypothesis: -hypothesis.score))


def _to_text(sample: Sample, tokens: Sequence[int]) -> str:
    if sample.text is not None:
        return sample.text(tokens)
    return " ".join(sample.tokens(tokens)) if sample.tokens else ""


def _exp(log_probability: float) -> float:
    return math.exp(min(0.0, log_probability))
