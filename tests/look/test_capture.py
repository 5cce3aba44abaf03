"""Captures of searches: weights, labels and steps of each output."""

import pytest
import torch

from regard.attention.attend import attention_weights
from regard.attention.choices import Choice, Hard, Soft, Sparse, TopK
from regard.attention.masks import causal, padding
from regard.attention.memory import Memory
from regard.attention.scores import ScaledDot
from regard.decode.config import DecodeConfig
from regard.decode.search import search
from regard.layers.read import Read
from regard.look.capture import Capture
from regard.look.hooks import record_weights
from regard.look.record import record
from tests.helpers import close
from tests.look.toys import (
    BOS,
    EOS,
    PAD,
    SOURCES,
    capture_sources,
    sample_of,
    small,
    source_of,
)


def test_steps_have_the_probabilities_of_the_output_and_of_the_beams():
    model = small()
    (sample_maps,) = capture_sources(model, [SOURCES[0]], beam=3)
    steps, ids = sample_maps.sample.steps, sample_maps.sample.output_ids
    with torch.no_grad():
        logits = model(source_of(SOURCES[0]), source_of([BOS, *ids]))[0]
    total, num_prefixes = 0.0, 0
    for i, (step, token) in enumerate(zip(steps, ids, strict=True)):
        row = logits[i].log_softmax(-1)
        assert step.token == f"t{token}"
        assert step.probability == pytest.approx(float(row[token].exp()), abs=1e-5)
        probabilities = [alternative.probability for alternative in step.alternatives]
        assert probabilities == sorted(probabilities, reverse=True)
        likely = float(row[[1, *range(3, 11)]].max().exp())
        assert probabilities[0] == pytest.approx(likely, abs=1e-5)
        total += float(row[token])
        for beam in step.beams:
            if beam.is_prefix:
                num_prefixes += 1
                assert beam.score == pytest.approx(total, abs=1e-4)
                assert beam.text == " ".join(f"t{one}" for one in ids[: i + 1])
    assert num_prefixes == len(steps) - 1


def test_beams_belong_to_their_own_sentence():
    model = small()
    together = capture_sources(model, SOURCES, beam=3)
    for sample_maps, sentence in zip(together, SOURCES, strict=True):
        (alone,) = capture_sources(model, [sentence], beam=3)
        for step, other in zip(sample_maps.sample.steps, alone.sample.steps, strict=True):
            beams = [(beam.text, beam.is_prefix) for beam in other.beams]
            assert [(beam.text, beam.is_prefix) for beam in step.beams] == beams


def test_outputs_of_consecutive_batches_stay_together():
    model, config = small(), DecodeConfig(beam=3, n_best=2, max_length=8)
    ids = {"bos": BOS, "eos": EOS, "pad": PAD}
    with record(model) as capture:
        for sentence in SOURCES[:2]:
            with capture.trace.segment([sample_of(sentence)]):
                search(model, [sentence], config=config, trace=capture.trace, **ids)
    sources = [sample_maps.sample.axes["source"].labels for sample_maps in capture]
    assert sources == [tuple(f"t{number}" for number in SOURCES[i]) for i in (0, 0, 1, 1)]


def test_calls_after_a_segment_are_another_sample():
    model = small()
    with record(model) as capture, torch.no_grad():
        with capture.trace.segment([sample_of(SOURCES[1])]):
            model(source_of(SOURCES[1]), source_of([BOS, 4]))
        model(source_of(SOURCES[0]), source_of([BOS, 4]))
    shown, other = capture
    assert shown.sample.axes["source"].labels == ("t7", "t3")
    assert other.sample.title == "row 1"
    assert len(shown.find("cross")) == len(other.find("cross")) == 3


def test_greedy_search_has_no_beams_but_alternatives():
    (sample_maps,) = capture_sources(small(), [SOURCES[0]], beam=1)
    for step in sample_maps.sample.steps:
        assert not step.beams
        assert step.alternatives[0].token == step.token


def test_a_bare_module_has_numbered_entries():
    model = small()
    with record(model) as capture, torch.no_grad():
        model(source_of(*SOURCES), source_of([BOS, 4, 5], [BOS, 4, 5], [BOS, 6], [BOS, 7]))
    titles = [sample_maps.sample.title for sample_maps in capture]
    assert titles == ["row 1", "row 2", "row 3", "row 4"]
    own = capture[2].find("cross", layer=1)[0]
    assert capture[2].keys(own).labels == tuple(str(number) for number in range(7))
    assert torch.equal(own.weights, capture.recording["core.decoder.0.cross.read"][0][2])


def test_two_calls_of_a_model_are_two_maps_of_a_sample():
    model = small()
    with record(model) as capture, torch.no_grad():
        for length in (3, 5):
            model(source_of([4] * length), source_of([BOS, 4, 5]))
    maps = capture[0].find("cross", layer=1)
    assert [own.name.rpartition(", ")[2] for own in maps] == ["core.decoder.0.cross.read", "call 2"]
    assert [own.weights.shape[-1] for own in maps] == [3, 5]


def test_a_model_that_never_ran_is_named():
    with record(small()) as capture:
        pass
    with pytest.raises(ValueError, match="nothing was recorded: none of core"):
        len(capture)
    assert "nothing has run" in repr(capture)
    assert "nothing has run" in capture._repr_html_()


def test_a_capture_accessed_early_is_incomplete():
    model = small()
    with record(model) as capture, torch.no_grad():
        model(source_of([4, 5, 3]), source_of([BOS, 4, 5]))
        assert len(capture[0].find("cross")) == 3
        model(source_of([4, 3]), source_of([BOS, 4, 5]))
    assert len(capture[0].find("cross")) == 6


def test_samples_share_only_maps_of_the_same_source():
    """Outputs of one input share its encoder maps, and no others."""
    capture = capture_sources(small(), SOURCES, beam=4, n_best=2)
    numbers: dict[str, torch.Tensor] = {}
    for sample_maps in capture:
        for own in sample_maps.maps:
            expected = numbers.setdefault(own.key, own.weights)
            assert torch.equal(expected, own.weights)
    # Encoder maps of four inputs; two decoder maps per layer of eight outputs.
    assert len(numbers) == 4 * 1 + 8 * 2 * 3


class NegativeZeros(Choice):
    """Choice of the largest score, whose other weights are -0."""

    def weights(self, scores, allowed):
        weights = Hard().weights(scores, allowed)
        return torch.where(weights == 0, -0.0, weights)

    def select(self, index):
        return self


@pytest.mark.parametrize(
    "choice", [Soft(), Soft(200.0), Hard(), Sparse(), TopK(2), NegativeZeros()], ids=repr
)
def test_masked_weights_are_negative_zeros_and_no_others(choice):
    read, items = Read(choice=choice), torch.randn(2, 6, 4)
    mask = causal() & padding([6, 4])
    with record_weights(read) as recording:
        read(items, Memory(items, items), mask=mask)
        read(items, Memory(items, items))
    (masked, free) = recording[""]
    assert torch.equal(masked.signbit(), ~mask.tensor(6, 6))
    assert masked.signbit().any()
    assert not free.signbit().any()
    assert (free == 0).any() or isinstance(choice, Soft)


@pytest.mark.parametrize(
    ("leading", "sizes"),
    [
        *((axes, (4, 5)) for axes in [(), (3,), (3, 2), (3, 1), (2, 3, 2), (2, 1, 3, 2)]),
        *((axes, (1, 1)) for axes in [(), (3, 1), (2, 3, 2)]),
    ],
    ids=str,
)
def test_a_read_of_any_axes_is_recorded_and_written(leading, sizes, tmp_path):
    queries, keys = sizes
    query, key = torch.randn(*leading, queries, 6), torch.randn(*leading, keys, 6)
    values = torch.randn(*leading[:-1], *(1 for _ in leading[-1:]), keys, 7)  # of one head
    read = Read(ScaledDot())
    with record(read, vectors=True) as capture:
        output = read(query, Memory(key, values))
    expected = attention_weights(query, (key, values), score=ScaledDot())
    close(capture.recording[""][0], expected)
    path = capture.save(tmp_path / "a.safetensors")
    capture.save(tmp_path / "a.html")
    capture.plot(tmp_path / "a.svg")
    capture.plot(tmp_path / "walk.svg", view="walk")
    for row, (recorded, opened) in enumerate(zip(capture, Capture.open(path), strict=True)):
        (own,), (stored,) = recorded.maps, opened.maps
        weights, result = (expected[row], output[row]) if leading else (expected, output)
        close(own.weights, weights.reshape(-1, queries, keys))
        assert torch.equal(stored.weights, own.weights)
        vectors = stored.vectors()
        heads = [vectors.values[vectors.key_head(head)] for head in range(len(own.heads))]
        close(own.weights @ torch.stack(heads), result.reshape(-1, queries, 7))
