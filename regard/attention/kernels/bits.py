"""Numbers as their bits, in compiled loops: what the compiler makes vectors of only when it is told the exact width.

    widened(b)      the float32 of a bfloat16's 16 bits
    rounded(x)      the 16 bits of the bfloat16 next to x, ties to even; NaN stays NaN
    larger(x, y)    whichever is larger, in any order of many, none of them NaN
    raised(y, n)    2^n y, n given as the last bits of a float32: 1.5 * 2^23 + n

Written in numba's integers, which grow to 64 bits at every sum, the same loops took three times as long.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_WORD, _HALF, _FLOAT = ir.IntType(32), ir.IntType(16), ir.FloatType()


def _word(value: int) -> ir.Constant:
    return ir.Constant(_WORD, value)


def _widened(context: Any, bits: Any) -> Any:
    """The float32 whose upper half these bits are."""

    def build(context, builder, signature, arguments):
        wide = builder.zext(arguments[0], _WORD)
        return builder.bitcast(builder.shl(wide, _word(16)), _FLOAT)

    return types.float32(types.uint16), build


def _rounded(context: Any, x: Any) -> Any:
    """The upper half of x, after what the lower half rounds it to."""

    def build(context, builder, signature, arguments):
        x = arguments[0]
        word = builder.bitcast(x, _WORD)
        last = builder.and_(builder.lshr(word, _word(16)), _word(1))
        upper = builder.lshr(builder.add(builder.add(word, _word(0x7FFF)), last), _word(16))
        upper = builder.select(builder.fcmp_unordered("uno", x, x), _word(0x7FC0), upper)
        return builder.trunc(upper, _HALF)

    return types.uint16(types.float32), build


def _raised(context: Any, y: Any, shifted: Any) -> Any:
    """n added to the exponent of y."""

    def build(context, builder, signature, arguments):
        y, shifted = (builder.bitcast(argument, _WORD) for argument in arguments)
        return builder.bitcast(builder.add(y, builder.shl(shifted, _word(23))), _FLOAT)

    return types.float32(types.float32, types.float32), build


def _larger(context: Any, x: Any, y: Any) -> Any:
    """What the compiler takes in lanes; it does not where the choice is written out."""

    def build(context, builder, signature, arguments):
        of = ir.FunctionType(_FLOAT, [_FLOAT, _FLOAT])
        maximum = cgutils.get_or_insert_function(builder.module, of, "llvm.maxnum.f32")
        return builder.call(maximum, arguments, fastmath=("nnan", "nsz"))

    return types.float32(types.float32, types.float32), build


larger: Callable = intrinsic(_larger)
widened: Callable = intrinsic(_widened)
rounded: Callable = intrinsic(_rounded)
raised: Callable = intrinsic(_raised)
