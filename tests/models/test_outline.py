"""Outlines of models: shapes equal those of tensors, for every part and recipe."""

from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.cli.train import TrainOptions
from regard.data.batches import Batch
from regard.layers.positions.config import LearnedConfig
from regard.look.figures.model import plot_outline
from regard.models.autoencoders.autoencoder import Autoencoder
from regard.models.autoencoders.config import AutoencoderConfig
from regard.models.autoencoders.latent import LatentVariableModel
from regard.models.autoencoders.quantized import QuantizedAutoencoder
from regard.models.build import build_language_model, build_tagger
from regard.models.config import LanguageModelConfig, TaggerConfig
from regard.models.cores.config import TransformerConfig
from regard.models.outline import outline
from regard.models.readers.reader import Shape
from regard.recipes.base.run import Run
from regard.recipes.base.trained import TrainedRun
from regard.recipes.load import create_recipe
from regard.recipes.registry import RECIPES
from regard.settings.options import parse
from tests.models.test_grid import CORES, READERS, WRITERS, make_example, make_model
from tests.recipes.tiny import quick_options

PAIRS = [
    *((reader, "transformer", "classes") for reader in READERS),
    *(("tokens", core, "tokens") for core in CORES),
]
PAIRS += [("tracks", "recurrent", writer) for writer in WRITERS]


def fits(shape: Shape, tensor: Tensor, named: dict[str, int]) -> None:
    """Assert that a shape is that of the tensor, where equal names stand for equal sizes."""
    assert len(shape) == tensor.ndim
    for size, actual in zip(shape, tensor.shape, strict=True):
        if isinstance(size, int):
            assert size == actual
        elif " + " in size:
            assert sum(map(int, size.split(" + "))) == actual
        else:
            assert named.setdefault(size, actual) == actual


def items_of(value: Any) -> Tensor:
    return value.items if isinstance(value, Padded) else getattr(value, "vector", value)


@pytest.mark.parametrize(
    ("reader", "core", "writer"), PAIRS, ids=["-".join(names) for names in PAIRS]
)
@torch.no_grad()
def test_shapes_are_those_of_the_tensors(reader, core, writer):
    model, example = make_model(reader, core, writer).eval(), make_example(reader, writer)
    encoding, predicting = outline(model)
    named: dict[str, int] = {}
    fits(encoding[0].shape, items_of(example.source), named)
    items = model.reader(example.source)
    fits(encoding[1].shape, items.items, named)
    fits(encoding[2].shape, model.core.encode(items).items, named)
    target = example.target if model.writer.part == "decoder" else None
    if target is not None:
        target = target._replace(items=target.items[:, :-1])
        fits(predicting[0].shape, target.items, named)
        fits(predicting[1].shape, target.items[:, :1], {})
        fits(predicting[2].shape, model.writer.embed(target.items), named)
    hidden = model.hidden(example.source, example.target)
    answer = model(example.source, example.target)
    if model.writer.part == "set":
        assert predicting[0].shape[1:] == model.writer.queries.shape
        answer = torch.cat(answer, -1)
    else:
        shapes = [stage.shape for stage in predicting if stage.symbol == "h^Dec"]
        fits((shapes or [encoding[-1].shape])[0], items_of(hidden), named)
    fits(predicting[-1].shape, answer, named)


def make_tagger():
    """Return an encoder alone, with learned positions outside its stack."""
    core = TransformerConfig(
        layers=1, width=12, heads=2, feedforward=17, positions=LearnedConfig(max_length=9)
    )
    return build_tagger(TaggerConfig(core=core), vocab=23, num_tags=3)


@pytest.mark.parametrize("make", [lambda: make_model("images", "recurrent", "tokens"), make_tagger])
def test_parameters_of_the_stages_are_all_of_the_model(make):
    model = make()
    counts = [stage.detail.rpartition(", ")[2] for part in outline(model) for stage in part]
    numbers = [
        int(count.split()[0].replace(",", "")) for count in counts if count.endswith("parameters")
    ]
    assert sum(numbers) == sum(value.numel() for value in model.parameters())


def test_a_language_model_has_no_encoder():
    core = TransformerConfig(layers=3, width=12, heads=2, feedforward=17)
    encoding, predicting = outline(build_language_model(LanguageModelConfig(core=core), vocab=23))
    assert encoding == ()
    parts = [stage.part for stage in predicting]
    assert parts == ["input", "input", "predictor", "predictor", "decoder"]
    assert predicting[3].detail.startswith("3 layers, ")
    last = predicting[4]
    assert (last.name, last.shape) == ("TokenWriter", ("batch", "target", 23))
    assert last.detail == "its table is that of the embedding"


@pytest.mark.parametrize("kind", ["dense", "convolutional", "quantized"])
@torch.no_grad()
def test_autoencoders_have_an_encoder_and_a_decoder(kind):
    shape = (1, 8, 12)
    model = (QuantizedAutoencoder if kind == "quantized" else Autoencoder)(
        AutoencoderConfig(kind=kind, code_dim=3), shape
    ).train()
    images = torch.rand(2, *shape)
    model.loss(Batch(images, images, (0, 1)))
    encoding, (decoder,) = outline(model.eval())
    codes = model.encode(images)
    fits(encoding[0].shape, images, {})
    fits(encoding[-1].shape, codes, {})
    if kind == "quantized":
        fits(encoding[1].shape, model.encoder(images), {})
    fits(decoder.shape, model.decode(codes), {})
    assert [stage.symbol for stage in (*encoding, decoder)][-2:] == ["h", "y~"]


@torch.no_grad()
def test_a_latent_variable_model_has_a_search_and_a_decoder():
    model = LatentVariableModel(AutoencoderConfig(kind="latent"), (2,), conditions=1).eval()
    (_, search), (condition, decoder) = outline(model)
    rows = torch.rand(4, 3)
    fits(search.shape, model.encode(rows), {})
    fits(decoder.shape, model(rows), {})
    fits(condition.shape, rows[:, :1], {})
    assert (search.name, condition.symbol, decoder.symbol) == ("minimization", "x", "y~")
    assert decoder.reads == search.symbol == "z"
    without = LatentVariableModel(AutoencoderConfig(kind="latent"), (2,))
    assert [stage.symbol for stage in outline(without).predicting] == ["y~"]


def test_another_module_is_refused():
    with pytest.raises(TypeError, match="`model` must be a Model or an autoencoder, got Linear"):
        outline(nn.Linear(2, 3))


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_model_of_every_recipe_draws_itself(recipe, tmp_path):
    config = parse(quick_options(recipe), TrainOptions(), RECIPES[recipe].config()).config
    made = create_recipe(Run(recipe=recipe, seed=1, config=config), lambda _: None)
    artifacts = tmp_path / "artifacts"
    artifacts.mkdir()
    for name, artifact in made.fit(made.train).items():
        artifact.save(artifacts / name)
    made.pretrain(tmp_path)
    made.open(artifacts)
    trained = TrainedRun(made, made.model(), tmp_path)
    lines = trained.outline().lines()
    assert "decoder" in lines[-1]
    assert "y~" in lines[-1]
    trained.plot_model(tmp_path / "model.png")
    with Image.open(tmp_path / "model.png") as picture:
        assert picture.size[0] > 300


def test_a_picture_names_every_stage_and_shape(tmp_path):
    stages = outline(make_model("images", "transformer", "sets"))
    plot_outline(stages, tmp_path / "model.svg", title="a model")
    text = (tmp_path / "model.svg").read_text(encoding="utf-8")
    for words in ("ImageReader", "Transformer", "learned queries", "SetWriter"):
        assert words in text
    for shape in ("(batch, 2, 9, 6)", "(batch, 4, 3 + 2)"):
        assert shape in text
