"""Masks: True where a query may attend to a key. Masks combine with `&`, `|` and `~`.

| name                            | query i may attend to key j iff              | source        |
|---------------------------------|----------------------------------------------|---------------|
| causal()                        | j <= p_i                                     | vaswani2017   |
| padding(lengths)                | j < lengths[b]                               |               |
| prefix(lengths)                 | j <= p_i or j < lengths[b]                   | raffel2020    |
| window(size, ahead)             | p_i + ahead - size < j <= p_i + ahead        | beltagy2020   |
| documents(ids)                  | ids[b, p_i] = ids[b, j]                      |               |
| random_blocks(block, per_query) | the block of j is drawn for the block of p_i | zaheer2020    |
| dense(tensor)                   | tensor[b, i, j]                              |               |
| FilledSlots(window)             | slot j is filled, and inside the window      |               |

p_i is the position of query i (by default the last query is at the last key), b its row of the
batch.
"""

from regard.attention.masks.base import (
    And,
    Dense,
    Interval,
    Mask,
    Not,
    Or,
    dense,
    intersect,
    materialize_mask,
    split_interval,
)
from regard.attention.masks.causal import Causal, causal
from regard.attention.masks.documents import documents
from regard.attention.masks.padding import Padded, Padding, Placed, Related, Unpadded, padding
from regard.attention.masks.prefix import prefix
from regard.attention.masks.random_blocks import random_blocks
from regard.attention.masks.slots import FilledSlots
from regard.attention.masks.window import window

__all__ = [
    "And",
    "Causal",
    "Dense",
    "FilledSlots",
    "Interval",
    "Mask",
    "Not",
    "Or",
    "Padded",
    "Padding",
    "Placed",
    "Related",
    "Unpadded",
    "causal",
    "dense",
    "documents",
    "intersect",
    "materialize_mask",
    "padding",
    "prefix",
    "random_blocks",
    "split_interval",
    "window",
]
