"""Loops over rows of numbers, one vector register at a time, written in LLVM IR.

    dot(a, b, n)            sum_i a_i b_i
    add_scaled(o, a, w, n)  o_i <- o_i + w a_i
    row_max(a, n)           max_i a_i
    exp_and_sum(a, top, n)  a_i <- e^{a_i - top};  returns their sum
    sum_exp(a, top, n)      returns sum_i e^{a_i - top}
    gelu(a, n)              a_i <- a_i (1 + erf(a_i / sqrt 2)) / 2
    gelu_tanh(a, n)         a_i <- a_i sigmoid(2 sqrt(2 / pi) (a_i + 0.044715 a_i^3))
    silu(a, n)              a_i <- a_i sigmoid(a_i)
    to_bfloat16(a, o, n)    o_i <- a_i in bfloat16

Arguments are addresses of float32; n is the number of elements, a multiple of LANES. Compilers
unroll plain loops further, with a slow remainder for rows as short as those of a head.

    e^x = 2^k e^f       k = round(x / ln 2), f = x - k ln 2, e^f by eight terms of its series:
                        relative error below 3e-7

e^x below 2^-126 gives zero; NaN stays NaN.

Source: erf: abramowitz1964, 7.1.26.
"""

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from regard.compat.numba import declare_function
from regard.native.compile import emit
from regard.native.processor import LANES

_FLOAT, _WORD, _INT = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_FLOATS, _WORDS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_WORD, LANES)
_SERIES = [1 / math.factorial(power) for power in range(8)]
_LN2_HIGH = round(math.log(2) * 2**15) / 2**15
"""ln 2 with so few digits that k ln 2 is exact."""
_LN2_LOW = math.log(2) - _LN2_HIGH
# abramowitz1964, 7.1.26: erf(x) = 1 - t (a_1 + a_2 t + ...) e^{-x^2}, t = 1 / (1 + p x), |error| <=
# 1.5e-7
_ERF_P, _ERF = 0.3275911, (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def _splat(number: float) -> ir.Constant:
    return ir.Constant(_FLOATS, [number] * LANES)


def _pointer(builder: Any, address: Any, index: Any) -> Any:
    """Emit the pointer to the register at number `index`."""
    at = builder.add(address, builder.mul(index, ir.Constant(_INT, 4)))
    return builder.inttoptr(at, _FLOATS.as_pointer())


def _load(builder: Any, address: Any, index: Any) -> Any:
    value = builder.load(_pointer(builder, address, index))
    value.align = 4
    return value


def _store(builder: Any, value: Any, address: Any, index: Any) -> None:
    builder.store(value, _pointer(builder, address, index)).align = 4


def _call(builder: Any, name: str, *registers: Any) -> Any:
    """Emit a call of an LLVM function of registers."""
    signature = ir.FunctionType(_FLOATS, [_FLOATS] * len(registers))
    function = declare_function(builder.module, signature, f"llvm.{name}.v{LANES}f32")
    return builder.call(function, registers)


def _is_negative(builder: Any, x: Any) -> Any:
    return builder.fcmp_ordered("<", x, _splat(0.0))


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Emit a b + c of registers, rounded once."""
    return _call(builder, "fma", a, b, c)


def broadcast(builder: Any, value: Any) -> Any:
    """Emit a register filled with one number."""
    empty = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(first, empty, ir.Constant(_WORDS, [0] * LANES))


def _reduce(builder: Any, value: Any, join: Callable) -> Any:
    """Emit the reduction of a register to one number by halving."""
    size = LANES
    while size > 1:
        size //= 2
        lanes = ir.Constant(_WORDS, [*range(size, 2 * size), *[0] * (LANES - size)])
        value = join(value, builder.shuffle_vector(value, value, lanes))
    return builder.extract_element(value, ir.Constant(_WORD, 0))


def _exp(builder: Any, x: Any) -> Any:
    """Emit e^x of a register, x at most 88."""
    rounded = _call(builder, "rint", builder.fmul(x, _splat(1 / math.log(2))))
    part = fma(builder, rounded, _splat(-_LN2_LOW), fma(builder, rounded, _splat(-_LN2_HIGH), x))
    result = _splat(_SERIES[-1])
    for term in reversed(_SERIES[:-1]):
        result = fma(builder, result, part, _splat(term))
    exponent = builder.add(builder.fptosi(rounded, _WORDS), ir.Constant(_WORDS, [127] * LANES))
    scale = builder.bitcast(builder.shl(exponent, ir.Constant(_WORDS, [23] * LANES)), _FLOATS)
    tiny = builder.fcmp_ordered("<", x, _splat(-126 * _LN2_HIGH))
    return builder.select(tiny, _splat(0.0), builder.fmul(result, scale))


def _loop_registers(builder: Any, count: Any, first: Any, body: Callable[[Any, Any], Any]) -> Any:
    """Emit a loop over registers with value = body(index, value); return the last value."""
    begin = builder.block
    loop = builder.function.append_basic_block("lanes")
    end = builder.function.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    index, value = builder.phi(_INT), builder.phi(_FLOATS)
    result = body(index, value)
    after = builder.add(index, ir.Constant(_INT, LANES))
    for phi, initial, later in ((index, ir.Constant(_INT, 0), after), (value, first, result)):
        phi.add_incoming(initial, begin)
        phi.add_incoming(later, loop)
    builder.cbranch(builder.icmp_signed("<", after, count), loop, end)
    builder.position_at_end(end)
    return result


@emit(types.float32(types.int64, types.int64, types.int64))
def dot(builder, a, b, count):
    """Return sum_i a_i b_i."""

    def step(index: Any, total: Any) -> Any:
        return fma(builder, _load(builder, a, index), _load(builder, b, index), total)

    return _reduce(builder, _loop_registers(builder, count, _splat(0.0), step), builder.fadd)


@emit(types.void(types.int64, types.int64, types.float32, types.int64))
def add_scaled(builder, out, a, weight, count):
    """Add weight a_i to out_i."""
    splat = broadcast(builder, weight)

    def step(index: Any, unused: Any) -> Any:
        total = fma(builder, _load(builder, a, index), splat, _load(builder, out, index))
        _store(builder, total, out, index)
        return unused

    _loop_registers(builder, count, _splat(0.0), step)


@emit(types.float32(types.int64, types.int64))
def row_max(builder, a, count):
    """Return max_i a_i; undefined with NaN."""

    def maximum(left: Any, right: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", left, right), left, right)

    def step(index: Any, most: Any) -> Any:
        return maximum(_load(builder, a, index), most)

    return _reduce(builder, _loop_registers(builder, count, _splat(-math.inf), step), maximum)


def _sigmoid(builder: Any, x: Any) -> Any:
    """Emit 1 / (1 + e^-x) of a register, from e^-|x|, which cannot overflow."""
    tail = _exp(builder, builder.fneg(_call(builder, "fabs", x)))
    share = builder.fdiv(_splat(1.0), builder.fadd(_splat(1.0), tail))
    return builder.select(_is_negative(builder, x), builder.fmul(tail, share), share)


def _in_place(function: Callable[[Any, Any], Any]) -> Callable:
    """Return a loop that replaces each register x by function(builder, x)."""

    @emit(types.void(types.int64, types.int64))
    def replace(builder, a, count):
        def step(index: Any, unused: Any) -> Any:
            _store(builder, function(builder, _load(builder, a, index)), a, index)
            return unused

        _loop_registers(builder, count, _splat(0.0), step)

    return replace


def _silu(builder: Any, x: Any) -> Any:
    return builder.fmul(x, _sigmoid(builder, x))


def _gelu(builder: Any, x: Any) -> Any:
    scaled = builder.fmul(_call(builder, "fabs", x), _splat(math.sqrt(0.5)))
    t = builder.fdiv(_splat(1.0), fma(builder, scaled, _splat(_ERF_P), _splat(1.0)))
    series = _splat(_ERF[-1])
    for term in reversed(_ERF[:-1]):
        series = fma(builder, series, t, _splat(term))
    power = _exp(builder, builder.fneg(builder.fmul(scaled, scaled)))
    upper = builder.fmul(_splat(0.5), builder.fmul(builder.fmul(t, series), power))  # Phi(-|x|)
    lower = builder.fsub(_splat(1.0), upper)
    return builder.fmul(x, builder.select(_is_negative(builder, x), upper, lower))


def _gelu_tanh(builder: Any, x: Any) -> Any:
    factor = 2 * math.sqrt(2 / math.pi)
    scale = fma(builder, builder.fmul(x, x), _splat(factor * 0.044715), _splat(factor))
    return builder.fmul(x, _sigmoid(builder, builder.fmul(x, scale)))


gelu = _in_place(_gelu)
"""Replace a_i by a_i Phi(a_i), with the normal distribution function Phi."""
silu = _in_place(_silu)
"""Replace a_i by a_i / (1 + e^-a_i)."""
gelu_tanh = _in_place(_gelu_tanh)
"""Replace a_i by its GELU in the approximation by tanh."""


@emit(types.void(types.int64, types.int64, types.int64))
def to_bfloat16(builder, a, out, count):
    """Write a_i, rounded to nearest even, to the bfloat16 o_i."""
    # In integers: without native instructions, LLVM would emit calls of missing functions.
    halves = ir.VectorType(ir.IntType(16), LANES)

    def splat(number: int) -> ir.Constant:
        return ir.Constant(_WORDS, [number] * LANES)

    def step(index: Any, unused: Any) -> Any:
        value = _load(builder, a, index)
        bits = builder.bitcast(value, _WORDS)
        is_odd = builder.and_(builder.lshr(bits, splat(16)), splat(1))
        rounded = builder.lshr(builder.add(bits, builder.add(is_odd, splat(0x7FFF))), splat(16))
        is_nan = builder.fcmp_unordered("uno", value, value)
        rounded = builder.trunc(builder.select(is_nan, splat(0x7FC0), rounded), halves)
        to = builder.add(out, builder.mul(index, ir.Constant(_INT, 2)))
        builder.store(rounded, builder.inttoptr(to, halves.as_pointer())).align = 2
        return unused

    _loop_registers(builder, count, _splat(0.0), step)


def _exponentials(in_place: bool) -> Callable:
    @emit(types.float32(types.int64, types.float32, types.int64))
    def exponentials(builder, a, top, count):
        most = broadcast(builder, top)

        def step(index: Any, total: Any) -> Any:
            power = _exp(builder, builder.fsub(_load(builder, a, index), most))
            if in_place:
                _store(builder, power, a, index)
            return builder.fadd(total, power)

        return _reduce(builder, _loop_registers(builder, count, _splat(0.0), step), builder.fadd)

    return exponentials


exp_and_sum = _exponentials(True)
"""Replace a_i by e^{a_i - top}; return their sum."""
sum_exp = _exponentials(False)
"""Return sum_i e^{a_i - top}."""
