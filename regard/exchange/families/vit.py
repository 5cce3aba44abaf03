"""ViT, DeiT and DINOv2: image classification from patches and a class token. (dosovitskiy2021,
touvron2021a, oquab2023)

    x = [c; W patch + b] + P;   x = x + attention(norm(x));   x = x + FFN(norm(x));   h = norm(x)
    ViT     scores = V h_1 + d
    DeiT    a distillation token after c, which nothing else reads, or, with a teacher:
            scores = (V_1 h_1 + d_1 + V_2 h_2 + d_2) / 2
    DINOv2  x + s * f(norm(x)), with a factor for each number; scores = V [h_1; mean of others] + d

Names of blocks changed in Transformers 5; files have the earlier ones. Pixels are normalized by the
image_mean and image_std of preprocessor_config.json.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.errors import UserError
from regard.exchange.families.family import ENCODER_FIELDS, Config, Family, Field
from regard.exchange.rules import within
from regard.recipes.base.pictures import InputShape

_EMBEDDINGS = {
    "embeddings.cls_token^2": "writer.pool.token",
    "embeddings.position_embeddings^1": "core.positions.weight",
    "embeddings.patch_embeddings.projection": "reader.stem",
    "layernorm": "core.encoder_norm",
}
_ATTENTION = {
    "attention.attention.{query,key,value}": "attention.{query,key,value}",
    "attention.output.dense": "attention.output",
}
_BLOCK = _ATTENTION | {
    "layernorm_{before,after}": "{add_attention,add_feedforward}.norm",
    "{intermediate,output}.dense": "feedforward.{expand,contract}",
}
_SCALED_BLOCK = _ATTENTION | {
    "{norm1,norm2}": "{add_attention,add_feedforward}.norm",
    "layer_scale{1,2}.lambda1": "{add_attention,add_feedforward}.scale",
    "mlp.{fc1,fc2}": "feedforward.{expand,contract}",
}
_PROJECTIONS = {
    r"\.attention\.q_proj\.": ".attention.attention.query.",
    r"\.attention\.k_proj\.": ".attention.attention.key.",
    r"\.attention\.v_proj\.": ".attention.attention.value.",
    r"\.attention\.o_proj\.": ".attention.output.dense.",
}
_THEIRS, _OURS = "encoder.layer.*", "core.encoder.*"


class ViT(Family):
    """ViTForImageClassification."""

    tasks: ClassVar[dict[str, str]] = {"ForImageClassification": "images"}
    bases = ("Model",)
    fields: ClassVar[tuple[Field, ...]] = (
        *ENCODER_FIELDS,
        Field("hidden_dropout_prob", "dropout", 0.0),
        Field("image_size", None, 224),
        Field("patch_size", None, 16),
        Field("num_channels", None, 3),
    )
    positions_field = "image_size"
    implied: ClassVar[dict[str, Any]] = {
        "core.positions": "learned",
        "pool": "first",
        "head_norm": False,
    }
    fixed: ClassVar[dict[str, Any]] = {"qkv_bias": True}
    inner: ClassVar[dict[str, str]] = _EMBEDDINGS | within(_THEIRS, _OURS, _BLOCK)
    tensors: ClassVar[dict[str, str]] = {"classifier": "writer.output"}
    renamed: ClassVar[dict[str, str]] = _PROJECTIONS | {
        r"^(\w+\.)?layers\.": r"\1encoder.layer.",
        r"\.mlp\.fc1\.": ".intermediate.dense.",
        r"\.mlp\.fc2\.": ".output.dense.",
    }
    unused = r"(\w+\.)?(pooler\..*|embeddings\.mask_token)"
    tokens: ClassVar[int] = 1
    """Number of learned items before the patches."""

    def read(self, config: Config) -> dict[str, Any]:
        length = (config["image_size"] // config["patch_size"]) ** 2 + self.tokens
        return super().read(config) | {"core.positions.max_length": length}

    def write(self, settings: Mapping[str, Any], num_positions: int, run: Any) -> dict[str, Any]:
        sizes = {"image_size": run.data.size, "patch_size": run.patch}
        channels = {"num_channels": 1 if run.data.color == "gray" else 3}
        return super().write(settings, num_positions, run) | sizes | channels

    def run_settings(self, config: Config) -> dict[str, Any]:
        given = config.get("preprocessor", {})
        numbers = {name: given.get(name, [0.5]) for name in ("image_mean", "image_std")}
        if not given.get("do_normalize", True):
            numbers = {"image_mean": [0.0], "image_std": [1.0]}
        if not given.get("do_rescale", True) or given.get("rescale_factor", 1 / 255) != 1 / 255:
            raise UserError("preprocessor_config.json: pixels must be divided by 255 (do_rescale)")
        color = "gray" if config["num_channels"] == 1 else "rgb"
        data = {"size": config["image_size"], "color": color}
        return numbers | {"patch": config["patch_size"], "patch_positions": False, "data": data}

    def artifacts(self, config: Config) -> dict[str, Any]:
        size, channels = config["image_size"], config["num_channels"]
        return super().artifacts(config) | {InputShape.file: InputShape((channels, size, size))}

    def files(self, config: Config, settings: Any) -> dict[str, Any]:
        content = {
            "image_processor_type": "ViTImageProcessor",
            "size": {"height": settings.data.size, "width": settings.data.size},
            "image_mean": list(settings.image_mean),
            "image_std": list(settings.image_std),
        }
        return {"preprocessor_config.json": content}


class DeiT(ViT):
    """DeiT: a distillation token, whose classifier is averaged with the other, or not read."""

    tasks: ClassVar[dict[str, str]] = ViT.tasks | {"ForImageClassificationWithTeacher": "images"}
    implied: ClassVar[dict[str, Any]] = ViT.implied | {"distillation_token": True}
    inner = ViT.inner | {"embeddings.distillation_token^2": "writer.pool.distillation"}
    folded = r"(cls|distillation)_classifier\..*"
    tokens = 2

    def read(self, config: Config) -> dict[str, Any]:
        has_both = config["architectures"][0].endswith("WithTeacher")
        return super().read(config) | ({"pool": "first-distillation"} if has_both else {})

    def fold(self, theirs: dict[str, Tensor], config: Config) -> None:
        if "cls_classifier.weight" in theirs:
            weights, biases = (
                [theirs.pop(f"{token}_classifier.{part}") for token in ("cls", "distillation")]
                for part in ("weight", "bias")
            )
            theirs["classifier.weight"] = torch.cat(weights, 1) / 2
            theirs["classifier.bias"] = (biases[0] + biases[1]) / 2

    def unfold(self, theirs: dict[str, Tensor], config: Config) -> None:
        if config["architectures"][0].endswith("WithTeacher"):
            weight, bias = theirs.pop("classifier.weight"), theirs.pop("classifier.bias")
            for token, part in zip(("cls", "distillation"), weight.chunk(2, 1), strict=True):
                theirs[f"{token}_classifier.weight"] = 2 * part
                theirs[f"{token}_classifier.bias"] = bias


_OTHERS = ("intermediate_size", "layer_norm_eps", "patch_size")


class Dinov2(ViT):
    """DINOv2: layer scale; the classifier reads the class token and the mean of the patches."""

    fields: ClassVar[tuple[Field, ...]] = (
        *(field for field in ViT.fields if field.name not in _OTHERS),
        Field("layer_norm_eps", "core.norm_eps", 1e-6),
        Field("patch_size", None, 14),
        Field("mlp_ratio", None, 4),
        Field("layerscale_value", "core.layer_scale", 1.0),
    )
    implied: ClassVar[dict[str, Any]] = ViT.implied | {"pool": "first-mean"}
    fixed: ClassVar[dict[str, Any]] = ViT.fixed | {"use_swiglu_ffn": False}
    inner: ClassVar[dict[str, str]] = _EMBEDDINGS | within(_THEIRS, _OURS, _SCALED_BLOCK)
    renamed = _PROJECTIONS

    def read(self, config: Config) -> dict[str, Any]:
        size = config["hidden_size"] * config["mlp_ratio"]
        return super().read(config) | {"core.feedforward": size}

    def write(self, settings: Mapping[str, Any], num_positions: int, run: Any) -> dict[str, Any]:
        ratio = settings["core.feedforward"] // settings["core.width"]
        return super().write(settings, num_positions, run) | {"mlp_ratio": ratio}
