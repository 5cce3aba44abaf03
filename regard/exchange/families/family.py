"""Base class of families, and their registry.

A family is tables: its fields of config.json and our settings, its tensors and our parameters, both
read in both directions. What it cannot express is found by reading what it writes: a setting that
comes back with another value has no place in it.
"""

import difflib
import importlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from regard.data.text.labels import Labels
from regard.errors import UserError
from regard.exchange.rules import Rule
from regard.layers.positions.config import SCALINGS, LearnedConfig, RotaryConfig, SinusoidalConfig
from regard.layers.positions.sinusoidal import sinusoids
from regard.models.config import LanguageModelConfig
from regard.models.cores.config import TransformerConfig
from regard.recipes.registry import get_entry
from regard.settings.options import nest
from regard.settings.tree import apply_changes, find_differences, settings_by_path

Tensors = Mapping[str, Tensor]
"""Parameters by name."""
Config = Mapping[str, Any]
"""Content of config.json, with the defaults of the family."""
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
}
"""Our names of their activations."""
_CLASSES = {
    "gpt2": ("GPT2",),
    "llama": ("Llama", "Qwen2", "Qwen3"),
    "bert": ("Bert", "Roberta", "DistilBert"),
    "modernbert": ("ModernBert",),
    "vit": ("ViT", "DeiT", "Dinov2"),
    "t5": ("T5",),
    "marian": ("Marian", "Pegasus"),
    "timm": ("Timm",),
}
"""Families by module. Exports choose the first that can express the model."""
_FAMILIES = {name.lower(): (module, name) for module in _CLASSES for name in _CLASSES[module]}
"""Module and class of each model_type."""


class Field(NamedTuple):
    """Field of a config.json, and our setting."""

    name: str
    setting: str | None
    """Path of the setting; None: the family reads the field itself."""
    default: Any
    """Value of a file that leaves the field out."""
    values: Mapping[Any, Any] = {}
    """Our values by theirs, if they differ."""

    def read(self, value: Any) -> Any:
        if not self.values:
            return value
        if value not in self.values:
            known = ", ".join(map(str, self.values))
            raise UserError(f"{self.name} must be one of {known}, got {value!r}")
        return self.values[value]

    def write(self, value: Any) -> Any:
        theirs = {ours: name for name, ours in [*self.values.items()][::-1]}
        return theirs.get(value, self.default) if self.values else value


ENCODER_FIELDS = (
    Field("hidden_size", "core.width", 768),
    Field("num_hidden_layers", "core.layers", 12),
    Field("num_attention_heads", "core.heads", 12),
    Field("intermediate_size", "core.feedforward", 3072),
    Field("hidden_act", "core.activation", "gelu", ACTIVATIONS),
    Field("layer_norm_eps", "core.norm_eps", 1e-12),
)


class Family:
    """Family of models of Transformers, whose architectures are `name` and a task."""

    tasks: ClassVar[dict[str, str]]
    """Recipe of an imported model by its task."""
    bases: ClassVar[tuple[str, ...]] = ()
    """Tasks of models without a classifier: a run gets a new one."""
    fields: ClassVar[tuple[Field, ...]]
    positions_field: ClassVar[str]
    """Field of the maximum number of positions."""
    implied: ClassVar[dict[str, Any]]
    """Settings that all models of the family have, by path."""
    fixed: ClassVar[dict[str, Any]] = {}
    """Fields of which only one value has a place here."""
    special_ids: ClassVar[tuple[str, ...]] = ()
    """Special tokens of a classifier whose ids stand in config.json."""
    tensors: ClassVar[dict[str, str]]
    """Rules of the tensors (regard.exchange.rules)."""
    inner: ClassVar[dict[str, str]] = {}
    """Rules of the tensors whose names begin with `prefix`."""
    folded: ClassVar[str] = r"$^"
    """Pattern of the tensors that `fold` takes."""
    copies: ClassVar[dict[str, str]] = {}
    """Tensors that may be left out, as they equal others: {copy: original}."""
    renamed: ClassVar[dict[str, str]] = {}
    """Names of other years: replacements of patterns."""
    ignored: ClassVar[str] = r"$^"
    """Pattern of tensors that are no parameters, such as masks."""
    unused: ClassVar[str] = r"$^"
    """Pattern of tensors that a run may leave out, such as other heads. It keeps them."""

    def translate(self, config: Config, shapes: Mapping[str, Any]) -> Config:
        """Return a config with what only the shapes of the tensors say."""
        return config

    def complete(self, config: Config) -> dict[str, Any]:
        """Return a config with defaults. Raises: UserError for a value that has no place here."""
        full = {field.name: field.default for field in self.fields}
        full |= {**self.fixed, **config}
        for name, _, default, _ in self.fields:
            value, kind = full[name], type(default)
            if kind is float and type(value) is int:
                value = full[name] = float(value)
            if default is not None and type(value) is not kind:
                raise UserError(f"{name} must be a value like {default!r}, got {value!r}")
            if type(value) is int and value < 1:  # all are sizes
                raise UserError(f"{name} must be at least 1, got {value}")
        for name, expected in self.fixed.items():
            if full[name] != expected:
                raise UserError(f"{name} must be {expected!r}, got {full[name]!r}")
        kind = full.get("problem_type")
        if kind not in (None, "single_label_classification"):
            raise UserError(f"problem_type must be single_label_classification, got {kind!r}")
        return full

    @property
    def name(self) -> str:
        return type(self).__name__

    def task(self, config: Config) -> str:
        return config["architectures"][0].removeprefix(self.name)

    def prefix(self, config: Config) -> str:
        """Return the module of the encoder, which has no name in files of it alone."""
        return "" if self.task(config) == "Model" else f"{self.name.lower()}."

    def recipes(self, config: Config) -> list[str]:
        """Return the recipes of an architecture. Raises: UserError for one that is not known."""
        every = [*dict.fromkeys(self.tasks.values())]
        known = {self.name + task: [recipe] for task, recipe in self.tasks.items()}
        known |= {self.name + task: every for task in self.bases}
        given = config.get("architectures")
        architecture = given[0] if given and isinstance(given, list) else "none"
        if architecture not in known:
            raise UserError(f"architectures must be one of {', '.join(known)}, got {architecture}")
        return known[architecture]

    def read(self, config: Config) -> dict[str, Any]:
        """Return the settings of a model by path."""
        settings: dict[str, Any] = {"core": "transformer", **self.implied}
        for field in self.fields:
            if field.setting is not None and config[field.name] is not None:
                value = field.read(config[field.name])
                first = settings.setdefault(field.setting, value)
                if first != value:
                    rule = f"be {first!r} as in the fields before it"
                    raise UserError(f"{field.name} must {rule}, got {value!r}")
        size = settings["core.width"] // settings["core.heads"]
        settings.setdefault("core.head_dim", size)
        return settings

    def write(self, settings: Mapping[str, Any], num_positions: int, run: Any) -> dict[str, Any]:
        """Return the config.json of the settings of a model, by path; run: settings of the run."""
        config = {
            field.name: field.write(settings.get(field.setting, field.default))
            for field in self.fields
            if field.setting is not None
        }
        return config | {self.positions_field: num_positions}

    def run_settings(self, config: Config) -> dict[str, Any]:
        """Return further settings of an imported run."""
        return {"context": config[self.positions_field]}

    def artifacts(self, config: Config) -> dict[str, Any]:
        """Return the artifacts of an imported run besides its tokenizers: labels."""
        if not self.inner:
            return {}
        given = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
        if len(given) == 1:
            raise UserError("id2label must hold several labels, as one is regression")
        keys = [*map(str, range(len(given)))]
        if {*given} != {*keys}:
            raise UserError(f"id2label must have the keys 0 to {keys[-1]}")
        return {"labels.json": Labels(tuple(str(given[key]) for key in keys))}

    def files(self, config: Config, settings: Any) -> dict[str, Any]:
        """Return further JSON files of an export by name; settings: of the run."""
        return {}

    def table(self, config: Config) -> Mapping[str, str]:
        """Return the rules of the tensors of a config."""
        prefix = self.prefix(config)
        return self.tensors | {prefix + name: own for name, own in self.inner.items()}

    def computed(self, config: Config) -> Tensors:
        """Return the tensors that files leave out, as they are computed."""
        return {}

    def fold(self, theirs: dict[str, Tensor], config: Config) -> None:
        """Replace tensors of `folded` by others, with which a model computes the same."""

    def unfold(self, theirs: dict[str, Tensor], config: Config) -> None:
        """Add to exported tensors those that `fold` removed, without effect."""

    def adapt(
        self, model: Any, tensors: Tensors, num_positions: int, run: Any
    ) -> tuple[Any, Tensors]:
        """Return settings that this family has, and tensors, which compute the same.

        Positions become a table of `num_positions` vectors.
        """
        core, name = model.core, "core.positions.weight"
        if isinstance(core.positions, LearnedConfig):
            table = tensors[name][:num_positions]
        elif isinstance(core.positions, SinusoidalConfig):
            table = sinusoids(0, num_positions, core.width).float()
        else:
            return model, tensors
        core = replace(core, positions=LearnedConfig(max_length=len(table)))
        return replace(model, core=core), {**tensors, name: table}

    def rename(self, names: Any, config: Config) -> dict[str, str]:
        """Return the names of this family of the tensors of a file, {theirs: in the file}."""
        found, inner = {}, "" if self.prefix(config) else f"{self.name.lower()}."
        for name in names:
            known = name.removeprefix(inner)
            for pattern, replacement in self.renamed.items():
                known = re.sub(pattern, replacement, known)
            if not re.fullmatch(self.ignored, known):
                found[known] = name
        return found


def family_of(model_type: Any) -> Family:
    """Return the family of a model_type. Raises: UserError with the nearest one."""
    if model_type not in [*_FAMILIES]:  # a list, as a value of JSON may have no hash
        near = difflib.get_close_matches(str(model_type), _FAMILIES, n=1, cutoff=0.5)
        hint = f"; the nearest is {near[0]}" if near else ""
        known = ", ".join(_FAMILIES)
        raise UserError(f"model_type must be one of {known}, got {model_type!r}{hint}")
    module, name = _FAMILIES[model_type]
    return getattr(importlib.import_module(f"regard.exchange.families.{module}"), name)()


def find_family(
    run: Any, tensors: Tensors, num_positions: int
) -> tuple[Family, dict[str, Any], Tensors]:
    """Return the first family that can express the model of a run, or the one that it is imported
    from, with its config, and the tensors that its rules export.

    Raises: UserError with the settings that have no place in the nearest one.
    """
    refusals, model = list[tuple[int, str]](), getattr(run.config, "model", None)
    origin = run.origin
    for family in map(family_of, _FAMILIES if origin is None else [origin.model_type]):
        tasks = {family.name + task: recipe for task, recipe in family.tasks.items()}
        if origin is not None and origin.base is not None:
            tasks = {origin.base: run.recipe}
        for architecture, recipe in tasks.items():
            is_kind = type(model) is type(get_entry(recipe).config().model)
            if model is None or not is_kind or not isinstance(model.core, TransformerConfig):
                continue
            adapted, own = family.adapt(model, tensors, num_positions, run.config)
            settings = resolve(adapted)
            config = family.complete(
                family.write(settings, num_positions, run.config)
                | {"model_type": family.name.lower()}
                | {"architectures": [architecture], "recipe": recipe}
            )
            back = apply_changes(type(model)(), nest(family.read(config)), called=str)
            different = find_differences(settings | {"dropout": 0}, resolve(back) | {"dropout": 0})
            if not different:
                return family, config, own
            values = [f"model.{name}={value}" for name, (value, _) in different.items()]
            shown = f"{', '.join(values[:3])} has no place in {architecture}"
            refusals.append((len(different), shown))
    reason = min(refusals)[1] if refusals else "it has no model of this kind"
    raise UserError(f"Transformers cannot express this run: {reason}; choose another --to")


def resolve(model: Any) -> dict[str, Any]:
    """Return settings by path, with what the model uses in place of None, without those of
    computation."""
    used = {path: setting.value for path, setting in settings_by_path(model).items()}
    core, size = model.core, model.core.query_size
    defaults = {
        "core.decoder_layers": core.layers,
        "core.head_dim": size,
        "core.key_heads": core.heads,
        "core.head_key_dim": size,
        "core.head_value_dim": size,
        "core.score_hidden": size,
        "core.beta": 1.0,
        "core.attention_bias": "all" if core.bias else "none",
        "core.final_norm": core.norm_order == "pre",
        "core.positions.dim": size,
        "embedding_dim": core.width,
        "embedding_scale": "one" if isinstance(model, LanguageModelConfig) else "root",
    }
    for path, value in defaults.items():
        if path in used and used[path] is None:
            used[path] = value
    unused = ["core.kernel"]
    if core.window is not None and "/" not in (letters := core.pattern or "S"):
        used["core.pattern"] = letters * (used["core.decoder_layers"] // len(letters))
    if isinstance(core.positions, RotaryConfig):
        if core.positions.scaling == "none" and len({*(used["core.pattern"] or "")}) == 2:
            base = core.positions.window_base or core.positions.base
            used["core.positions.window_base"] = base
        scaling = core.positions.scaling
        every = {field for fields in SCALINGS.values() for field in fields}
        unused += [f"core.positions.{field}" for field in every - {*SCALINGS[scaling]}]
    return {path: value for path, value in used.items() if path not in unused}


def new_head(rules: Iterable[Rule], parameters: Tensors) -> dict[str, Tensor]:
    """Return the tensors of an untrained head: an output layer of zeros, behind a hidden layer that
    changes nothing but by its nonlinearity."""
    head = {}
    for rule in rules:
        shape = parameters[rule.ours[0]].shape
        if rule.ours[0].startswith(("writer.output.", "writer.dense.", "writer.norm.")):
            is_map = rule.ours[0] == "writer.dense.weight"
            head[rule.theirs] = torch.eye(*shape) if is_map else torch.zeros(shape)
        if rule.ours[0] == "writer.norm.weight":
            head[rule.theirs] = torch.ones(shape)
    return head
