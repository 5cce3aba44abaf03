"""Memories that are written, of one row of a decoder: writes and reads, item by item.

    o = a S^T q + (k . q) u         S <- a S + k u^T        u = b v, or b (v - a S^T k)

The reads of q and k are one product of two rows with S, whose columns are in panels.
regard.ops.delta_rule is the reference.

Source: sun2023 (decay), yang2025a (gated delta rule).
"""

import math

import numpy as np
from numba import carray

from regard.native.compile import jit
from regard.native.decoder import layout
from regard.native.decoder.layout import address, floats
from regard.native.decoder.matmul import SET, multiply
from regard.native.decoder.simd import dot
from regard.native.decoder.tiles import PANEL
from regard.native.jobs import as_address

_NO_FLOOR = np.float32(-np.inf)
_ZERO, _ONE = np.float32(0), np.float32(1)


@jit
def begin_state(states, block, position, parent, row):
    """Return the address of a row's state, with that of its parent at the position before.

    states: (blocks, copies, rows, numbers); with one copy, a row is its own parent.
    """
    copies = states.shape[1]
    state = states[block, position % copies, row]
    if position == 0:
        state[:] = 0
    elif copies > 1:
        state[:] = states[block, (position - 1) % copies, parent]
    return address(state)


@jit
def _sigmoid(x):
    return _ONE / (_ONE + np.float32(math.exp(-x)))


@jit
def write_and_read(context, block, first, count, state):
    """Set `READ` of rows first .. first + count - 1 to what they read, after each one's own write.

    block: its number of all. state: its address; of each head (panels, key size, PANEL).
    """
    mapped, products = floats(context, layout.MAPPED), floats(context, layout.SCORES)
    heads, size = context[layout.HEADS], context[layout.SIZE]
    value_size, at_keys, at_values = context[layout.VALUE_SIZE], heads * size, 2 * heads * size
    at_decays = at_values + heads * value_size
    is_delta = context[layout.BLOCKS + layout.BLOCK_NUMBERS * block + 3] == layout.DELTA
    panels, old, new = (value_size + PANEL - 1) // PANEL, products[0], products[1]
    epsilon = floats(context, layout.HEAD_NORMS)[block, 2]
    zeros, code = address(floats(context, layout.ZEROS)), context[layout.FLOAT_CODE]
    for head in range(heads):
        at = state + 4 * head * panels * size * PANEL
        memory = carray(as_address(at), (panels, size, PANEL), np.float32)
        for row in range(first, first + count):
            item, out = mapped[row], floats(context, layout.READ)[row, head * value_size :]
            query, key = item[head * size :], item[at_keys + head * size :]
            multiply(code, address(query), 4 * at_keys, 2, at, size, panels, zeros, address(old),
                     products.strides[0], _NO_FLOOR, SET, 0, 0, 0)  # fmt: skip
            decay = _sigmoid(item[at_decays + head])
            strength, share = _sigmoid(item[at_decays + heads + head]), decay if is_delta else _ZERO
            for c in range(value_size):
                new[c] = strength * (item[at_values + head * value_size + c] - share * new[c])
            new[value_size : panels * PANEL] = 0
            overlap, total = dot(address(query), address(key), size), epsilon
            for c in range(value_size):
                out[c] = decay * old[c] + overlap * new[c]
            for c in range(value_size):
                total += out[c] * out[c]
            if not total < np.inf:
                context[layout.OVERFLOW] = 1
            inverse = _ONE / np.float32(math.sqrt(total))
            for c in range(value_size):
                out[c] *= inverse
            for panel in range(panels):
                for i in range(size):
                    for c in range(PANEL):
                        memory[panel, i, c] *= decay
                        memory[panel, i, c] += key[i] * new[panel * PANEL + c]
