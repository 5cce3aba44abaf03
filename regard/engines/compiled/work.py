"""What compiled code works with: a model as tables of numbers, and room for what it computes.

One named tuple of arrays holds both, so that a function takes `work` as Python's take `self`.
"""

from collections import namedtuple

__all__ = [
    "CROSS_KEYS", "CROSS_OUT", "CROSS_QUERY", "DECODERS", "DECODER_PRODUCTS", "DOWN", "ENCODERS", "ENCODER_PRODUCTS",
    "HEADS", "IS_GELU", "IS_PRE", "KEY_HEADS", "OUT_OF_HEADS", "QUERY_KEY_VALUE", "SIZE", "SIZES", "UP",
    "VALUE_SIZE", "VOCAB", "WIDTH", "WINDOW", "Work",
]  # fmt: skip

ENCODERS, DECODERS, WIDTH, HEADS, KEY_HEADS, SIZE, VALUE_SIZE, VOCAB, IS_PRE, IS_GELU, WINDOW = range(11)
"""Places of `sizes`: blocks of encoder and decoder, size of items, heads of queries and of keys, their queries' and
values' sizes (rounded up to whole registers), tokens, whether blocks are pre-norm and use GELU, and how many targets
each sees (0: all)."""
SIZES = 11

# The products of a block, in their order in the table; a decoder without a source has the cross ones empty.
QUERY_KEY_VALUE, OUT_OF_HEADS, UP, DOWN = range(4)
ENCODER_PRODUCTS = 4
CROSS_QUERY, CROSS_KEYS, CROSS_OUT = range(4, 7)
DECODER_PRODUCTS = 7

Work = namedtuple(
    "Work",
    [
        "sizes",  # (SIZES,)
        "table",  # (products, FIELDS): see regard.engines.compiled.products
        "codes_of",  # (1,): address of the code that multiplies by float32
        "norms",  # (norms, 2, width): scale and shift of each, encoder's first, the last of each stack behind them
        "source",  # (vocab, width): embeddings as the encoder reads them
        "target",  # (vocab, width): and the decoder
        "positions",  # (places, width): added to embeddings; no places: nothing is
        "around",  # (heads, 2 reach + 1): added to the encoder's scores, by place of key less place of query
        "behind",  # (heads, reach + 1): added to the decoder's, by how far back the key is
        "items",  # (rows, width in panels)
        "normed",  # the same
        "mapped",  # (rows, queries, keys and values in panels)
        "read",  # (rows, values of all heads in panels, and a panel)
        "hidden",  # (rows, hidden in panels)
        "logits",  # (some rows, vocab in panels)
        "scores",  # (some rows, keys in panels)
        "panels",  # (numbers,): keys and values of a head, packed
        "edge",  # (keys in panels,): zero, and minus infinity behind the last key
        "zeros",  # (numbers of the widest product,)
        "order",  # (places,): 0, 1, 2, ...
        "codes",  # (rows, most numbers of a row): rows in bytes, for int8
        "scales",  # (rows,)
    ],
)
