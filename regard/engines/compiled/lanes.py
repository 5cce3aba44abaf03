"""Loops over rows of numbers, a register at a time, written in LLVM's own language.

    dot(a, b, n)            sum_i a_i b_i
    add_scaled(o, a, w, n)  o_i <- o_i + w a_i
    peak(a, n)              max_i a_i
    soften(a, top, n)       a_i <- e^{a_i - top};  returns their sum
    spread(a, top, n)       returns sum_i e^{a_i - top}
    gelu(a, n)              a_i <- a_i (1 + erf(a_i / sqrt 2)) / 2
    halve(a, o, n)          o_i <- a_i in bfloat16

Arguments are addresses of float32; n counts numbers and is a multiple of LANES. A compiler that is shown plain loops
makes wider ones of them, with a slow remainder for rows as short as a head's.

    e^x = 2^k e^f       k = round(x / ln 2), f = x - k ln 2, e^f by eight terms of its series: relative error below 3e-7

Zero is given for e^x below 2^-126; NaN stays NaN.

Source: erf: abramowitz1964, 7.1.26.
"""

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from regard.engines.compiled.compiling import LANES, intrinsic

_FLOAT, _WORD, _INT = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_FLOATS, _WORDS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_WORD, LANES)
_SERIES = [1 / math.factorial(power) for power in range(8)]
_LN2 = round(math.log(2) * 2**15) / 2**15
"""ln 2 in so few digits that k of it is exact."""
_LN2_LOW = math.log(2) - _LN2
# abramowitz1964, 7.1.26: erf(x) = 1 - t (a_1 + a_2 t + ...) e^{-x^2}, t = 1 / (1 + p x), |error| <= 1.5e-7
_ERF_P, _ERF = 0.3275911, (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def _many(number: float) -> ir.Constant:
    return ir.Constant(_FLOATS, [number] * LANES)


def _load(builder: Any, address: Any, place: Any) -> Any:
    pointer = builder.inttoptr(builder.add(address, builder.mul(place, ir.Constant(_INT, 4))), _FLOATS.as_pointer())
    value = builder.load(pointer)
    value.align = 4
    return value


def _store(builder: Any, value: Any, address: Any, place: Any) -> None:
    pointer = builder.inttoptr(builder.add(address, builder.mul(place, ir.Constant(_INT, 4))), _FLOATS.as_pointer())
    builder.store(value, pointer).align = 4


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Writes a b + c of registers, rounded once."""
    of = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, of, f"llvm.fma.v{LANES}f32"), [a, b, c])


def _everywhere(builder: Any, value: Any) -> Any:
    empty = ir.Constant(_FLOATS, ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(first, empty, ir.Constant(_WORDS, [0] * LANES))


def _folded(builder: Any, value: Any, join: Callable) -> Any:
    """One number of a register: halves are joined until one is left."""
    size = LANES
    while size > 1:
        size //= 2
        places = ir.Constant(_WORDS, [*range(size, 2 * size), *[0] * (LANES - size)])
        value = join(value, builder.shuffle_vector(value, value, places))
    return builder.extract_element(value, ir.Constant(_WORD, 0))


def _exp(builder: Any, x: Any) -> Any:
    """e^x of a register, x at most 88."""
    of = ir.FunctionType(_FLOATS, [_FLOATS])
    rounded = cgutils.get_or_insert_function(builder.module, of, f"llvm.rint.v{LANES}f32")
    whole = builder.call(rounded, [builder.fmul(x, _many(1 / math.log(2)))])
    part = fma(builder, whole, _many(-_LN2_LOW), fma(builder, whole, _many(-_LN2), x))
    result = _many(_SERIES[-1])
    for term in reversed(_SERIES[:-1]):
        result = fma(builder, result, part, _many(term))
    exponent = builder.add(builder.fptosi(whole, _WORDS), ir.Constant(_WORDS, [127] * LANES))
    scale = builder.bitcast(builder.shl(exponent, ir.Constant(_WORDS, [23] * LANES)), _FLOATS)
    tiny = builder.fcmp_ordered("<", x, _many(-126 * _LN2))
    return builder.select(tiny, _many(0.0), builder.fmul(result, scale))


def _loop(builder: Any, count: Any, first: Any, body: Callable[[Any, Any], Any]) -> Any:
    """What becomes of `first` when body(place, value) follows body, from register to register."""
    begin = builder.block
    loop, end = builder.function.append_basic_block("lanes"), builder.function.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    place, value = builder.phi(_INT), builder.phi(_FLOATS)
    following = body(place, value)
    after = builder.add(place, ir.Constant(_INT, LANES))
    for phi, initial, later in ((place, ir.Constant(_INT, 0), after), (value, first, following)):
        phi.add_incoming(initial, begin)
        phi.add_incoming(later, loop)
    builder.cbranch(builder.icmp_signed("<", after, count), loop, end)
    builder.position_at_end(end)
    return following


_DOT = types.float32(types.int64, types.int64, types.int64)


@intrinsic
def dot(_typing: Any, a: Any, b: Any, count: Any) -> Any:
    """sum_i a_i b_i."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        a, b, count = arguments
        step = lambda at, total: fma(builder, _load(builder, a, at), _load(builder, b, at), total)  # noqa: E731
        return _folded(builder, _loop(builder, count, _many(0.0), step), builder.fadd)

    return _DOT, generate


@intrinsic
def add_scaled(_typing: Any, out: Any, a: Any, weight: Any, count: Any) -> Any:
    """out_i <- out_i + weight a_i."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        out, a, weight, count = arguments
        many = _everywhere(builder, weight)

        def step(place: Any, nothing: Any) -> Any:
            _store(builder, fma(builder, _load(builder, a, place), many, _load(builder, out, place)), out, place)
            return nothing

        _loop(builder, count, _many(0.0), step)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32, types.int64), generate


@intrinsic
def peak(_typing: Any, a: Any, count: Any) -> Any:
    """max_i a_i; what it gives where there is NaN is not said."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        a, count = arguments

        def higher(one: Any, other: Any) -> Any:
            return builder.select(builder.fcmp_ordered(">", one, other), one, other)

        found = _loop(builder, count, _many(-math.inf), lambda at, most: higher(_load(builder, a, at), most))
        return _folded(builder, found, higher)

    return types.float32(types.int64, types.int64), generate


@intrinsic
def gelu(_typing: Any, a: Any, count: Any) -> Any:
    """a_i <- a_i times the share of a normal distribution below it."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        a, count = arguments
        size = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_FLOATS, [_FLOATS]), f"llvm.fabs.v{LANES}f32"
        )

        def step(place: Any, nothing: Any) -> Any:
            x = _load(builder, a, place)
            scaled = builder.fmul(builder.call(size, [x]), _many(math.sqrt(0.5)))
            t = builder.fdiv(_many(1.0), fma(builder, scaled, _many(_ERF_P), _many(1.0)))
            series = _many(_ERF[-1])
            for term in reversed(_ERF[:-1]):
                series = fma(builder, series, t, _many(term))
            beyond = builder.fmul(builder.fmul(t, series), _exp(builder, builder.fneg(builder.fmul(scaled, scaled))))
            half = builder.fmul(_many(0.5), beyond)  # the share above |x|
            share = builder.select(builder.fcmp_ordered("<", x, _many(0.0)), half, builder.fsub(_many(1.0), half))
            _store(builder, builder.fmul(x, share), a, place)
            return nothing

        _loop(builder, count, _many(0.0), step)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def halve(_typing: Any, a: Any, out: Any, count: Any) -> Any:
    """o_i <- a_i rounded to nearest even, in two bytes."""
    # By whole numbers: a processor without such an instruction is given calls of functions that are nowhere.
    halves = ir.VectorType(ir.IntType(16), LANES)

    def many(number: int) -> ir.Constant:
        return ir.Constant(_WORDS, [number] * LANES)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        a, out, count = arguments

        def step(place: Any, nothing: Any) -> Any:
            value = _load(builder, a, place)
            bits = builder.bitcast(value, _WORDS)
            is_odd = builder.and_(builder.lshr(bits, many(16)), many(1))
            rounded = builder.lshr(builder.add(bits, builder.add(is_odd, many(0x7FFF))), many(16))
            rounded = builder.select(builder.fcmp_unordered("uno", value, value), many(0x7FC0), rounded)
            to = builder.add(out, builder.mul(place, ir.Constant(_INT, 2)))
            builder.store(builder.trunc(rounded, halves), builder.inttoptr(to, halves.as_pointer())).align = 2
            return nothing

        _loop(builder, count, _many(0.0), step)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _exponentials(is_kept: bool) -> Callable:
    def exponentials(_typing: Any, a: Any, top: Any, count: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            a, top, count = arguments
            most = _everywhere(builder, top)

            def step(place: Any, total: Any) -> Any:
                power = _exp(builder, builder.fsub(_load(builder, a, place), most))
                if is_kept:
                    _store(builder, power, a, place)
                return builder.fadd(total, power)

            return _folded(builder, _loop(builder, count, _many(0.0), step), builder.fadd)

        return types.float32(types.int64, types.float32, types.int64), generate

    return exponentials


soften = intrinsic(_exponentials(True))
"""a_i <- e^{a_i - top}; their sum."""
spread = intrinsic(_exponentials(False))
"""sum_i e^{a_i - top}."""
