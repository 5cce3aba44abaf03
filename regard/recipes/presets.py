"""Presets: models of papers by name, with their recipes (`--preset`). Imports no torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from regard.errors import UserError
from regard.models import presets as models
from regard.settings.options import option_name
from regard.settings.tree import apply_changes


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Model of a paper, and the settings of a run that belong to it."""

    model: Callable[[], Any]
    """Returns the config of the model."""
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
        model=models.vaswani_base,
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
        model=models.transformer_tiny,
        recipes=("translate",),
        source="wu2021, section 3.2",
        sizes="4 + 4 blocks, width 128, 4 heads, feed-forward 256; 2.6 M with 10,000 joint "
        "subwords",
        settings={"tokenizer": {"vocab_size": 10_000}},
    ),
    "bahdanau": Preset(
        model=models.bahdanau,
        recipes=("translate", "dates"),
        source="bahdanau2015, appendix A.2",
        sizes="GRU 1,000 (encoder 1,000 a direction), embeddings 620, additive attention 1,000",
    ),
    "luong": Preset(
        model=models.luong,
        recipes=("translate", "dates"),
        source="luong2015, section 4.1",
        sizes="LSTM of 4 layers, width 1,000, embeddings 1,000, dot attention",
    ),
    "lstmn": Preset(
        model=models.lstmn,
        recipes=("language",),
        source="cheng2016, section 5.1",
        sizes="LSTM-Network of one layer, width 300, embeddings 150",
    ),
    "gpt": Preset(
        model=models.gpt,
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
        model=models.detr,
        recipes=("boxes",),
        source="carion2020, section 4",
        sizes="6 + 6 blocks, width 256, 8 heads, feed-forward 2,048, 100 learned queries",
        settings={"downsampling_layers": 5, "train": {"lr": 1e-4, "clip": 0.1}},
    ),
    "vit": Preset(
        model=models.vit,
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
    return apply_changes(replace(config, model=preset.model()), preset.settings, called=option_name)
