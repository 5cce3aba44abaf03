"""ViT of timm and torchvision, which become ViT of Transformers. (dosovitskiy2021)

Their config.json names the architecture, and with it the number of heads, unless model_args does.
The shapes of the tensors say the other sizes. torchvision writes no config.json: a user does.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from regard.errors import UserError
from regard.exchange.families.family import Config
from regard.exchange.families.vit import ViT
from regard.exchange.rules import within

_SIZES = {"t": (192, 3), "s": (384, 6), "b": (768, 12), "l": (1024, 16), "h": (1280, 16)}
"""Width and number of heads by the first letter of a size: tiny, small, base, large, huge."""
_NAMES = r"(vit|deit)_(tiny|small|base|large|huge)_patch\d+(_\d+)?|vit_[blh]_\d+"
_ARGUMENTS = ("embed_dim", "depth", "num_heads", "mlp_ratio", "img_size", "patch_size", "in_chans")
_BLOCK = {
    "{norm1,norm2}": "{add_attention,add_feedforward}.norm",
    "attn.{qkv,proj}": "attention.{query+key+value,output}",
    "mlp.{fc1,fc2}": "feedforward.{expand,contract}",
}


class Timm(ViT):
    """ViT of timm, and those of torchvision by the same names."""

    inner: ClassVar[dict[str, str]] = {
        "cls_token^2": "writer.pool.token",
        "pos_embed^1": "core.positions.weight",
        "patch_embed.proj": "reader.stem",
        **within("blocks.*", "core.encoder.*", _BLOCK),
        "norm": "core.encoder_norm",
    }
    tensors: ClassVar[dict[str, str]] = {"head": "writer.output"}
    renamed: ClassVar[dict[str, str]] = {
        r"^class_token$": "cls_token",
        r"^encoder\.pos_embedding$": "pos_embed",
        r"^conv_proj\.": "patch_embed.proj.",
        r"^encoder\.layers\.encoder_layer_": "blocks.",
        r"\.ln_([12])\.": r".norm\1.",
        r"\.self_attention\.in_proj_": ".attn.qkv.",
        r"\.self_attention\.out_proj\.": ".attn.proj.",
        r"\.mlp\.(0|linear_1)\.": ".mlp.fc1.",
        r"\.mlp\.(3|linear_2)\.": ".mlp.fc2.",
        r"^encoder\.ln\.": "norm.",
        r"^heads\.head\.": "head.",
    }

    @property
    def name(self) -> str:
        return "ViT"

    def prefix(self, config: Config) -> str:
        return ""

    def recipes(self, config: Config) -> list[str]:
        name = str(config.get("architecture"))
        if not re.fullmatch(_NAMES, name):
            example = "such as vit_base_patch16_224 of timm or vit_b_16 of torchvision"
            raise UserError(f"architecture must be a plain ViT, {example}, got {name!r}")
        for key, value in config.get("model_args", {}).items():
            is_same = key in ("num_classes", "global_pool") and value == config.get(key)
            if key not in _ARGUMENTS and not is_same:
                raise UserError(f"model_args.{key}={value!r} has no place here")
        if config.get("global_pool", "token") != "token":
            raise UserError(f"global_pool must be 'token', got {config['global_pool']!r}")
        return ["images"]

    def translate(self, config: Config, shapes: Mapping[str, Any]) -> Config:
        task = "Model" if config.get("num_classes") == 0 else "ForImageClassification"
        named = {"architectures": [f"ViT{task}"], "recipe": config["recipe"]}
        sizes = {name: shapes[key] for name, key in self.rename(shapes, named).items()}
        for name in ("pos_embed", "patch_embed.proj.weight", "blocks.0.mlp.fc1.weight"):
            if name not in sizes:
                raise UserError(f"{name} is missing in the tensors")
        width, channels, patch, _ = sizes["patch_embed.proj.weight"]
        arguments, given = config.get("model_args", {}), config.get("pretrained_cfg", {})
        usual, heads = _SIZES[config["architecture"].split("_")[1][0]]
        if width != usual and "num_heads" not in arguments:
            raise UserError(f"model_args must have num_heads for vectors of size {width}")
        labels = config.get("label_names")
        if labels is None:
            labels = [f"LABEL_{number}" for number in range(sizes.get("head.bias", (2,))[0])]
        return named | {
            "hidden_size": width,
            "num_hidden_layers": sum(name.endswith(".norm1.weight") for name in sizes),
            "num_attention_heads": arguments.get("num_heads", heads),
            "intermediate_size": sizes["blocks.0.mlp.fc1.weight"][0],
            "layer_norm_eps": 1e-6,
            "image_size": math.isqrt(sizes["pos_embed"][1]) * patch,
            "patch_size": patch,
            "num_channels": channels,
            "id2label": {str(number): name for number, name in enumerate(labels)},
            "preprocessor": {
                "image_mean": given.get("mean", (0.485, 0.456, 0.406)),
                "image_std": given.get("std", (0.229, 0.224, 0.225)),
            },
        }
