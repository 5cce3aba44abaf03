"""Products of a few rows with packed weights: tile by tile, panel by panel.

    out = x W^T + b        x (rows, in), W (out, in), out (rows, out rounded up to whole panels)

A product is a row of an integer table: the address of the code for its kind of weights, and the
addresses of its arrays. The code is compiled once and called by its address, instead of being
compiled into each caller. Rows of float32 arrays may be longer than their content: whole panels are
always written.

Source: goto2008; int8: jacob2018, section 2 (each row of x is quantized by its largest number). For
pairs of bfloat16 x is rounded to nearest even.
"""

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import carray, types

from regard.native.compile import emit, jit, jit_callback
from regard.native.decoder.layout import CODES, ROW_SCALES, SIZES, address, floats, table_of
from regard.native.decoder.simd import to_bfloat16
from regard.native.decoder.tiles import FLOAT32, FLOW, HALVES, INT8, LINE, PAIRS, PANEL, tile
from regard.native.jobs import as_address
from regard.native.processor import LANES, TILE_ROWS

KIND, CODE, WEIGHTS, DEPTH, OUT, PANELS, BIAS, SCALES, SUMS = range(9)
"""Columns of a table of products: kind of weights, addresses of the code and the weights, sizes of
x and out, number of panels, and the addresses of biases, scales and column sums (int8)."""
FIELDS = 9

_ZERO = np.float32(0)
_MIN_MAXIMUM = np.float32(1e-36)
"""Rows with a smaller maximum are quantized to zero: 127 / max |x| would be infinite."""
SET, ADD = np.int64(0), np.int64(1)
"""Overwrite `out` or add to it. (numpy: numba compiles a function for each Python literal.)"""
_SIGNATURE = types.void(*[types.int64] * 9, types.float32, *[types.int64] * 4)


def _multiplier(kind: int) -> Callable:
    is_bytes, is_halves = kind == INT8, kind == HALVES

    def run(x, x_stride, rows, weights, depth, panels, bias, out, out_stride, floor, is_added,
            x_scales, w_scales, w_sums):  # fmt: skip
        """Compute all tiles of a product, by addresses and byte strides; depth: words of x."""
        # Each tile, except those of few rows, prefetches a part of the next panel, so that
        # weights arrive in time.
        panel_stride = depth * (2 * PANEL if is_halves else 4 * PANEL)
        panel = 0
        while rows <= 3 and panel + FLOW <= panels:
            offset = panel * 4 * PANEL
            column_offset = offset if is_bytes else 0
            tile(kind, rows, FLOW, x, x_stride, weights + panel * panel_stride, panel_stride,
                 depth, weights, bias + offset, out + offset, out_stride, floor, is_added,
                 x_scales, w_scales + column_offset, w_sums + column_offset)  # fmt: skip
            panel += FLOW
        while panel < panels:
            offset, row = panel * 4 * PANEL, 0
            current, share = weights + panel * panel_stride, depth * LINE
            upcoming = current + panel_stride
            last = current + (2 * panel_stride if panel + 1 < panels else 0)
            column_offset = offset if is_bytes else 0
            while row < rows:
                remaining = rows - row
                count = min(remaining, TILE_ROWS)
                if TILE_ROWS < remaining < 2 * TILE_ROWS:
                    # A tile of few rows would be bound by the latency of its sums.
                    count = (remaining + 1) // 2
                tile(kind, count, 1, x + row * x_stride, x_stride, current, panel_stride, depth,
                     upcoming if upcoming + share <= last else current, bias + offset,
                     out + row * out_stride + offset, out_stride, floor, is_added,
                     x_scales + 4 * row, w_scales + column_offset,
                     w_sums + column_offset)  # fmt: skip
                row += count
                upcoming += share
            panel += 1

    return run


multiplier = {
    kind: jit_callback(_multiplier(kind), _SIGNATURE) for kind in (FLOAT32, HALVES, INT8, PAIRS)
}
"""For each kind of weights, a function that returns the address of the code for `multiply`."""


@emit(types.void(types.int64, *_SIGNATURE.args))
def multiply(builder, code, x, x_stride, rows, weights, depth, panels, bias, out, out_stride, floor,
             is_added, x_scales, w_scales, w_sums):  # fmt: skip
    """Call the code at an address with the arguments of a multiplier."""
    rest = (x, x_stride, rows, weights, depth, panels, bias, out, out_stride, floor, is_added,
            x_scales, w_scales, w_sums)  # fmt: skip
    signature = ir.FunctionType(ir.VoidType(), [argument.type for argument in rest])
    builder.call(builder.inttoptr(code, signature.as_pointer()), rest)


@jit
def _to_bytes(x, rows, depth, codes, scales):
    """Set codes = 128 + round(x / scale), scale = max |x| / 127 of each row; 128 after the end.

    The scale of a row with NaN or infinity is NaN, as bytes can represent neither.
    """
    for row in range(rows):
        x_row, code = x[row], codes[row]
        most = nan_check = _ZERO
        for k in range(depth):
            most = max(most, abs(x_row[k]))
            nan_check += x_row[k] * _ZERO
        scales[row] = most / np.float32(127) if nan_check == 0 else np.float32(np.nan)
        inverse = np.float32(127) / most if most > _MIN_MAXIMUM and nan_check == 0 else _ZERO
        is_number = nan_check == 0
        for k in range(depth):
            number = np.int32(x_row[k] * inverse + np.float32(128.5))
            code[k] = np.uint8(number if is_number else np.int32(128))
        for k in range(depth, (depth + 3) // 4 * 4):
            code[k] = 128


@jit
def _to_pairs(x, rows, depth, codes):
    """Set codes to x in bfloat16, with a zero after the end if depth is odd."""
    for row in range(rows):
        code = codes[row]
        to_bfloat16(address(x[row]), address(code), (depth + LANES - 1) // LANES * LANES)
        if depth % 2 > 0:
            code[2 * depth] = code[2 * depth + 1] = 0


@jit
def product(context, index, x, rows, out, floor, is_added):
    """Set out[: rows] to max(floor, x[: rows] W^T + b), or add it to `out` (is_added: SET or ADD).

    context: see regard.native.decoder.layout.
    """
    entry, at = table_of(context)[index], SIZES + 3 * CODES
    shape = context[at + 1], context[at + 2]
    codes = carray(as_address(context[at]), shape, np.uint8)
    depth, target, out_stride = entry[DEPTH], address(out), np.int64(out.strides[0])
    if entry[KIND] == INT8:
        scales = floats(context, ROW_SCALES)[0]
        _to_bytes(x, rows, depth, codes, scales)
        multiply(entry[CODE], address(codes), codes.strides[0], rows, entry[WEIGHTS],
                 (depth + 3) // 4, entry[PANELS], entry[BIAS], target, out_stride, floor, is_added,
                 address(scales), entry[SCALES], entry[SUMS])  # fmt: skip
    elif entry[KIND] == PAIRS:
        _to_pairs(x, rows, depth, codes)
        multiply(entry[CODE], address(codes), codes.strides[0], rows, entry[WEIGHTS],
                 (depth + 1) // 2, entry[PANELS], entry[BIAS], target, out_stride, floor, is_added,
                 0, 0, 0)  # fmt: skip
    else:
        multiply(entry[CODE], address(x), x.strides[0], rows, entry[WEIGHTS], depth, entry[PANELS],
                 entry[BIAS], target, out_stride, floor, is_added, 0, 0, 0)  # fmt: skip
