"""Embeddings of tokens: scale, and a size other than the width, in every model of tokens."""

import math
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import nn
from torch.nn import functional

from regard.attention.masks import Padded, Unpadded
from regard.data.batches import PairBatch
from regard.layers.linear import Linear
from regard.models.build import (
    build,
    build_classifier,
    build_language_model,
    build_tagger,
    build_token_reader,
)
from regard.models.config import (
    LanguageModelConfig,
    ModelConfig,
    TaggerConfig,
    TextClassifierConfig,
)
from regard.models.cores.config import (
    CoreConfig,
    RecurrentConfig,
    SelfAttentiveConfig,
    TransformerConfig,
)
from regard.models.readers.tokens import TokenReader, embedding_projection, embedding_table
from regard.models.writers.classes import ClassWriter
from regard.training.tensors import load_weights
from tests.helpers import close, save_weights, without_gradient

WIDTH, DIM, VOCAB = 12, 5, 9
CORES: dict[str, CoreConfig] = {
    "transformer": TransformerConfig(layers=1, width=WIDTH, heads=3, feedforward=17),
    "recurrent": RecurrentConfig(width=WIDTH, hidden=14, attention_hidden=7),
    "self-attentive": SelfAttentiveConfig(
        width=WIDTH, hidden=14, attention_hidden=7, self_attention_hidden=6
    ),
}


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> CoreConfig:
    return CORES[request.param]


def lengths_of(*rows: int) -> Padded:
    return Padded(torch.randint(VOCAB, (len(rows), max(rows))), torch.tensor(rows))


@pytest.mark.parametrize(("scale", "factor"), [("root", math.sqrt(DIM)), ("one", 1.0)])
def test_items_are_one_hot_vectors_times_the_table_and_its_map(scale, factor):
    table = embedding_table(VOCAB, DIM).double()
    projection = embedding_projection(DIM, WIDTH).double()
    ids = torch.randint(VOCAB, (2, 3))
    one_hot = functional.one_hot(ids, VOCAB).double()
    close(TokenReader(table, scale=scale).embed(ids), factor * one_hot @ table.weight)
    reader = TokenReader(table, scale=scale, projection=projection)
    assert reader.dim == WIDTH
    close(reader.embed(ids), factor * one_hot @ table.weight @ projection.weight.T)


@pytest.mark.usefixtures("no_shape_checks")
def test_a_reader_refuses_an_unknown_scale_and_a_map_with_a_bias():
    table: nn.Embedding = embedding_table(VOCAB, DIM)
    unknown: Any = "two"
    with pytest.raises(ValueError, match="scale must be root or one, got 'two'"):
        TokenReader(table, scale=unknown)
    with pytest.raises(ValueError, match="`projection` must have no bias, got one"):
        TokenReader(table, projection=Linear(DIM, WIDTH))


@pytest.mark.parametrize("tie", ["all", "target", "none"])
def test_each_way_to_tie_tables_ties_their_maps(core, tie: Literal["all", "target", "none"]):
    config = ModelConfig(core=core, tie=tie, embedding_dim=DIM, dropout=0)
    model: Any = build(config, source_vocab=VOCAB, target_vocab=VOCAB).double()
    reader, inputs, writer = model.reader, model.writer.inputs, model.writer
    tables = [reader.table, inputs.table, writer.output_table]
    maps = [reader.projection, inputs.projection, writer.output_projection]
    kinds = {"all": [0, 0, 0], "target": [0, 1, 1], "none": [0, 1, 2]}[tie]
    for parts in (tables, maps):
        assert [parts.index(part) for part in parts] == [kinds.index(kind) for kind in kinds]
    assert {tuple(table.weight.shape) for table in tables} == {(VOCAB, DIM)}
    assert {tuple(part.weight.shape) for part in maps} == {(WIDTH, DIM)}
    hidden = torch.randn(4, WIDTH, dtype=torch.float64)
    close(writer.answer(hidden), hidden @ maps[2].weight @ tables[2].weight.T)
    source, target = lengths_of(3, 5), lengths_of(4, 2)
    loss = model.loss(PairBatch(source, target, (0, 1)))
    log_p = model(source, target).log_softmax(-1)
    expected = -sum(
        log_p[row, i, target.items[row, i + 1]] for row, n in ((0, 3), (1, 1)) for i in range(n)
    )
    close(loss.total, expected)
    loss.total.backward()
    assert not {name for name in without_gradient(model) if "projection" in name or "table" in name}


def test_tied_maps_are_saved_and_loaded(core, tmp_path):
    def make() -> Any:
        config = ModelConfig(core=core, embedding_dim=DIM, embedding_scale="one")
        return build(config, source_vocab=VOCAB, target_vocab=VOCAB).eval()

    model, other = make(), make()
    save_weights(tmp_path / "model.safetensors", model)
    load_weights(tmp_path / "model.safetensors", other)
    source, target = lengths_of(3, 5), lengths_of(4, 2)
    assert torch.equal(model(source, target), other(source, target))
    assert other.reader.projection is other.writer.output_projection


def test_steps_of_a_language_model_equal_forward(core):
    config = LanguageModelConfig(core=core, embedding_dim=DIM)
    model: Any = build_language_model(config, vocab=VOCAB).double().eval()
    assert model.writer.output_projection is model.writer.inputs.projection
    tokens, state = torch.randint(VOCAB, (2, 6)), model.start(rows=2)
    expected = model(target=Unpadded.of(functional.pad(tokens, (0, 1))))
    for time in range(6):
        logits, state = model.step(tokens[:, time], state)
        close(logits, expected[:, time])


def test_encoders_of_texts_have_a_map(core):
    tagger: Any = build_tagger(TaggerConfig(core=core, embedding_dim=DIM), vocab=VOCAB, num_tags=3)
    config = TextClassifierConfig(core=core, embedding_dim=DIM, embedding_scale="one", pool_heads=2)
    reader = build_token_reader(config, VOCAB)
    classifier: Any = build_classifier(
        config, reader, lambda dim, pool: ClassWriter(dim, 4, pool=pool)
    )
    assert (tagger.reader.scale, classifier.reader.scale) == (math.sqrt(DIM), 1)
    for model in (tagger, classifier):
        assert tuple(model.reader.projection.weight.shape) == (WIDTH, DIM)
        assert len(model(lengths_of(3, 5))) == 2


def test_the_width_as_size_needs_no_map_and_draws_the_same_weights(core):
    def weights(**options: Any) -> dict[str, torch.Tensor]:
        torch.manual_seed(1)
        config = replace(ModelConfig(core=core), **options)
        return build(config, source_vocab=VOCAB, target_vocab=VOCAB).state_dict()

    default, explicit = weights(), weights(embedding_dim=WIDTH, embedding_scale="root")
    assert default.keys() == explicit.keys()
    assert all(torch.equal(default[name], explicit[name]) for name in default)
    assert not any(
        name.startswith(("reader.projection", "writer.output_projection")) for name in default
    )


def test_scales_are_those_of_the_source_of_each_model():
    def scale(model: Any) -> float:
        return model.writer.inputs.scale

    sizes = {"source_vocab": VOCAB, "target_vocab": VOCAB}
    for name, core in CORES.items():
        assert scale(build(ModelConfig(core=core), **sizes)) == math.sqrt(WIDTH)
        of_text = {
            "root": math.sqrt(WIDTH),
            "one": 1,
            None: 1 if name == "transformer" else math.sqrt(WIDTH),
        }
        for given, expected in of_text.items():
            config = LanguageModelConfig(core=core, embedding_scale=given)
            assert scale(build_language_model(config, vocab=VOCAB)) == expected


@pytest.mark.parametrize("tie", ["target", "none"])
def test_biases_of_logits_are_in_answer_and_loss(tie):
    core = TransformerConfig(layers=1, width=WIDTH, heads=3, feedforward=17)
    config = LanguageModelConfig(core=core, output_bias=True, tie=tie)
    model = build_language_model(config, vocab=VOCAB).double().train()
    writer, target = model.writer, Unpadded.of(torch.randint(VOCAB, (2, 5)))
    assert (writer.output_table is writer.inputs.table) == (tie == "target")
    assert not writer.output_bias.any()
    before = model(None, target).detach()
    with torch.no_grad():
        writer.output_bias.copy_(torch.randn(VOCAB))
    logits = model(None, target)
    close(logits, before + writer.output_bias)
    expected = functional.cross_entropy(
        logits.flatten(0, 1), target.items[:, 1:].flatten(), reduction="sum"
    )
    loss = model.loss(PairBatch(None, target, (0, 1))).total
    close(loss, expected)
    close(*(torch.autograd.grad(value, writer.output_bias)[0] for value in (loss, expected)))
