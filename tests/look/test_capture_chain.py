"""Captures of cores that read their own past: a row for each item, over those before it, in the order of reading."""

import pytest
import torch

from regard.data.batches import pad
from regard.decode.config import SampleConfig
from regard.decode.sample import sample, trace_tokens
from regard.look.listen import record_weights
from regard.look.record import record
from regard.look.sample import Axis, Sample
from regard.models.build import build_classifier, build_detector, build_language_model
from regard.models.config import ClassifierConfig, DetectorConfig, LanguageModelConfig, SelfAttentiveConfig
from regard.models.readers.images import ImageReader
from regard.models.writers.classes import ClassWriter
from regard.trace import span
from tests.helpers import close
from tests.look.toys import CORES, SOURCES, capture_sources, model_of, output_ids_of, step_weights

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
    with record(model) as capture, span(lambda: [token_sample()]):
        trace_tokens(model, IDS, banned=[0])
    (seen,) = capture
    with torch.no_grad():
        logits = model(torch.tensor([IDS]))[0]
    assert seen.sample.axes["decoder input"].labels == tuple(labels_of(IDS))
    expected = [*IDS[1:], 1 + int(logits[-1, 1:].argmax())]
    assert list(seen.sample.output_ids) == expected
    for t, step in enumerate(seen.sample.steps):
        assert step.token == labels_of([expected[t]])[0]
        assert step.probability == pytest.approx(float(logits[t].softmax(-1)[expected[t]]), abs=1e-6)
        assert step.alternatives[0].probability == pytest.approx(float(logits[t].softmax(-1).max()), abs=1e-6)
    assert [(one.kind, one.layer, one.direction, one.queries) for one in seen.maps] == [
        ("chain", 1, "", "decoder input"),
        ("chain", 2, "", "decoder input"),
    ]
    with record_weights(model) as maps, torch.no_grad():
        model(torch.tensor([IDS]))
    own = int(cell == "rnn")  # whose read comes when the word's state is made
    for one in seen.maps:
        (weights,) = one.weights
        assert weights.shape == (4, 4)
        assert not weights.triu(own).any()
        close(weights.sum(1), torch.tensor([float(own), 1, 1, 1]))
        for call, row in zip(maps[one.name], weights[1 - own :], strict=True):
            close(row[: call.shape[-1]], call[0, 0])


@pytest.mark.parametrize("cell", ["rnn", "lstm"])
def test_sampled_tokens_follow_the_prompt_in_the_capture(cell):
    model, settings = language_model(cell), {"window": None, "seed": 1, "banned": [0]}
    without = list(sample(model, IDS, SampleConfig(length=3), **settings))
    with record(model) as capture, span(lambda: [token_sample()]):
        tokens = list(sample(model, IDS, SampleConfig(length=3), **settings))
    assert tokens == without
    (seen,) = capture
    assert list(seen.sample.output_ids) == [*IDS[1:], *tokens]
    assert seen.sample.axes["decoder input"].labels == tuple(labels_of([*IDS, *tokens[:-1]]))
    (again,) = followed(model, [*IDS, *tokens[:-1]])
    for one, other in zip(seen.maps, again.maps, strict=True):
        close(one.weights, other.weights)


def followed(model, ids):
    with record(model) as capture, span(lambda: [token_sample()]):
        trace_tokens(model, ids, banned=[])
    return capture


def test_reread_windows_are_samples_with_their_own_begin():
    model = language_model("rnn")
    with record(model) as capture, span(lambda: [token_sample()]):
        tokens = list(sample(model, IDS, SampleConfig(length=4), window=5, seed=1, banned=[]))
    text = [*IDS, *tokens]
    first, second = capture
    assert list(first.sample.output_ids) == text[1:6]
    assert first.sample.axes["decoder input"].labels == tuple(labels_of(text[:5]))
    assert second.sample.axes["decoder input"].labels == tuple(labels_of(text[4:7]))
    assert list(second.sample.output_ids) == text[5:8]


def classifier(cell: str):
    torch.manual_seed(1)
    core = SelfAttentiveConfig(**CORE, cell=cell)
    return build_classifier(
        ClassifierConfig(core=core, pool_heads=2), vocab=11, writes=lambda dim: ClassWriter(dim, 2)
    ).eval()


def of_source(*rows: list[int]) -> list[Sample]:
    return [Sample(axes={"source": Axis(labels=tuple(labels_of(row)))}) for row in rows]


@pytest.mark.parametrize("cell", ["rnn", "lstm"])
def test_encoder_has_a_chain_for_each_direction(cell):
    model = classifier(cell)
    with record(model, samples=of_source(IDS)) as capture, torch.no_grad():
        model(pad([IDS]))
    found = capture[0].find("chain")
    assert [(one.layer, one.direction) for one in found] == [
        (layer, end) for layer in (1, 2) for end in ("backward", "forward")
    ]
    for one in found:
        shown = tuple(labels_of(IDS))
        assert capture[0].keys(one).labels == (shown[::-1] if one.direction == "backward" else shown)
        steps = capture.recording.steps(one.name)[0]
        own = int(cell == "rnn")
        close(one.weights[0, 1 - own :, : steps.shape[-1]], steps)
        assert not one.weights.triu(own).any()
        close(one.weights[0].sum(1), torch.tensor([float(own), 1, 1, 1]))


@pytest.mark.parametrize("cell", ["rnn", "lstm"])
def test_chains_of_a_batch_are_those_of_one_text_at_a_time(cell):
    model, rows = classifier(cell), [IDS, [7, 8], [1, 2, 3, 4, 5, 6], [9]]
    with record(model, samples=of_source(*rows)) as capture, torch.no_grad():
        model(pad(rows))
    for seen, row in zip(capture, rows, strict=True):
        with record(model, samples=of_source(row)) as alone, torch.no_grad():
            model(pad([row]))
        expected = {one.name: one for one in alone[0].maps}
        for one in seen.maps:
            assert one.weights.shape[-1] == len(row)
            if one.name in expected:  # a single item has no past, so that an lstm reads nothing at all
                close(one.weights, expected[one.name].weights)
            else:
                assert not one.weights.any()


@pytest.mark.parametrize("cell", ["rnn", "lstm"])
@pytest.mark.parametrize("beam", [1, 3])
def test_past_of_a_decoder_begins_with_the_encoder_state(cell, beam):
    model = model_of(CORES[cell])
    for seen, source in zip(capture_sources(model, SOURCES, beam=beam), SOURCES, strict=True):
        target = output_ids_of(seen)
        wanted = step_weights(model, source, target)
        chains = [one for one in seen.find("chain") if not one.direction]
        assert [one.layer for one in chains] == [1, 2]
        for one in chains:
            assert seen.queries(one).labels == seen.keys(one).labels == ("start", *seen.sample.axes["decoder input"].labels)
            steps = wanted[one.name]
            assert not one.weights[0, 0].any()
            close(one.weights[0, 1:, : steps.shape[-1]], steps)
            assert not one.weights.triu(int(cell == "rnn")).any()
            close(one.weights[0, 1:].sum(-1), torch.ones(len(target)))


@pytest.mark.parametrize("cell", ["rnn", "lstm"])
def test_a_set_has_no_past(cell):
    """Each query of a set is the first of a row of its own: nothing is shown of reads of a single state."""
    torch.manual_seed(1)
    core = SelfAttentiveConfig(width=6, hidden=8, attention_hidden=3, self_attention_hidden=5, cell=cell)
    reads = ImageReader((3, 8, 8), 6, downsampling_layers=2)
    model = build_detector(DetectorConfig(core=core, num_queries=3), reads, num_classes=2, axes=2).eval()
    given = [Sample(axes={"source": Axis.from_count(4), "queries": Axis.from_count(3)}) for _ in range(2)]
    with record(model, samples=given) as capture, torch.no_grad():
        model(torch.rand(2, 3, 8, 8))
    for seen in capture:
        assert {one.direction for one in seen.find("chain")} == {"forward", "backward"}
        (one,) = seen.find("recurrent")
        assert (one.queries, one.keys) == ("queries", "source")
        close(one.weights.sum(-1), torch.ones(1, 3))
