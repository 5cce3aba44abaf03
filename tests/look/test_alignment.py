"""Alignments: each target token has the weights of the step that predicts it."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from regard.attention.masks import Padded
from regard.look.alignment import Alignment, align
from regard.look.record import record
from regard.models.build import build
from regard.models.config import CoreConfig, ModelConfig, RecurrentConfig, SelfAttentiveConfig, TransformerConfig
from regard.models.model import Model
from tests.helpers import close

SOURCE, TARGET = [5, 4, 9, 6, 3], [7, 10, 8, 3]
LABELS = {"source_labels": [*list("abcd"), "</s>"], "target_labels": ["x", "y", "z", "</s>"], "title": "toy"}
TRANSFORMER = TransformerConfig(layers=1, decoder_layers=3, width=6, heads=2, feedforward=5)
RECURRENT = RecurrentConfig(layers=2, width=6, hidden=8, attention_hidden=5)


def model_of(core: CoreConfig) -> Model:
    return build(ModelConfig(core=core, dropout=0.4), source_vocab=11, target_vocab=11)


def source_of(*rows: list[int]) -> Padded:
    lengths = torch.tensor([len(row) for row in rows])
    items = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return Padded(items, lengths)


def test_transformer_gives_an_alignment_a_layer_with_the_weights_of_all_at_once():
    model, source = model_of(TRANSFORMER), source_of(SOURCE)
    layers = align(model, source, target=TARGET, bos=2, **LABELS)
    with record(model.eval(), only=lambda name: "cross" in name) as maps:
        model(source, source_of([2, *TARGET]))
    assert [one.layer for one in layers] == ["layer 1", "layer 2", "layer 3"]
    for one, name in zip(layers, maps.names, strict=True):
        assert one.weights.shape == (2, 4, 5)
        close(one.weights, maps[name][0][0])


@pytest.mark.parametrize("attention", ["additive", "general", "dot", "scaled-dot"])
def test_recurrent_gives_the_reads_of_the_steps_without_the_first_context(attention):
    model, source = model_of(replace(RECURRENT, attention=attention)), source_of(SOURCE)
    (one,) = align(model, source, target=TARGET, bos=2, **LABELS)
    assert one.layer == ""
    assert one.weights.shape == (1, 4, 5)
    model.eval()
    with record(model) as maps, torch.no_grad():
        state = model.start(source)
        for token in [2, *TARGET[:-1]]:
            _, state = model.step(torch.tensor([token]), state)
    assert len(maps["core.read"]) == 5
    close(one.weights[0], maps.steps("core.read")[0, 1:])


def test_source_reads_alone_are_shown_of_a_core_that_also_reads_its_past():
    core = SelfAttentiveConfig(layers=2, width=6, hidden=8, attention_hidden=5, self_attention_hidden=3)
    model, source = model_of(core), source_of(SOURCE)
    (one,) = align(model, source, target=TARGET, bos=2, **LABELS)
    with record(model.eval()) as maps, torch.no_grad():
        model(source, source_of([2, *TARGET]))
    assert {"core.read", "core.cells.1.read", "core.encoder.forwards.0.read"} <= set(maps.names)
    close(one.weights[0], maps.steps("core.read")[0, 1:])


def test_first_row_does_not_depend_on_what_follows():
    model = model_of(TRANSFORMER)
    whole = align(model, source_of(SOURCE), target=TARGET, bos=2, **LABELS)
    labels = LABELS | {"target_labels": ["x"]}
    first = align(model, source_of(SOURCE), target=TARGET[:1], bos=2, **labels)
    close(first[-1].weights[:, 0], whole[-1].weights[:, 0])


def test_padding_of_the_source_is_left_out():
    model = model_of(TRANSFORMER)
    padded = Padded(torch.tensor([[*SOURCE, 0, 0, 0]]), torch.tensor([5]))
    tight, loose = (align(model, it, target=TARGET, bos=2, **LABELS)[1] for it in (source_of(SOURCE), padded))
    close(loose.weights, tight.weights)


def test_rows_sum_to_one_and_labels_are_kept():
    one = align(model_of(RECURRENT), source_of(SOURCE), target=TARGET, bos=2, **LABELS)[0]
    close(one.weights.sum(-1), torch.ones(1, 4))
    assert (list(one.source), list(one.target), one.title) == tuple(LABELS.values())


def test_model_is_left_as_it_was():
    model = model_of(TRANSFORMER)
    model.reads.eval()
    before = [part.training for part in model.modules()]
    random = torch.get_rng_state()
    align(model, source_of(SOURCE), target=TARGET, bos=2, **LABELS)
    assert [part.training for part in model.modules()] == before
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(part._forward_hooks for part in model.modules())


def test_model_without_attention_is_refused():
    with pytest.raises(ValueError, match=r"no attention to its source"):
        align(
            model_of(RecurrentConfig(width=6, hidden=8, attention="none")),
            source_of(SOURCE),
            target=TARGET,
            bos=2,
            **LABELS,
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": []}, r"target must have a token"),
        ({"target": [7, 8]}, r"target_labels must be 2, one an item of target, but are 4"),
        ({"source_labels": ["a"]}, r"source_labels must be 5, one an item of source, but are 1"),
    ],
    ids=["empty", "target", "source"],
)
def test_sizes_that_do_not_match_are_refused(changes, message):
    arguments = {"target": TARGET, "bos": 2, **LABELS, **changes}
    with pytest.raises(ValueError, match=message):
        align(model_of(RECURRENT), source_of(SOURCE), **arguments)


def test_several_rows_are_refused():
    with pytest.raises(ValueError, match=r"source must be one row, but has 2"):
        align(model_of(RECURRENT), source_of(SOURCE, [4, 3]), target=TARGET, bos=2, **LABELS)


def test_alignment_names_its_heads_and_averages_them():
    weights = torch.rand(3, 2, 5)
    one = Alignment(source=list("abcde"), target=["x", "y"], weights=weights)
    assert list(one.head_names) == ["head 1", "head 2", "head 3"]
    close(one.mean(), weights.sum(0) / 3)


@pytest.mark.parametrize(
    ("shape", "message"),
    [((1, 5, 2), r"= \(1, 2, 5\), but are \(1, 5, 2\)"), ((0, 2, 5), r"needs heads, target and source")],
    ids=["swapped", "no head"],
)
def test_alignment_of_other_sizes_is_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        Alignment(source=list("abcde"), target=["x", "y"], weights=torch.rand(shape))


def test_alignment_that_is_no_number_is_refused():
    weights = torch.rand(1, 2, 3)
    weights[0, 1, 1] = float("nan")
    with pytest.raises(ValueError, match=r"weights must be finite"):
        Alignment(source=list("abc"), target=["x", "y"], weights=weights)
