"""Blocks with a window of self-attention: dense masks, patterns of blocks, caches, refusals."""

import pytest
import torch
from torch import Tensor

from regard.attention.masks import Padded, Unpadded, dense, intersect, padding
from regard.layers.positions.base import PositionalEncoding
from regard.layers.positions.config import (
    AlibiConfig,
    LearnedConfig,
    NoPositionsConfig,
    RotaryConfig,
)
from regard.layers.positions.rotary import Rotary
from regard.layers.positions.sinusoidal import Sinusoidal
from regard.models.config import LanguageModelConfig, ModelConfig, TaggerConfig
from regard.models.cores.config import TransformerConfig
from regard.models.cores.transformer import Transformer

SMALL = {"width": 12, "heads": 3, "feedforward": 17, "head_dim": 4}
LENGTHS = torch.tensor([11, 7, 1])
ROTARY = RotaryConfig(base=50.0, window_base=7.0, scaling="linear", factor=3.0)


def make(**options) -> Transformer:
    torch.manual_seed(4)
    core = Transformer(**SMALL | options).double().eval()
    with torch.no_grad():
        for weight in core.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return core


def items(rows: int = 3, time: int = 11) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(rows, time, 12, dtype=torch.float64, generator=generator)


def exact(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("window", [1, 2, 5, 40])
@pytest.mark.parametrize("positions", [LearnedConfig(), AlibiConfig(), RotaryConfig()])
@pytest.mark.parametrize("kind", [Padded, Unpadded])
def test_a_windowed_encoder_is_a_whole_one_with_a_dense_mask(window, positions, kind):
    options = {"layers": 3, "positions": positions, "decodes": False}
    core, whole = make(window=window, pattern="SLS", **options), make(**options)
    source = Padded(items(), LENGTHS) if kind is Padded else Unpadded.of(items())
    distance = (torch.arange(11) - torch.arange(11)[:, None]).abs()
    near = intersect(dense(distance <= window // 2), source.mask)
    vectors, results = [items().requires_grad_() for _ in range(2)], []
    results.append(core.encode(source._replace(items=vectors[0])).items)
    hidden = whole.positions(vectors[1])
    for block, mask in zip(whole.encoder, (near, source.mask, near), strict=True):
        hidden = block(hidden, mask)
    results.append(whole.encoder_norm(hidden))
    exact(*results)
    direction = torch.randn(3, 11, 12, dtype=torch.float64)
    gradients = []
    for model, given, result in zip((core, whole), vectors, results, strict=True):
        inputs = [given, *model.parameters()]
        gradients.append(torch.autograd.grad((result * direction).sum(), inputs))
    for ours, expected in zip(*gradients, strict=True):
        exact(ours, expected)


def test_a_block_without_a_mask_keeps_its_window():
    core = make(window=3, layers=1, decodes=False, positions=LearnedConfig())
    (block,) = core.encoder
    expected = block(items(), block.mask())
    assert torch.equal(block(items(), None), expected)
    lengths = padding(torch.full((len(items()),), 9))
    assert torch.equal(block(items(), lengths), block(items(), block.mask(lengths)))
    block.window = None
    assert not torch.allclose(block(items(), None), expected)


def single(block, options, *, window: bool) -> Transformer:
    """Return a model of one layer with the weights of a block, without other norms."""
    is_encoder = block.__class__.__name__ == "EncoderBlock"
    base = {"base": 7.0} if window else {"base": 50.0, "scaling": "linear", "factor": 3.0}
    options = options | {"layers": 1, "positions": RotaryConfig(**base)}
    options |= {"decodes": False} if is_encoder else {"encodes": block.cross is not None}
    core = make(**options, window=4 if window else None)
    (core.encoder if is_encoder else core.decoder)[0].load_state_dict(block.state_dict())
    return core


@pytest.mark.parametrize("pattern", ["SSL", "LSS", "L/SSL", "SSL/LLS", "SLS/LLL"])
def test_a_pattern_is_a_chain_of_models_of_one_layer(pattern):
    options = {"final_norm": False}
    own = {"layers": 3, "positions": ROTARY, "window": 4, "pattern": pattern}
    source, targets = Padded(items(), LENGTHS), items(time=9)
    has_two = "/" in pattern
    for side in ("encoder", "decoder"):
        letters = pattern.split("/")[0 if side == "encoder" else -1] * 3
        stacks = {} if has_two else {"encodes": side != "decoder", "decodes": side != "encoder"}
        core = make(**own, **options, **stacks)
        blocks = core.encoder if side == "encoder" else core.decoder
        assert [block.window for block in blocks] == [
            4 if letter == "S" else None for letter in letters[:3]
        ]
        encoded = core.encode(source) if core.encodes else None
        if side == "encoder":
            hidden = source
            for block in core.encoder:
                hidden = single(block, options, window=block.window is not None).encode(hidden)
            assert encoded is not None
            exact(encoded.items, hidden.items)
            continue
        hidden = targets
        for block in core.decoder:
            model = single(block, options, window=block.window is not None)
            hidden = model(hidden, model.begin(encoded, rows=3))
        exact(core(targets, core.begin(encoded, rows=3)), hidden)


def test_steps_are_the_whole_pass_and_only_whole_blocks_keep_all():
    core = make(layers=4, window=3, pattern="SSSL", positions=ROTARY, encodes=False)
    targets, state, outputs = items(time=40), core.begin(None, rows=3), []
    with torch.no_grad():
        _, state = core.steps(targets[:, :5], state)
        for target in targets[:, 5:].unbind(1):
            out, state = core.step(target, state)
            outputs.append(out)
        exact(torch.stack(outputs, 1), core(targets, core.begin(None, rows=3))[:, 5:])
    assert [past.size for past in state.pasts] == [3, 3, 3, 40]
    assert state.pasts[0].keys.untyped_storage().nbytes() < 3 * 3 * 4 * 8 * 16


def test_blocks_with_a_window_keep_a_third_of_the_bytes_of_a_long_text():
    sizes = {}
    for pattern, size in (("SSSL", 32), ("L", None)):
        core = make(layers=4, window=size, pattern=pattern if size else None, encodes=False).float()
        with torch.no_grad():
            _, state = core.steps(torch.randn(1, 1000, 12), core.begin(None, rows=1))
            for _ in range(24):
                _, state = core.step(torch.randn(1, 12), state)
        assert state.position == 1024
        tensors = [tensor for past in state.pasts for tensor in (past.keys, past.values)]
        storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}
        sizes[pattern] = sum(tensor.untyped_storage().nbytes() for tensor in storages.values())
    assert sizes["SSSL"] <= 0.35 * sizes["L"]


def test_windows_of_an_encoder_decoder():
    def windows(**options):
        core = make(layers=2, window=3, **options)
        return [
            [getattr(block, "window", None) for block in stack]
            for stack in (core.encoder, core.decoder)
        ]

    assert windows() == [[None, None], [3, 3]]
    assert windows(pattern="S") == [[3, 3], [3, 3]]
    assert windows(pattern="SL/L") == [[3, None], [None, None]]
    assert windows(inducing_points=2, pattern="L/SL")[1] == [3, None]


def test_a_first_block_without_a_norm_reads_the_normalized_embeddings():
    core = make(layers=2, embedding_norm=True, first_norm=False, positions=RotaryConfig())
    for stack in (core.encoder, core.decoder):
        assert not [*stack[0].add_attention.norm.parameters()]
        assert [*stack[1].add_attention.norm.parameters()]
    block, x = core.encoder[0], items()
    normed = core.encoder_embedding_norm(x)
    middle = normed + block.attention(normed)
    exact(block(normed, None), middle + block.feedforward(block.add_feedforward.norm(middle)))


def test_positions_of_ones_own_rotate_all_blocks():
    core = make(layers=2, window=3, pattern="SL", encodes=False, positions=ROTARY)
    own: PositionalEncoding = core.decoder[0].attention.positions
    other = make(layers=2, window=3, pattern="SL", encodes=False)
    assert own.base == 7.0
    assert own.scaling is None
    core = Transformer(**SMALL, layers=2, window=3, pattern="SL", positions=own, decodes=False)
    assert [block.attention.positions for block in core.encoder] == [own, own]
    assert [block.attention.positions for block in other.decoder] == [None, None]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pattern": "SX", "window": 3}, "pattern must be letters S .* got 'SX'"),
        ({"pattern": "LL", "window": 3}, "pattern must be letters S .* got 'LL'"),
        ({"pattern": "S/L/S", "window": 3}, "pattern must be letters S"),
        ({"pattern": "SL"}, "pattern must have S if window is given, .* got SL with window=None"),
        ({"pattern": "LN", "window": 3}, "pattern must have S if window is given, and only then"),
        ({"first_norm": False, "norm_order": "post"}, "first_norm must be true with"),
        ({"first_norm": False, "norm_order": "none"}, "first_norm must be true with"),
    ],
)
def test_settings_that_do_not_fit_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**fields)


BASE = {"positions": ROTARY, "window": 3}


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (TaggerConfig, {"pattern": "SLL", "window": 3}, "divides 4, the number of blocks, got SLL"),
        (ModelConfig, {"pattern": "S/SSL", "window": 3}, "divides 4, .* got SSL"),
        (
            LanguageModelConfig,
            {"pattern": "L/S", "window": 3},
            "^core.pattern must be .* got L/S",
        ),
        (TaggerConfig, {"window": 3, "inducing_points": 2}, "window must not .* inducing_points"),
        (ModelConfig, {"window": 3, "inducing_points": 2, "pattern": "S"}, "window must not"),
        (TaggerConfig, BASE, "positions.window_base needs blocks"),
        (TaggerConfig, {"positions": ROTARY}, "positions.window_base needs blocks"),
        (ModelConfig, BASE | {"pattern": "S"}, "positions.window_base needs blocks"),
        (TaggerConfig, BASE | {"pattern": "SN"}, "positions.window_base needs blocks"),
        (TaggerConfig, {"pattern": "LN"}, "must have blocks S or L, .* got LN and sinusoidal"),
        (TaggerConfig, {"pattern": "N", "positions": AlibiConfig()}, "core.pattern with N must"),
    ],
)
def test_patterns_that_do_not_fit_a_model_are_refused(kind, fields, message):
    with pytest.raises(ValueError, match=message):
        kind(core=TransformerConfig(**fields))
    kind(core=TransformerConfig(window=3))


@pytest.mark.parametrize("positions", [RotaryConfig(), AlibiConfig()])
def test_a_block_without_positions_is_a_block_of_a_model_without_them(positions):
    own = {"layers": 3, "window": 4, "pattern": "SLN/LNS", "positions": positions}
    core, bare = (
        make(**own),
        make(layers=3, window=4, pattern="SLL/LLS", positions=NoPositionsConfig()),
    )
    parts = core.encoder[2].attention, core.decoder[1].attention
    assert [(part.positions, part.read.bias) for part in parts] == [(None, None)] * 2
    assert core.encoder[1].attention.positions or core.encoder[1].attention.read.bias
    bare.load_state_dict(core.state_dict(), strict=False)
    exact(core.encoder[2](items(), None), bare.encoder[2](items(), None))
    exact(core.decoder[1](items(), None), bare.decoder[1](items(), None))
    assert not torch.equal(core.encoder[1](items(), None), bare.encoder[1](items(), None))
    if isinstance(positions, RotaryConfig):
        Transformer(**SMALL, layers=2, pattern="LN", positions=Rotary(4), encodes=False)
    with pytest.raises(ValueError, match="pattern with N must have blocks S or L"):
        Transformer(**SMALL, layers=2, pattern="LN", positions=Sinusoidal(12), encodes=False)


def test_sets_have_no_window():
    with pytest.raises(ValueError, match="window has no effect with in_order=False"):
        Transformer(in_order=False, window=3, pattern="S/L")
