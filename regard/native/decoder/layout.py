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
    ACTIVATION, IS_GATED, FLOAT_CODE, OVERFLOW, IS_SIGMOID, GATES, REGISTERS,
) = range(17)  # fmt: skip
"""Indices of the sizes: number of encoder and decoder blocks, width, query and key heads, sizes of
query and value heads (rounded up to whole registers), vocabulary, whether blocks are pre-norm,
norms are RMSNorm, the activation, whether feed-forward networks are gated, address of the float32
product code, a flag set when a variance is not finite, whether weights are sigmoids, the column of
the gates of self-attention in MAPPED (0: none), and the number of registers of each."""
SIZES = 17
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
# Attentions are numbered: self-attention of all blocks, then cross-attention of decoder blocks.
# (attentions, 3 + 2 queries of all heads): eps of queries, keys (NO_NORM: none) and reads of a
# memory, then factors of queries and keys; or no columns
HEAD_NORMS = 9
SINKS = 10  # (attentions, heads): scores of the sinks; minus infinity: none
REGISTER_PAIRS = 11  # (blocks * registers, keys and values of all heads)
IDENTITY = 12  # (1, items of all sources): 0, 1, 2, ...
ZEROS = 13  # (1, outputs of the widest product)
# The workspace.
ITEMS = 14  # (rows, width in panels)
NORMED = 15  # (rows, width in panels)
MAPPED = 16  # (rows, queries, keys, values and gates, or decays and strengths, in panels)
READ = 17  # (rows, values of all heads in panels, and a panel)
HIDDEN = 18  # (rows, hidden in panels; gated: gate, then the gated numbers, each in panels)
LOGITS = 19  # (some rows, vocab in panels)
SCORES = 20  # (some rows, keys or values of a head in panels)
PACKED = 21  # (2, numbers): keys of a head, packed, and values
KEY_MASK = 22  # (1, keys in panels): zero, and minus infinity after the last key
CODES = 23  # (rows, 2 max depth): rows in bytes or in bfloat16
ROW_SCALES = 24  # (1, rows): scales of rows in bytes
ARRAYS = 25

BLOCKS = SIZES + 3 * ARRAYS
"""Index of the numbers of each block: its window (0: none), the first row of its rotations,
whether it has the bias of its stack, and its kind."""
BLOCK_NUMBERS = 4
ATTENTION, FADING, DELTA = range(3)
"""Kinds of blocks: with scores, or with a FadingMemory or DeltaMemory that is written."""

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
