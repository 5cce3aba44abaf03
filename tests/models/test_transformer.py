"""The Transformer core against torch's, and what it knows of order."""

import pytest
import torch
from torch import nn

from regard.attention.masks import Padded
from regard.models.config import TransformerConfig, paper_base
from regard.models.cores.transformer import TransformerCore
from tests.helpers import close


def theirs_from(core: TransformerCore, config: TransformerConfig) -> nn.Transformer:
    """torch's Transformer with the weights of ours."""
    layer = nn.TransformerEncoderLayer(
        config.width, config.heads, config.feedforward, 0.0, config.activation,
        batch_first=True, norm_first=config.norm == "pre",
    )  # fmt: skip
    final = nn.LayerNorm(config.width)
    torch_model = nn.Transformer(
        config.width, config.heads, config.layers, config.decoder_layers, config.feedforward, 0.0, config.activation,
        custom_encoder=nn.TransformerEncoder(layer, config.layers, final, enable_nested_tensor=False),
        batch_first=True, norm_first=config.norm == "pre",
    ).double()  # fmt: skip
    state = torch_model.state_dict()
    for side, blocks in (("encoder", core.encoder), ("decoder", core.decoder)):
        for i, block in enumerate(blocks):
            at = f"{side}.layers.{i}."
            reads = {"self_attn": block.attention} | ({"multihead_attn": block.cross} if side == "decoder" else {})
            for name, part in reads.items():
                three = (part.query, part.key, part.value)
                state[f"{at}{name}.in_proj_weight"] = torch.cat([linear.weight for linear in three])
                state[f"{at}{name}.in_proj_bias"] = torch.cat([linear.bias for linear in three])
                _copy(state, f"{at}{name}.out_proj", part.output)
            _copy(state, f"{at}linear1", block.feedforward.expand)
            _copy(state, f"{at}linear2", block.feedforward.contract)
            norms = [block.add_attention, *([block.add_cross] if side == "decoder" else []), block.add_feedforward]
            for j, residual in enumerate(norms):
                _copy(state, f"{at}norm{j + 1}", residual.norm)
    torch_model.load_state_dict(state)
    return torch_model.eval()


def _copy(state: dict, name: str, module: nn.Module) -> None:
    state[f"{name}.weight"], state[f"{name}.bias"] = module.weight, module.bias


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_transformer_equals_torchs(norm, activation):
    config = TransformerConfig(
        layers=2, decoder_layers=3, width=12, heads=3, feedforward=17, norm=norm, activation=activation,
        positions="none",
    )  # fmt: skip
    core = TransformerCore(config).double().eval()
    _shake(core)
    theirs = theirs_from(core, config)
    if norm == "post":  # torch normalises a post-norm stack once more at its end; ours, as the paper's, does not
        theirs.encoder.norm = theirs.decoder.norm = None
    else:
        _same_norms(theirs, core)
    source, targets = torch.randn(2, 7, 12).double(), torch.randn(2, 5, 12).double()
    lengths = torch.tensor([7, 3])
    absent = torch.arange(7) >= lengths[:, None]
    future = ~torch.ones(5, 5, dtype=torch.bool).tril()
    expected = theirs(source, targets, tgt_mask=future, src_key_padding_mask=absent, memory_key_padding_mask=absent)
    close(core(targets, core.start(Padded(source, lengths))), expected)


def _same_norms(theirs: nn.Transformer, core: TransformerCore) -> None:
    theirs.encoder.norm.load_state_dict(core.encoder_norm.state_dict())
    theirs.decoder.norm.load_state_dict(core.decoder_norm.state_dict())


def _shake(core: TransformerCore) -> None:
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(torch.randn_like(parameter) / 10)


def test_encoder_without_positions_knows_no_order():
    core = TransformerCore(TransformerConfig(layers=2, width=12, heads=3, positions="none")).double()
    source, targets = torch.randn(1, 7, 12).double(), torch.randn(1, 5, 12).double()
    shuffled = source[:, torch.randperm(7)]
    lengths = torch.tensor([7])
    close(core(targets, core.start(Padded(shuffled, lengths))), core(targets, core.start(Padded(source, lengths))))


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_positions_tell_the_order(positions):
    core = TransformerCore(TransformerConfig(layers=2, width=12, heads=3, positions=positions)).double()
    source, targets = torch.randn(1, 7, 12).double(), torch.randn(1, 5, 12).double()
    lengths = torch.tensor([7])
    a, b = (core(targets, core.start(Padded(items, lengths))) for items in (source, source.flip(1)))
    assert (a - b).abs().max() > 1e-3


def test_blocks_share_no_parameters():
    core = TransformerCore(TransformerConfig(layers=3))
    parameters = [id(p) for block in (*core.encoder, *core.decoder) for p in block.parameters()]
    assert len(set(parameters)) == len(parameters)
    counts = [sum(p.numel() for p in block.parameters()) for block in core.encoder]
    assert len(set(counts)) == 1
    assert counts[0] == 4 * (128 * 128 + 128) + 2 * 128 * 256 + 256 + 128 + 4 * 128


def test_paper_base_has_the_papers_sizes():
    config = paper_base()
    assert (config.layers, config.width, config.heads, config.feedforward) == (6, 512, 8, 2048)


def test_config_refuses_sizes_below_one():
    with pytest.raises(ValueError, match="layers must be at least 1, but is 0"):
        TransformerConfig(layers=0)
