"""Products of a few rows with packed weights: tile by tile, panel by panel.

    out = x W^T + b        x (rows, in), W (out, in), out (rows, out rounded up to whole panels)

A product is a row of a table of numbers: the code that multiplies by its kind of weights, and where they lie. The code
is compiled by itself and called by its address, so that the many places that call it do not each compile it again.
Rows are arrays of float32 whose lines may be longer than what is in them: a whole panel is always written.

Source: goto2008; int8: jacob2018, section 2 (x is brought to bytes row by row, by its largest number). For pairs of
bfloat16 x is rounded to nearest even.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from regard.engines.compiled.compiling import LANES, TILE_ROWS, called_by_address, compiled, intrinsic
from regard.engines.compiled.lanes import halve
from regard.engines.compiled.tiles import FLOAT32, FLOW, HALVES, INT8, LINE, PAIRS, PANEL, tile
from regard.engines.compiled.work import CODES, SCALED, address, bytes_of, floats, table_of

KIND, CODE, WEIGHTS, DEPTH, OUT, PANELS, BIAS, SCALES, SUMS = range(9)
"""Columns of a table of products: kind of weights, addresses of the code and the weights, numbers a row of x, of out,
panels, and the addresses of biases, of scales and of sums (int8) of columns."""
FIELDS = 9

_ZERO = np.float32(0)
_LEAST = np.float32(1e-36)
"""Rows of smaller numbers are zeros in bytes: 127 / max |x| would be infinite."""
SET, ADD = np.int64(0), np.int64(1)
"""What becomes of what `out` holds. (As numpy's numbers: numba compiles a function anew for each of Python's.)"""
_SIGNATURE = types.void(*[types.int64] * 9, types.float32, *[types.int64] * 4)


def _multiplier(kind: int) -> Callable[[str], Callable]:
    # What it closes over must be plain numbers and words: numba finds what it kept by their values.
    is_bytes, is_halves = kind == INT8, kind == HALVES

    def make(stamp: str) -> Callable:
        def run(x, x_stride, rows, weights, depth, panels, bias, out, out_stride, floor, is_added, x_scales, w_scales,
                w_sums):  # fmt: skip
            """All tiles of a product, by addresses and strides in bytes; depth counts words of x."""
            stamp  # noqa: B018  # see `called_by_address`
            # While the tiles of a panel are computed, each but those of few rows asks for a share of the next panel:
            # weights that come from memory are then there in time.
            panel_stride = depth * (2 * PANEL if is_halves else 4 * PANEL)
            panel = 0
            while rows <= 3 and panel + FLOW <= panels:
                across = panel * 4 * PANEL
                beside = across if is_bytes else 0
                tile(kind, rows, FLOW, x, x_stride, weights + panel * panel_stride, panel_stride, depth, weights,
                     bias + across, out + across, out_stride, floor, is_added, x_scales, w_scales + beside,
                     w_sums + beside)  # fmt: skip
                panel += FLOW
            while panel < panels:
                across, row = panel * 4 * PANEL, 0
                here, share = weights + panel * panel_stride, depth * LINE
                soon, last = here + panel_stride, here + (2 * panel_stride if panel + 1 < panels else 0)
                beside = across if is_bytes else 0
                while row < rows:
                    left = rows - row
                    count = min(left, TILE_ROWS)
                    if TILE_ROWS < left < 2 * TILE_ROWS:
                        count = (left + 1) // 2  # few rows alone would wait for each other's sums
                    tile(kind, count, 1, x + row * x_stride, x_stride, here, panel_stride, depth,
                         soon if soon + share <= last else here, bias + across, out + row * out_stride + across,
                         out_stride, floor, is_added, x_scales + 4 * row, w_scales + beside,
                         w_sums + beside)  # fmt: skip
                    row += count
                    soon += share
                panel += 1

        return run

    return make


multiplier = {kind: called_by_address(_multiplier(kind), _SIGNATURE) for kind in (FLOAT32, HALVES, INT8, PAIRS)}
"""For each kind of weights, what gives the address of the code that `multiply` calls."""


@intrinsic
def multiply(_typing: Any, code: Any, x: Any, x_stride: Any, rows: Any, weights: Any, depth: Any, panels: Any,
             bias: Any, out: Any, out_stride: Any, floor: Any, is_added: Any, x_scales: Any, w_scales: Any,
             w_sums: Any) -> Any:  # fmt: skip
    """Call the code at an address; the other arguments are those of a multiplier."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        code, *rest = arguments
        of = ir.FunctionType(ir.VoidType(), [argument.type for argument in rest])
        builder.call(builder.inttoptr(code, of.as_pointer()), rest)
        return context.get_dummy_value()

    return types.void(types.int64, *_SIGNATURE.args), generate


@compiled
def _to_bytes(x, rows, depth, codes, scales):
    """codes = 128 + round(x / scale), scale = max |x| / 127 of each row; 128 behind the end.

    A row that holds NaN or infinity has the scale NaN, as no byte is either.
    """
    for row in range(rows):
        line, code = x[row], codes[row]
        most = nothing = _ZERO
        for k in range(depth):
            most = max(most, abs(line[k]))
            nothing += line[k] * _ZERO
        scales[row] = most / np.float32(127) if nothing == 0 else np.float32(np.nan)
        inverse = np.float32(127) / most if most > _LEAST and nothing == 0 else _ZERO
        for k in range(depth):
            code[k] = np.uint8(np.int32(line[k] * inverse + np.float32(128.5))) if nothing == 0 else np.uint8(128)
        for k in range(depth, (depth + 3) // 4 * 4):
            code[k] = 128


@compiled
def _to_pairs(x, rows, depth, codes):
    """codes = x in bfloat16, and a zero behind the end of an odd number."""
    for row in range(rows):
        code = codes[row]
        halve(address(x[row]), address(code), (depth + LANES - 1) // LANES * LANES)
        if depth % 2 > 0:
            code[2 * depth] = code[2 * depth + 1] = 0


@compiled
def product(work, which, x, rows, out, floor, is_added):
    """out[: rows] = max(floor, x[: rows] W^T + b), or that is added to what `out` holds (is_added: SET or ADD).

    work: see regard.engines.compiled.work.
    """
    entry, codes = table_of(work)[which], bytes_of(work, CODES)
    depth, into, out_stride = entry[DEPTH], address(out), np.int64(out.strides[0])
    if entry[KIND] == INT8:
        scales = floats(work, SCALED)[0]
        _to_bytes(x, rows, depth, codes, scales)
        multiply(entry[CODE], address(codes), codes.strides[0], rows, entry[WEIGHTS], (depth + 3) // 4, entry[PANELS],
                 entry[BIAS], into, out_stride, floor, is_added, address(scales), entry[SCALES],
                 entry[SUMS])  # fmt: skip
    elif entry[KIND] == PAIRS:
        _to_pairs(x, rows, depth, codes)
        multiply(entry[CODE], address(codes), codes.strides[0], rows, entry[WEIGHTS], (depth + 1) // 2, entry[PANELS],
                 entry[BIAS], into, out_stride, floor, is_added, 0, 0, 0)  # fmt: skip
    else:
        multiply(entry[CODE], address(x), x.strides[0], rows, entry[WEIGHTS], depth, entry[PANELS],
                 entry[BIAS], into, out_stride, floor, is_added, 0, 0, 0)  # fmt: skip
