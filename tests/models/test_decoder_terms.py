"""Contributions of a decoder's parts: they sum to the logit, for every norm and order."""

import pytest
import torch
from torch import nn

from regard.attention.masks import Padded
from regard.models.build import build_token_reader
from regard.models.config import LanguageModelConfig
from regard.models.cores.config import TransformerConfig
from regard.models.cores.transformer import Transformer
from regard.models.decoder_terms import explain_decoder
from regard.models.model import Model
from regard.models.writers.tokens import TokenWriter
from regard.models.writers.vector import NoTermsError
from tests.helpers import close

DIM, VOCAB = 12, 9


def make(*, reads_source: bool = True, embedding: int = DIM, **fields: object) -> Model:
    core = Transformer(layers=2, width=DIM, heads=2, feedforward=16, encodes=reads_source, **fields)
    config = LanguageModelConfig(
        core=TransformerConfig(width=DIM), embedding_dim=None if embedding == DIM else embedding
    )
    reader = build_token_reader(config, VOCAB)
    writer = TokenWriter(reader, output_bias=not reads_source)
    model = Model(reader=reader if reads_source else None, core=core, writer=writer)
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases are not trivial
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def inputs() -> tuple[Padded, Padded]:
    tokens = torch.randint(VOCAB, (2, 5)), torch.randint(VOCAB, (2, 6))
    return Padded(tokens[0], torch.tensor([5, 3])), Padded(tokens[1], torch.tensor([6, 4]))


@pytest.mark.parametrize(
    ("order", "norm"),
    [("pre", "layer"), ("post", "layer"), ("pre", "rms"), ("post", "rms"), ("none", "layer")],
)
@pytest.mark.parametrize("reads_source", [True, False])
@pytest.mark.parametrize("embedding", [DIM, 5])
def test_parts_sum_to_the_logits(order: str, norm: str, reads_source: bool, embedding: int) -> None:
    scale = 0.5 if norm == "rms" else None
    model = make(
        reads_source=reads_source,
        embedding=embedding,
        norm_order=order,
        norm=norm,
        layer_scale=scale,
    )
    source, target = inputs()
    source = source if reads_source else None
    found = explain_decoder(model, source, target)
    logits = model(source, target)[:, :5]
    expected = logits.gather(-1, target.items[:, 1:, None]).squeeze(-1) - logits.mean(-1)
    close(found.total, expected)
    assert found.terms.shape == (2, len(found.parts), 5)
    if order == "none":
        assert found.parts == ("layer 2: feed-forward",)
        return
    kinds = ["self-attention", *(["cross-attention"] if reads_source else []), "feed-forward"]
    assert found.parts == (
        "embedding",
        *(f"layer {layer}: {kind}" for layer in (1, 2) for kind in kinds),
    )
    assert (found.bias.abs().max() > 0) == (norm == "layer" or not reads_source)


def normalized(x: torch.Tensor, norm: nn.Module, at: torch.Tensor) -> torch.Tensor:
    """Return LayerNorm of x with the deviation of `at`, without its shift."""
    deviation = (at.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    return (x - x.mean(-1, keepdim=True)) / deviation * norm.weight


def test_last_parts_by_hand() -> None:
    """Before the final norm, the stream is the last block's output: feed-forward adds a term."""
    model, (source, target) = make(norm_order="pre"), inputs()
    core, outputs = model.core, {}
    block = core.decoder[-1]
    handles = [
        block.feedforward.register_forward_hook(lambda *call: outputs.update(feedforward=call[2])),
        block.register_forward_hook(lambda *call: outputs.update(stream=call[2])),
    ]
    found = explain_decoder(model, source, target)
    for handle in handles:
        handle.remove()
    table = model.writer.output_table.weight
    direction = table[target.items[:, 1:]] - table.mean(0)
    term = normalized(outputs["feedforward"], core.decoder_norm, outputs["stream"])
    close(found.terms[:, -1], (term * direction).sum(-1))
    close(found.bias, (core.decoder_norm.bias * direction).sum(-1))


def test_a_part_that_adds_nothing_contributes_nothing() -> None:
    model, (source, target) = make(norm_order="post"), inputs()
    with torch.no_grad():
        cross = model.core.decoder[0].cross
        for parameter in cross.output.parameters():
            parameter.zero_()
    found = explain_decoder(model, source, target)
    part = found.parts.index("layer 1: cross-attention")
    assert found.terms[:, part].abs().max() == 0
    assert found.terms[:, part - 1].abs().max() > 0


class Scaled(nn.Module):
    """Norm that is none of ours."""

    def __init__(self, dim: int):
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh()


def test_what_is_no_sum_is_refused() -> None:
    source, target = inputs()
    with pytest.raises(NoTermsError, match="norm Scaled is neither LayerNorm nor RMSNorm"):
        explain_decoder(make(norm=Scaled), source, target)
    model = make()
    handle = model.core.decoder[0].register_forward_hook(lambda *call: 2 * call[2])
    with pytest.raises(NoTermsError, match="do not sum to the scores"):
        explain_decoder(model, source, target)
    handle.remove()
    explain_decoder(model, source, target)
    assert not [hook for module in model.modules() for hook in module._forward_pre_hooks.values()]
