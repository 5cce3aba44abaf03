"""Masks: which keys a query may attend to. True means it may; masks combine with `&`, `|` and `~`."""

from regard.attention.masks.base import All, Any, Dense, Interval, Mask, Not, dense, split_interval
from regard.attention.masks.causal import Causal, causal
from regard.attention.masks.documents import documents
from regard.attention.masks.padding import Padded, Padding, Unpadded, padding
from regard.attention.masks.prefix import prefix
from regard.attention.masks.random_blocks import random_blocks
from regard.attention.masks.slots import FilledSlots
from regard.attention.masks.window import window

__all__ = [
    "All",
    "Any",
    "Causal",
    "Dense",
    "FilledSlots",
    "Interval",
    "Mask",
    "Not",
    "Padded",
    "Padding",
    "Unpadded",
    "causal",
    "dense",
    "documents",
    "padding",
    "prefix",
    "random_blocks",
    "split_interval",
    "window",
]
