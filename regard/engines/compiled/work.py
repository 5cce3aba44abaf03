"""What compiled code works with: one row of whole numbers, `work`.

It begins with the sizes of the model. Behind them stand three numbers for each array, of the model or of the room to
compute in: its address, its rows and its columns; `floats(work, ITEMS)` is the array that they tell of. (Were the
arrays themselves passed from function to function, each call would count references to all of them.)
"""

import numpy as np
from llvmlite import ir
from numba import carray, types

from regard.engines.compiled.compiling import compiled, intrinsic

ENCODERS, DECODERS, WIDTH, HEADS, KEY_HEADS, SIZE, VALUE_SIZE, VOCAB, IS_PRE, IS_GELU, WINDOW, FLOAT_CODE, OVERFLOW = (
    range(13)
)
"""Places of the sizes: blocks of encoder and decoder, size of items, heads of queries and of keys, sizes of their
queries and values (rounded up to whole registers), tokens, whether blocks are pre-norm and use GELU, how many targets
each sees (0: all), where the code is that multiplies by float32, and 1 once a variance was not finite."""
SIZES = 13

# The model.
TABLE = 0  # (products, FIELDS): see regard.engines.compiled.products
NORMS = 1  # (NORM_ROWS norms, width): scale, shift and eps of each, encoder's first, the last of each stack behind
SOURCES = 2  # (vocab, width): embeddings as the encoder reads them
TARGETS = 3  # (vocab, width): and the decoder
POSITIONS = 4  # (places, width): added to embeddings; no places: nothing is
AROUND = 5  # (heads, 2 reach + 1): added to the encoder's scores, by place of key less place of query; or no columns
BEHIND = 6  # (heads, reach + 1): added to the decoder's, by how far back the key is; or no columns
ORDER = 7  # (1, items of all sources): 0, 1, 2, ...
ZEROS = 8  # (1, numbers of the widest product)
NORM_ROWS = 3
# Room.
ITEMS = 9  # (rows, width in panels)
NORMED = 10  # the same
MAPPED = 11  # (rows, queries, keys and values in panels)
READ = 12  # (rows, values of all heads in panels, and a panel)
HIDDEN = 13  # (rows, hidden in panels)
LOGITS = 14  # (some rows, vocab in panels)
SCORES = 15  # (some rows, keys in panels)
PANELED = 16  # (2, numbers): keys of a head, packed, and values
EDGE = 17  # (1, keys in panels): zero, and minus infinity behind the last key
CODES = 18  # (rows, two of most numbers of a row): rows in bytes or in bfloat16
SCALED = 19  # (1, rows): and their scales
ARRAYS = 20

# The products of a block, in their order in the table; a decoder without a source has the cross ones empty.
QUERY_KEY_VALUE, OUT_OF_HEADS, UP, DOWN = range(4)
ENCODER_PRODUCTS = 4
CROSS_QUERY, CROSS_KEYS, CROSS_OUT = range(4, 7)
DECODER_PRODUCTS = 7


@intrinsic
def _pointer(_typing, number):
    """An address as numba's arrays take it."""

    def generate(_context, builder, _signature, arguments):
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


@compiled
def floats(work, which):
    """An array of float32."""
    at = SIZES + 3 * which
    return carray(_pointer(work[at]), (work[at + 1], work[at + 2]), np.float32)


@compiled
def bytes_of(work, which):
    """An array of bytes."""
    at = SIZES + 3 * which
    return carray(_pointer(work[at]), (work[at + 1], work[at + 2]), np.uint8)


@compiled
def table_of(work):
    """The products."""
    at = SIZES + 3 * TABLE
    return carray(_pointer(work[at]), (work[at + 1], work[at + 2]), np.int64)


@compiled
def integers(work, which):
    """The first row of an array of int32."""
    at = SIZES + 3 * which
    return carray(_pointer(work[at]), (work[at + 2],), np.int32)


@compiled
def slots_at(place, count):
    """So many int32 at an address."""
    return carray(_pointer(place), (count,), np.int32)


@compiled
def floats_at(place, count):
    """So many float32 at an address."""
    return carray(_pointer(place), (count,), np.float32)


@compiled
def address(array):
    """Where an array begins."""
    return np.int64(array.ctypes.data)
