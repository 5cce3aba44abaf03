"""Context of compiled code: an integer array of the model's sizes and all arrays' addresses.

The sizes are followed by three numbers for each array of the model or the workspace: its address,
rows and columns; `floats(context, ITEMS)` is a view of the array. The numbers of blocks follow.
(Passing the arrays themselves would update their reference counts in every call.)
"""

import numpy as np
from numba import carray

from regard.native.compile import jit
from regard.native.jobs import as_address

(
    ENCODERS, DECODERS, WIDTH, HEADS, KEY_HEADS, SIZE, VALUE_SIZE, VOCAB, IS_PRE_NORM, IS_RMS,
    ACTIVATION, IS_GATED, FLOAT_CODE, OVERFLOW,
) = range(14)  # fmt: skip
"""Indices of the sizes: number of encoder and decoder blocks, width, query and key heads, sizes of
query and value heads (rounded up to whole registers), vocabulary, whether blocks are pre-norm,
norms are RMSNorm, the activation, whether feed-forward networks are gated, address of the float32
product code, and a flag set when a variance is not finite."""
SIZES = 14
RELU, GELU, GELU_TANH, SILU = range(4)
"""Activations."""

# The model.
TABLE = 0  # (products, FIELDS): see regard.native.decoder.matmul
NORMS = 1  # (NORM_ROWS norms, width): scale, shift and eps (or NO_NORM) of each, see ENCODER_NORMS
SOURCES = 2  # (vocab, width): embeddings of the encoder
TARGETS = 3  # (vocab, width): embeddings of the decoder
SOURCE_POSITIONS = 4  # (positions, width): positional encodings of the encoder; no rows: none
TARGET_POSITIONS = 5  # (positions, width): those of the decoder
ENCODER_BIAS = 6  # (heads, 2 max distance + 1): by key minus query position; or no columns
DECODER_BIAS = 7  # (heads, max distance + 1): by distance back to the key; or no columns
ROTATIONS = 8  # (positions of each base, 2 pairs): cosines, sines of rotary angles; or no columns
HEAD_NORMS = 9  # (blocks, queries and keys of all heads + 2): factors, two eps; or no columns
IDENTITY = 10  # (1, items of all sources): 0, 1, 2, ...
ZEROS = 11  # (1, outputs of the widest product)
# The workspace.
ITEMS = 12  # (rows, width in panels)
NORMED = 13  # (rows, width in panels)
MAPPED = 14  # (rows, queries, keys and values in panels)
READ = 15  # (rows, values of all heads in panels, and a panel)
HIDDEN = 16  # (rows, hidden in panels; gated: gate, then the gated numbers, each in panels)
LOGITS = 17  # (some rows, vocab in panels)
SCORES = 18  # (some rows, keys in panels)
PACKED = 19  # (2, numbers): keys of a head, packed, and values
KEY_MASK = 20  # (1, keys in panels): zero, and minus infinity after the last key
CODES = 21  # (rows, 2 max depth): rows in bytes or in bfloat16
ROW_SCALES = 22  # (1, rows): scales of rows in bytes
ARRAYS = 23

BLOCKS = SIZES + 3 * ARRAYS
"""Index of the numbers of each block: its window (0: none), the first row of its rotations, and
whether it has the bias of its stack."""
BLOCK_NUMBERS = 3

NORM_ROWS, NO_NORM = 3, -1
# Norms: of the embeddings of the source and the target, of the encoder blocks (2 each) and the
# encoder's output, of the decoder blocks (3 each) and the decoder's output.
SOURCE_NORM, TARGET_NORM, ENCODER_NORMS = 0, 1, 2

# The products of a block, in their order in the table; without a source the cross ones are empty.
QUERY_KEY_VALUE, OUT_PROJECTION, UP, DOWN = range(4)
ENCODER_PRODUCTS = 4
CROSS_QUERY, CROSS_KEYS, CROSS_OUT = range(4, 7)
DECODER_PRODUCTS = 7


@jit
def floats(context, index):
    """Return a view of an array of float32."""
    at = SIZES + 3 * index
    return carray(as_address(context[at]), (context[at + 1], context[at + 2]), np.float32)


@jit
def table_of(context):
    """Return a view of the table of products."""
    at = SIZES + 3 * TABLE
    return carray(as_address(context[at]), (context[at + 1], context[at + 2]), np.int64)


@jit
def address(array):
    """Return the address of an array."""
    return np.int64(array.ctypes.data)
