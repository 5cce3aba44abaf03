"""Parts of a core in the order of their computation, as its modules have them.

Point 0 of a block is its input, point i the result of its i-th part (from 1):

    post-norm   1 self-attention (0)   2 + (0, 1)          3 LayerNorm (2)
    pre-norm    1 LayerNorm (0)        2 self-attention (1)   3 + (0, 2)

Source: lectures, B.4, B.11 (recurrent), D.5 to D.9 (blocks); pre-norm: xiong2020.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple, cast

from torch import Tensor, nn

from regard.attention.choices import Soft
from regard.attention.scores import ScaledDot
from regard.layers.blocks import DecoderBlock, EncoderBlock, InducedBlock
from regard.layers.feedforward import DenseLayer, FeedForward
from regard.layers.linear import Linear
from regard.layers.multihead import MultiHead
from regard.layers.read import Read
from regard.layers.recurrent.cells import Cell
from regard.layers.recurrent.encoder import RecurrentEncoder
from regard.layers.recurrent.self_attentive import SelfAttentiveCell
from regard.layers.recurrent.self_attentive_encoder import SelfAttentiveEncoder
from regard.layers.residual import Residual
from regard.layers.written import WrittenAttention
from regard.models.cores.core import Core
from regard.models.cores.recurrent_decoder import RecurrentDecoderCore
from regard.models.cores.transformer import Transformer


class Operation(NamedTuple):
    """One operation of a block."""

    name: str
    """"+" for a sum of its inputs, "+ P" for one with positions."""
    detail: str
    inputs: tuple[int, ...]
    """Points of the block."""
    reads: str = ""
    """Symbol of what comes from the encoder: h^Enc, or s_0, the initial state."""
    delayed: tuple[tuple[int, str], ...] = ()
    """Points whose results of earlier steps are inputs too, and the symbols of these results."""


class Block(NamedTuple):
    """Parts that follow one another; the result is that of the last part."""

    name: str
    """Empty for parts outside of blocks, such as the final norm."""
    times: int
    """Number of such blocks in a row, each with weights of its own."""
    parts: tuple[Operation, ...]

    def lines(self) -> list[str]:
        """Return the parts as text; inputs other than the part before follow in parentheses."""
        head = f"{self.times} x {self.name}" if self.times > 1 else self.name
        rows = [head] if head else []
        for number, part in enumerate(self.parts, 1):
            others = ["input" if point == 0 else str(point) for point in part.inputs]
            others += [part.reads] if part.reads else []
            others += [f"{symbol} of {point}" for point, symbol in part.delayed]
            is_next = others in (["input"] if number == 1 else [str(number - 1)],)
            inputs = "" if is_next or not self.name else f"({', '.join(others)})"
            words = " ".join(filter(None, (part.name, inputs)))
            label = f"{number:>4}  " if self.name else ""
            rows.append(label + ": ".join(filter(None, (words, part.detail))))
        return rows


def core_blocks(core: Core, stack: Literal["encoder", "decoder"]) -> tuple[Block, ...]:
    """Return the blocks of a side of a core; empty for cores of other classes than ours."""
    if not (core.encodes if stack == "encoder" else core.decodes):
        return ()
    if isinstance(core, Transformer):
        return _transformer(core, stack)
    if isinstance(core, RecurrentDecoderCore):
        return (_recurrent_encoder(core.encoder) if stack == "encoder" else _steps(core),)
    return ()


def positions_name(positions: nn.Module) -> str:
    """Return the class of a positional encoding in words: Sinusoidal positions."""
    return f"{type(positions).__name__.removesuffix('Positions')} positions"


def _transformer(core: Transformer, stack: Literal["encoder", "decoder"]) -> tuple[Block, ...]:
    is_encoder = stack == "encoder"
    blocks: list[Block] = []
    positions = core.positions if is_encoder else core.target_positions
    if positions.adds and (is_encoder or core.in_order):
        blocks.append(Block("", 1, (Operation("+ P", positions_name(positions), (0,)),)))
    norm = core.encoder_embedding_norm if is_encoder else core.decoder_embedding_norm
    if not isinstance(norm, nn.Identity):
        blocks.append(Block("", 1, (Operation(type(norm).__name__, "of the embeddings", (0,)),)))
    for module in core.encoder if is_encoder else core.decoder:
        block = Block(f"{stack} block", 1, _block_parts(module, in_order=core.in_order))
        if blocks and blocks[-1][::2] == block[::2]:
            block = block._replace(times=blocks.pop().times + 1)
        blocks.append(block)
    norm = core.encoder_norm if is_encoder else core.decoder_norm
    if not isinstance(norm, nn.Identity):
        blocks.append(Block("", 1, (Operation(f"final {type(norm).__name__}", "", (0,)),)))
    return tuple(blocks)


def _block_parts(block: nn.Module, *, in_order: bool) -> tuple[Operation, ...]:
    """Return the parts of a block; a block of another class is one part."""
    parts: list[Operation] = []
    if isinstance(block, InducedBlock):
        points = f"{len(block.points)} learned points read the items"
        inner = (
            _attention("attention", block.gather, points),
            _attention("attention", block.attention, "items read the points", inputs=(0, 1)),
        )
        _add_sublayer(parts, block.add_attention, inner)
    elif isinstance(block, EncoderBlock):
        mask = "" if block.window is None else f"at most {block.window // 2:,} away"
        part = _attention("self-attention", block.attention, mask)
        _add_sublayer(parts, block.add_attention, (part,))
    elif isinstance(block, DecoderBlock):
        mask, name = "", "self-attention"
        if in_order:
            mask = "causal"
            mask += "" if block.window is None else f", last {block.window:,}"
        part = _attention(name, block.attention, mask)
        part = part._replace(name=f"masked {part.name}") if mask else part
        _add_sublayer(parts, block.add_attention, (part,))
        if block.cross is not None and block.add_cross is not None:
            cross = _attention("cross-attention", block.cross)._replace(reads="h^Enc")
            _add_sublayer(parts, block.add_cross, (cross,))
    else:
        return (Operation(type(block).__name__, "", (0,)),)
    _add_sublayer(parts, block.add_feedforward, (_feedforward(block.feedforward),))
    return tuple(parts)


def _add_sublayer(parts: list[Operation], residual: nn.Module, inner: Iterable[Operation]) -> None:
    """Append a function and its add & norm; points of `inner` count from the function's input."""
    start = len(parts)
    order = residual.order if isinstance(residual, Residual) else "none"
    if order == "pre" and not isinstance(residual.norm, nn.Identity):
        parts.append(Operation(type(residual.norm).__name__, "", (start,)))
    base = len(parts)
    parts += (part._replace(inputs=tuple(base + i for i in part.inputs)) for part in inner)
    if getattr(residual, "scale", None) is not None:
        parts.append(Operation("layer scale", "", (len(parts),)))
    if order != "none":
        parts.append(Operation("+", "", (start, len(parts))))
    if order == "post":
        parts.append(Operation(type(residual.norm).__name__, "", (len(parts),)))
    if not isinstance(residual, Residual):
        parts[-1] = parts[-1]._replace(detail=f"inside a {type(residual).__name__}")


def _attention(
    name: str, attention: nn.Module, more: str = "", *, inputs: tuple[int, ...] = (0,)
) -> Operation:
    if isinstance(attention, WrittenAttention):
        kind = f"{attention.num_heads} heads, {attention.memory_class.__name__}"
        return Operation(name, f"{kind}, {more}", inputs)
    if not isinstance(attention, MultiHead):
        return Operation(name, ", ".join(filter(None, (type(attention).__name__, more))), inputs)
    if type(attention) is not MultiHead:
        more = ", ".join(filter(None, (type(attention).__name__, more)))
    heads, key_heads = attention.num_heads, attention.key_heads
    details = [f"{heads} head{'s' if heads > 1 else ''}"]
    if isinstance(attention.query, Linear):
        details[0] += f" of {attention.query.out_features // heads}"
    details += [] if key_heads == heads else [f"{key_heads} of keys and values"]
    details += [more, *_read_details(attention.read)]
    if attention.positions is not None:
        details.append(positions_name(attention.positions))
    details += [] if attention.query_norm is None else ["normalized queries and keys"]
    details += [] if attention.output_gate is None else ["gated"]
    if attention.register_keys is not None:
        count = attention.register_keys.shape[1]
        details.append(f"{count} register{'s' if count > 1 else ''}")
    details += ["no W_o"] if isinstance(attention.output, nn.Identity) else []
    return Operation("multi-head " * (heads > 1) + name, ", ".join(filter(None, details)), inputs)


def _read_details(read: Read) -> list[str]:
    """Return what differs from softmax(<q, k> / sqrt(size))."""
    score, choice, details = type(read.score), read.choice, []
    if score is not ScaledDot:
        details.append(f"score {score.__name__}")
    if type(choice) is not Soft:
        details.append(f"choice {type(choice).__name__}")
    elif choice.log_beta is not None:
        details.append("learned beta")
    elif isinstance(choice.beta, Tensor) or choice.beta != 1:
        details.append("beta" if isinstance(choice.beta, Tensor) else f"beta {choice.beta:g}")
    if read.mask is not None:
        details.append(f"mask {type(read.mask).__name__}")
    if read.bias is not None:
        details.append(f"bias {type(read.bias).__name__}")
    return details


def _feedforward(module: nn.Module) -> Operation:
    if not isinstance(module, FeedForward | DenseLayer):
        return Operation("feed-forward", type(module).__name__, (0,))
    activation = module.activation
    if not isinstance(activation, str):
        activation = getattr(activation, "__name__", type(activation).__name__)
    if isinstance(module, DenseLayer):
        return Operation("dense layer", ", ".join([*_sizes(module.map), activation]), (0,))
    gate = "" if module.gate is None else "gated "
    details = [*_sizes(module.expand, module.contract), f"{gate}{activation}"]
    return Operation("feed-forward", ", ".join(details), (0,))


def _sizes(*layers: nn.Module) -> list[str]:
    """Return the sizes before and after each layer, if all are layers of this package."""
    sizes = []
    for layer in layers:
        if not isinstance(layer, Linear):
            return []
        sizes = [*(sizes or [layer.in_features]), layer.out_features]
    return [" -> ".join(map(str, sizes))]


def _recurrent_encoder(encoder: nn.Module) -> Block:
    """Return the layers of a recurrent encoder; "both directions" have weights of their own."""
    if isinstance(encoder, SelfAttentiveEncoder):
        cells = cast("list[SelfAttentiveCell]", list(encoder.forward_cells))
        parts = _self_attentive(cells[0], "h", "i", 0)
        if _is_two_sided(encoder):
            parts = [part._replace(name=f"{part.name}, both directions") for part in parts]
        return Block("encoder layer", len(cells), tuple(parts))
    if not isinstance(encoder, RecurrentEncoder):
        return Block("encoder layer", 1, (Operation(type(encoder).__name__, "", (0,)),))
    cell = encoder.cell.upper()
    detail, delayed = f"h_i = {cell}(x_i, h_{{i-1}})", "h_{i-1}"
    if _is_two_sided(encoder):
        detail += f", g_i = {cell}(x_i, g_{{i+1}}), result [h_i; g_i]"
        delayed += ", g_{i+1}"
        cell += ", both directions"
    return Block(
        "encoder layer", encoder.layers, (Operation(cell, detail, (0,), delayed=((1, delayed),)),)
    )


def _is_two_sided(encoder: nn.Module) -> bool:
    if isinstance(encoder, SelfAttentiveEncoder):
        return len(encoder.backward_cells) > 0
    return isinstance(encoder, RecurrentEncoder) and encoder.directions == 2


def _self_attentive(cell: SelfAttentiveCell, symbol: str, step: str, start: int) -> list[Operation]:
    """Return the read of the past states and the cell of a layer whose input is point `start`."""
    before, past = f"{symbol}_{{{step}-1}}", f"{symbol}_1 .. {symbol}_{{{step}-1}}"
    query, inputs = f"query {before}", ()
    if cell.reads_first:
        has_feedback = cell.feedback_weight is not None
        query = "query [input; last result]" if has_feedback else "query: the input"
        inputs = (start,)
    details = [f"reads {past}", query, *_read_details(cell.read)]
    read = Operation("self-attention", ", ".join(details), inputs, delayed=((start + 2, past),))
    kind = type(cell.cell).__name__.removesuffix("Cell")
    detail = f"state {symbol}_{step} of size {cell.hidden}, the read in place of {before}"
    return [read, Operation(kind, detail, (start, start + 1))]


def _steps(core: RecurrentDecoderCore) -> Block:
    """Return one step of a recurrent decoder."""
    parts: list[Operation] = []
    has_start = core.encodes and core.in_order
    final = "[h_n; g_1]" if has_start and _is_two_sided(core.encoder) else "h_n"
    initial = f"s_0 = tanh(W {final} + b)" if len(core.bridges) else f"s_0 = {final}"
    for number, cell in enumerate(core.cells, 1):
        start, own = len(parts), len(parts) + 1
        if isinstance(cell, SelfAttentiveCell):
            layer = _self_attentive(cell, "s", "j", start)
        else:
            kind = type(cell).__name__.removesuffix("Cell")
            size = f" of size {cell.state_weight.shape[1]}" if isinstance(cell, Cell) else ""
            detail = f"state s_j{size}"
            layer = [Operation(kind, detail, (start,), delayed=((own, "s_{j-1}"),))]
        if not core.in_order:  # one step from zeros, without a past
            detail = "one step from a state of zeros"
            layer = [layer[-1]._replace(detail=detail, inputs=(start,), delayed=())]
        if len(core.cells) > 1:
            layer = [part._replace(name=f"{part.name}, layer {number}") for part in layer]
        if has_start:
            detail = f"{layer[0].detail}, {initial}"
            layer[0] = layer[0]._replace(reads="s_0", detail=detail)
        parts += layer
    top, result = len(parts), "s_j; x'_j"
    inputs: tuple[int, ...] = (0, top)
    if core.read is not None:
        values = "[h_i; g_i]" if _is_two_sided(core.encoder) else "h_i"
        values = values if core.value_map is None else f"W_V {values}"
        details = [f"c_j = sum_i alpha_ij {values}", "query s_j", *_read_details(core.read)]
        parts.append(Operation("attention", ", ".join(details), (top,), reads="h^Enc"))
        result, inputs = "s_j; c_j; x'_j", (0, top, top + 1)
    details = [f"tanh(W [{result}] + b)", *_sizes(core.readout)]
    parts.append(Operation("readout", ", ".join(details), inputs))
    if core.read is not None and core.in_order:
        cell = 1 if isinstance(core.cells[0], SelfAttentiveCell) else 0
        delayed = (*parts[cell].delayed, (top + 1, "c_{j-1}"))
        parts[cell] = parts[cell]._replace(delayed=delayed)
    return Block("each step j" if core.in_order else "each query j", 1, tuple(parts))
