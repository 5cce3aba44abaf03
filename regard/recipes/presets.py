"""Presets: models of papers by name, with their recipes (`--preset`). Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from regard.errors import UserError
from regard.layers.positions.config import LearnedConfig, NoPositionsConfig
from regard.models.config import ClassifierConfig, DetectorConfig, LanguageModelConfig, ModelConfig
from regard.models.cores.config import RecurrentConfig, SelfAttentiveConfig, TransformerConfig
from regard.settings.options import option_name
from regard.settings.tree import apply_changes


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Model of a paper, and the settings of a run that belong to it."""

    model: Any
    """Config of the model."""
    recipes: tuple[str, ...]
    """Names of the recipes that take it."""
    source: str
    """Key of the paper in docs/bibliography.bib, with the place."""
    sizes: str
    """Sizes of the model, and its number of parameters with the paper's vocabulary or classes."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Other settings of the recipe, nested by name."""


PRESETS = {
    "vaswani-base": Preset(
        model=ModelConfig(
            core=TransformerConfig(
                layers=6, width=512, heads=8, feedforward=2048, norm_order="post"
            ),
            dropout=0.1,
        ),
        recipes=("translate",),
        source="vaswani2017, table 3",
        sizes="6 + 6 blocks, width 512, 8 heads, feed-forward 2,048; 63.1 M with 37,000 joint "
        "subwords",
        settings={
            "tokenizer": {"vocab_size": 37_000},
            "train": {"lr": 7e-4, "warmup": 4000, "schedule": "inverse_sqrt"},
        },
    ),
    "transformer-tiny": Preset(
        model=ModelConfig(
            core=TransformerConfig(
                layers=4, width=128, heads=4, feedforward=256, norm_order="post"
            ),
            dropout=0.3,
        ),
        recipes=("translate",),
        source="wu2021, section 3.2",
        sizes="4 + 4 blocks, width 128, 4 heads, feed-forward 256; 2.6 M with 10,000 joint "
        "subwords",
        settings={"tokenizer": {"vocab_size": 10_000}},
    ),
    "bahdanau": Preset(
        model=ModelConfig(
            # The output layer of 500 maxout units is a linear layer here.
            core=RecurrentConfig(
                cell="gru",
                width=620,
                hidden=1000,
                encoder_hidden=2000,
                attention="additive",
                attention_hidden=1000,
            ),
            tie="none",
            dropout=0.0,
        ),
        recipes=("translate", "dates"),
        source="bahdanau2015, appendix A.2",
        sizes="GRU 1,000 (encoder 1,000 a direction), embeddings 620, additive attention 1,000",
    ),
    "luong": Preset(
        model=ModelConfig(
            # The context is fed to the next step, as input feeding does with the attentional state.
            core=RecurrentConfig(
                cell="lstm", layers=4, directions=1, width=1000, hidden=1000, attention="dot"
            ),
            tie="none",
            dropout=0.2,
        ),
        recipes=("translate", "dates"),
        source="luong2015, section 4.1",
        sizes="LSTM of 4 layers, width 1,000, embeddings 1,000, dot attention",
    ),
    "lstmn": Preset(
        model=LanguageModelConfig(
            core=SelfAttentiveConfig(
                cell="lstm", directions=1, width=150, hidden=300, self_attention_hidden=300
            )
        ),
        recipes=("language",),
        source="cheng2016, section 5.1",
        sizes="LSTM-Network of one layer, width 300, embeddings 150",
    ),
    "gpt": Preset(
        model=LanguageModelConfig(
            core=TransformerConfig(
                layers=12,
                width=768,
                heads=12,
                feedforward=3072,
                activation="gelu-tanh",
                norm_order="post",
                positions=LearnedConfig(max_length=512),
            ),
            dropout=0.1,
        ),
        recipes=("language",),
        source="radford2018, section 4.1",
        sizes="12 blocks, width 768, 12 heads, feed-forward 3,072, context 512; 116.5 M with "
        "40,478 subwords",
        settings={
            "context": 512,
            "batch": 64,
            "tokenizer": {"kind": "bpe", "vocab_size": 40_478},
            "train": {"lr": 2.5e-4, "warmup": 2000, "weight_decay": 0.01},
        },
    ),
    "detr": Preset(
        model=DetectorConfig(
            # The recipe's stem of convolutions takes the place of a pretrained ResNet-50.
            core=TransformerConfig(
                layers=6,
                width=256,
                heads=8,
                feedforward=2048,
                norm_order="post",
                positions=NoPositionsConfig(),
            ),
            queries="learned",
            num_queries=100,
            dropout=0.1,
        ),
        recipes=("boxes",),
        source="carion2020, section 4",
        sizes="6 + 6 blocks, width 256, 8 heads, feed-forward 2,048, 100 learned queries",
        settings={"downsampling_layers": 5, "train": {"lr": 1e-4, "clip": 0.1}},
    ),
    "vit": Preset(
        model=ClassifierConfig(
            # Positions are learned by row and column.
            core=TransformerConfig(
                layers=12,
                width=768,
                heads=12,
                feedforward=3072,
                activation="gelu",
                norm_eps=1e-6,
                positions=NoPositionsConfig(),
            ),
            pool="first",
            dropout=0.1,
        ),
        recipes=("images",),
        source="dosovitskiy2021, table 1",
        sizes="ViT-Base: 12 blocks, width 768, 12 heads, feed-forward 3,072, patches of 16",
        settings={"patch": 16},
    ),
}


def apply_preset(name: str, recipe: str, config: Any) -> Any:
    """Return the config of a recipe with the model and the settings of a preset.

    Raises: UserError if there is no such preset, or the recipe does not take it.
    """
    if name not in PRESETS:
        raise UserError(f"unknown preset {name!r}; the presets are {', '.join(PRESETS)}")
    preset = PRESETS[name]
    if recipe not in preset.recipes:
        raise UserError(f"preset {name} is for {' and '.join(preset.recipes)}, not {recipe}")
    return apply_changes(replace(config, model=preset.model), preset.settings, called=option_name)
