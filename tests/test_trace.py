"""Traces: segments of samples, and what searches add to them, with probabilities known by hand."""

import math

import pytest
import torch

from regard.decode.beam import beam
from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.greedy import greedy
from regard.decode.sample import sample
from regard.decode.search import search
from regard.trace import BeamStep, SearchOutput, SearchStep, Segment, Trace
from tests.decode.toys import BOS, EOS, IDS, PAD, HashStepper, TreeStepper, padded

TREE = {(): {4: 0.6, 5: 0.4}, (4,): {EOS: 0.3, 6: 0.7}, (5,): {EOS: 1.0}, (4, 6): {EOS: 1.0}}


def chances(step: SearchOutput | BeamStep) -> list[float]:
    """Return the probabilities of a list of log-probabilities, rounded."""
    return [round(math.exp(log_prob), 5) for log_prob in step.log_probs]


def test_rows_belong_to_the_samples_of_their_segment():
    trace = Trace(["default"])
    with trace.segment(["a", "b", "c"]) as samples:
        trace.begin_segment([2, 0])
        trace.begin_segment()
        samples[2] = "known later"
    trace.begin_segment([0])
    assert [(segment.samples, segment.rows) for segment in trace.segments] == [
        (["default"], None),
        (samples, None),
        (samples, [2, 0]),
        (samples, [2, 0]),
        (["default"], None),
        (["default"], [0]),
    ]
    assert [trace.segments[i].sample(0) for i in range(6)] == ["default", "a"] + 2 * [
        "known later"
    ] + 2 * ["default"]
    assert [segment.batch for segment in trace.segments] == [0, 1, 1, 1, 4, 4]
    assert trace.segments[0].sample(1) is None


def test_segments_without_samples_are_batches_of_their_own():
    trace = Trace()
    trace.begin_segment([1])
    trace.begin_segment([0])
    assert [segment.batch for segment in trace.segments] == [0, 1, 2]
    assert trace.segments[2].sample(0) is None


def test_a_segment_ends_on_exceptions():
    trace = Trace()
    with pytest.raises(KeyError), trace.segment(["a"]):
        raise KeyError
    assert [segment.samples for segment in trace.segments] == [None, ["a"], None]


def test_position_counts_segments_and_their_steps():
    trace = Trace()
    assert trace.position == (0, None)
    trace.begin_step([0, 1])
    trace.begin_step([0])
    assert trace.position == (0, 1)
    with trace.segment([]):
        assert trace.position == (1, None)
    assert trace.position == (2, None)


def test_rows_without_outputs_follow_their_first_row():
    steps = [SearchStep(source_rows=rows) for rows in ([0, 1], [0, 0, 1], [1])]
    segment = Segment(samples=None, steps=steps, outputs=[])
    assert segment.outputs_of(1) == [SearchOutput([], [1, 2, 0])]
    assert segment.outputs_of(2) == []


def test_greedy_search_adds_steps_likely_tokens_and_outputs():
    trace, stepper = Trace(), TreeStepper(TREE, vocab=7)
    greedy(stepper, padded([[4, EOS], [5, EOS]]), **IDS, max_length=[5, 1], trace=trace)
    (segment,) = trace.segments
    assert [step.source_rows for step in segment.steps] == [[0, 1], [0], [0]]
    assert [step.tokens[0][:2] for step in segment.steps[:2]] == [[4, 5], [6, EOS]]
    assert [round(math.exp(log_prob), 5) for log_prob in segment.steps[1].log_probs[0][:2]] == [
        0.7,
        0.3,
    ]
    ((first,), (second,)) = segment.outputs
    assert (first.tokens, first.rows, chances(first)) == ([4, 6, EOS], [0, 0, 0], [0.6, 0.7, 1])
    assert (second.tokens, second.rows, chances(second)) == ([4], [1], [0.6])


def test_beam_search_adds_the_hypotheses_that_stay():
    trace, stepper = Trace(), TreeStepper(TREE, vocab=7)
    beam(
        stepper,
        padded([[4, EOS]]),
        beam=2,
        n_best=2,
        **IDS,
        max_length=5,
        length_penalty=0.0,
        trace=trace,
    )
    (segment,) = trace.segments
    assert [step.source_rows for step in segment.steps] == [[0], [0, 0], [0, 0]]
    first, second, _ = (step.beam for step in segment.steps)
    assert first is not None
    assert second is not None
    assert (first.rows, first.tokens, chances(first)) == ([0, 0], [4, 5], [0.6, 0.4])
    assert (second.rows[0], second.tokens[0], chances(second)[0]) == (0, 6, 0.42)
    assert segment.outputs == [
        [SearchOutput([4, 6, EOS], [0, 0, 0]), SearchOutput([5, EOS], [0, 1])]
    ]


def test_search_adds_a_segment_for_each_batch():
    trace = Trace()
    sentences, config = (
        [[4, EOS], [4, 5, 6, EOS], [5, EOS]],
        DecodeConfig(beam=1, max_length=3, batch_tokens=4),
    )
    with trace.segment([f"sentence {i}" for i in range(3)]):
        results = search(
            HashStepper(7), sentences, config=config, bos=BOS, eos=EOS, pad=PAD, trace=trace
        )
    batches = [segment for segment in trace.segments if segment.steps]
    assert [segment.rows for segment in batches] == [[1], [0, 2]]
    assert batches[1].sample(1) == "sentence 2"
    (output,) = batches[1].outputs[1]
    assert [token for token in output.tokens if token != EOS] == results[2][0].tokens


class Counter:
    """Language model with probability 3/4 of the token after the last, 1/4 of the first."""

    def start(self, source=None, *, rows=1) -> int:
        return 0

    def steps(self, tokens, state):
        logits = torch.full((1, 8), -math.inf)
        logits[0, 0], logits[0, (tokens[0, -1] + 1) % 8] = math.log(0.25), math.log(0.75)
        return logits, state + tokens.shape[1]

    def slide(self, state, window) -> int:
        return state


def test_sampling_adds_a_segment_for_each_context():
    trace = Trace()
    config, settings = SampleConfig(length=4, temperature=0), {"window": 3, "seed": 1, "banned": []}
    assert list(sample(Counter(), [1, 2], config, **settings, trace=trace)) == [3, 4, 5, 6]
    first, second = trace.segments
    assert [len(first.steps), len(second.steps)] == [3, 2]
    assert first.steps[0].tokens[0][:2] == [2, 0]
    ((before,),), ((after,),) = first.outputs, second.outputs
    assert (before.begin, before.tokens, before.rows, chances(before)) == (
        1,
        [2, 3, 4],
        [0] * 3,
        [0.75] * 3,
    )
    assert (after.begin, after.tokens, after.rows, chances(after)) == (
        4,
        [5, 6],
        [0] * 2,
        [0.75] * 2,
    )
