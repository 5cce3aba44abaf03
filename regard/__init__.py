"""Attention models in PyTorch: queries read a memory of key-value pairs.

This module is the public interface. Each name is imported from its module on first use, so that `import regard` is
quick and the command line prints its help without loading torch.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.attention.attend import attend as attend
    from regard.attention.attend import attention_weights as attention_weights
    from regard.attention.biases import Alibi as Alibi
    from regard.attention.biases import Bias as Bias
    from regard.attention.biases import RelativeBias as RelativeBias
    from regard.attention.biases import ShawBias as ShawBias
    from regard.attention.choices import Hard as Hard
    from regard.attention.choices import Proportional as Proportional
    from regard.attention.choices import Soft as Soft
    from regard.attention.choices import Sparse as Sparse
    from regard.attention.choices import TopK as TopK
    from regard.attention.choices import reinforce as reinforce
    from regard.attention.kernels.selection import kernels as kernels
    from regard.attention.masks import Mask as Mask
    from regard.attention.masks import Padded as Padded
    from regard.attention.masks import causal as causal
    from regard.attention.masks import dense as dense
    from regard.attention.masks import documents as documents
    from regard.attention.masks import padding as padding
    from regard.attention.masks import prefix as prefix
    from regard.attention.masks import random_blocks as random_blocks
    from regard.attention.masks import window as window
    from regard.attention.memory import LinearState as LinearState
    from regard.attention.memory import Memory as Memory
    from regard.attention.memory import QuantizedMemory as QuantizedMemory
    from regard.attention.memory import RingMemory as RingMemory
    from regard.attention.memory import SlidingMemory as SlidingMemory
    from regard.attention.memory import StaticMemory as StaticMemory
    from regard.attention.scores import Additive as Additive
    from regard.attention.scores import BareAdditive as BareAdditive
    from regard.attention.scores import Concat as Concat
    from regard.attention.scores import Cosine as Cosine
    from regard.attention.scores import Dot as Dot
    from regard.attention.scores import FeatureMap as FeatureMap
    from regard.attention.scores import General as General
    from regard.attention.scores import Location as Location
    from regard.attention.scores import RandomFeatures as RandomFeatures
    from regard.attention.scores import ScaledDot as ScaledDot
    from regard.attention.scores import SoftCap as SoftCap
    from regard.layers.multihead import MultiHead as MultiHead
    from regard.layers.read import Read as Read
    from regard.look.capture import Capture as Capture
    from regard.look.record import record as record
    from regard.look.recording import Recording as Recording
    from regard.models.model import Model as Model
    from regard.recipes.load import load as load

__all__ = [
    "Additive",
    "Alibi",
    "BareAdditive",
    "Bias",
    "Capture",
    "Concat",
    "Cosine",
    "Dot",
    "FeatureMap",
    "General",
    "Hard",
    "LinearState",
    "Location",
    "Mask",
    "Memory",
    "Model",
    "MultiHead",
    "Padded",
    "Proportional",
    "QuantizedMemory",
    "RandomFeatures",
    "Read",
    "Recording",
    "RelativeBias",
    "RingMemory",
    "ScaledDot",
    "ShawBias",
    "SlidingMemory",
    "Soft",
    "SoftCap",
    "Sparse",
    "StaticMemory",
    "TopK",
    "__version__",
    "attend",
    "attention_weights",
    "causal",
    "dense",
    "documents",
    "kernels",
    "load",
    "padding",
    "prefix",
    "random_blocks",
    "record",
    "reinforce",
    "window",
]

__version__ = "0.1.0"

_MODULES = {
    "Additive": "regard.attention.scores",
    "Alibi": "regard.attention.biases",
    "BareAdditive": "regard.attention.scores",
    "Bias": "regard.attention.biases",
    "Capture": "regard.look.capture",
    "Concat": "regard.attention.scores",
    "Cosine": "regard.attention.scores",
    "Dot": "regard.attention.scores",
    "FeatureMap": "regard.attention.scores",
    "General": "regard.attention.scores",
    "Hard": "regard.attention.choices",
    "LinearState": "regard.attention.memory",
    "Location": "regard.attention.scores",
    "Mask": "regard.attention.masks",
    "Memory": "regard.attention.memory",
    "Model": "regard.models.model",
    "MultiHead": "regard.layers.multihead",
    "Padded": "regard.attention.masks",
    "Proportional": "regard.attention.choices",
    "QuantizedMemory": "regard.attention.memory",
    "RandomFeatures": "regard.attention.scores",
    "Read": "regard.layers.read",
    "Recording": "regard.look.recording",
    "RelativeBias": "regard.attention.biases",
    "RingMemory": "regard.attention.memory",
    "ScaledDot": "regard.attention.scores",
    "ShawBias": "regard.attention.biases",
    "SlidingMemory": "regard.attention.memory",
    "Soft": "regard.attention.choices",
    "SoftCap": "regard.attention.scores",
    "Sparse": "regard.attention.choices",
    "StaticMemory": "regard.attention.memory",
    "TopK": "regard.attention.choices",
    "attend": "regard.attention.attend",
    "attention_weights": "regard.attention.attend",
    "causal": "regard.attention.masks",
    "dense": "regard.attention.masks",
    "documents": "regard.attention.masks",
    "kernels": "regard.attention.kernels.selection",
    "load": "regard.recipes.load",
    "padding": "regard.attention.masks",
    "prefix": "regard.attention.masks",
    "random_blocks": "regard.attention.masks",
    "record": "regard.look.record",
    "reinforce": "regard.attention.choices",
    "window": "regard.attention.masks",
}
"""Module of each public name."""


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}; its public names are {', '.join(__all__)}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
