"""Captures of texts: each token has the weights of its step, whatever other rows do."""

import pytest
import torch

from regard.look.hooks import record_weights
from regard.look.record import record
from regard.models.cores.config import RecurrentConfig
from tests.helpers import close
from tests.look.toys import (
    BOS,
    CORES,
    SOURCES,
    capture_sources,
    forced_weights,
    model_of,
    output_ids_of,
    source_of,
    step_weights,
)

SEARCHES = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4},
    "several outputs": {"beam": 4, "n_best": 3},
    "batches": {"beam": 2, "batch_tokens": 16},
}


def reads_of_source(sample_maps):
    return [*sample_maps.find("cross"), *sample_maps.find("recurrent")]


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
        assert [attention_map.layer for attention_map in sample_maps.find("cross")] == [1, 2, 3]
        assert {attention_map.name for attention_map in sample_maps.maps} == set(expected)
        for attention_map in sample_maps.maps:
            size = len(sample_maps.queries(attention_map)), len(sample_maps.keys(attention_map))
            close(attention_map.weights, expected[attention_map.name][:, : size[0], : size[1]])
        for attention_map in sample_maps.find("decoder self"):
            assert (attention_map.queries, attention_map.keys) == ("output", "decoder input")
            assert sample_maps.keys(attention_map).labels == (
                "begin",
                *sample_maps.queries(attention_map).labels[:-1],
            )
            assert not attention_map.weights.triu(1).any()


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("core", ["recurrent", "lstm", "rnn"])
def test_recurrent_decoder_has_the_reads_of_its_steps_without_the_first_context(core, search):
    model, options = model_of(CORES[core]), SEARCHES[search]
    capture = capture_sources(model, SOURCES, **options)
    count = options.get("n_best", 1)
    for number, sample_maps in enumerate(capture):
        target = output_ids_of(sample_maps)
        expected = step_weights(model, SOURCES[number // count], target)["core.read"]
        (attention_map,) = [
            attention_map
            for attention_map in sample_maps.find("recurrent")
            if attention_map.queries == "output"
        ]
        assert attention_map.weights.shape == (1, len(target), len(SOURCES[number // count]))
        close(attention_map.weights[0], expected)


@pytest.mark.parametrize("attention", ["additive", "general", "dot", "scaled-dot"])
def test_every_attention_of_a_recurrent_decoder_is_captured(attention):
    model = model_of(RecurrentConfig(width=6, hidden=8, attention_hidden=5, attention=attention))
    (sample_maps,) = capture_sources(model, SOURCES[:1], beam=3)
    close(
        reads_of_source(sample_maps)[-1].weights.sum(-1),
        torch.ones(1, len(output_ids_of(sample_maps))),
    )


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("beam", [1, 3])
def test_outputs_do_not_depend_on_the_batch(core, beam):
    model = model_of(CORES[core])
    for together, source in zip(capture_sources(model, SOURCES, beam=beam), SOURCES, strict=True):
        (alone,) = capture_sources(model, [source], beam=beam)
        assert output_ids_of(alone) == output_ids_of(together)
        assert [attention_map.name for attention_map in alone.maps] == [
            attention_map.name for attention_map in together.maps
        ]
        for attention_map, other in zip(alone.maps, together.maps, strict=True):
            assert (
                attention_map.queries,
                attention_map.keys,
                attention_map.kind,
                attention_map.layer,
            ) == (
                other.queries,
                other.keys,
                other.kind,
                other.layer,
            )
            close(attention_map.weights, other.weights)


@pytest.mark.parametrize("core", CORES)
def test_reads_of_the_source_sum_to_one_over_it(core):
    for sample_maps in capture_sources(model_of(CORES[core]), SOURCES, beam=2):
        for attention_map in reads_of_source(sample_maps):
            assert attention_map.keys == "source"
            close(attention_map.weights.sum(-1), torch.ones(attention_map.weights.shape[:-1]))


def test_steps_have_the_probability_of_each_token():
    model = model_of(CORES["transformer"])
    for number, sample_maps in enumerate(capture_sources(model, SOURCES, beam=3)):
        target = output_ids_of(sample_maps)
        with torch.no_grad():
            expected = model(source_of(SOURCES[number]), source_of([BOS, *target]))[0].softmax(-1)
        for t, (step, token) in enumerate(zip(sample_maps.sample.steps, target, strict=True)):
            assert step.token == f"t{token}"
            # PAD and BOS are banned: the others are renormalized.
            share = expected[t, token] / (1 - expected[t, [0, BOS]].sum())
            assert min(abs(step.probability - float(p)) for p in (share, expected[t, token])) < 1e-5
            assert sum(beam.is_prefix for beam in step.beams) == (t + 1 < len(target))


@pytest.mark.parametrize("core", CORES)
def test_model_is_not_changed(core):
    model = model_of(CORES[core])
    model.reader.train()
    before, random = [part.training for part in model.modules()], torch.get_rng_state()
    with record(model, only=lambda name: "core" in name), torch.no_grad():
        model(source_of(SOURCES[0]), source_of([BOS, 7, 8]))
    assert [part.training for part in model.modules()] == before
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    torch.set_rng_state(random)
    first = torch.rand(1)
    torch.set_rng_state(random)
    capture_sources(model.eval(), SOURCES[:1], beam=2)
    assert torch.equal(torch.rand(1), first)


def test_model_without_attention_is_refused():
    model = model_of(RecurrentConfig(width=6, hidden=8, attention="none"))
    with pytest.raises(ValueError, match="there is no attention to record"), record(model):
        pass


def test_all_recorded_weights_are_in_the_capture():
    model = model_of(CORES["lstm"])
    with record_weights(model) as maps:
        (sample_maps,) = capture_sources(model, SOURCES[:1], beam=1)
    assert {attention_map.name.partition(", ")[0] for attention_map in sample_maps.maps} == set(
        maps.names
    )
    assert {"core.read", "core.cells.1.read", "core.encoder.forward_cells.0.read"} <= set(
        maps.names
    )
