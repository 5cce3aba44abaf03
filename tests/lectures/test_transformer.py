"""Claims of the lectures on the Transformer: add & norm, blocks, dependences, results."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.layers.blocks import DecoderBlock, EncoderBlock
from regard.layers.multihead import MultiHead
from regard.layers.positions.config import NoPositionsConfig
from regard.layers.residual import Residual
from regard.models.cores.config import TransformerConfig
from regard.models.cores.transformer import Transformer
from tests.helpers import close

ROOT = Path(__file__).parents[2]


def core_of(*, layers: int, norm_order: str, width: int = 12, heads: int = 3) -> Transformer:
    positions = NoPositionsConfig()
    config = TransformerConfig(
        layers=layers,
        width=width,
        heads=heads,
        feedforward=17,
        norm_order=norm_order,
        output_projection=norm_order != "none",  # as the plain stack of deck 001
        positions=positions,
    )
    return Transformer(config).double().eval()


def randomize(core: Transformer) -> Transformer:
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(torch.randn_like(parameter) / 5)
    return core


def layer_norm(x: Tensor, norm: nn.Module) -> Tensor:
    """Return LayerNorm over the last axis."""
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    return (x - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias


def multi_head(queries: Tensor, items: Tensor, heads: MultiHead, *, masked: bool = False) -> Tensor:
    """Return Concat(head_1 .. head_l) W^O, head by head; masked: score -infinity of later items."""
    size = len(heads.query.weight) // heads.num_heads
    outputs = []
    for rows in torch.arange(heads.num_heads * size).split(size):
        q, k, v = (
            x @ part.weight[rows].T + part.bias[rows]
            for x, part in ((queries, heads.query), (items, heads.key), (items, heads.value))
        )
        scores = q @ k.T / size**0.5
        if masked:
            scores = scores + torch.full_like(scores, float("-inf")).triu(1)
        outputs.append(scores.exp() / scores.exp().sum(-1, keepdim=True) @ v)
    return torch.cat(outputs, -1) @ heads.output.weight.T + heads.output.bias


def feed_forward(x: Tensor, network: nn.Module) -> Tensor:
    """Return relu(x W_1 + b_1) W_2 + b_2."""
    hidden = (x @ network.expand.weight.T + network.expand.bias).clamp(min=0)
    return hidden @ network.contract.weight.T + network.contract.bias


def add_norm(x: Tensor, residual: Residual, part: Callable[[Tensor], Tensor]) -> Tensor:
    """Return add & norm as in the lectures, LayerNorm(x + f(x)), or x + f(LayerNorm(x)) (pre)."""
    if residual.order == "pre":
        return x + part(layer_norm(x, residual.norm))
    return layer_norm(x + part(x), residual.norm)


def encoder_block(x: Tensor, block: EncoderBlock) -> Tensor:
    middle = add_norm(x, block.add_attention, lambda x: multi_head(x, x, block.attention))
    return add_norm(middle, block.add_feedforward, lambda x: feed_forward(x, block.feedforward))


def decoder_block(x: Tensor, source: Tensor | None, block: DecoderBlock) -> Tensor:
    x = add_norm(x, block.add_attention, lambda x: multi_head(x, x, block.attention, masked=True))
    if source is not None:
        x = add_norm(x, block.add_cross, lambda x: multi_head(x, source, block.cross))
    return add_norm(x, block.add_feedforward, lambda x: feed_forward(x, block.feedforward))


@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_stacks_of_blocks_are_the_formula(norm_order):
    core = randomize(core_of(layers=3, norm_order=norm_order))
    source, targets = torch.randn(7, 12).double(), torch.randn(5, 12).double()
    encoded, hidden = source, targets
    for block in core.encoder:
        encoded = encoder_block(encoded, block)
    encoded = layer_norm(encoded, core.encoder_norm) if norm_order == "pre" else encoded
    for block in core.decoder:
        hidden = decoder_block(hidden, encoded, block)
    hidden = layer_norm(hidden, core.decoder_norm) if norm_order == "pre" else hidden
    padded = Padded(source[None], torch.tensor([7]))
    close(core.encode(padded).items[0], encoded)
    close(core(targets[None], core.start(padded))[0], hidden)


def test_blocks_of_gpt_are_the_formula():
    config = TransformerConfig(
        layers=3,
        width=12,
        heads=3,
        feedforward=17,
        norm_order="post",
        positions=NoPositionsConfig(),
    )
    core = randomize(Transformer(config, encodes=False).double().eval())
    items = torch.randn(5, 12).double()
    hidden = items
    for block in core.decoder:
        hidden = decoder_block(
            hidden, None, block
        )  # h_mid = LN(h + MultiHead(h)), h_out = LN(h_mid + FFN(h_mid))
    close(core(items[None], core.start(None))[0], hidden)


def test_add_and_norm_is_batch_norm_with_the_axes_exchanged():
    residual, part = Residual(6, order="post").double(), nn.Linear(6, 6).double()
    batch_norm = nn.BatchNorm1d(9, affine=False, eps=residual.norm.eps).double().train()
    items = torch.randn(9, 6).double() * 3 + 2
    close(
        residual(items, part), batch_norm((items + part(items)).T).T
    )  # items are the features, numbers the batch
    other_axis = nn.BatchNorm1d(6, affine=False, eps=residual.norm.eps).double().train()
    assert (residual(items, part) - other_axis(items + part(items))).abs().max() > 0.1


def test_add_and_norm_does_not_depend_on_the_other_rows_as_batch_norm_does():
    residual, part = Residual(6, order="post").double(), nn.Linear(6, 6).double()
    batch_norm = nn.BatchNorm1d(6, affine=False).double().train()
    items = torch.randn(9, 6).double()
    close(residual(items, part)[:4], residual(items[:4], part))
    assert (batch_norm(items)[:4] - batch_norm(items[:4])).abs().max() > 0.1


def dependence(*, layers: int, norm_order: str, seed: int, gain: float = 1.0) -> Tensor:
    """Return the Jacobian norms of all outputs u_i of an untrained encoder for all inputs x_j."""
    torch.manual_seed(seed)
    core = core_of(layers=layers, norm_order=norm_order)
    with torch.no_grad():
        for block in core.encoder if gain != 1 else ():  # the last layers of the branches
            block.attention.output.weight.mul_(gain)
            block.feedforward.contract.weight.mul_(gain)
    items = torch.randn(9, 12, dtype=torch.float64)

    def encode(items: Tensor) -> Tensor:
        return core.encode(Padded(items[None], torch.tensor([9]))).items[0]

    jacobian = torch.autograd.functional.jacobian(encode, items, vectorize=True)
    return jacobian.transpose(1, 2).flatten(2).norm(dim=-1)


def share_of_own(*, layers: int, norm_order: str) -> float:
    """Return the share of outputs that depend most on their own input, of the seeds 0 to 39."""
    parts = [dependence(layers=layers, norm_order=norm_order, seed=seed) for seed in range(40)]
    norms = torch.stack(parts)
    assert (norms > 0).all()  # each depends on all inputs
    return float((norms.argmax(-1) == torch.arange(9)).double().mean())


@pytest.mark.parametrize(
    ("layers", "norm_order"), [(1, "post"), (1, "pre"), (6, "post"), (6, "pre")]
)
def test_outputs_depend_on_all_inputs_and_almost_all_most_on_their_own(layers, norm_order):
    assert share_of_own(layers=layers, norm_order=norm_order) > 0.9


def test_without_residual_connections_outputs_depend_on_all_inputs_not_most_on_their_own():
    assert share_of_own(layers=1, norm_order="none") < 0.9
    assert share_of_own(layers=6, norm_order="none") < 2 / 9  # chance is 1 / 9


def test_six_blocks_with_large_branches_depend_on_all_inputs_and_not_always_most_on_their_own():
    # branches that are not divided by the root of their number, as Glorot weights make them
    norms = torch.stack(
        [dependence(layers=6, norm_order="post", seed=seed, gain=12**0.5) for seed in range(3)]
    )
    assert (norms > 0).all()
    share = (norms.argmax(-1) == torch.arange(9)).double().mean()
    assert 1 / 9 < share < 1  # the claim is conditional


def rows_of_tables(page: Path) -> list[list[str]]:
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return [[cell.strip().strip("*") for cell in line.strip("|").split("|")] for line in lines]


def test_figures_of_multi30k_are_those_of_the_results():
    results = json.loads(
        (ROOT / "benchmarks" / "results" / "multi30k.json").read_text(encoding="utf-8")
    )
    rows = rows_of_tables(ROOT / "benchmarks" / "README.md")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, result in results.items():
        figures = [f"{result['weights'] / 1e6:.2f} M", f"{result['bleu']:.2f}"]
        assert sum(row[1:3] == figures for row in rows) == 1, (name, figures)
    for name in ("Transformer", "RNN, additive attention", "RNN, no attention"):
        assert f"{results[name]['bleu']:.2f}" in readme


def test_transformer_is_above_the_rnn_and_attention_above_none_in_the_results():
    results = json.loads(
        (ROOT / "benchmarks" / "results" / "multi30k.json").read_text(encoding="utf-8")
    )
    transformer, attention, none = (
        results[name] for name in ("Transformer", "RNN, additive attention", "RNN, no attention")
    )
    assert transformer["bleu"] > attention["bleu"] > none["bleu"]
    losses = []
    for result in (transformer, attention, none):
        trained = [part["bleu"] for part in result["by_length"] if part["words"] < 20]
        losses.append(1 - trained[-1] / trained[0])
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    (stated,) = re.findall(r"lose (\d+) % of their BLEU, the RNN without attention (\d+) %", text)
    assert [round(100 * loss) for loss in losses] == [
        int(stated[0]),
        int(stated[0]),
        int(stated[1]),
    ]
