"""Training of a part of a Transformer: frozen layers, rates by layer, low-rank adapters."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from regard.data.batches import Batch, pad
from regard.errors import UserError
from regard.layers.lora import AdaptedLinear, add_adapters, merged_tensors, remove_adapters
from regard.layers.multihead import MultiHead
from regard.layers.pool import AttentionPooling
from regard.layers.positions.config import LearnedConfig
from regard.models.build import build, build_language_model
from regard.models.config import LanguageModelConfig, ModelConfig
from regard.models.cores.config import TransformerConfig
from regard.models.cores.transformer import Transformer
from regard.models.model import Model
from regard.models.readers.tokens import TokenReader, embedding_table
from regard.models.writers.classes import ClassWriter
from regard.training.loop import fit
from regard.training.optimizer import build_optimizers
from regard.training.partial import restrict_training
from regard.training.tensors import load_tensors, read_tensors, tensors_of
from tests.helpers import close
from tests.training.toy import ToyModel, settings

VOCAB, CLASSES = 11, 3
CORE: dict[str, Any] = {
    "width": 16,
    "heads": 2,
    "feedforward": 24,
    "positions": LearnedConfig(max_length=9),
}


def translator() -> Model:
    own = {"decoder_layers": 1, "embedding_norm": True, "shared_positions": False}
    config = ModelConfig(core=TransformerConfig(layers=2, **CORE, **own), dropout=0.1, tie="none")
    return build(config, source_vocab=VOCAB, target_vocab=VOCAB)


def language_model() -> Model:
    config = LanguageModelConfig(core=TransformerConfig(layers=2, **CORE), dropout=0.1)
    return build_language_model(config, vocab=VOCAB)


def classifier() -> Model:
    writer = ClassWriter(16, CLASSES, pool=AttentionPooling(16, num_heads=2))
    core = Transformer(TransformerConfig(layers=2, **CORE), decodes=False)
    return Model(reader=TokenReader(embedding_table(VOCAB, 16)), core=core, writer=writer)


MODELS = {"translator": translator, "language": language_model, "classifier": classifier}


def make(name: str) -> Model:
    torch.manual_seed(3)
    return MODELS[name]()


class Rows:
    """Two batches of two rows of tokens."""

    def __init__(self, name: str):
        self.name = name

    def plan(self, epoch: int) -> list[tuple[int, ...]]:
        return [(0, 1), (2, 3)]

    def collate(self, epoch: int, indices: tuple[int, ...]) -> Batch[Any, Any]:
        tokens = pad([[2, 4 + row, 5 + epoch % 3, 6 + row, 3] for row in indices])
        target = torch.tensor([row % CLASSES for row in indices])
        source = None if self.name == "language" else tokens
        return Batch(source, target if self.name == "classifier" else tokens, indices)


def train(name: str, folder: Path, model: Model | None = None, **changes: Any) -> Path:
    """Train a model with a checkpoint and a validation every second step."""
    options = {"schedule": "constant", "steps": 6, "validate_every": 2, "average": 2}
    batches = Rows(name)

    def validate(model: nn.Module) -> dict[str, float]:
        assert isinstance(model, Model)
        assert not any(isinstance(part, AdaptedLinear) for part in model.modules())
        return {"nll": model.loss(batches.collate(0, (0, 1, 2, 3))).nll.item()}

    fit(
        make(name) if model is None else model,
        batches,
        config=settings(**(options | changes)),
        folder=folder,
        seed=5,
        validate=validate,
        metric="nll",
        maximize=False,
    )
    return folder


def changed(name: str, folder: Path) -> set[str]:
    """Return the names of the tensors of a trained model that are not those of the start."""
    start, end = tensors_of(make(name)), read_tensors(folder / "model.safetensors")
    assert start.keys() == end.keys()
    return {key for key, value in start.items() if not torch.equal(value, end[key])}


READER = {
    "translator": ("reader.", "core.positions.", "core.encoder_embedding_norm."),
    "language": ("writer.inputs.", "core.positions."),
    "classifier": ("reader.", "core.positions."),
}


@pytest.mark.parametrize("blocks", ["reader", 1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_frozen_layers_keep_their_bits_and_have_no_state(
    name: str, blocks: int | str, tmp_path: Path
) -> None:
    frozen = READER[name]
    for number in range(0 if blocks == "reader" else int(blocks)):
        frozen += (f"core.{'decoder' if name == 'language' else 'encoder'}.{number}.",)
    folder = train(name, tmp_path, freeze=blocks, ema=0.5, weight_decay=0.1)
    trained = {key for key in tensors_of(make(name)) if not key.startswith(frozen)}
    # Biases of keys cancel in the softmax, so they may stay 0.
    assert trained - changed(name, folder) <= {key for key in trained if "key.bias" in key}
    assert changed(name, folder) <= trained
    checkpoint = folder / "checkpoints" / "step-00000006"
    state = read_tensors(checkpoint / "optimizer.safetensors")
    assert {key.partition("/")[2] for key in state} == trained
    assert read_tensors(checkpoint / "ema.safetensors").keys() == trained


PARTS = [{"freeze": 1}, {"lora": 2}, {"lora": 2, "freeze": 1}, {"optimizer": "muon"}]


@pytest.mark.parametrize("part", PARTS)
def test_a_resumed_run_ends_with_the_same_bits(part: dict[str, Any], tmp_path: Path) -> None:
    options = part | {"ema": 0.5, "layer_decay": 0.7}
    whole = train("translator", tmp_path / "whole", **options)
    folder = train("translator", tmp_path / "parts", steps=4, **options)
    train("translator", folder, **options)
    for path in ("model.safetensors", "checkpoints/step-00000006/model.safetensors"):
        first, second = read_tensors(whole / path), read_tensors(folder / path)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first)


def test_layer_decay_multiplies_the_rate_by_the_distance_from_the_output() -> None:
    model = make("translator")
    scales = {}
    names = {id(value): key for key, value in model.named_parameters()}
    [optimizer] = build_optimizers(model, settings(layer_decay=0.5))
    for group in optimizer.param_groups:
        scales |= {names[id(value)]: group["scale"] for value in group["params"]}
    expected = {
        ("writer.inputs.", "core.positions.", "reader.", "core.encoder_embedding_norm."): 0.125,
        ("core.decoder_positions.", "core.decoder_embedding_norm."): 0.125,
        ("core.encoder.0.",): 0.25,
        ("core.encoder.1.", "core.decoder.0."): 0.5,
        ("core.encoder_norm.", "core.decoder_norm.", "writer.output_table."): 1.0,
    }
    for prefixes, scale in expected.items():
        found = {key for key in scales if key.startswith(prefixes)}
        assert {scales.pop(key) for key in found} <= {scale}
    assert scales == {}


def test_a_decayed_rate_is_that_of_the_step(tmp_path: Path) -> None:
    start = tensors_of(make("language"))
    options = {"steps": 1, "warmup": 0, "lr": 0.01, "clip": 0.0, "average": 0, "eps": 1e-20}
    folder = train("language", tmp_path, layer_decay=0.5, **options)
    end = read_tensors(folder / "model.safetensors")
    for part, scale in (("inputs.table.weight", 0.125), ("decoder.0.attention.value.weight", 0.25)):
        (name,) = [key for key in start if key.endswith(part)]
        # The first step of Adam is as long as the rate in each dimension.
        close((end[name] - start[name]).abs().max(), torch.tensor(0.01 * scale))


@pytest.mark.parametrize("name", MODELS)
def test_adapters_are_merged_into_the_projections(name: str, tmp_path: Path) -> None:
    model = make(name)
    folder = train(name, tmp_path, model, lora=2, lr=0.005, average=0)
    attention = [
        key for key, part in make(name).core.named_modules() if isinstance(part, MultiHead)
    ]
    maps = ("query", "key", "value", "output")
    adapted = {f"core.{key}.{part}.weight" for key in attention for part in maps}
    head = set()
    if name == "classifier":
        head = {key for key in tensors_of(make(name)) if key.startswith("writer.")}
    found = changed(name, folder)
    assert adapted <= found <= adapted | head
    assert len(head - found) <= 1
    start, end = tensors_of(make(name)), read_tensors(folder / "model.safetensors")
    for key in adapted:
        assert torch.linalg.matrix_rank(end[key] - start[key], rtol=1e-3) == 2
    state = read_tensors(folder / "checkpoints" / "step-00000006" / "optimizer.safetensors")
    trained = {key.partition("/")[2] for key in state}
    assert trained - head == {
        f"{key.removesuffix('weight')}adapter_{part}" for key in adapted for part in ("up", "down")
    }
    assert all(torch.equal(value, end[key]) for key, value in tensors_of(model).items())


def test_adapters_take_ten_times_the_rate_and_the_head_its_own() -> None:
    model = make("classifier")
    restrict_training(model, settings(lora=2), seed=1)
    names = {id(value): key for key, value in model.named_parameters()}
    [optimizer] = build_optimizers(model, settings(lora=2))
    for group in optimizer.param_groups:
        for value in group["params"]:
            assert group["scale"] == (10.0 if "adapter" in names[id(value)] else 1.0)


@pytest.mark.parametrize("name", MODELS)
def test_outputs_of_merged_adapters_are_those_before(name: str) -> None:
    model = make(name).eval()
    batch = Rows(name).collate(0, (0, 1, 2))
    plain = model(batch.source, batch.target)
    add_adapters(model, 3, seed=1)
    close(model(batch.source, batch.target), plain)
    for key, value in model.named_parameters():
        if key.endswith("adapter_up"):
            nn.init.normal_(value, std=0.3)
    before = model(batch.source, batch.target)
    assert (before - plain).abs().max() > 1e-3
    merged, adapted = merged_tensors(tensors_of(model)), copy.deepcopy(model)
    assert merged.keys() == tensors_of(make(name)).keys()
    remove_adapters(adapted)
    load_tensors(adapted, merged, origin="merged")
    close(adapted(batch.source, batch.target), before)


def test_what_cannot_be_trained_is_refused() -> None:
    for model, changes, message in (
        (
            make("translator"),
            {"freeze": 3},
            "at most 2, the number of blocks of the encoder, got 3",
        ),
        (make("language"), {"freeze": 3}, "at most 2, the number of blocks of the decoder, got 3"),
        (ToyModel(), {"freeze": "reader"}, "train.freeze is for models with a Transformer"),
        (ToyModel(), {"lora": 2}, "train.lora is for models with a Transformer"),
        (make("language"), {"lora": 2, "freeze": 2}, "leave no parameter to train"),
    ):
        with pytest.raises(UserError, match=message):
            restrict_training(model, settings(**changes), seed=1)
    with pytest.raises(UserError, match=r"train\.layer_decay is for models with a Transformer"):
        build_optimizers(ToyModel(), settings(layer_decay=0.9))
    with pytest.raises(UserError, match=r"optimizer muon is for models with a Transformer"):
        build_optimizers(ToyModel(), settings(optimizer="muon"))
    with pytest.raises(UserError, match="freeze must be reader or a number of blocks, got 'head'"):
        settings(freeze="head")


def test_muon_changes_matrices_of_blocks_and_adamw_the_rest() -> None:
    """Its change is semi-orthogonal, with singular values that torch brings to 0.7 to 1.2 but for
    tiny ones, times 0.2 sqrt(max(rows, columns)) 4 lr."""
    model, plain = make("translator"), make("translator")
    changes = {"lr": 0.1, "weight_decay": 0.5}
    for name, toy in (("auto", model), ("adamw", plain)):
        optimizers = build_optimizers(toy, settings(optimizer=name, **changes))
        torch.manual_seed(1)
        for parameter in toy.parameters():
            parameter.grad = torch.randn_like(parameter)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] *= group["scale"]
            optimizer.step()
    start, after = tensors_of(make("translator")), tensors_of(model)
    matrices = set()
    for key, value in tensors_of(plain).items():
        if torch.equal(value, after[key]):
            continue
        matrices.add(key)
        change = after[key] - start[key] * (1 - 0.1 * 0.5)
        change /= 0.4 * 0.2 * max(value.shape) ** 0.5
        values = torch.linalg.svdvals(change)
        assert 0.7 < values.mean() < values.max() < 1.3
    kinds = ("query", "key", "value", "output", "expand", "contract")
    expected = {
        key
        for key in start
        if key.startswith(("core.encoder.", "core.decoder."))
        and key.endswith(tuple(f".{kind}.weight" for kind in kinds))
    }
    assert matrices == expected
    assert len(matrices) == 2 * 6 + 10
