"""Captures of texts: each token has the weights of its step, whatever other rows do."""

import pytest
import torch

from regard.look.hooks import record_weights
from regard.models.cores.config import RecurrentConfig
from tests.helpers import close
from tests.look.toys import (
    CORES,
    SOURCES,
    capture_sources,
    forced_weights,
    model_of,
    output_ids_of,
    step_weights,
)

SEARCHES = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4},
    "several outputs": {"beam": 4, "n_best": 3},
    "batches": {"beam": 2, "batch_tokens": 16},
}


@pytest.mark.parametrize("search", SEARCHES)
def test_transformer_search_has_the_weights_of_one_forward_pass(search):
    model, options = model_of(CORES["transformer"]), SEARCHES[search]
    capture = capture_sources(model, SOURCES, **options)
    count = options.get("n_best", 1)
    assert len(capture) == count * len(SOURCES)
    for number, sample_maps in enumerate(capture):
        source, target = SOURCES[number // count], output_ids_of(sample_maps)
        assert sample_maps.sample.axes["source"].labels == tuple(f"t{i}" for i in source)
        expected = forced_weights(model, source, target)
        assert [own.layer for own in sample_maps.find("cross")] == [1, 2, 3]
        assert {own.name for own in sample_maps.maps} == set(expected)
        for own in sample_maps.maps:
            size = len(sample_maps.queries(own)), len(sample_maps.keys(own))
            close(own.weights, expected[own.name][:, : size[0], : size[1]])
        for own in sample_maps.find("decoder self"):
            assert (own.queries, own.keys) == ("output", "decoder input")
            assert sample_maps.keys(own).labels == ("begin", *sample_maps.queries(own).labels[:-1])
            assert not own.weights.triu(1).any()


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("core", ["recurrent", "lstm", "rnn"])
def test_recurrent_decoder_has_the_reads_of_its_steps_without_the_first_context(core, search):
    model, options = model_of(CORES[core]), SEARCHES[search]
    capture = capture_sources(model, SOURCES, **options)
    count = options.get("n_best", 1)
    for number, sample_maps in enumerate(capture):
        target = output_ids_of(sample_maps)
        expected = step_weights(model, SOURCES[number // count], target)["core.read"]
        (own,) = [own for own in sample_maps.find("recurrent") if own.queries == "output"]
        assert own.weights.shape == (1, len(target), len(SOURCES[number // count]))
        close(own.weights[0], expected)


@pytest.mark.parametrize("attention", ["additive", "general", "dot", "scaled-dot"])
def test_every_attention_of_a_recurrent_decoder_is_captured(attention):
    model = model_of(RecurrentConfig(width=6, hidden=8, attention_hidden=5, attention=attention))
    (sample_maps,) = capture_sources(model, SOURCES[:1], beam=3)
    own = sample_maps.find("recurrent")[-1]
    close(own.weights.sum(-1), torch.ones(1, len(output_ids_of(sample_maps))))


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("beam", [1, 3])
def test_outputs_do_not_depend_on_the_batch(core, beam):
    model = model_of(CORES[core])
    for together, source in zip(capture_sources(model, SOURCES, beam=beam), SOURCES, strict=True):
        (alone,) = capture_sources(model, [source], beam=beam)
        assert output_ids_of(alone) == output_ids_of(together)
        assert [own.name for own in alone.maps] == [own.name for own in together.maps]
        for own, other in zip(alone.maps, together.maps, strict=True):
            for name in ("queries", "keys", "kind", "layer"):
                assert getattr(own, name) == getattr(other, name)
            close(own.weights, other.weights)


def test_all_recorded_weights_are_in_the_capture():
    model = model_of(CORES["lstm"])
    with record_weights(model) as maps:
        (sample_maps,) = capture_sources(model, SOURCES[:1], beam=1)
    assert {own.name.partition(", ")[0] for own in sample_maps.maps} == set(maps.names)
    assert {"core.read", "core.cells.1.read", "core.encoder.forward_cells.0.read"} <= set(
        maps.names
    )
