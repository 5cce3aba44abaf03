"""Products of a few rows with packed weights: tile by tile, panel by panel.

    out = x W^T + b        x (rows, in), W (out, in), out (rows, out rounded up to whole panels)

A product is a row of a table of numbers (`Field`): what kind of weights, and where they lie. Rows are arrays of
float32 whose lines may be longer than what is in them: a whole panel is always written.

Source: goto2008; int8: jacob2018, section 2 (x is brought to bytes row by row, by its largest number).
"""

import numpy as np

from regard.engines.compiled.compiling import TILE_ROWS, compiled
from regard.engines.compiled.tiles import BFLOAT16, FLOAT32, FLOW, INT8, PANEL, tile

__all__ = ["BIAS", "DEPTH", "FIELDS", "KIND", "OUT", "PANELS", "SCALES", "SUMS", "WEIGHTS", "multiply", "product"]

KIND, WEIGHTS, DEPTH, OUT, PANELS, BIAS, SCALES, SUMS = range(8)
"""Columns of a table of products: kind of weights, their address, numbers a row of x, of out, panels, and the addresses
of biases, of scales and of sums (int8) of columns."""
FIELDS = 8

_floats, _halves, _bytes = tile[FLOAT32], tile[BFLOAT16], tile[INT8]
_ZERO = np.float32(0)


@compiled
def _some(kind, rows, panels, x, x_stride, weights, panel_stride, depth, bias, out, out_stride, floor, is_added,
          x_scales, w_scales, w_sums):  # fmt: skip
    if kind == FLOAT32:
        _floats(rows, panels, x, x_stride, weights, panel_stride, depth, bias, out, out_stride, floor, is_added,
                0, 0, 0)  # fmt: skip
    elif kind == BFLOAT16:
        _halves(rows, panels, x, x_stride, weights, panel_stride, depth, bias, out, out_stride, floor, is_added,
                0, 0, 0)  # fmt: skip
    else:
        _bytes(rows, panels, x, x_stride, weights, panel_stride, depth, bias, out, out_stride, floor, is_added,
               x_scales, w_scales, w_sums)  # fmt: skip


@compiled
def multiply(kind, x, x_stride, rows, weights, depth, panels, bias, out, out_stride, floor, is_added,
             x_scales, w_scales, w_sums):  # fmt: skip
    """All tiles of a product, by addresses and strides in bytes; depth counts words for int8."""
    panel_stride = depth * (4 * PANEL if kind != BFLOAT16 else 2 * PANEL)
    column = 4 * PANEL
    panel = 0
    if rows <= 3:
        while panel + FLOW <= panels:
            across = panel * column
            _some(kind, rows, FLOW, x, x_stride, weights + panel * panel_stride, panel_stride, depth, bias + across,
                  out + across, out_stride, floor, is_added, x_scales, w_scales + across, w_sums + across)  # fmt: skip
            panel += FLOW
    while panel < panels:
        across = panel * column
        row = 0
        while row < rows:
            left = rows - row
            # The last two tiles are of one size: few rows alone would wait for each other's sums.
            some = TILE_ROWS if left >= 2 * TILE_ROWS or left == TILE_ROWS else min(TILE_ROWS, (left + 1) // 2)
            some = left if left < TILE_ROWS else some
            _some(kind, some, 1, x + row * x_stride, x_stride, weights + panel * panel_stride, panel_stride, depth,
                  bias + across, out + row * out_stride + across, out_stride, floor, is_added, x_scales + 4 * row,
                  w_scales + across, w_sums + across)  # fmt: skip
            row += some
        panel += 1


@compiled
def _to_bytes(x, rows, depth, codes, scales):
    """codes = 128 + round(x / scale), scale = max |x| / 127 of each row; 128 behind the end."""
    for row in range(rows):
        line, code = x[row], codes[row]
        most = _ZERO
        for k in range(depth):
            most = max(most, abs(line[k]))
        scales[row] = most / np.float32(127)
        inverse = np.float32(127) / most if most > 0 else _ZERO
        for k in range(depth):
            code[k] = np.uint8(np.int32(line[k] * inverse + np.float32(128.5)))
        code[depth:] = 128  # zero: room is a multiple of four wide


@compiled
def product(work, which, x, rows, out, floor, is_added):
    """out[: rows] = max(floor, x[: rows] W^T + b), or that is added to what `out` holds (is_added).

    work: table, and room for rows in bytes (codes, scales), see regard.engines.compiled.work.
    """
    entry = work.table[which]
    kind, depth = entry[KIND], entry[DEPTH]
    if kind == INT8:
        codes, scales = work.codes, work.scales
        _to_bytes(x, rows, depth, codes, scales)
        multiply(kind, codes.ctypes.data, codes.strides[0], rows, entry[WEIGHTS], (depth + 3) // 4, entry[PANELS],
                 entry[BIAS], out.ctypes.data, out.strides[0], floor, is_added, scales.ctypes.data, entry[SCALES],
                 entry[SUMS])  # fmt: skip
    else:
        multiply(kind, x.ctypes.data, x.strides[0], rows, entry[WEIGHTS], depth, entry[PANELS], entry[BIAS],
                 out.ctypes.data, out.strides[0], floor, is_added, 0, 0, 0)  # fmt: skip
