"""Transformer core: equality with torch's, positions, heads and scores."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from regard.attention.biases import Alibi, RelativeBias
from regard.attention.masks import Padded, Unpadded
from regard.attention.scores import Dot, General
from regard.layers.positions.config import (
    AlibiConfig,
    NoPositionsConfig,
    RelativeConfig,
    RotaryConfig,
)
from regard.models.cores.config import TransformerConfig
from regard.models.cores.transformer import Transformer
from tests.helpers import SEQUENCE_POSITIONS, close

POSITIONS = {kind.name: kind for kind in SEQUENCE_POSITIONS}


def to_torch(core: Transformer, config: TransformerConfig) -> nn.Transformer:
    """Return torch's Transformer with the weights of `core`."""
    layer = nn.TransformerEncoderLayer(
        config.width,
        config.heads,
        config.feedforward,
        0.0,
        config.activation,
        batch_first=True,
        norm_first=config.norm_order == "pre",
    )
    final = nn.LayerNorm(config.width)
    torch_model = nn.Transformer(
        config.width,
        config.heads,
        config.layers,
        config.decoder_layers,
        config.feedforward,
        0.0,
        config.activation,
        custom_encoder=nn.TransformerEncoder(
            layer, config.layers, final, enable_nested_tensor=False
        ),
        batch_first=True,
        norm_first=config.norm_order == "pre",
    ).double()
    state = torch_model.state_dict()
    for side, blocks in (("encoder", core.encoder), ("decoder", core.decoder)):
        for i, block in enumerate(blocks):
            at = f"{side}.layers.{i}."
            reads, norms = {"self_attn": block.attention}, [block.add_attention]
            if side == "decoder":
                reads["multihead_attn"] = block.cross
                norms.append(block.add_cross)
            for name, part in reads.items():
                three = (part.query, part.key, part.value)
                state[f"{at}{name}.in_proj_weight"] = torch.cat([linear.weight for linear in three])
                state[f"{at}{name}.in_proj_bias"] = torch.cat([linear.bias for linear in three])
                _copy(state, f"{at}{name}.out_proj", part.output)
            _copy(state, f"{at}linear1", block.feedforward.expand)
            _copy(state, f"{at}linear2", block.feedforward.contract)
            for j, residual in enumerate([*norms, block.add_feedforward]):
                _copy(state, f"{at}norm{j + 1}", residual.norm)
    torch_model.load_state_dict(state)
    return torch_model.eval()


def _copy(state: dict, name: str, module: nn.Module) -> None:
    state[f"{name}.weight"], state[f"{name}.bias"] = module.weight, module.bias


@pytest.mark.parametrize(
    ("norm", "final"), [("post", None), ("post", True), ("pre", None), ("pre", False)]
)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_transformer_equals_that_of_torch(norm, final, activation):
    config = TransformerConfig(
        layers=2,
        decoder_layers=3,
        width=12,
        heads=3,
        feedforward=17,
        norm_order=norm,
        final_norm=final,
        activation=activation,
        positions=NoPositionsConfig(),
    )
    core = Transformer(config).double().eval()
    _randomize(core)
    torch_model = to_torch(core, config)
    has_final = norm == "pre" if final is None else final
    if not has_final:  # torch normalizes the stack once more; ours, as the paper's, does not
        torch_model.encoder.norm = torch_model.decoder.norm = None
    else:
        torch_model.encoder.norm.load_state_dict(core.encoder_norm.state_dict())
        torch_model.decoder.norm.load_state_dict(core.decoder_norm.state_dict())
    source, targets = torch.randn(2, 7, 12).double(), torch.randn(2, 5, 12).double()
    lengths = torch.tensor([7, 3])
    absent = torch.arange(7) >= lengths[:, None]
    future = ~torch.ones(5, 5, dtype=torch.bool).tril()
    expected = torch_model(
        source,
        targets,
        tgt_mask=future,
        src_key_padding_mask=absent,
        memory_key_padding_mask=absent,
    )
    close(core(targets, core.start(Padded(source, lengths))), expected)


def _randomize(core: Transformer) -> None:
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(torch.randn_like(parameter) / 10)


def test_encoder_without_positions_is_equivariant():
    core = Transformer(layers=2, width=12, heads=3, positions=NoPositionsConfig()).double()
    source, targets = torch.randn(1, 7, 12).double(), torch.randn(1, 5, 12).double()
    shuffled = Unpadded.of(source[:, torch.randperm(7)])
    close(core(targets, core.start(shuffled)), core(targets, core.start(Unpadded.of(source))))


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "alibi", "relative"])
def test_positions_break_equivariance(positions):
    core = Transformer(layers=2, width=12, heads=3, positions=POSITIONS[positions]()).double()
    _randomize(core)  # relative positions start at zero
    source, targets = torch.randn(1, 7, 12).double(), torch.randn(1, 5, 12).double()
    rolled = core(targets, core.start(Unpadded.of(source.roll(2, 1))))
    assert (rolled - core(targets, core.start(Unpadded.of(source)))).abs().max() > 1e-3


def test_blocks_share_no_parameters():
    core = Transformer(TransformerConfig(layers=3))
    parameters = [id(p) for block in (*core.encoder, *core.decoder) for p in block.parameters()]
    assert len(set(parameters)) == len(parameters)
    counts = [sum(p.numel() for p in block.parameters()) for block in core.encoder]
    assert len(set(counts)) == 1
    assert counts[0] == 4 * (128 * 128 + 128) + 2 * 128 * 256 + 256 + 128 + 4 * 128


def test_relative_positions_are_one_table_per_stack_shared_by_its_blocks():
    core = Transformer(TransformerConfig(layers=3, heads=4, positions=RelativeConfig()))
    sides = [[block.attention.read.bias for block in side] for side in (core.encoder, core.decoder)]
    for side, two_sided in zip(sides, (True, False), strict=True):
        assert isinstance(side[0], RelativeBias)
        assert side[0].two_sided is two_sided
        assert all(bias is side[0] for bias in side)
    assert sides[0][0] is not sides[1][0]
    assert all(block.cross.read.bias is None for block in core.decoder)


def test_alibi_is_in_self_attention_only():
    core = Transformer(TransformerConfig(layers=1, heads=3, positions=AlibiConfig()))
    assert isinstance(core.encoder[0].attention.read.bias, Alibi)
    assert isinstance(core.decoder[0].attention.read.bias, Alibi)
    assert core.decoder[0].cross.read.bias is None


@pytest.mark.parametrize("positions", ["alibi", "relative"])
def test_relative_positions_are_invariant_to_a_shift(positions):
    config = TransformerConfig(layers=1, width=12, heads=3, positions=POSITIONS[positions]())
    core = Transformer(config).double()
    _randomize(core)
    heads, items = core.encoder[0].attention, torch.randn(1, 7, 12).double()
    query = heads.query(items).unflatten(-1, (3, 4)).transpose(1, 2)
    full = heads.read.prepare_inputs(query, heads.memory(items)).bias_tensor()
    part = heads.read.prepare_inputs(query[:, :, 2:], heads.memory(items[:, 2:])).bias_tensor()
    close(full[..., 2:, 2:], part)
    assert part.std() > 0.01


@pytest.mark.parametrize("window", [1, 3])
def test_window_is_the_number_of_targets_that_a_block_sees(window):
    core = Transformer(TransformerConfig(layers=1, width=12, heads=3, window=window)).double()
    targets = torch.randn(1, 7, 12).double().requires_grad_()
    source = Padded(torch.randn(1, 5, 12).double(), torch.tensor([5]))
    out = core(targets, core.start(source))
    (grad,) = torch.autograd.grad(out[0, 5, 0], targets)
    has_gradient = grad[0].abs().amax(-1) > 0
    assert has_gradient.tolist() == [5 - window < position <= 5 for position in range(7)]


def test_past_of_a_window_does_not_grow_beyond_it():
    core = Transformer(TransformerConfig(layers=2, width=12, heads=3, window=3)).double()
    state = core.start(Padded(torch.randn(1, 5, 12).double(), torch.tensor([5])))
    for _ in range(7):
        _, state = core.step(torch.randn(1, 12).double(), state)
    assert [past.size for past in state.pasts] == [3, 3]


def test_key_heads_reduce_every_memory():
    core = Transformer(TransformerConfig(layers=2, width=12, heads=6, key_heads=2)).double()
    state = core.start(Padded(torch.randn(1, 5, 12).double(), torch.tensor([5])))
    _, state = core.step(torch.randn(1, 12).double(), state)
    for memory in (*state.sources, *state.pasts):
        assert memory.keys.shape[1] == memory.values.shape[1] == 2


def test_cosine_heads_ignore_norms_and_learn_their_scale():
    core = Transformer(TransformerConfig(layers=1, width=12, heads=3, score="cosine")).double()
    read = core.encoder[0].attention.read
    query, keys = torch.randn(1, 3, 5, 4).double(), torch.randn(1, 3, 7, 4).double()
    close(read.score(query * 5, keys / 7), read.score(query, keys))
    assert read.choice.beta.flatten().tolist() == pytest.approx([10.0] * 3)
    assert read.choice.log_beta.requires_grad


def test_soft_cap_bounds_every_score():
    core = Transformer(TransformerConfig(layers=1, width=12, heads=3, soft_cap=0.25))
    decoder = core.decoder[0]
    for attention in (core.encoder[0].attention, decoder.attention, decoder.cross):
        scores = attention.read.score(100 * torch.randn(3, 5, 4), torch.randn(3, 7, 4))
        assert 0.2 < scores.abs().max() <= 0.25


@pytest.mark.parametrize("feedforward", [24, "dense"])
def test_branches_of_post_norm_begin_small_in_each_stack(feedforward):
    sizes = {"layers": 2, "decoder_layers": 3, "width": 16, "heads": 4, "feedforward": feedforward}
    torch.manual_seed(3)
    pre = Transformer(**sizes, norm_order="pre")
    torch.manual_seed(3)
    post = Transformer(**sizes, norm_order="post")
    others = dict(post.named_parameters())
    for name, weight in pre.named_parameters():
        is_last = name.endswith(
            ("attention.output.weight", "cross.output.weight", "contract.weight", "map.weight")
        )
        number = {"encoder": 4, "decoder": 9}.get(name.split(".")[0], 1) if is_last else 1
        if name in others:  # pre has one more norm
            close(others[name], weight / number**0.5)


@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_deep_stacks_keep_the_items_apart(norm_order):
    """Gradients of targets' items hardly fall from 1 + 1 to 12 + 12 blocks, and do not equalize."""
    norms, likeness = [], []
    for layers in (1, 12):
        core = Transformer(layers=layers, width=32, heads=4, feedforward=64, norm_order=norm_order)
        targets = torch.randn(3, 6, 32, requires_grad=True)
        hidden = core(targets, core.start(Padded(torch.randn(3, 7, 32), torch.tensor([7, 7, 7]))))
        (hidden * torch.randn_like(hidden)).sum().backward()
        assert targets.grad is not None
        norms.append(float(targets.grad.norm()))
        likeness.append(
            functional.cosine_similarity(hidden[:, 1:], hidden[:, :-1], dim=-1).mean().item()
        )
    assert norms[1] > norms[0] / 3
    if norm_order == "post":
        assert likeness[1] < likeness[0] + 0.2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"head_key_dim": 3, "head_dim": 5}, "head_key_dim must be 5 with score=scaled-dot"),
        ({"score": "cosine", "head_key_dim": 3}, "head_key_dim must be 32 with score=cosine"),
        ({"score": "dot", "score_hidden": 3}, "score_hidden must not be given with score=dot"),
        ({"score": "concat", "key_heads": 2}, "key_heads must be heads with score=concat"),
        (
            {"output_projection": False, "head_value_dim": 3},
            "output_projection must be true unless .* width=128, got 4",
        ),
        ({"norm_order": "none", "norm": "rms"}, "norm must not be given"),
        ({"norm_order": "none", "embedding_norm": True}, "embedding_norm must not be given"),
        ({"norm_order": "none", "final_norm": False}, "final_norm must not be given"),
        ({"shared_positions": False}, "shared_positions must be true with positions=sinusoidal"),
        (
            {"positions": AlibiConfig(), "inducing_points": 4},
            "positions must not be alibi with inducing_points",
        ),
        ({"score": "additive", "positions": RotaryConfig()}, "with rotary positions"),
        (
            {"width": 15, "heads": 3, "positions": RotaryConfig()},
            "head_dim must be even with rotary positions, got 5",
        ),
        (
            {"width": 12, "heads": 3, "positions": RotaryConfig(dim=6)},
            "head_dim must be at least positions.dim=6 with rotary positions, got 4",
        ),
        ({"key_heads": 3}, "key_heads must divide heads=4, got 3"),
        ({"soft_cap": float("inf")}, "soft_cap must be .*, got inf"),
        ({"window": 0}, "window must be from 1 to .*, got 0"),
    ],
)
def test_config_rejects_sizes_that_do_not_fit(fields, message):
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**fields)


def test_own_score_compares_heads_of_unequal_sizes():
    sizes = {"layers": 1, "width": 12, "heads": 3, "head_key_dim": 5}
    core = Transformer(**sizes, score=lambda: General(4, 5, 2), decodes=False)
    assert core.encoder[0].attention.key.weight.shape == (15, 12)
    assert core.encode(Padded(torch.randn(2, 6, 12), torch.tensor([6, 4]))).items.isfinite().all()
    with pytest.raises(
        ValueError, match="head_key_dim must be head_dim=4 with the score Dot, got 5"
    ):
        Transformer(**sizes, score=Dot)
    with pytest.raises(ValueError, match="norm must be None with norm_order='none'"):
        Transformer(layers=1, width=12, heads=3, norm_order="none", norm=nn.LayerNorm)


def test_stack_of_the_lectures_is_multihead_attention_and_dense_layers_alone():
    core = Transformer(
        layers=2,
        width=12,
        heads=3,
        head_dim=5,
        score="dot",
        bias=False,
        norm_order="none",
        output_projection=False,
        positions=NoPositionsConfig(),
        feedforward="dense",
        decodes=False,
        head_value_dim=4,
    )
    core = core.double().eval()
    items = torch.randn(1, 7, 12).double()
    x = items[0]
    for block in core.encoder:
        attention, heads = block.attention, []
        w_q, w_k, w_v = attention.query.weight, attention.key.weight, attention.value.weight
        for h in range(3):
            q, k = (x @ w[5 * h : 5 * h + 5].t() for w in (w_q, w_k))
            heads.append((q @ k.t()).softmax(-1) @ (x @ w_v[4 * h : 4 * h + 4].t()))
        x = torch.relu(torch.cat(heads, -1) @ block.feedforward.map.weight.t())
    close(core.encode(Padded(items, torch.tensor([7]))).items[0], x)


def make_induced_core(points: int) -> Transformer:
    torch.manual_seed(2)
    sizes = {"layers": 2, "width": 12, "heads": 3, "feedforward": 17}
    config = TransformerConfig(**sizes, positions=NoPositionsConfig(), inducing_points=points)
    return Transformer(config, decodes=False).double().eval()


def test_inducing_points_are_invariant_to_order_and_padding():
    core, items = make_induced_core(3), torch.randn(2, 6, 12).double()
    out = core.encode(Padded(items, torch.tensor([6, 4]))).items
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    close(core.encode(Padded(items[:1, order], torch.tensor([6]))).items, out[:1, order])
    close(core.encode(Padded(items[1:, :4], torch.tensor([4]))).items, out[1:, :4])
    changed = items.clone()
    changed[0, 5] = torch.randn(12)
    assert (
        core.encode(Padded(changed, torch.tensor([6, 4]))).items[0, 0] - out[0, 0]
    ).abs().max() > 1e-6


def test_induced_block_by_hand():
    (block,) = make_induced_core(3).encoder[:1]
    x = torch.randn(1, 5, 12).double()
    normed = block.add_attention.norm(x)
    points = block.points[None] + block.gather(block.points[None], block.gather.memory(normed))
    read = x + block.attention(normed, block.attention.memory(points))
    close(block(x, None), read + block.feedforward(block.add_feedforward.norm(read)))


def test_a_block_that_stands_twice_in_a_stack_runs_twice() -> None:
    core = Transformer(layers=2, width=8, heads=2, feedforward=9, decodes=False).double()
    shared = copy.deepcopy(core)
    core.encoder[1].load_state_dict(core.encoder[0].state_dict())
    shared.encoder[1] = shared.encoder[0]
    items = Padded(torch.randn(2, 4, 8, dtype=torch.float64), torch.tensor([4, 3]))
    assert torch.equal(shared.encode(items).items, core.encode(items).items)
