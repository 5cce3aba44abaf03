"""Queries read a memory of key-value pairs: attention models to read, to train and to look into.

This page is the public interface. Each name is imported from its module when first used, so that
`import regard` is quick and the command line can print its help without loading torch.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.attention.attend import attend as attend
    from regard.attention.attend import weigh as weigh
    from regard.attention.choices import Soft as Soft
    from regard.attention.masks import Mask as Mask
    from regard.attention.masks import Padded as Padded
    from regard.attention.masks import causal as causal
    from regard.attention.masks import dense as dense
    from regard.attention.masks import padding as padding
    from regard.attention.memory import Memory as Memory
    from regard.attention.scores import Additive as Additive
    from regard.attention.scores import Dot as Dot
    from regard.attention.scores import General as General
    from regard.attention.scores import ScaledDot as ScaledDot
    from regard.layers.multihead import MultiHead as MultiHead
    from regard.layers.read import Read as Read
    from regard.look.record import record as record
    from regard.models.model import Model as Model
    from regard.recipes.trained import load as load

__all__ = [
    "Additive",
    "Dot",
    "General",
    "Mask",
    "Memory",
    "Model",
    "MultiHead",
    "Padded",
    "Read",
    "ScaledDot",
    "Soft",
    "__version__",
    "attend",
    "causal",
    "dense",
    "load",
    "padding",
    "record",
    "weigh",
]

__version__ = "0.1.0"

_HOMES = {
    "Additive": "regard.attention.scores",
    "Dot": "regard.attention.scores",
    "General": "regard.attention.scores",
    "Mask": "regard.attention.masks",
    "Memory": "regard.attention.memory",
    "Model": "regard.models.model",
    "MultiHead": "regard.layers.multihead",
    "Padded": "regard.attention.masks",
    "Read": "regard.layers.read",
    "ScaledDot": "regard.attention.scores",
    "Soft": "regard.attention.choices",
    "attend": "regard.attention.attend",
    "causal": "regard.attention.masks",
    "dense": "regard.attention.masks",
    "load": "regard.recipes.trained",
    "padding": "regard.attention.masks",
    "record": "regard.look.record",
    "weigh": "regard.attention.attend",
}
"""The module that each lazy name comes from."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module `regard` has no attribute {name!r}; its names are {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
