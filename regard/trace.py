"""Traces: inputs, steps and outputs of a running model, a value that searches fill. (no torch)

    trace = Trace()
    with trace.segment(samples):                       # row i of every call belongs to samples[i]
        search(model, sentences, ..., trace=trace)     # every search takes `trace`, None by default
    trace.segments[0].steps[3].tokens                  # the most probable tokens of step 3

A trace is a list of segments: calls whose rows belong to the same samples. In a segment, the model
either computes all outputs at once, or runs a search: the calls before its first step are the
encoder pass. `regard.record` creates a trace, and files every read under the segment and step that
are open when it runs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

SampleT = TypeVar("SampleT")


@dataclass(frozen=True)
class SearchOutput:
    """One output sequence: the token of each step, EOS included, and the row that produced it."""

    tokens: Sequence[int]
    rows: Sequence[int]
    log_probs: Sequence[float] = ()
    """Of each token, given those before it; optional if each is among its step's likely tokens."""
    begin: int | None = None
    """First token of the decoder input, if it is not BOS."""


@dataclass(frozen=True)
class BeamStep:
    """Hypotheses kept after a step: the row that each extends, its new token, total log p."""

    rows: Sequence[int]
    tokens: Sequence[int]
    log_probs: Sequence[float]


@dataclass(kw_only=True)
class SearchStep:
    """One step of a search."""

    source_rows: Sequence[int]
    """The row of the source that each row belongs to."""
    tokens: Sequence[Sequence[int]] = ()
    """The most probable next tokens of each row, in descending order."""
    log_probs: Sequence[Sequence[float]] = ()
    """Their log-probabilities."""
    beam: BeamStep | None = None


@dataclass(kw_only=True)
class Segment:
    """Calls whose rows belong to the same samples."""

    samples: Sequence[Any] | None
    """None: the rows belong to no samples."""
    rows: Sequence[int] | None = None
    """Index of the sample of each row; None: row i belongs to sample i."""
    batch: int = 0
    """Number of the first segment with these samples."""
    steps: list[SearchStep] = field(default_factory=list)
    outputs: Sequence[Sequence[SearchOutput]] = ()
    """Of each row of the source, best first."""

    def sample(self, row: int) -> Any:
        """Return the sample of a row of the source, None if it has none."""
        if self.samples is None:
            return None
        index = row if self.rows is None else self.rows[row]
        return self.samples[index] if index < len(self.samples) else None

    def outputs_of(self, row: int) -> Sequence[SearchOutput]:
        """Return the outputs of a row; without any, a path through its first row of each step."""
        if row < len(self.outputs):
            return self.outputs[row]
        path = [step.source_rows.index(row) for step in self.steps if row in step.source_rows]
        return [SearchOutput([], path)] if path else []


class Trace:
    """Segments of a running model, in order. samples: of rows outside any `segment`, None: none."""

    def __init__(self, samples: Sequence[Any] | None = None):
        self.segments = [Segment(samples=samples)]
        self._samples = samples

    @contextmanager
    def segment(self, samples: list[SampleT]) -> Iterator[list[SampleT]]:
        """Assign row i of the calls in this context to samples[i]; these may be completed later."""
        self._begin(samples)
        try:
            yield samples
        finally:
            self._begin(self._samples)

    def begin_segment(self, rows: Sequence[int] | None = None) -> None:
        """Begin a segment: row i belongs to sample rows[i]; None: to the same one as before."""
        last = self.segments[-1]
        self._begin(last.samples, last.rows if rows is None else list(rows))

    def begin_step(self, source_rows: Sequence[int]) -> None:
        """Begin a step of a search; row i of its calls belongs to source row source_rows[i]."""
        self.segments[-1].steps.append(SearchStep(source_rows=list(source_rows)))

    def add_likely_tokens(
        self, tokens: Sequence[Sequence[int]], log_probs: Sequence[Sequence[float]]
    ) -> None:
        """Add the most probable next tokens of each row to the step, in descending order."""
        step = self.segments[-1].steps[-1]
        step.tokens, step.log_probs = tokens, log_probs

    def add_beams(
        self, rows: Sequence[int], tokens: Sequence[int], log_probs: Sequence[float]
    ) -> None:
        """Add the hypotheses that are kept to the step; see `BeamStep`."""
        self.segments[-1].steps[-1].beam = BeamStep(rows, tokens, log_probs)

    def add_outputs(self, outputs: Sequence[Sequence[SearchOutput]]) -> None:
        """Add the outputs of each row of the source to the segment, best first."""
        self.segments[-1].outputs = outputs

    @property
    def position(self) -> tuple[int, int | None]:
        """Number of the open segment, and of its open step; None: no step of a search has begun."""
        steps = len(self.segments[-1].steps)
        return len(self.segments) - 1, steps - 1 if steps else None

    def _begin(self, samples: Sequence[Any] | None, rows: Sequence[int] | None = None) -> None:
        last, number = self.segments[-1], len(self.segments)
        batch = last.batch if samples is not None and samples is last.samples else number
        self.segments.append(Segment(samples=samples, rows=rows, batch=batch))
