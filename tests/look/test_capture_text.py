"""Captures of texts: each token has the weights of the step that said it, whatever was searched beside it."""

import pytest
import torch

from regard.look.listen import record_weights
from regard.look.record import record
from regard.models.config import RecurrentConfig
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
    "several answers": {"beam": 4, "n_best": 3},
    "batches": {"beam": 2, "batch_tokens": 16},
}


def reads_of_source(seen):
    return [*seen.find("cross"), *seen.find("recurrent")]


@pytest.mark.parametrize("search", SEARCHES)
def test_transformer_search_has_the_weights_of_one_forward_pass(search):
    model, options = model_of(CORES["transformer"]), SEARCHES[search]
    capture = capture_sources(model, SOURCES, **options)
    count = options.get("n_best", 1)
    assert len(capture) == count * len(SOURCES)
    for number, seen in enumerate(capture):
        source, target = SOURCES[number // count], output_ids_of(seen)
        assert seen.sample.axes["source"].labels == tuple(f"t{i}" for i in source)
        wanted = forced_weights(model, source, target)
        assert [one.layer for one in seen.find("cross")] == [1, 2, 3]
        assert {one.name for one in seen.maps} == set(wanted)
        for one in seen.maps:
            size = len(seen.queries(one)), len(seen.keys(one))
            close(one.weights, wanted[one.name][:, : size[0], : size[1]])
        for one in seen.find("decoder self"):
            assert (one.queries, one.keys) == ("output", "decoder input")
            assert seen.keys(one).labels == ("begin", *seen.queries(one).labels[:-1])
            assert not one.weights.triu(1).any()


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("core", ["recurrent", "lstm", "rnn"])
def test_recurrent_decoder_has_the_reads_of_its_steps_without_the_first_context(core, search):
    model, options = model_of(CORES[core]), SEARCHES[search]
    capture = capture_sources(model, SOURCES, **options)
    count = options.get("n_best", 1)
    for number, seen in enumerate(capture):
        target = output_ids_of(seen)
        wanted = step_weights(model, SOURCES[number // count], target)["core.read"]
        (one,) = [one for one in seen.find("recurrent") if one.queries == "output"]
        assert one.weights.shape == (1, len(target), len(SOURCES[number // count]))
        close(one.weights[0], wanted)


@pytest.mark.parametrize("attention", ["additive", "general", "dot", "scaled-dot"])
def test_every_attention_of_a_recurrent_decoder_is_seen(attention):
    model = model_of(RecurrentConfig(width=6, hidden=8, attention_hidden=5, attention=attention))
    (seen,) = capture_sources(model, SOURCES[:1], beam=3)
    close(reads_of_source(seen)[-1].weights.sum(-1), torch.ones(1, len(output_ids_of(seen))))


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("beam", [1, 3])
def test_other_texts_of_the_batch_change_nothing(core, beam):
    model = model_of(CORES[core])
    for together, source in zip(capture_sources(model, SOURCES, beam=beam), SOURCES, strict=True):
        (alone,) = capture_sources(model, [source], beam=beam)
        assert output_ids_of(alone) == output_ids_of(together)
        assert [one.name for one in alone.maps] == [one.name for one in together.maps]
        for one, other in zip(alone.maps, together.maps, strict=True):
            assert (one.queries, one.keys, one.kind, one.layer) == (other.queries, other.keys, other.kind, other.layer)
            close(one.weights, other.weights)


@pytest.mark.parametrize("core", CORES)
def test_reads_of_the_source_sum_to_one_over_it(core):
    for seen in capture_sources(model_of(CORES[core]), SOURCES, beam=2):
        for one in reads_of_source(seen):
            assert one.keys == "source"
            close(one.weights.sum(-1), torch.ones(one.weights.shape[:-1]))


def test_steps_have_the_probability_of_each_token():
    model = model_of(CORES["transformer"])
    for number, seen in enumerate(capture_sources(model, SOURCES, beam=3)):
        target = output_ids_of(seen)
        with torch.no_grad():
            wanted = model(source_of(SOURCES[number]), source_of([BOS, *target]))[0].softmax(-1)
        for t, (step, token) in enumerate(zip(seen.sample.steps, target, strict=True)):
            assert step.token == f"t{token}"
            # PAD and BOS are never said; what they had is shared by the others.
            share = wanted[t, token] / (1 - wanted[t, [0, BOS]].sum())
            assert min(abs(step.probability - float(p)) for p in (share, wanted[t, token])) < 1e-5
            assert sum(beam.is_prefix for beam in step.beams) == (t + 1 < len(target))


@pytest.mark.parametrize("core", CORES)
def test_model_is_left_as_it_was(core):
    model = model_of(CORES[core])
    model.reads.train()
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
        (seen,) = capture_sources(model, SOURCES[:1], beam=1)
    assert {one.name.partition(", ")[0] for one in seen.maps} == set(maps.names)
    assert {"core.read", "core.cells.1.read", "core.encoder.forward_cells.0.read"} <= set(maps.names)
