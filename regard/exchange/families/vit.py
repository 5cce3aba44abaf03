"""ViT: image classification from patches and a class token. (dosovitskiy2021)

    x = [c; W patch + b] + P;   x = x + attention(norm(x));   x = x + FFN(norm(x))
    scores = V norm(x)_1 + d

Names of blocks changed in Transformers 5; files have the earlier ones. Pixels are normalized by the
image_mean and image_std of preprocessor_config.json.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from regard.exchange.families.family import ACTIVATIONS, Config, Family, Field, label_artifacts
from regard.recipes.base.pictures import InputShape


class ViT(Family):
    """ViTForImageClassification."""

    model_type = "vit"
    recipes: ClassVar[dict[str, str]] = {"ViTForImageClassification": "images"}
    fields: ClassVar[tuple[Field, ...]] = (
        Field("hidden_size", "core.width", 768),
        Field("num_hidden_layers", "core.layers", 12),
        Field("num_attention_heads", "core.heads", 12),
        Field("intermediate_size", "core.feedforward", 3072),
        Field("hidden_act", "core.activation", "gelu", ACTIVATIONS),
        Field("hidden_dropout_prob", "dropout", 0.0),
        Field("layer_norm_eps", "core.norm_eps", 1e-12),
        Field("image_size", None, 224),
        Field("patch_size", None, 16),
        Field("num_channels", None, 3),
    )
    positions_field = "image_size"
    implied: ClassVar[dict[str, Any]] = {
        "core.positions.name": "learned",
        "pool": "first",
        "head_norm": False,
    }
    fixed: ClassVar[dict[str, Any]] = {"qkv_bias": True}
    tensors: ClassVar[dict[str, str]] = {
        "vit.embeddings.cls_token^2": "writer.pool.token",
        "vit.embeddings.position_embeddings^1": "core.positions.weight",
        "vit.embeddings.patch_embeddings.projection": "reader.stem",
        "vit.encoder.layer.*.layernorm_before": "core.encoder.*.add_attention.norm",
        "vit.encoder.layer.*.attention.attention.query": "core.encoder.*.attention.query",
        "vit.encoder.layer.*.attention.attention.key": "core.encoder.*.attention.key",
        "vit.encoder.layer.*.attention.attention.value": "core.encoder.*.attention.value",
        "vit.encoder.layer.*.attention.output.dense": "core.encoder.*.attention.output",
        "vit.encoder.layer.*.layernorm_after": "core.encoder.*.add_feedforward.norm",
        "vit.encoder.layer.*.intermediate.dense": "core.encoder.*.feedforward.expand",
        "vit.encoder.layer.*.output.dense": "core.encoder.*.feedforward.contract",
        "vit.layernorm": "core.encoder_norm",
        "classifier": "writer.output",
    }
    renamed: ClassVar[dict[str, str]] = {
        r"^vit\.layers\.": "vit.encoder.layer.",
        r"\.attention\.([qkv])_proj\.": r".attention.attention.\1_proj.",
        r"\.q_proj\.": ".query.",
        r"\.k_proj\.": ".key.",
        r"\.v_proj\.": ".value.",
        r"\.attention\.o_proj\.": ".attention.output.dense.",
        r"\.mlp\.fc1\.": ".intermediate.dense.",
        r"\.mlp\.fc2\.": ".output.dense.",
    }
    ignored = r"vit\.pooler\..*"

    def read(self, config: Config) -> dict[str, Any]:
        length = (config["image_size"] // config["patch_size"]) ** 2 + 1
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
        color = "gray" if config["num_channels"] == 1 else "rgb"
        data = {"size": config["image_size"], "color": color}
        return numbers | {"patch": config["patch_size"], "patch_positions": False, "data": data}

    def artifacts(self, config: Config) -> dict[str, Any]:
        size, channels = config["image_size"], config["num_channels"]
        return label_artifacts(config) | {InputShape.file: InputShape((channels, size, size))}

    def files(self, config: Config, settings: Any) -> dict[str, Any]:
        size = settings.data.size
        content = {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": size, "width": size},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(settings.image_mean),
            "image_std": list(settings.image_std),
        }
        return {"preprocessor_config.json": content}
