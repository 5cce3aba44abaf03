"""Captures of recurrent self-attention: one row per item, over the items before it."""

from dataclasses import replace

import pytest
import torch

from regard.data.batches import pad
from regard.decode.config import SampleConfig
from regard.decode.progress import UNWRITTEN
from regard.decode.sample import sample
from regard.decode.teacher import trace_outputs
from regard.layers.positions.config import RotaryConfig
from regard.look.hooks import record_weights
from regard.look.record import record
from regard.look.sample import Axis, Sample
from regard.models.build import build_classifier, build_detector, build_language_model
from regard.models.config import ClassifierConfig, DetectorConfig, LanguageModelConfig
from regard.models.cores.config import SelfAttentiveConfig, TransformerConfig
from regard.models.readers.images import ImageReader
from regard.models.readers.tokens import TokenReader, embedding_table
from regard.models.writers.classes import ClassWriter
from tests.helpers import close
from tests.look.toys import (
    CORES,
    SOURCES,
    capture_sources,
    model_of,
    output_ids_of,
    stack_steps,
    step_weights,
)

CORE = {"width": 6, "hidden": 8, "self_attention_hidden": 5, "layers": 2}
IDS, LABELS = [5, 4, 9, 6], tuple("abcd")


def language_model(cell: str):
    torch.manual_seed(1)
    core = SelfAttentiveConfig(**CORE, cell=cell)
    return build_language_model(LanguageModelConfig(core=core), vocab=11).eval()


def labels_of(ids):
    return ["_-.:abcdefg"[number] for number in ids]


def token_sample() -> Sample:
    return Sample(title="toy", tokens=labels_of)


@pytest.mark.parametrize("cell", ["rnn", "lstm"])
def test_language_model_has_a_chain_a_layer_with_the_weights_of_its_steps(cell):
    model = language_model(cell)
    (sample_maps,) = traced(model, IDS)
    with torch.no_grad():
        logits = model(target=pad([[*IDS, 0]]))[0]
    assert sample_maps.sample.axes["decoder input"].labels == tuple(labels_of(IDS))
    expected = [*IDS[1:], 1 + int(logits[-1, 1:].argmax())]
    assert list(sample_maps.sample.output_ids) == expected
    for t, step in enumerate(sample_maps.sample.steps):
        assert step.token == labels_of([expected[t]])[0]
        probabilities = logits[t].softmax(-1)
        assert step.probability == pytest.approx(float(probabilities[expected[t]]), abs=1e-6)
        likely = step.alternatives[0].probability
        assert likely == pytest.approx(float(probabilities.max()), abs=1e-6)
    assert [(own.kind, own.layer, own.direction, own.queries) for own in sample_maps.maps] == [
        ("chain", 1, "", "decoder input"),
        ("chain", 2, "", "decoder input"),
    ]
    with record_weights(model) as maps, torch.no_grad():
        model(target=pad([[*IDS, 0]]))
    offset = int(cell == "rnn")  # reads when the state of the item is computed
    for own in sample_maps.maps:
        (weights,) = own.weights
        assert weights.shape == (4, 4)
        assert not weights.triu(offset).any()
        close(weights.sum(1), torch.tensor([float(offset), 1, 1, 1]))
        for call, row in zip(maps[own.name], weights[1 - offset :], strict=True):
            close(row[: call.shape[-1]], call[0, 0])


@pytest.mark.parametrize("cell", ["rnn", "lstm"])
def test_sampled_tokens_follow_the_prompt_in_the_capture(cell):
    model, config = language_model(cell), SampleConfig(length=3)
    tokens, capture = record_sample(model, IDS, config, window=None)
    assert tokens == list(sample(model, IDS, config, window=None, seed=1, banned=[0]))
    (sample_maps,) = capture
    assert list(sample_maps.sample.output_ids) == [*IDS[1:], *tokens]
    assert sample_maps.sample.axes["decoder input"].labels == tuple(labels_of([*IDS, *tokens[:-1]]))
    (again,) = traced(model, [*IDS, *tokens[:-1]])
    for own, other in zip(sample_maps.maps, again.maps, strict=True):
        close(own.weights, other.weights)


def traced(model, ids):
    with record(model) as capture, capture.trace.segment([token_sample()]):
        trace_outputs(model, None, [[*ids, UNWRITTEN]], capture.trace, banned=[0])
    return capture


def record_sample(model, prompt, config, **settings):
    """Return the sampled tokens and their capture."""
    with record(model) as capture, capture.trace.segment([token_sample()]):
        settings |= {"seed": 1, "banned": [0], "trace": capture.trace}
        tokens = list(sample(model, prompt, config, **settings))
    return tokens, capture


@pytest.mark.parametrize("cell", ["window", "slide"])
def test_keys_that_a_sliding_memory_discarded_leave_the_others_at_their_positions(cell):
    positions = RotaryConfig(dim=2)
    core = TransformerConfig(layers=2, width=6, heads=2, feedforward=9, positions=positions)
    windowed_core = replace(core, window=3)
    core = windowed_core if cell == "window" else core
    torch.manual_seed(1)
    model = build_language_model(LanguageModelConfig(core=core), vocab=11).eval()
    if cell == "window":
        text = [*IDS, 7, 8]
        capture = traced(model, text)
    else:
        config = SampleConfig(length=4, context="slide")
        tokens, capture = record_sample(model, IDS[:3], config, window=3)
        text = [*IDS[:3], *tokens[:-1]]
    (sample_maps,) = capture
    windowed = build_language_model(LanguageModelConfig(core=windowed_core), vocab=11).eval()
    windowed.load_state_dict(model.state_dict())
    with record_weights(windowed) as expected, torch.no_grad():
        windowed(target=pad([[*text, 0]]))
    assert len(text) == 6
    for own in sample_maps.maps:
        close(own.weights, expected[own.name][0][0])


@pytest.mark.parametrize(
    ("context", "spans"),
    [
        ("restart", [(0, 5), (4, 7)]),
        ("last", [(0, 5), (1, 6), (2, 7)]),
        ("slide", [(0, 7)]),
    ],
)
def test_each_context_that_is_read_anew_is_a_sample(context, spans):
    model, config = language_model("rnn"), SampleConfig(length=4, context=context)
    tokens, capture = record_sample(model, IDS, config, window=5)
    assert tokens == list(sample(model, IDS, config, window=5, seed=1, banned=[0]))
    text = [*IDS, *tokens]
    for sample_maps, (begin, end) in zip(capture, spans, strict=True):
        ids = text[begin:end]
        assert sample_maps.sample.axes["decoder input"].labels == tuple(labels_of(ids))
        assert list(sample_maps.sample.output_ids) == text[begin + 1 : end + 1]
        for own in sample_maps.maps:
            (weights,) = own.weights
            assert weights.shape == (len(ids), len(ids))
            assert not weights.triu(1).any()
            assert not weights.tril(-5).any()  # a context of five
            close(weights.sum(1), torch.ones(len(ids)))


def classifier(cell: str):
    torch.manual_seed(1)
    core = SelfAttentiveConfig(**CORE, cell=cell)
    return build_classifier(
        ClassifierConfig(core=core, pool_heads=2),
        TokenReader(embedding_table(11, core.width)),
        lambda dim, pool: ClassWriter(dim, 2, pool=pool),
    ).eval()


def of_source(*rows: list[int]) -> list[Sample]:
    return [Sample(axes={"source": Axis(labels=tuple(labels_of(row)))}) for row in rows]


@pytest.mark.parametrize("cell", ["rnn", "lstm"])
def test_encoder_has_a_chain_for_each_direction(cell):
    model = classifier(cell)
    with record(model, samples=of_source(IDS)) as capture, torch.no_grad():
        model(pad([IDS]))
    chains = capture[0].find("chain")
    directions = ["backward", "forward"]
    assert [own.direction for own in chains] == directions * 2
    assert [own.layer for own in chains] == [1, 1, 2, 2]
    for own in chains:
        ids = IDS[::-1] if own.direction == "backward" else IDS
        assert capture[0].keys(own).labels == tuple(labels_of(ids))
        steps = stack_steps(capture.recording[own.name])[0]
        offset = int(cell == "rnn")
        close(own.weights[0, 1 - offset :, : steps.shape[-1]], steps)
        assert not own.weights.triu(offset).any()
        close(own.weights[0].sum(1), torch.tensor([float(offset), 1, 1, 1]))


@pytest.mark.parametrize("cell", ["rnn", "lstm"])
def test_chains_of_a_batch_are_those_of_one_text_at_a_time(cell):
    model, rows = classifier(cell), [IDS, [7, 8], [1, 2, 3, 4, 5, 6], [9]]
    with record(model, samples=of_source(*rows)) as capture, torch.no_grad():
        model(pad(rows))
    for sample_maps, row in zip(capture, rows, strict=True):
        with record(model, samples=of_source(row)) as alone, torch.no_grad():
            model(pad([row]))
        expected = {own.name: own for own in alone[0].maps}
        for own in sample_maps.maps:
            assert own.weights.shape[-1] == len(row)
            if own.name in expected:  # a single item has no past: an LSTM makes no read
                close(own.weights, expected[own.name].weights)
            else:
                assert not own.weights.any()


@pytest.mark.parametrize("cell", ["rnn", "lstm"])
@pytest.mark.parametrize("beam", [1, 3])
def test_past_of_a_decoder_begins_with_the_encoder_state(cell, beam):
    model = model_of(CORES[cell])
    capture = capture_sources(model, SOURCES, beam=beam)
    for sample_maps, source in zip(capture, SOURCES, strict=True):
        target = output_ids_of(sample_maps)
        expected = step_weights(model, source, target)
        chains = [own for own in sample_maps.find("chain") if not own.direction]
        assert [own.layer for own in chains] == [1, 2]
        for own in chains:
            labels = ("start", *sample_maps.sample.axes["decoder input"].labels)
            assert sample_maps.queries(own).labels == sample_maps.keys(own).labels == labels
            steps = expected[own.name]
            assert not own.weights[0, 0].any()
            close(own.weights[0, 1:, : steps.shape[-1]], steps)
            assert not own.weights.triu(int(cell == "rnn")).any()
            close(own.weights[0, 1:].sum(-1), torch.ones(len(target)))


@pytest.mark.parametrize("cell", ["rnn", "lstm"])
def test_a_set_has_no_past(cell):
    """Each query of a set is the first item of its row: reads of one state are left out."""
    torch.manual_seed(1)
    config = DetectorConfig(core=SelfAttentiveConfig(**CORE, cell=cell), num_queries=3)
    reads = ImageReader((3, 8, 8), 6, downsampling_layers=2)
    model = build_detector(config, reads, num_classes=2, axes=2).eval()
    sample = Sample(axes={"source": Axis.from_count(4), "queries": Axis.from_count(3)})
    with record(model, samples=[sample, sample]) as capture, torch.no_grad():
        model(torch.rand(2, 3, 8, 8))
    for sample_maps in capture:
        assert {own.direction for own in sample_maps.find("chain")} == {"forward", "backward"}
        (own,) = sample_maps.find("recurrent")
        assert (own.queries, own.keys) == ("queries", "source")
        close(own.weights.sum(-1), torch.ones(1, 3))
