"""Bit operations on floats in LLVM types of exact width, which the compiler vectorizes.

    widen_bfloat16(b)                float32 of a bfloat16 given as 16 bits
    round_to_bfloat16(x)             16 bits of the nearest bfloat16, ties to even; NaN stays NaN
    maximum(x, y)                    larger of x and y, neither of them NaN
    scale_by_power_of_two(y, n)      2^n y, n given as the last bits of a float32: 1.5 * 2^23 + n

With numba's integers, which are promoted to 64 bits in every sum, the same loops took three times
as long.
"""

from llvmlite import ir
from numba import types

from regard.compat.numba import declare_function
from regard.native.compile import emit

_WORD, _HALF, _FLOAT = ir.IntType(32), ir.IntType(16), ir.FloatType()


def _word(value: int) -> ir.Constant:
    return ir.Constant(_WORD, value)


@emit(types.float32(types.uint16))
def widen_bfloat16(builder, bits):
    """Return the float32 whose upper half is given."""
    wide = builder.zext(bits, _WORD)
    return builder.bitcast(builder.shl(wide, _word(16)), _FLOAT)


@emit(types.uint16(types.float32))
def round_to_bfloat16(builder, x):
    """Return the upper half of x, rounded by the lower half."""
    word = builder.bitcast(x, _WORD)
    last = builder.and_(builder.lshr(word, _word(16)), _word(1))
    upper = builder.lshr(builder.add(builder.add(word, _word(0x7FFF)), last), _word(16))
    upper = builder.select(builder.fcmp_unordered("uno", x, x), _word(0x7FC0), upper)
    return builder.trunc(upper, _HALF)


@emit(types.float32(types.float32, types.float32))
def scale_by_power_of_two(builder, y, shifted):
    """Return y with n added to its exponent."""
    y, shifted = builder.bitcast(y, _WORD), builder.bitcast(shifted, _WORD)
    return builder.bitcast(builder.add(y, builder.shl(shifted, _word(23))), _FLOAT)


@emit(types.float32(types.float32, types.float32))
def maximum(builder, x, y):
    """Return the larger by llvm.maxnum, which is vectorized; a comparison and a select are not."""
    signature = ir.FunctionType(_FLOAT, [_FLOAT, _FLOAT])
    function = declare_function(builder.module, signature, "llvm.maxnum.f32")
    return builder.call(function, (x, y), fastmath=("nnan", "nsz"))
