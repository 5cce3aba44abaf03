"""Tiles: the innermost loop of every product, in LLVM IR so that sums stay in registers.

    out[r, c] = max(floor, sum_k x[r, k] w[k, c] + bias[c])    r < rows, c < 2 LANES (or 8 LANES)

The weights are stored in panels (regard.native.decoder.packed_weights): those multiplied by x[:, k]
are contiguous and read once for all rows. A tile of 12 rows and 32 columns holds its 384 sums in 24
registers of 16 and only loads and multiplies; a tile of few rows takes four panels, so that enough
independent sums hide the latency.

    float32    w as it is
    pairs      x and w in bfloat16, numbers 2 k and 2 k + 1 in a word: two products added at a time
    halves     w in bfloat16 without such an instruction: column c in the lower and c + LANES in the
               upper half of a word, each widened to float32 by a shift or a mask; x as it is
    int8       x in bytes from 1 to 255 (128 is zero), w in bytes from -127 to 127, four products
               added at a time: out = (sum - 128 sum_k w[k, c]) x_scale[r] w_scale[c]

Source: goto2008 (panels and register tiles); int8: jacob2018, section 2.
"""

from typing import Any, NamedTuple

from llvmlite import binding, ir
from numba import types

from regard.compat.numba import declare_function
from regard.native.compile import intrinsic
from regard.native.decoder.simd import broadcast, fma
from regard.native.processor import (
    HAS_BYTE_PRODUCTS,
    HAS_PAIR_PRODUCTS,
    LANES,
    PAIR_PRODUCT,
    TILE_ROWS,
)

PANEL = 2 * LANES
"""Columns of a panel."""
FLOW = 4
"""Panels of a tile of few rows."""
_MAX_FLOW_ROWS = 3

FLOAT32, HALVES, INT8, PAIRS = 0, 1, 2, 3
BFLOAT16 = PAIRS if HAS_PAIR_PRODUCTS else HALVES


class _BFloat(ir.Type):
    """LLVM's bfloat type, which llvmlite lacks."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self))

    def __hash__(self) -> int:
        return hash(type(self))


_FLOAT, _WORD, _INT, _BYTE = ir.FloatType(), ir.IntType(32), ir.IntType(64), ir.IntType(8)
_FLOATS, _WORDS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_WORD, LANES)
_BYTE_PRODUCT = "llvm.x86.avx512.vpdpbusd.512"
_DECLARATION = f"declare <16 x i32> @{_BYTE_PRODUCT}(<16 x i32>, <16 x i32>, <16 x i32>)"
# LLVM 22 takes bytes where earlier versions took words, and rewrites the declaration.
_TAKES_BYTES = "i8" in str(binding.parse_assembly(_DECLARATION))
_FOURS = ir.VectorType(_BYTE, 4 * LANES) if _TAKES_BYTES else _WORDS
_TWOS = ir.VectorType(_BFloat(), 2 * LANES)
LINE = 64
"""Bytes of a cache line."""
_REGISTER = 4 * LANES
"""Bytes of a register."""
_ARGUMENTS = [_INT] * 9 + [_FLOAT] + [_INT] * 4


class _Shape(NamedTuple):
    """Shape of a tile."""

    kind: int
    rows: int
    panels: int

    @property
    def columns(self) -> int:
        """Width of a row in registers."""
        return 2 * self.panels


def _constant(number: int) -> ir.Constant:
    return ir.Constant(_INT, number)


def _load(builder: Any, address: Any, kind: Any) -> Any:
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = 4
    return value


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 4


def _load_weights(builder: Any, shape: _Shape, panels: list[Any], depth: Any) -> list[Any]:
    """Emit loads of the weights of one depth (one word of x), one register per column."""
    registers = 1 if shape.kind == HALVES else 2
    byte_offset = builder.mul(depth, _constant(registers * _REGISTER))
    result = []
    for panel in panels:
        begin = builder.add(panel, byte_offset)
        if shape.kind == HALVES:
            pairs = _load(builder, begin, _WORDS)
            below = builder.shl(pairs, ir.Constant(_WORDS, [16] * LANES))
            above = builder.and_(pairs, ir.Constant(_WORDS, [-65536] * LANES))
            result += [builder.bitcast(half, _FLOATS) for half in (below, above)]
        else:
            kind = _FLOATS if shape.kind == FLOAT32 else _WORDS
            result += [_load(builder, begin, kind)]
            result += [_load(builder, builder.add(begin, _constant(_REGISTER)), kind)]
    return result


def _prefetch(builder: Any, address: Any) -> None:
    """Emit a prefetch of a cache line into the L2 cache."""
    pointer = builder.inttoptr(address, _BYTE.as_pointer())
    signature = ir.FunctionType(ir.VoidType(), [pointer.type, _WORD, _WORD, _WORD])
    fetch = declare_function(builder.module, signature, "llvm.prefetch.p0")
    builder.call(fetch, [pointer, *(ir.Constant(_WORD, number) for number in (0, 2, 1))])


def _multiply_add(builder: Any, kind: int, total: Any, x: Any, weights: Any) -> Any:
    """Emit total + x weights; for bytes and pairs, the products of each word are summed."""
    module = builder.module
    if kind == PAIRS:
        signature = ir.FunctionType(_FLOATS, [_FLOATS, _TWOS, _TWOS])
        dot = declare_function(module, signature, PAIR_PRODUCT)
        return builder.call(dot, [total, *(builder.bitcast(part, _TWOS) for part in (x, weights))])
    if kind != INT8:
        return fma(builder, x, weights, total)
    if HAS_BYTE_PRODUCTS:
        signature = ir.FunctionType(_WORDS, [_WORDS, _FOURS, _FOURS])
        dot = declare_function(module, signature, _BYTE_PRODUCT)
        return builder.call(dot, [total, *(builder.bitcast(part, _FOURS) for part in (x, weights))])
    for index in range(4):
        low = ir.Constant(_WORDS, [24 - 8 * index] * LANES)
        signed = builder.ashr(builder.shl(weights, low), ir.Constant(_WORDS, [24] * LANES))
        shifted = builder.lshr(x, ir.Constant(_WORDS, [8 * index] * LANES))
        byte = builder.and_(shifted, ir.Constant(_WORDS, [255] * LANES))
        total = builder.add(total, builder.mul(byte, signed))
    return total


def _function(module: Any, shape: _Shape) -> Any:
    """Return the function of the tile of a shape, defined once per module. Its arguments:

    x, x_stride, weights, panel_stride, depth, prefetch (address of `depth` cache lines to
    prefetch), bias, out, out_stride, floor, is_added, x_scales, w_scales, w_sums
    """
    name = f"regard.tile.{shape.kind}.{shape.rows}.{shape.panels}"
    if name in module.globals:
        return module.globals[name]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), _ARGUMENTS), name)
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block("begin"))
    x, x_stride, weights, panel_stride, depth, prefetch = function.args[:6]
    rows = [builder.add(x, builder.mul(x_stride, _constant(row))) for row in range(shape.rows)]
    panels = [
        builder.add(weights, builder.mul(panel_stride, _constant(panel)))
        for panel in range(shape.panels)
    ]
    begin = builder.block
    loop = function.append_basic_block("loop")
    end = function.append_basic_block("end")
    builder.branch(loop)
    builder.position_at_end(loop)
    kind = _WORDS if shape.kind == INT8 else _FLOATS
    step, sums = builder.phi(_INT), [builder.phi(kind) for _ in range(shape.rows * shape.columns)]
    if shape.panels == 1:
        _prefetch(builder, builder.add(prefetch, builder.mul(step, _constant(LINE))))
    columns = _load_weights(builder, shape, panels, step)
    byte_offset, new_sums = builder.mul(step, _constant(4)), []
    word = _WORD if shape.kind in (INT8, PAIRS) else _FLOAT  # several numbers of x, or one
    for row, address in enumerate(rows):
        number = broadcast(builder, _load(builder, builder.add(address, byte_offset), word))
        for column, weight in enumerate(columns):
            total = sums[row * shape.columns + column]
            new_sums.append(_multiply_add(builder, shape.kind, total, number, weight))
    after, zeros = builder.add(step, _constant(1)), (0, *[None] * len(sums))
    for phi, first, following in zip((step, *sums), zeros, (after, *new_sums), strict=True):
        phi.add_incoming(ir.Constant(phi.type, first), begin)
        phi.add_incoming(following, loop)
    builder.cbranch(builder.icmp_signed("<", after, depth), loop, end)
    builder.position_at_end(end)
    _finish(builder, shape, function.args[6:], new_sums)
    return function


def _finish(builder: Any, shape: _Shape, arguments: Any, sums: list[Any]) -> None:
    """Emit scale, bias and floor; then store to `out`, or add to it."""
    bias, out, out_stride, floor, is_added, x_scales, w_scales, w_sums = arguments
    lowest, addresses, values = broadcast(builder, floor), [], []
    for row in range(shape.rows):
        start = builder.add(out, builder.mul(out_stride, _constant(row)))
        for column in range(shape.columns):
            across = _constant(column * _REGISTER)
            value = sums[row * shape.columns + column]
            offset = _load(builder, builder.add(bias, across), _FLOATS)
            if shape.kind == INT8:
                value = builder.sub(value, _load(builder, builder.add(w_sums, across), _WORDS))
                at_row = builder.add(x_scales, _constant(4 * row))
                scale = broadcast(builder, _load(builder, at_row, _FLOAT))
                scale = builder.fmul(scale, _load(builder, builder.add(w_scales, across), _FLOATS))
                # Fused: otherwise LLVM would round once in some tile shapes and twice in others.
                value = fma(builder, builder.sitofp(value, _FLOATS), scale, offset)
            else:
                value = builder.fadd(value, offset)
            # In this order NaN stays NaN.
            values.append(builder.select(builder.fcmp_ordered("<", value, lowest), lowest, value))
            addresses.append(builder.add(start, across))
    function = builder.function
    adding, setting = function.append_basic_block("adding"), function.append_basic_block("setting")
    builder.cbranch(builder.icmp_signed("!=", is_added, _constant(0)), adding, setting)
    builder.position_at_end(adding)
    for value, index in zip(values, addresses, strict=True):
        _store(builder, builder.fadd(value, _load(builder, index, _FLOATS)), index)
    builder.ret_void()
    builder.position_at_end(setting)
    for value, index in zip(values, addresses, strict=True):
        _store(builder, value, index)
    builder.ret_void()


@intrinsic
def tile(_typing: Any, kind: Any, rows: Any, panels: Any, x: Any, x_stride: Any, weights: Any,
         panel_stride: Any, depth: Any, prefetch: Any, bias: Any, out: Any, out_stride: Any,
         floor: Any, is_added: Any, x_scales: Any, w_scales: Any, w_sums: Any) -> Any:  # fmt: skip
    """Compute the tile of the given rows and panels, as `_function`; `kind` must be a literal."""
    if not isinstance(kind, types.IntegerLiteral):
        return None
    signature = types.void(kind, *[types.int64] * 11, types.float32, *[types.int64] * 4)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        _, rows, panels, *rest = arguments
        value = kind.literal_value
        shapes = [_Shape(value, count, 1) for count in range(1, TILE_ROWS + 1)]
        shapes += [_Shape(value, count, FLOW) for count in range(1, _MAX_FLOW_ROWS + 1)]
        key = builder.add(rows, builder.mul(panels, _constant(100)))
        end = builder.function.append_basic_block("tiled")
        choice = builder.switch(key, end)
        for shape in shapes:
            block = builder.function.append_basic_block("tile")
            choice.add_case(_constant(shape.rows + 100 * shape.panels), block)
            builder.position_at_end(block)
            builder.call(_function(builder.module, shape), rest)
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return signature, generate
